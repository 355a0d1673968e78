"""Random operations on conversations, held against a small model of the rules.

The model knows the contract and nothing of the code: turns with a position and a successor, a counter of changes, a
hash chain. After each sequence everything that the API tells of a conversation must be what the model says. Operations
sent at the same moment are put in order by the `rev` that each answer carries. A sequence follows from seed and number.

An operation that had to be sent again (a kill, a hang-up) took effect wholly or not at all, at a moment that its answer
does not tell. Then the model reads what stands and must find an order of the operations that gives exactly that.
"""

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import httpx

from tests.support.api import Client

SHARED_WORD = "quokka"
UNANSWERED = "unanswered"
"""Extension of a response: how often its request had been sent before without a clear answer."""
MAX_OPERATIONS = 18


@dataclass
class ModelTurn:
    """One turn as the rules have it."""

    id: str
    seq: int
    position: int
    rev: int
    role: str
    text: str | None
    tokens: int
    supersedes: str | None = None
    superseded_by: str | None = None
    origin: str | None = None
    call: str | None = None
    answers: str | None = None
    erased: bool = False

    @property
    def live(self) -> bool:
        return self.superseded_by is None


@dataclass
class ModelConversation:
    """One conversation as the rules have it, and where its chain starts."""

    id: str
    start: str = "0" * 64
    rev: int = 0
    turns: list[ModelTurn] = field(default_factory=list)
    parent: str | None = None

    def turn(self, turn_id: str) -> ModelTurn:
        return next(turn for turn in self.turns if turn.id == turn_id)

    def history(self) -> list[ModelTurn]:
        return sorted((turn for turn in self.turns if turn.live), key=lambda turn: turn.position)

    def versions(self) -> list[ModelTurn]:
        return sorted(self.turns, key=lambda turn: (turn.position, turn.seq))

    def recalled(self) -> set[str]:
        return {turn.id for turn in self.turns if turn.live and not turn.erased and turn.role != "system"}

    def has_call(self, call: str | None, before: int) -> bool:
        return any(turn.call == call and turn.position < before for turn in self.history() if not turn.erased)

    def shown(self) -> set[str]:
        """What a context shows: everything live, results only behind a call that is shown, the first one only."""
        shown: set[str] = set()
        answered: set[str] = set()
        for turn in self.history():
            if turn.erased:
                continue
            if turn.answers is not None:
                if turn.answers in answered or not self.has_call(turn.answers, turn.position):
                    continue
                answered.add(turn.answers)
            shown.add(turn.id)
        return shown

    # what operations do

    def append(self, given: list[dict[str, Any]], answer: dict[str, Any]) -> None:
        self.rev += 1
        for body, stored in zip(given, answer["turns"], strict=True):
            seq = len(self.turns) + 1
            self.turns.append(_turn(body, stored, seq=seq, position=seq, rev=self.rev))

    def revise(self, old_id: str, body: dict[str, Any], answer: dict[str, Any]) -> None:
        self.rev += 1
        old, seq = self.turn(old_id), len(self.turns) + 1
        assert old.live, "a superseded turn was superseded again"
        new = _turn({"role": old.role} | body, answer["turn"], seq=seq, position=old.position, rev=self.rev)
        new.supersedes = old_id
        gone = [old]
        if body.get("truncate_after"):
            gone += [turn for turn in self.turns if turn.live and turn.position > old.position]
        for turn in gone:
            turn.superseded_by, turn.rev = new.id, self.rev
        assert answer["superseded_count"] == len(gone)
        self.turns.append(new)

    def erase(self, ids: list[str], *, only_this: bool) -> None:
        named = [turn for turn in self.turns if turn.id in ids]
        if not only_this:
            named = [turn for turn in self.turns if turn.position in {one.position for one in named}]
        fresh = [turn for turn in named if not turn.erased]
        self.rev += bool(fresh)
        for turn in fresh:
            turn.erased, turn.text, turn.tokens, turn.rev = True, None, 0, self.rev
            turn.call = turn.answers = None

    def fork(self, through: str | None) -> list[ModelTurn]:
        last = None if through is None else self.turn(through).position
        return [turn for turn in self.history() if not turn.erased and (last is None or turn.position <= last)]


