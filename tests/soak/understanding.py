"""Crash proof of summaries, retention, facts and moves between embedding spaces: nothing is ever half done.

    .venv/bin/python -m tests.soak.understanding --kills 60 --state /tmp/understanding.json

Works in rounds, each with a new data directory and conversations of every retention and strategy. In each an author
appends, revises, erases, compacts, takes compactions back and has facts extracted, and an operator moves the
installation between two embedding spaces (`mover`), while the chat model and both embedding endpoints fail in every way
at random and the server, which is the worker too, and Postgres are killed with SIGKILL. Then all comes to rest and is
checked: against the authors' ledgers, by the doctor, for words that must be gone, facts that must be there and vectors
that must be there. What is erased has a summary standing for it, and what is held as a fact a turn that says it. The
state file is written after each round, and a run given the same file goes on after its last round.
"""

import argparse
import asyncio
import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import asyncpg

from app.core.ids import parse_id
from tests.soak.clients import Answer, Connection
from tests.soak.crash import Report, resume, save, say
from tests.soak.installation import Installation
from tests.soak.mover import DIMENSIONS, Mover, let_fail, settings_of
from tests.soak.walks import examine
from tests.support.fake_chat import CHAT_MODEL, FakeChat, Reply, open_fake_chat, says
from tests.support.fake_openai import FakeOpenAI, open_fake

_RETENTIONS = ("full", "audit_only", "ephemeral")
_STRATEGIES = ("rolling", "hierarchical")
_FAILURES = ("rate_limited", "error", "overloaded", "timeout", "garbage", "html", "filtered", "reset", "cut")
_ACTS = {"append": 12, "revise": 3, "erase": 2, "compact": 2, "undo": 2, "extract": 2}
_GIVE_UP_S = 120.0
_REST_S = 150.0
_OURS = ("conversation.compact", "conversation.retain", "conversation.facts", "facts.withdraw")
_SETTINGS = {
    "TURNKEEP_LLM_MODEL": CHAT_MODEL,
    "TURNKEEP_LLM_TIMEOUT_MS": "600",
    "TURNKEEP_LLM_JOB_TIMEOUT_S": "0.6",
    "TURNKEEP_LLM_MAX_RETRIES": "0",
    "TURNKEEP_JOB_LEASE_S": "2",
    "TURNKEEP_JOB_RETRY_MAX_S": "1",
    "TURNKEEP_JOB_MAX_ATTEMPTS": "8",
}


@dataclass(frozen=True)
class UnderstandingOptions:
    """One round. `failing`: the share of the models' answers that fail."""

    seed: int
    kills: int
    operations: int = 60
    failing: float = 0.4
    longest_pause_s: float = 3.0


@dataclass
class Ledger:
    """What one author knows of its conversation: what stands at each place, and what it has erased itself."""

    conversation: str
    retention: str
    texts: dict[str, str] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)
    erased: set[str] = field(default_factory=set)


