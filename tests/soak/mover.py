"""An operator who moves an installation between two embedding spaces all the time, whatever is killed and fails.

Adds, switches, forces, rolls back, drops, and runs `turnkeep reembed`, which is killed too. What must hold at any
moment: one space is searched, which nobody drops; whoever recalls is answered; a switch without force leaves no turns
behind that have neither vectors there nor a job that makes them. In the end, with endpoints that work, nothing lacks
anything.
"""

import asyncio
import json
import random
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg

from tests.soak.clients import Answer, Connection
from tests.soak.crash import Report
from tests.soak.installation import Installation
from tests.support.command import TURNKEEP
from tests.support.fake_openai import MODEL, FakeOpenAI

SPACES = "/v1/admin/embedding-spaces"
DIMENSIONS = (48, 96)
_NAMES = {f"openai/{MODEL}/{dimensions}" for dimensions in DIMENSIONS}
_FAILURES = ("rate_limited", "error", "overloaded", "timeout", "html", "wrong_dimensions", "nan", "reset", "cut")
_ANSWERS = 50_000
_GIVE_UP_S = 120.0
_MAX_LEFT = 0.001
_REST_S = 150.0
_REFUSALS = {"space_incomplete", "space_dropping", "space_searched", "space_no_previous", "not_found"}
_ROOT = Path(__file__).parents[2]
_CHOSEN = """
select s.space_id, s.previous_id, e.state, p.state as previous_state from searched_space s
left join embedding_spaces e on e.id = s.space_id left join embedding_spaces p on p.id = s.previous_id
"""
_LEFT_BEHIND = """
select count(*) from index_entries e where e.live and e.kind = 'turn'
and not exists (select from vectors v where v.tenant_id = e.tenant_id and v.entry_id = e.entry_id and v.space_id = $1)
and not exists (select from jobs j where j.tenant_id = e.tenant_id and e.entry_id = any(j.subject_ids))
"""
_LACKING = """
select s.id, s.state, s.id = coalesce(c.space_id, 1) as searched,
       count(*) filter (where e.live and v.entry_id is null) as lacking, count(v.entry_id) as held
from embedding_spaces s left join searched_space c on true cross join index_entries e
left join (select distinct tenant_id, entry_id, space_id from vectors) v
    on v.tenant_id = e.tenant_id and v.entry_id = e.entry_id and v.space_id = s.id
group by 1, 2, 3 order by 1
"""
_JOBS = """
select kind, state, last_error from jobs
where kind like 'index.%' and kind not like 'index.%plan%' and state <> 'cancelled'
"""


def settings_of(first: FakeOpenAI, second: FakeOpenAI) -> dict[str, str]:
    """Settings of an installation that knows two embedding spaces."""
    return {
        "TURNKEEP_EMBEDDER": "openai",
        "TURNKEEP_EMBEDDINGS_BASE_URL": first.url,
        "TURNKEEP_EMBEDDINGS_MODEL": MODEL,
        "TURNKEEP_EMBEDDINGS_DIMENSIONS": str(DIMENSIONS[0]),
        "TURNKEEP_EMBEDDINGS_TIMEOUT_S": "0.6",
        "TURNKEEP_EMBEDDINGS_MAX_RETRIES": "0",
        "TURNKEEP_NEXT_EMBEDDER": "openai",
        "TURNKEEP_NEXT_EMBEDDINGS_BASE_URL": second.url,
        "TURNKEEP_NEXT_EMBEDDINGS_MODEL": MODEL,
        "TURNKEEP_NEXT_EMBEDDINGS_DIMENSIONS": str(DIMENSIONS[1]),
        "TURNKEEP_SWEEP_INTERVAL_S": "1",
    }