def _turn(body: dict[str, Any], stored: dict[str, Any], *, seq: int, position: int, rev: int) -> ModelTurn:
    calls = body.get("tool_calls")
    return ModelTurn(
        stored["id"], seq, position, rev, body["role"], body["content"], stored["content_tokens"],
        call=calls[0]["id"] if calls else None, answers=body.get("tool_call_id"),
    )  # fmt: skip


@dataclass
class Done:
    """One operation with its answer: on what, and how the model follows it."""

    name: str
    conversation: str
    answer: httpx.Response
    apply: Callable[[ModelConversation], None]
    may_fail: Callable[[ModelConversation, httpx.Response], bool]
    through: str | None = None

    def __str__(self) -> str:
        unsure = " at last" if self.unsure else ""
        return f"{self.name} answered{unsure} {self.answer.status_code} {self.answer.text[:600]}"

    @property
    def took_effect(self) -> bool:
        return self.answer.status_code in {200, 201, 204}

    @property
    def unsure(self) -> bool:
        """Whether it may have been done by an attempt before the one that was answered."""
        return self.answer.extensions.get(UNANSWERED, 0) > 0


Operation = Callable[[], Awaitable[Done]]


class Walk:
    """One sequence. `modes` are those of recall in which everything must be found."""

    def __init__(self, client: Client, seed: int, number: int, *, modes: Sequence[str] = ("text",)) -> None:
        self.client = client
        self.name = f"{seed}:{number}"
        self.modes = modes
        self.chance = random.Random(self.name)  # noqa: S311 - repeatable on purpose
        self.model: dict[str, ModelConversation] = {}
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.counts: Counter[str] = Counter()
        self.words = 0
        self.keys = 0

    async def run(self) -> None:
        made = await self.client.post(
            "/v1/conversations", json={"compaction": {"strategy": "never"}}, headers=self.key()
        )
        assert made.status_code == 201, made.text
        first = made.json()["id"]
        self.model[first] = ModelConversation(first)
        await self.step([self.append(first)])
        for _ in range(self.chance.randint(4, MAX_OPERATIONS)):
            if not self.model:
                break
            conversation = self.chance.choice(sorted(self.model))
            if self.chance.random() < 0.3:
                together = [self.pick(conversation) for _ in range(self.chance.randint(2, 4))]
                await self.step(together)
            else:
                await self.step([self.pick(conversation)])
        for conversation in sorted(self.model):
            await check(self.client, self.model[conversation], self.modes)
        listed = (await self.client.get("/v1/conversations", params={"limit": 200})).json()["data"]
        assert {one["id"] for one in listed} == set(self.model), "there are conversations that nobody made"

    def pick(self, conversation: str) -> Operation:
        if not self.model[conversation].turns:  # a fork of tombstones alone
            return self.append(conversation)
        name = self.chance.choices(
            ["append", "revise", "erase", "fork", "retry", "delete"], weights=[8, 8, 4, 2, 2, 0.4]
        )[0]
        return getattr(self, name)(conversation)

    def key(self) -> dict[str, str]:
        """What makes the next request one that may be sent again."""
        self.keys += 1
        return {"Idempotency-Key": f"{self.name}:{self.keys}"}

    async def step(self, operations: list[Operation]) -> None:
        """Send operations at the same moment, and let the model follow in the order in which they took effect."""
        done = await asyncio.gather(*(operation() for operation in operations))
        try:
            await self.follow_all(done)
        except AssertionError as error:
            error.add_note("sent together: " + "\n".join(map(str, done)))
            raise

    async def follow_all(self, done: list[Done]) -> None:
        conversation = self.model[done[0].conversation]
        deletions = [one for one in done if one.name == "delete"]
        # a deletion whose first answer was lost finds nothing any more when it is sent again
        deleted = any(one.took_effect or (one.unsure and one.answer.status_code == 404) for one in deletions)
        # what was done, not answered and then deleted with all else is told of by nobody, except a fork made in between
        unseen = deleted and any(one.unsure and one.answer.status_code == 404 for one in done if one.name != "delete")
        ordered = [one for one in done if one.took_effect and one.name in {"append", "revise", "erase"}]
        histories = [] if unseen else await self.histories(conversation, ordered, deleted=deleted)
        moments = [moment for history in histories for moment in history]
        self.judge(done, moments, deleted=deleted, unseen=unseen)
        for one in done:
            if one.name == "fork" and one.answer.status_code == 201:
                await self.follow_fork(one, moments, unseen=unseen)
        if deleted:
            del self.model[conversation.id]
            answer = await self.client.get(f"/v1/conversations/{conversation.id}")
            assert answer.status_code == 404
        else:
            self.model[conversation.id] = histories[0][-1]

    def judge(self, done: list[Done], moments: list[ModelConversation], *, deleted: bool, unseen: bool) -> None:
        """Count what took effect, and fail if anything was refused that could not be at any of these moments."""
        for one in done:
            lost = one.name == "delete" and one.unsure
            if one.took_effect or (lost and one.answer.status_code == 404):
                self.counts[one.name] += 1
                continue
            self.counts[f"{one.name} refused"] += 1
            excused = unseen or (deleted and one.answer.status_code == 404)
            assert excused or any(one.may_fail(moment, one.answer) for moment in moments), (one.name, one.answer.text)

    async def histories(
        self, conversation: ModelConversation, ordered: list[Done], *, deleted: bool
    ) -> list[list[ModelConversation]]:
        """The moments from before these operations until after them, by every order that explains what is there."""
        if not any(one.unsure for one in ordered):
            # what found everything erased already comes after whoever erased it
            ordered.sort(key=lambda one: (one.answer.json()["rev"], one.answer.json().get("erased") == []))
            return [follow(conversation, ordered)]
        self.counts["resolved by reading"] += 1
        fitting: list[list[ModelConversation]] = []
        told = [] if deleted else await self.read(conversation.id)
        # an erasure that is sent again erases what took the place of its turns meanwhile, or changes nothing
        again = [one for one in ordered if one.unsure and one.name == "erase"]
        for order in permutations([*ordered, *again]):
            try:
                history = follow(conversation, order)
            except AssertionError:
                continue  # an answer says that it was not in this order
            if deleted or told == [history[-1].rev, *map(_modelled, history[-1].versions())]:
                fitting.append(history)
        assert fitting, f"no order of {[one.name for one in ordered]} gives what is there: {told}"
        return fitting

    async def read(self, conversation: str) -> list[object]:
        head = (await self.client.get(f"/v1/conversations/{conversation}")).json()
        return [head["rev"], *map(_told, await self.client.history(conversation, include_superseded=True))]

    # operations

    def text(self) -> str:
        self.words += 1
        return f"{SHARED_WORD} w{self.words}"

    def append(self, conversation: str) -> Operation:
        turns: list[dict[str, Any]] = []
        for _ in range(self.chance.randint(1, 3)):
            role = self.chance.choices(["user", "assistant", "system"], weights=[5, 5, 1])[0]
            turns.append({"role": role, "content": self.text()})
        if self.chance.random() < 0.3:
            call = f"call{self.words}"
            calls = [{"id": call, "name": "look", "arguments": "{}"}]
            turns += [
                {"role": "assistant", "content": self.text(), "tool_calls": calls},
                {"role": "tool", "content": self.text(), "tool_call_id": call},
            ]
        if self.chance.random() < 0.3:
            turns[0]["id"] = f"01ARZ3NDEK{self.chance.getrandbits(64):016X}"
            self.sent.append((conversation, deepcopy(turns[0])))
        path, key = f"/v1/conversations/{conversation}/turns", self.key()

        async def send() -> Done:
            answer = await self.client.post(path, json={"turns": turns}, headers=key)
            return Done("append", conversation, answer, lambda c: c.append(turns, answer.json()), _never)

        return send

    def revise(self, conversation: str) -> Operation:
        old = self.chance.choice(self.model[conversation].turns)
        body: dict[str, Any] = {"content": self.text(), "truncate_after": self.chance.random() < 0.2}
        # a tool turn has to answer something; a tombstone does not say any more what
        answers = old.answers or "call0"
        if old.role == "tool":
            body["tool_call_id"] = answers

        def may_fail(moment: ModelConversation, answer: httpx.Response) -> bool:
            now = moment.turn(old.id)
            if answer.json()["code"] == "already_superseded":
                return answer.json()["superseded_by"] == now.superseded_by
            return answer.json()["code"] == "tool_call_unknown" and not moment.has_call(answers, now.position)

        path, key = f"/v1/conversations/{conversation}/turns/{old.id}/revisions", self.key()

        async def send() -> Done:
            answer = await self.client.post(path, json=body, headers=key)
            return Done("revise", conversation, answer, lambda c: c.revise(old.id, body, answer.json()), may_fail)

        return send

    def erase(self, conversation: str) -> Operation:
        turns = self.model[conversation].turns
        ids = [turn.id for turn in self.chance.sample(turns, min(len(turns), self.chance.randint(1, 3)))]

        only_this = self.chance.random() < 0.3

        async def send() -> Done:
            params = {"ids": ids} | ({"only_this": True} if only_this else {})
            answer = await self.client.delete(f"/v1/conversations/{conversation}/turns", params=params)
            return Done("erase", conversation, answer, lambda c: c.erase(ids, only_this=only_this), _never)

        return send

    def retry(self, conversation: str) -> Operation:
        own = [turn for where, turn in self.sent if where == conversation]
        stored = {turn.id for turn in self.model[conversation].turns}
        own = [turn for turn in own if turn["id"] in stored]
        if not own:
            return self.append(conversation)
        turn = self.chance.choice(own)

        def may_fail(moment: ModelConversation, answer: httpx.Response) -> bool:
            return answer.json()["code"] == "turn_erased" and moment.turn(turn["id"]).erased

        async def send() -> Done:
            answer = await self.client.post(f"/v1/conversations/{conversation}/turns", json={"turns": [turn]})
            assert answer.status_code != 201, "a turn was stored twice"
            return Done("retry", conversation, answer, lambda _: None, may_fail)

        return send

    def delete(self, conversation: str) -> Operation:
        async def send() -> Done:
            answer = await self.client.delete(f"/v1/conversations/{conversation}")
            return Done("delete", conversation, answer, lambda _: None, _never)

        return send

    def fork(self, conversation: str) -> Operation:
        through = None
        if self.chance.random() < 0.6:
            through = self.chance.choice(self.model[conversation].turns).id
        body = {} if through is None else {"through": through}
        path, key = f"/v1/conversations/{conversation}/fork", self.key()

        def may_fail(moment: ModelConversation, answer: httpx.Response) -> bool:
            return answer.json()["code"] == "already_superseded" and not moment.turn(through or "").live

        async def send() -> Done:
            answer = await self.client.post(path, json=body, headers=key)
            return Done("fork", conversation, answer, lambda _: None, may_fail, through)

        return send

    async def follow_fork(self, one: Done, moments: list[ModelConversation], *, unseen: bool) -> None:
        """A fork is its parent at one of these moments, or at one that was never told of."""
        through, made = one.through, one.answer.json()
        copies = await self.client.history(made["id"], include_superseded=True)
        fork = ModelConversation(made["id"], rev=int(bool(copies)), parent=one.conversation)
        for seq, copy in enumerate(copies, start=1):
            turn = _turn(copy, copy, seq=seq, position=seq, rev=1)
            turn.origin = copy["origin_turn_id"]
            fork.turns.append(turn)
        forked = [
            [(turn.id, turn.text, turn.role, turn.call, turn.answers) for turn in moment.fork(through)]
            for moment in moments
            if through is None or moment.turn(through).live
        ]
        told = [(turn.origin, turn.text, turn.role, turn.call, turn.answers) for turn in fork.turns]
        assert unseen or told in forked, "a fork is its parent at no moment"
        parent = await self.client.get(f"/v1/conversations/{one.conversation}/turns/{through}") if through else None
        if parent is not None and parent.status_code == 200:
            fork.start = parent.json()["chain_hash"]
        else:
            fork.start = ""  # the parent went on or is gone: where its chain was is not known any more
        self.model[fork.id] = fork