class Author:
    """One conversation's author: one operation after the other, each sent until it is clear what became of it."""

    def __init__(self, ledger: Ledger, port: int, key: str, chance: random.Random) -> None:
        self.ledger = ledger
        self.counts: Counter[str] = Counter()
        self.wrongs: list[str] = []
        self._connection = Connection(port, key)
        self._chance = chance
        self._number = 0
        self._path = f"/v1/conversations/{ledger.conversation}"

    async def run(self, operations: int) -> None:
        """Do so many operations."""
        await self.append()
        for _ in range(operations):
            name = self._chance.choices(
                ["append", "revise", "erase", "compact", "undo", "extract"], weights=[12, 3, 2, 2, 2, 2]
            )[0]
            await getattr(self, name)()
            await asyncio.sleep(self._chance.uniform(0.0, 0.2))
        self._connection.close()

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[Answer, bool]:
        """Send a request until it is answered; says whether it may have been done by an attempt before."""
        give_up = time.monotonic() + _GIVE_UP_S
        unsure = False
        content = b"" if body is None else json.dumps(body).encode()
        while True:
            with suppress(OSError, EOFError, TimeoutError):
                answer = await self._connection.ask(method, self._path + path, body=content, timeout_s=30)
                if answer.status < 500 and answer.body.get("retryable") is not True:
                    return answer, unsure
            unsure = True
            if time.monotonic() > give_up:
                raise TimeoutError(f"no clear answer to {method} {path} within {_GIVE_UP_S:.0f} s")
            await asyncio.sleep(self._chance.uniform(0.05, 0.4))

    def wrong(self, what: str, answer: Answer) -> None:
        """Record a wrong answer."""
        self.wrongs.append(f"{self.ledger.retention}: {what} answered {answer.status} {str(answer.body)[:300]}")

    def words(self) -> tuple[str, str]:
        """A turn's id and text, which no other has."""
        self._number += 1
        turn_id = f"01ARZ3NDEK{self._chance.getrandbits(64):016X}"
        return turn_id, f"I like word{turn_id.lower()}. I paid {self._number} euros for it in Lisbon."

    def standing(self) -> list[str]:
        """The turns that stand and that the author has not erased, by place."""
        return [one for one in self.ledger.order if one not in self.ledger.erased]

    async def append(self) -> None:
        """Append some turns, which come back as tombstones at the worst."""
        made = [self.words() for _ in range(self._chance.randint(1, 5))]
        turns = [{"id": one, "role": "user", "content": text} for one, text in made]
        answer, unsure = await self.ask("POST", "/turns", {"turns": turns})
        # stored before, and erased by retention since: it says so, and stores nothing
        if answer.status in {200, 201} or (unsure and answer.body.get("code") == "turn_erased"):
            self.ledger.texts.update(made)
            self.ledger.order += [one for one, _ in made]
            self.counts["turns appended"] += len(made)
        else:
            self.wrong("an append", answer)

    async def revise(self) -> None:
        """Let another stand in the place of one."""
        if not (old := self.standing()):
            return
        victim, (new_id, text) = self._chance.choice(old), self.words()
        body = {"id": new_id, "content": text}
        answer, unsure = await self.ask("POST", f"/turns/{victim}/revisions", body)
        if answer.status in {200, 201} or (unsure and answer.body.get("code") == "turn_erased"):
            self.ledger.texts[new_id] = text
            self.ledger.order[self.ledger.order.index(victim)] = new_id
            self.ledger.replaced.add(victim)
            self.counts["turns revised"] += 1
        elif answer.body.get("code") == "sources_erased" and self.ledger.retention != "full":
            self.counts["revisions refused, for retention has erased the turn"] += 1
        else:
            self.wrong("a revision", answer)

    async def erase(self) -> None:
        """Erase one."""
        if not (old := self.standing()):
            return
        victim = self._chance.choice(old)
        answer, _ = await self.ask("DELETE", f"/turns/{victim}")
        if answer.status == 204:
            self.ledger.erased.add(victim)
            self.counts["turns erased by call"] += 1
        else:
            self.wrong("an erasure", answer)

    async def compact(self) -> None:
        """Move the mark while jobs do. The model may refuse; then nothing is changed."""
        answer, _ = await self.ask("POST", "/compact", {"trigger_turns": self._chance.randint(3, 8)})
        self.counts[f"compactions answered {answer.status}"] += 1

    async def undo(self) -> None:
        """Move the mark back, where that can be."""
        answer, _ = await self.ask("POST", "/compact/undo")
        if answer.status not in {200, 409}:
            self.wrong("an undo", answer)
        self.counts[f"undos answered {answer.body.get('code', answer.status)}"] += 1

    async def extract(self) -> None:
        """Look for facts while jobs do. The model may refuse; then nothing is changed."""
        answer, _ = await self.ask("POST", "/facts/extract", {})
        self.counts[f"extractions answered {answer.body.get('code', answer.status)}"] += 1


def obliging(request: dict[str, Any]) -> Reply:
    """What a model that is well answers to each of the three questions."""
    asked, shown = (message["content"] for message in request["messages"][:2])
    if "personal data" in asked:
        return says({"found": []})
    if "plainly say" not in asked:
        # the numbers only: no table may have the words of an erased turn
        paid = re.findall(r"\b\d+(?= euros|, )", shown)
        return says({"summary": f"I paid for it in Lisbon: {', '.join(paid[:60])} euros.", "abstract": "Words."})
    rest = {"confidence": 0.9, "valid_from": None, "negated": False, "hypothetical": False}
    told = re.findall(r"^\[(\d+)\] .*?I like (word\w+)", shown, re.MULTILINE)
    return says(
        {"facts": [{"turn": int(n), "subject": "I", "predicate": "likes", "object": what} | rest for n, what in told]}
    )


