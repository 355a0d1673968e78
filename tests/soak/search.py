"""Random histories on two processes, and their search held against a slow reference.

Each history is one tenant's: writers append, revise, erase, fork, delete, assert facts and store memories through two
services at the same time, each with its own memory, while searches go on. Notices of deletions are lost, doubled or
delayed at random. A searcher that has seen an erasure acknowledged must never see the turn again, and one that has seen
an append acknowledged must find it at once, on either service.

When the writers are done, both services must match in every scope what the reference computes from the rows alone, one
entry at a time, with dictionaries: the entries, their cosine, BM25, share of words, cues and places.
"""

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import numpy as np
from pgvector.asyncpg import register_vector

from app.core.ids import KeyId, parse_id
from app.index.analyser.word_weights import WordWeights
from app.index.schemas import BM25_B, BM25_K1, EntryKind, Mode, SearchResult, SearchScope
from app.index.service import PreparedQuery
from app.recall.ranking import Question, estimate
from app.tenancy.schemas import Caller
from app.tenancy.schemas import Scope as KeyScope
from tests.support.api import Client, Service, open_service
from tests.support.postgres import TestDatabase

WORDS = [
    "parrot", "violin", "teacher", "harbour", "lighthouse", "peanut", "tortoise", "orchestra", "yesterday", "seven",
    "garden", "winter", "letter", "candle", "river", "the", "of", "my",
]  # fmt: skip
ACTORS, OWNERS, PROJECTS = ("ann", "bob", "eve"), ("mia", "tom"), ("default", "p1")
_WEIGHTS = WordWeights()
UNANSWERED = "x-unanswered"
"""Header of the answer that a client gives itself if the server gives none."""


@dataclass
class History:
    """What the writers of one tenant did."""

    conversations: list[str] = field(default_factory=list)
    turns: dict[str, list[str]] = field(default_factory=dict)
    """The live turns by conversation."""
    erased: set[str] = field(default_factory=set)
    unanswered: list[tuple[str, str, int]] = field(default_factory=list)
    """Appends without an answer: the conversation, a word that only their turns have, and the number of turns."""
    counts: Counter[str] = field(default_factory=Counter)


@asynccontextmanager
async def open_pair(database: TestDatabase, folder: Path, **more: Any) -> AsyncIterator[tuple[Service, Service]]:
    """Two services on one database, each with its own memory and its own connections.

    All texts are English for them, as for the reference: of random words, some would look Italian.
    """
    async with (
        open_service(database, folder / "one", language="en", **more) as first,
        open_service(database, folder / "two", language="en", **more) as second,
    ):
        yield first, second


def disturb(service: Service, chance: random.Random) -> None:
    """Lose, double or delay the messages about deletions that a service gets."""
    resident = service.container.index.resident
    for name in ("remove_entries", "remove_conversation"):
        setattr(resident, name, _disturbed(getattr(resident, name), chance))


def _disturbed(remove: Callable[..., None], chance: random.Random) -> Callable[..., None]:
    def disturbed(*args: Any) -> None:
        for _ in range(chance.choice((0, 0, 1, 2))):
            if chance.random() < 0.5:
                remove(*args)
            else:
                asyncio.get_running_loop().call_later(chance.random(), remove, *args)

    return disturbed


def text_of(chance: random.Random) -> str:
    """Some words, sometimes a question."""
    words = [chance.choice(WORDS) for _ in range(chance.randint(1, 14))]
    return " ".join(words).capitalize() + chance.choice((".", "?", "!"))