def follow(conversation: ModelConversation, order: Sequence[Done]) -> list[ModelConversation]:
    """What a conversation becomes, operation by operation; fails where an answer contradicts this order."""
    moments = [conversation]
    for one in order:
        moment = deepcopy(moments[-1])
        one.apply(moment)
        rev = one.answer.json()["rev"]
        # an answer that is rendered again says what its turns were changed by since
        assert rev == moment.rev or (one.unsure and rev > moment.rev), (
            f"no order of operations gives this rev: {one.name}, {rev}, {moment.rev}"
        )
        moments.append(moment)
    return moments


def _never(_moment: ModelConversation, _answer: httpx.Response) -> bool:
    return False


async def check(client: Client, model: ModelConversation, modes: Sequence[str]) -> None:
    """Fail unless everything that the API tells of a conversation is what the model says."""
    head = (await client.get(f"/v1/conversations/{model.id}")).json()
    live = model.history()
    assert head["last_seq"] == len(model.turns)
    assert head["rev"] == model.rev
    assert head["turn_count"] == len(live)
    assert head["token_count"] == sum(turn.tokens for turn in live)
    assert head["forked_from"] == model.parent
    for include, expected in ((False, live), (True, model.versions())):
        told = await client.history(model.id, include_superseded=include, limit=7)
        assert [_told(turn) for turn in told] == [_modelled(turn) for turn in expected]
    await _check_chain(client, model, head["head_hash"])
    # no more than there are: what is dead must not take the place of what lives
    for mode in modes:
        hits = await client.recall(model.id, SHARED_WORD, mode=mode, k=max(1, len(model.recalled())))
        assert {hit["id"] for hit in hits} == model.recalled(), mode
    if model.shown():
        context = await client.context(model.id, 100_000, recent_turns=200)
        assert set(context["included"]["turn_ids"]) == model.shown()