def moods(seed: int, failing: float) -> Any:
    """What the model answers: well, or one of its failures, at random."""
    chance = random.Random(f"{seed} model")  # noqa: S311 - repeatable, not secret

    def answer(request: dict[str, Any]) -> Reply:
        if chance.random() >= failing:
            return replace(obliging(request), delay_s=chance.uniform(0.0, 0.3))
        if chance.random() < 0.15:
            return Reply(refusal="I would rather not.")
        return Reply(mode=chance.choice(_FAILURES))

    return answer


async def run_round(options: UnderstandingOptions) -> Report:
    """One round from an empty database to the checks."""
    report = Report(violations=["the round did not come to its end"])
    async with open_fake_chat() as fake, open_fake() as first, open_fake() as second:
        fake.reply = moods(options.seed, options.failing)
        for endpoint, dimensions in zip((first, second), DIMENSIONS, strict=True):
            let_fail(endpoint, dimensions, seed=f"{options.seed} {dimensions}", failing=options.failing / 2)
        more = {"TURNKEEP_LLM_BASE_URL": fake.url} | settings_of(first, second)
        installation = Installation(1, _SETTINGS | more)
        try:
            await installation.start()
            report = await _play(options, installation, fake, (first, second))
        finally:
            report.violations += await installation.stop()
            if report.violations:
                sys.stderr.write(installation.log_tails() + "\n")
            installation.remove()
    return report


async def _play(
    options: UnderstandingOptions, installation: Installation, fake: FakeChat, endpoints: Sequence[FakeOpenAI]
) -> Report:
    chance = random.Random(f"{options.seed} round")  # noqa: S311 - repeatable, not secret
    authors = [
        Author(
            Ledger(await _conversation(installation, retention, strategy), retention),
            installation.ports[0],
            installation.key,
            random.Random(f"{options.seed} {retention} {strategy}"),  # noqa: S311 - repeatable, not secret
        )
        for retention, strategy in product(_RETENTIONS, _STRATEGIES)
    ]
    report = Report()
    mover = Mover(installation, f"{options.seed} mover")
    moving = asyncio.create_task(mover.run())
    working = [asyncio.create_task(author.run(options.operations)) for author in authors]
    await _kill(options, installation, chance, working, report)
    ended = await asyncio.gather(*working, return_exceptions=True)
    mover.ended = True
    ended += await asyncio.gather(moving, return_exceptions=True)
    wrongs = [f"somebody ended with {error!r}" for error in ended if isinstance(error, BaseException)]
    await installation.ready()
    fake.reply = obliging
    for endpoint in endpoints:
        endpoint.modes.clear()
    wrongs += await _rest(installation, report)
    wrongs += mover.wrongs + await mover.rest(report)
    report.counts += mover.counts
    for author in authors:
        wrongs += author.wrongs
        report.counts += author.counts
        wrongs += await _check(author.ledger, installation, report)
    wrongs += await examine(installation)
    wrongs += await _words(installation, authors)
    wrongs += await _facts(installation, report)
    report.violations = wrongs
    report.errors_logged = [line for line in installation.errors_logged() if '"job.parked"' not in line]
    report.counts["answers asked of the model"] = len(fake.chats)
    report.counts["answers asked of the embedding endpoints"] = sum(len(endpoint.requests) for endpoint in endpoints)
    report.counts["server starts"] = sum(server.starts for server in installation.servers)
    return report


async def _conversation(installation: Installation, retention: str, strategy: str) -> str:
    connection = Connection(installation.ports[0], installation.key)
    compaction = {"strategy": strategy, "trigger_turns": 8, "trigger_tokens": 100_000}
    facts = {"enabled": True, "redact": strategy == "rolling"}
    whole = {"retention": retention, "compaction": compaction, "facts": facts, "owner": f"{retention} {strategy}"}
    body = json.dumps(whole).encode()
    answer = await connection.ask("POST", "/v1/conversations", body=body)
    connection.close()
    assert answer.status == 201, answer
    return str(answer.body["id"])