@dataclass
class Writer:
    """One writer of a tenant: it changes by one service, and looks for the change by either."""

    client: Client
    other: Client
    history: History
    chance: random.Random

    async def write(self, steps: int) -> None:
        """Make some random changes."""
        actions = {
            self.append: 8, self.revise: 3, self.erase: 3, self.fork: 1, self.delete: 1, self.assert_fact: 2,
            self.store_memory: 2, self.delete_memory: 1, self.claim: 1,
        }  # fmt: skip
        await self.append(await self.make())
        for _ in range(steps):
            [action] = self.chance.choices(list(actions), list(actions.values()))
            if self.history.conversations:
                await action(self.chance.choice(self.history.conversations))

    async def make(self) -> str:
        chance = self.chance
        body = {"project": chance.choice(PROJECTS), "owner": chance.choice((*OWNERS, None))}
        conversation = await self.client.conversation(**body)
        self.history.turns[conversation] = []
        self.history.conversations.append(conversation)
        return conversation

    async def append(self, conversation: str) -> None:
        if self.chance.random() < 0.2:
            conversation = await self.make()
        await _append(self.client, self.other, self.history, self.chance, conversation)

    async def revise(self, conversation: str) -> None:
        live = self.history.turns[conversation]
        if live:
            turn = self.chance.choice(live)
            path = f"/v1/conversations/{conversation}/turns/{turn}/revisions"
            answer = await self.client.post(path, json={"content": text_of(self.chance)})
            if answer.is_success:
                live[:] = [one for one in live if one != turn] + [answer.json()["turn"]["id"]]
                self.history.counts["revised"] += 1

    async def erase(self, conversation: str) -> None:
        live = self.history.turns[conversation]
        if live:
            turn = live.pop(self.chance.randrange(len(live)))
            if (await self.client.delete(f"/v1/conversations/{conversation}/turns/{turn}")).is_success:
                self.history.erased.add(turn)
                self.history.counts["erased"] += 1

    async def fork(self, conversation: str) -> None:
        forked = await self.client.post(f"/v1/conversations/{conversation}/fork", json={})
        if forked.is_success:
            self.history.counts["forked"] += 1
            self.history.turns[forked.json()["id"]] = []
            self.history.conversations.append(forked.json()["id"])

    async def delete(self, conversation: str) -> None:
        if len(self.history.conversations) > 1 and conversation in self.history.conversations:
            self.history.conversations.remove(conversation)
            deleted = await self.client.delete(f"/v1/conversations/{conversation}")
            self.history.counts["deleted"] += deleted.is_success

    async def claim(self, conversation: str) -> None:
        await self.client.patch(f"/v1/conversations/{conversation}", json={"owner": self.chance.choice(OWNERS)})

    async def assert_fact(self, conversation: str) -> None:
        body = {"subject": self.chance.choice(OWNERS), "predicate": "likes", "object": self.chance.choice(WORDS)}
        answer = await self.client.post("/v1/facts", json=body | {"conversation_id": conversation})
        self.history.counts["asserted"] += answer.is_success

    async def store_memory(self, _conversation: str) -> None:
        body = {"content": text_of(self.chance), "owner": self.chance.choice(OWNERS)}
        metadata = {"metadata": {"n": self.chance.randint(0, 3)}}
        self.history.counts["stored"] += (await self.client.post("/v1/memories", json=body | metadata)).is_success

    async def delete_memory(self, _conversation: str) -> None:
        query = {"query": text_of(self.chance), "top_k": 1}
        for entry in (await self.client.post("/v1/memories/search", json=query)).json().get("entries", []):
            forgotten = await self.client.delete(f"/v1/memories/{entry['id']}")
            self.history.counts["forgotten"] += forgotten.is_success


async def _append(client: Client, other: Client, history: History, chance: random.Random, conversation: str) -> None:
    unique, common = f"w{uuid4().hex[:10]}", f"c{uuid4().hex[:10]}"
    turns = [
        {
            "role": chance.choice(("user", "assistant")),
            "actor": chance.choice(ACTORS),
            "content": f"{text_of(chance)} {common}",
            "metadata": {"n": chance.randint(0, 3)},
            "occurred_at": (datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=chance.randint(0, 4000))).isoformat(),
        }
        for _ in range(chance.choice((1, 1, 2, 5, 40)))
    ]
    turns[0]["content"] += f" {unique}"
    answer = await client.post(f"/v1/conversations/{conversation}/turns", json={"turns": turns})
    if UNANSWERED in answer.headers:
        history.unanswered.append((conversation, common, len(turns)))
    if not answer.is_success:
        return
    appended = [turn["id"] for turn in answer.json()["turns"]]
    for scope in (conversation, None):
        searched = await chance.choice((client, other)).post(
            "/v1/recall" if scope is None else f"/v1/conversations/{scope}/recall",
            json={"query": unique, "mode": "text", "k": 3},
        )
        if searched.status_code == 503:  # the database was away: this says nothing about the turn
            history.counts["refused"] += 1
            continue
        # another writer may have revised, erased or deleted it meanwhile
        hits = searched.json()["data"] if searched.is_success else []
        if not any(hit["id"] == appended[0] for hit in hits):
            turn = await client.get(f"/v1/conversations/{conversation}/turns/{appended[0]}")
            assert turn.status_code == 404 or turn.json().get("superseded_by") or turn.json().get("erased_at"), (
                turn.text
            )
    history.turns[conversation].extend(appended)


async def search_always(
    clients: Sequence[Client], history: History, chance: random.Random, done: asyncio.Event
) -> None:
    """Search while the writers write: what was erased before a search began is never found by it."""
    while not done.is_set():
        known = set(history.erased)
        scope = chance.choice([None, *history.conversations[-3:]])
        answer = await chance.choice(list(clients)).post(
            "/v1/recall" if scope is None else f"/v1/conversations/{scope}/recall",
            json={"query": text_of(chance), "k": 50, "mode": chance.choice(("hybrid", "text"))},
        )
        if answer.is_success:
            found = {hit["id"] for hit in answer.json()["data"]}
            assert not found & known, "an erased turn was found"
            history.counts["searches"] += 1