async def _check_chain(client: Client, model: ModelConversation, head_hash: str) -> None:
    found = (await client.get(f"/v1/conversations/{model.id}/verify")).json()
    erased = sum(turn.erased for turn in model.turns)
    assert found["first_break"] is None
    assert (found["turns"], found["erased"]) == (len(model.turns), erased)
    assert found["verified_content"] == len(model.turns) - erased
    assert found["head_hash"] == head_hash
    if not model.start or not model.turns:
        return
    chain = bytes.fromhex(model.start)
    for turn in sorted(await client.history(model.id, include_superseded=True), key=lambda turn: turn["seq"]):
        lines = [turn["id"], str(turn["seq"]), turn["role"], turn["kind"], turn["created_at"], turn["content_hash"]]
        chain = hashlib.sha256(chain + "\n".join(lines).encode()).digest()
        assert chain.hex() == turn["chain_hash"]
    assert chain.hex() == head_hash


def _told(turn: dict[str, Any]) -> tuple[object, ...]:
    return (
        turn["id"], turn["seq"], turn["position"], turn["rev"], turn["role"], turn["content"], turn["content_tokens"],
        turn["supersedes"], turn["superseded_by"], turn["origin_turn_id"], turn["erased_at"] is not None,
    )  # fmt: skip


def _modelled(turn: ModelTurn) -> tuple[object, ...]:
    return (
        turn.id, turn.seq, turn.position, turn.rev, turn.role, turn.text, turn.tokens,
        turn.supersedes, turn.superseded_by, turn.origin, turn.erased,
    )  # fmt: skip


async def run_sequence(client: Client, seed: int, number: int, *, modes: Sequence[str] = ("text",)) -> Counter[str]:
    """One sequence of a seed; says how many of each operation took effect or were refused."""
    walk = Walk(client, seed, number, modes=modes)
    try:
        await walk.run()
    except AssertionError as error:
        error.add_note(f"sequence {number} of seed {seed}")
        raise
    return walk.counts