async def _kill(
    options: UnderstandingOptions,
    installation: Installation,
    chance: random.Random,
    working: "list[asyncio.Task[None]]",
    report: Report,
) -> None:
    """Kill the server and Postgres in turns, mostly when they work again, while the authors work."""
    kinds = [("worker", "postgres")[number % 2] for number in range(options.kills)]
    chance.shuffle(kinds)
    for kind in kinds:
        await asyncio.sleep(chance.uniform(0.3, options.longest_pause_s))
        done = False
        while not done and not all(task.done() for task in working):
            if kind == "worker":
                done = installation.kill_server(0)
            else:
                done = installation.kill_postgres(whole=chance.random() < 0.4)
            await asyncio.sleep(0.1)
        report.kills[kind] += done
        if done and chance.random() < 0.75:
            since = time.monotonic()
            await asyncio.sleep(0.3)
            await installation.ready()
            report.recovery_s.setdefault(kind, []).append(time.monotonic() - since)


async def _rest(installation: Installation, report: Report) -> list[str]:
    """Wait until no job of ours waits; those that were given up say why."""
    give_up = time.monotonic() + _REST_S
    connection = await asyncpg.connect(installation.superuser_url)
    try:
        while True:
            rows = await connection.fetch(
                "select kind, state, last_error from jobs where kind = any($1::text[])", list(_OURS)
            )
            waiting = [row for row in rows if row["state"] == "queued"]
            if not waiting:
                break
            if time.monotonic() > give_up:
                return [f"{len(waiting)} jobs wait still after {_REST_S:.0f} s: {[dict(row) for row in waiting][:3]}"]
            await asyncio.sleep(0.3)
    finally:
        await connection.close()
    for row in rows:
        report.counts[f"{row['kind']} {row['state']} for {row['last_error']}"] += 1
    return [f"a job is {row['state']} without a reason" for row in rows if not row["last_error"]]


async def _check(ledger: Ledger, installation: Installation, report: Report) -> list[str]:
    """The history is what the author knows, but for tombstones where its retention and its erasures say so."""
    turns, verified, standing = await _read(ledger, installation)
    reach = await _reach(ledger, installation)
    report.counts[f"turns of {ledger.retention}"] += len(turns)
    report.counts[f"tombstones of {ledger.retention}"] += sum(turn["erased_at"] is not None for turn in turns)
    report.counts["summaries that stand"] += len(standing)
    wrongs = [] if verified["valid"] else [f"the chain breaks: {verified['first_break']}"]
    if [turn["id"] for turn in turns] != ledger.order:
        wrongs.append("the history has not the turns that were appended, in their order")
    else:
        wrongs += _differences(ledger, turns, reach)
    covered = 0
    for one in standing:
        if one["kind"] != "summary" or one["from_position"] > covered + 1:
            break
        covered = one["to_position"]
    if (ledger.retention == "full" and reach) or (ledger.retention != "full" and covered > reach):
        wrongs.append(f"summaries stand through {covered}, and retention has come to {reach}")
    return [f"{ledger.retention} {ledger.conversation}: {sentence}" for sentence in wrongs]


async def _read(ledger: Ledger, installation: Installation) -> tuple[list[dict[str, Any]], Any, list[dict[str, Any]]]:
    """History, verification and standing summaries of a conversation."""
    connection = Connection(installation.ports[0], installation.key)
    path = f"/v1/conversations/{ledger.conversation}"
    turns: list[dict[str, Any]] = []
    query = "?limit=200&order=asc"
    while True:
        page = (await connection.ask("GET", f"{path}/turns{query}")).body
        turns += page["data"]
        if not page["has_more"]:
            break
        query = f"?limit=200&order=asc&cursor={page['next_cursor']}"
    verified = (await connection.ask("GET", f"{path}/verify")).body
    standing = (await connection.ask("GET", f"{path}/summaries?limit=200")).body["data"]
    connection.close()
    return turns, verified, standing


def _differences(ledger: Ledger, turns: list[dict[str, Any]], reach: int) -> list[str]:
    """Where a turn is erased that should not be, or the other way round, or says something else."""
    found: list[str] = []
    for turn in turns:
        is_erased = turn["erased_at"] is not None
        if is_erased != (turn["id"] in ledger.erased or turn["position"] <= reach):
            found.append(f"position {turn['position']} erased: {is_erased}; retention has come to {reach}")
        if turn["content"] != (None if is_erased else ledger.texts[turn["id"]]):
            found.append(f"position {turn['position']} does not say what was said")
    return found