async def write_at_once(one: Client, two: Client, history: History, chance: random.Random, *, steps: int) -> None:
    """Let three writers write, two by the first service and one by the second."""
    async with asyncio.TaskGroup() as writers:
        for client, other in ((one, two), (two, one), (one, two)):
            own = random.Random(chance.random())  # noqa: S311 - repeatable, not secret
            writers.create_task(Writer(client, other, history, own).write(steps))


async def run_history(pair: tuple[Service, Service], seed: int, number: int, *, steps: int = 12) -> Counter[str]:
    """Run one history, and hold the search of both services against the reference."""
    chance = random.Random(f"{seed}-{number}")  # noqa: S311 - repeatable, not secret
    async with await pair[0].new_tenant() as one, pair[1].client(one.key) as two:
        two.tenant_id = one.tenant_id
        history = History()
        done = asyncio.Event()
        searching = asyncio.create_task(search_always((one, two), history, random.Random(chance.random()), done))  # noqa: S311
        await write_at_once(one, two, history, chance, steps=steps)
        done.set()
        await searching
        if chance.random() < 0.5:
            await pair[0].run_jobs()  # late vectors and dates
        await compare(pair, one, history, chance)
        return history.counts


# the reference


@dataclass(frozen=True)
class Row:
    """One entry as the database has it."""

    id: UUID
    kind: str
    conversation: UUID | None
    project: str
    owner: str | None
    agent: str | None
    actor: str | None
    role: str | None
    position: int | None
    session: int | None
    occurred_at: datetime
    metadata: dict[str, Any]
    counts: dict[str, int]
    length: int
    cues: int
    vectors: list[Any]


async def read_rows(superuser: str, tenant: UUID, space: int) -> list[Row]:
    """All live entries of a tenant, by the URL of a role that may read them."""
    connection = await asyncpg.connect(superuser)
    try:
        await register_vector(connection)
        entries = await connection.fetch(
            """
            select e.*, metadata::text as meta, array(
                select lexeme || chr(1) || coalesce(array_length(positions, 1), 1) from unnest(e.lexemes)
            ) as counted
            from index_entries e where tenant_id = $1 and live and coalesce(expires_at, 'infinity') > now()
            """,
            tenant,
        )
        vectors: dict[UUID, list[Any]] = {}
        for row in await connection.fetch(
            "select entry_id, embedding from vectors where tenant_id = $1 and space_id = $2", tenant, space
        ):
            vectors.setdefault(row["entry_id"], []).append(np.asarray(row["embedding"].to_numpy(), dtype=np.float64))
    finally:
        await connection.close()
    return [
        Row(
            row["entry_id"], row["kind"], row["conversation_id"], row["project"], row["owner"], row["agent_id"],
            row["actor"], row["role"], row["position"], row["session"], row["occurred_at"], json.loads(row["meta"]),
            {lexeme: int(count) for lexeme, _, count in (one.partition("\x01") for one in row["counted"])},
            row["doc_length"], row["cues"],
            vectors.get(row["entry_id"], []),
        )
        for row in entries
    ]  # fmt: skip


def in_scope(row: Row, scope: SearchScope) -> bool:
    """Whether an entry is in scope, one condition at a time."""
    return (
        row.kind in {kind.value for kind in scope.kinds}
        and (scope.conversation_ids is None or row.conversation in scope.conversation_ids)
        and (scope.project is None or row.project == scope.project or (row.kind == "fact" and row.project == ""))
        and (scope.owner is None or row.owner == scope.owner)
        and (scope.agent_id is None or row.kind != "memory" or row.agent == scope.agent_id)
        and (scope.actors is None or row.actor in scope.actors)
        and (scope.roles is None or row.role in scope.roles)
        and (scope.occurred_after is None or row.occurred_at > scope.occurred_after)
        and (scope.occurred_before is None or row.occurred_at < scope.occurred_before)
        and (scope.metadata is None or json.loads(scope.metadata).items() <= row.metadata.items())
    )


def match(rows: Sequence[Row], query: PreparedQuery) -> dict[UUID, tuple[float | None, float, float]]:
    """The cosine, BM25 and share of words of each entry."""
    mean = max(sum(row.length for row in rows) / len(rows), 1.0) if rows else 1.0
    words = query.words(["en"])
    frequencies = [sum(lexeme in row.counts for row in rows) for lexeme in words.lexemes]
    weights = _WEIGHTS.weights(words, frequencies, entries=len(rows))
    found: dict[UUID, tuple[float | None, float, float]] = {}
    for row in rows:
        norm = BM25_K1 * (1 - BM25_B + BM25_B * row.length / mean)
        bm25 = share = 0.0
        for lexeme, weight in zip(words.lexemes, weights, strict=True):
            count = row.counts.get(lexeme, 0)
            if count:
                bm25 += weight * (BM25_K1 + 1) * count / (count + norm)
                share += weight
        cosine = None
        if query.vector is not None and row.vectors:
            asked = np.asarray(query.vector, dtype=np.float64)
            cosine = max(float(one @ asked / (math.sqrt(one @ one) * math.sqrt(asked @ asked))) for one in row.vectors)
        found[row.id] = (cosine, bm25, share / (sum(weights) or 1.0))
    return found