def let_fail(fake: FakeOpenAI, dimensions: int, *, seed: str, failing: float) -> None:
    """Let an endpoint answer at random: well, or with one of its failures."""
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    fake.dimensions = dimensions
    fake.modes = [
        chance.choice(_FAILURES) if chance.random() < failing else "ok"  # type: ignore[misc]
        for _ in range(_ANSWERS)
    ]


class Mover:
    """One operator, doing one thing after the other until told to end."""

    def __init__(self, installation: Installation, seed: str) -> None:
        self.counts: Counter[str] = Counter()
        self.wrongs: list[str] = []
        self.ended = False
        self._installation = installation
        self._connection = Connection(installation.ports[0], installation.key)
        self._chance = random.Random(seed)  # noqa: S311 - repeatable, not secret

    async def run(self) -> None:
        """Move to and fro."""
        await self.add()
        steps = ["add", "switch", "force", "rollback", "drop", "command", "compare"]
        while not self.ended:
            await getattr(self, self._chance.choices(steps, weights=[3, 6, 2, 3, 2, 1, 1])[0])()
            await self._look()
            await self.recall()
            await asyncio.sleep(self._chance.uniform(0.05, 0.6))
        self._connection.close()

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[Answer, bool]:
        """Send a request until it is answered; says whether it may have been done by an attempt before."""
        give_up = time.monotonic() + _GIVE_UP_S
        content = b"" if body is None else json.dumps(body).encode()
        unsure = False
        while True:
            with suppress(OSError, EOFError, TimeoutError):
                answer = await self._connection.ask(method, path, body=content, timeout_s=30)
                if answer.status < 500 and answer.body.get("retryable") is not True:
                    return answer, unsure
            unsure = True
            if time.monotonic() > give_up:
                raise TimeoutError(f"no clear answer to {method} {path} within {_GIVE_UP_S:.0f} s")
            await asyncio.sleep(self._chance.uniform(0.05, 0.4))

    async def change(self, what: str, method: str, path: str, body: Any = None) -> tuple[Answer, bool]:
        """Ask for a change, which is done or refused for a reason."""
        answer, unsure = await self.ask(method, SPACES + path, body)
        self.counts[f"spaces: {what} answered {answer.body.get('code', answer.status)}"] += 1
        if answer.status not in {200, 202} and answer.body.get("code") not in _REFUSALS:
            self.wrongs.append(f"{what} answered {answer.status} {str(answer.body)[:300]}")
        return answer, unsure

    async def _any(self) -> dict[str, Any]:
        answer, _ = await self.ask("GET", SPACES)
        return self._chance.choice(answer.body["data"])

    async def _id(self) -> int:
        return int((await self._any())["id"])

    async def add(self) -> None:
        """Let the space that is not searched be filled."""
        await self.change("an addition", "POST", "", {})

    async def switch(self) -> None:
        """Switch to either, where it lacks nothing."""
        space = await self._any()
        space_id = space["id"]
        answer, unsure = await self.change("a switch", "POST", f"/{space_id}/switch", {})
        # where it is searched already, by force maybe, nothing is switched
        if answer.status != 200 or unsure or space["state"] == "searched":
            return
        if left := await self._read(_LEFT_BEHIND, space_id):
            total = await self._read("select count(*) from index_entries where live") or 1
            if left / total > _MAX_LEFT:
                self.wrongs.append(f"after a switch to space {space_id} {left} of {total} turns lack vectors and a job")

    async def force(self) -> None:
        """Switch whatever is lacking."""
        await self.change("a forced switch", "POST", f"/{await self._id()}/switch", {"force": True})

    async def rollback(self) -> None:
        """Go back."""
        await self.change("a rollback", "POST", "/rollback")

    async def drop(self) -> None:
        """Drop either, where it is not searched."""
        await self.change("a drop", "DELETE", f"/{await self._id()}")

    async def compare(self) -> None:
        """Compare, once: the endpoints may fail."""
        space_id = await self._id()
        with suppress(OSError, EOFError, TimeoutError):
            body = json.dumps({"queries": ["euros in Lisbon"], "k": 5}).encode()
            answer = await self._connection.ask("POST", f"{SPACES}/{space_id}/compare", body=body, timeout_s=30)
            self.counts[f"spaces: a comparison answered {answer.status}"] += 1

    async def command(self) -> None:
        """Run the command, and kill it at some moment."""
        process = await asyncio.create_subprocess_exec(
            *TURNKEEP, "reembed", "--yes", "--query", "Lisbon", cwd=_ROOT,
            env=self._installation.servers[0].environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            await asyncio.wait_for(process.wait(), self._chance.uniform(1.5, 8.0))
            self.counts[f"spaces: the command ended with {process.returncode}"] += 1
        except TimeoutError:
            process.kill()
            await process.wait()
            self.counts["spaces: the command was killed"] += 1

    async def recall(self) -> None:
        """Whoever asks is answered from one of the spaces, or by words."""
        answer, _ = await self.ask("POST", "/v1/recall", {"query": "euros in Lisbon", "k": 5})
        if answer.status != 200 or answer.body["space"] not in _NAMES:
            self.wrongs.append(f"a recall answered {answer.status} {str(answer.body)[:300]}")
            return
        self.counts[f"spaces: recalls in {answer.body['space']}"] += 1
        for reason in answer.body["degraded"]:
            self.counts[f"spaces: recalls degraded by {reason}"] += 1

    async def _look(self) -> None:
        """The row that says what is searched is whole, whenever it is looked at."""
        rows = await self._fetch(_CHOSEN)
        if rows is None:
            return
        self.counts["spaces: looks at what is searched"] += 1
        bad = len(rows) != 1 or rows[0]["space_id"] is None or rows[0]["space_id"] == rows[0]["previous_id"]
        if bad or "dropping" in (rows[0]["state"], rows[0]["previous_state"]):
            self.wrongs.append(f"what is searched is half switched: {[dict(row) for row in rows]}")

    async def _read(self, sql: str, *args: object) -> int | None:
        rows = await self._fetch(sql, *args)
        return None if rows is None else int(rows[0][0])

    async def _fetch(self, sql: str, *args: object) -> list[asyncpg.Record] | None:
        """Rows, or None while there is no database."""
        try:
            connection = await asyncpg.connect(self._installation.superuser_url, timeout=5)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return None
        try:
            return await connection.fetch(sql, *args, timeout=20)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return None
        finally:
            connection.terminate()

    async def rest(self, report: Report) -> list[str]:
        """Wait, now that the endpoints work, until no space that is to be filled lacks anything; says what stays.

        Jobs that were given up are queued again by whoever looks for what is lacking, or say why they are not.
        """
        give_up = time.monotonic() + _REST_S
        while True:
            spaces, jobs = await self._fetch(_LACKING) or [], await self._fetch(_JOBS) or []
            wanted = [row for row in spaces if row["searched"] or row["state"] in {"preparing", "kept"}]
            going = [row for row in spaces if row["state"] == "dropping"]
            queued = [row for row in jobs if row["state"] == "queued"]
            if spaces and not going and not queued and not any(row["lacking"] for row in wanted):
                break
            if time.monotonic() > give_up:
                return [f"not at rest: {[dict(row) for row in [*spaces, *jobs]][:8]}"]
            await asyncio.sleep(0.5)
        for row in spaces:
            report.counts[f"spaces: space {row['id']} in the end ({row['state']}), entries with vectors"] += row["held"]
        for row in jobs:
            report.counts[f"{row['kind']} {row['state']} for {row['last_error']}"] += 1
        left = [row for row in spaces if row["state"] == "idle" and not row["searched"] and row["held"]]
        return [
            *(f"space {row['id']} is idle and has vectors of {row['held']} entries" for row in left),
            *(f"{row['kind']} is parked without a reason" for row in jobs if not row["last_error"]),
        ]