async def _reach(ledger: Ledger, installation: Installation) -> int:
    connection = await asyncpg.connect(installation.superuser_url)
    sql = "select erased_position from conversation_heads where conversation_id = $1"
    reach = await connection.fetchval(sql, parse_id(ledger.conversation))
    await connection.close()
    return int(reach)


async def _words(installation: Installation, authors: list[Author]) -> list[str]:
    """No table has a word of a turn that is erased; each that is not is found."""
    connection = await asyncpg.connect(installation.superuser_url)
    try:
        said = await connection.fetch("select id, erased_at is not null as erased, content::text as text from turns")
        held = [row["text"] or "" for row in said]
        held += [
            str(row[0]) for row in await connection.fetch("select coalesce(lines::text, '') || text from summaries")
        ]
        held += [str(row[0]) for row in await connection.fetch("select lexemes::text from index_entries")]
        for table in ("facts", "fact_evidence", "fact_decisions"):
            held += [str(row[0]) for row in await connection.fetch(f"select t::text from {table} t")]  # noqa: S608
    finally:
        await connection.close()
    everything = "\n".join(held)
    erased = {row["id"] for row in said if row["erased"]}
    return [
        f"{author.ledger.retention}: a word of the erased turn {one} is left"
        for author in authors
        for one in author.ledger.texts
        if parse_id(one) in erased and f"word{one.lower()}" in everything
    ]


async def _facts(installation: Installation, report: Report) -> list[str]:
    """Each turn that stands and was looked through is the one source of its fact; all were, or their job says why."""
    connection = await asyncpg.connect(installation.superuser_url)
    try:
        behind = await connection.fetch(
            """
            select h.conversation_id, h.facts_seq, h.last_seq from conversation_heads h
            where h.facts_seq < h.last_seq and not exists (
                select from jobs j where j.kind = 'conversation.facts' and j.state = 'parked'
                  and h.conversation_id = any(j.subject_ids)
            )
            """
        )
        wrong = await connection.fetch(
            """
            select t.id, t.superseded_by is null and t.erased_at is null as stands, count(e.fact_id) as evidence
            from turns t join conversation_heads h using (tenant_id, conversation_id)
            left join fact_evidence e on e.tenant_id = t.tenant_id and e.turn_id = t.id
            where t.status = 'committed' and t.seq <= h.facts_seq group by t.tenant_id, t.id
            having count(e.fact_id) <> (t.superseded_by is null and t.erased_at is null)::integer
            """
        )
        report.counts["facts"] += await connection.fetchval("select count(*) from facts")
    finally:
        await connection.close()
    sentences = [
        f"{row['conversation_id']} is looked through to {row['facts_seq']} of {row['last_seq']}" for row in behind
    ]
    return sentences + [
        f"turn {row['id']} stands: {row['stands']}, and {row['evidence']} facts rest on it" for row in wrong[:10]
    ]


async def run_all(seed: int, *, kills: int, per_round: int, state: Path | None) -> Report:
    """Run rounds until `kills` are done; goes on from the state file."""
    total, done = resume(seed, state)
    while total.kills.total() < kills:
        wanted = min(per_round, kills - total.kills.total())
        options = UnderstandingOptions(seed * 1000 + done, wanted, operations=8 * wanted, failing=(0.4, 0.8)[done % 2])
        started = time.monotonic()
        report = await run_round(options)
        total.add(report)
        done += 1
        say(f"round {done} (seed {options.seed}, {time.monotonic() - started:.0f} s)\n{report}")
        if report.violations:
            break
        save(seed, state, total, done)
    return total


def main() -> None:
    """Run the long form; exit code 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--per-round", type=int, default=12)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TURNKEEP_SOAK_SEED", "1")))
    parser.add_argument("--state", type=Path, default=None)
    given = parser.parse_args()
    total = asyncio.run(run_all(given.seed, kills=given.kills, per_round=given.per_round, state=given.state))
    say(f"IN ALL\n{total}")
    raise SystemExit(1 if total.violations else 0)


if __name__ == "__main__":
    main()