def random_scope(rows: Sequence[Row], chance: random.Random) -> SearchScope:
    """A scope with some filters."""
    conversations = sorted({row.conversation for row in rows if row.conversation is not None})
    kinds = chance.choice(
        ([EntryKind.TURN], [EntryKind.TURN, EntryKind.SUMMARY], [EntryKind.FACT], [EntryKind.MEMORY], list(EntryKind))
    )
    chosen: dict[str, Any] = {}
    if conversations and chance.random() < 0.5:
        chosen["conversation_ids"] = chance.sample(conversations, chance.randint(1, min(3, len(conversations))))
    for name, values in (("project", PROJECTS), ("owner", OWNERS)):
        if chance.random() < 0.25:
            chosen[name] = chance.choice(values)
    if EntryKind.MEMORY in kinds and chance.random() < 0.5:
        chosen["agent_id"] = "default"
    if chance.random() < 0.2:
        chosen["actors"] = chance.sample(ACTORS, 2)
    if chance.random() < 0.2:
        chosen["roles"] = ["user"]
    if chance.random() < 0.2:
        chosen["metadata"] = '{"n": 1}'
    if chance.random() < 0.2:
        chosen["occurred_after"] = datetime(2024, 2, 1, tzinfo=UTC)
    if chance.random() < 0.2:
        chosen["occurred_before"] = datetime(2024, 5, 1, tzinfo=UTC)
    return SearchScope(kinds=kinds, **chosen)


async def compare(pair: tuple[Service, Service], client: Client, history: History, chance: random.Random) -> None:
    """Hold both services against the reference, in random scopes."""
    space = pair[0].container.ann.space.id
    rows = await read_rows(pair[0].database.superuser, client.tenant_id, space)
    erased = {parse_id(turn) for turn in history.erased}
    assert not erased & {row.id for row in rows}, "an erased turn has an entry"
    caller = Caller(client.tenant_id, KeyId(uuid4()), frozenset(KeyScope), agent_id=None, long_term_enabled=True)
    for _ in range(6):
        scope = random_scope(rows, chance)
        for service in pair:
            index = service.container.index
            text = text_of(chance)
            query = await index.prepare_query(
                text, Mode.HYBRID if chance.random() < 0.8 else Mode.TEXT, vector_text=text, names=["ann", "bob"]
            )
            async with service.container.database.transaction(client.tenant_id, read_only=True) as tx:
                found = await index.search(
                    caller,
                    tx,
                    scope=scope,
                    query=query,
                    min_candidates=10,
                    rank=lambda found: found,
                    estimate=partial(estimate, Question(query)),
                )
            check(found, [row for row in rows if in_scope(row, scope)], query)
            history.counts["comparisons"] += 1


def check(found: SearchResult, rows: Sequence[Row], query: PreparedQuery) -> None:
    """Compare a result with the reference."""
    wanted = match(rows, query)
    by_id = {row.id: row for row in rows}
    candidates = found.entries(range(len(found.cosine)))
    ids = [one.source_id for one in candidates]
    assert set(ids) == set(wanted), (len(ids), len(wanted))
    assert len(ids) == len(set(ids))
    for at, entry_id in enumerate(ids):
        cosine, bm25, share = wanted[entry_id]
        row = by_id[entry_id]
        assert np.isnan(found.cosine[at]) if cosine is None else abs(found.cosine[at] - cosine) < 1e-3
        assert abs(found.bm25[at] - bm25) < 1e-3 * (1 + bm25), row
        assert abs(found.word_share[at] - share) < 1e-4
        assert found.pieces[at] == len(row.vectors)
        assert found.cues[at] == row.cues
        assert found.position[at] == (-1 if row.position is None else row.position)
        assert candidates[at].conversation_id == row.conversation
        same = [n for n, other in enumerate(ids) if found.group[n] == found.group[at]]
        if row.session is not None:
            assert {(by_id[ids[n]].conversation, by_id[ids[n]].session) for n in same} == {
                (row.conversation, row.session)
            }
    placed = [by_id[ids[at]] for at in found.by_place.rows.tolist()]
    assert sorted(found.by_place.rows.tolist()) == list(range(len(ids)))
    for before, after in pairwise(placed):
        if before.conversation == after.conversation and before.position is not None and after.position is not None:
            assert before.position <= after.position
