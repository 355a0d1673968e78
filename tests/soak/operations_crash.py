"""Crash proof of all operations: each that changes something is called while servers and Postgres are killed.

    .venv/bin/python -m tests.soak.operations_crash --kills 500 --state /tmp/operations.json

Callers make one tenant after another, filled by `tests/support/marked.py`, and call every changing operation of the
OpenAPI document on it, in a random order, until each is answered; exports and erasures are among them. Servers and
Postgres are killed with SIGKILL meanwhile. No answer may be an unexpected error, and after each round
`turnkeep doctor --invariants` must find nothing. A run given the same state file goes on after its last round.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from tests.soak.crash import Killer, Options, Report, make_report, resume, save, say
from tests.soak.installation import Installation
from tests.support.api import Client
from tests.support.fake_chat import CHAT_MODEL, open_fake_chat, plain_reply
from tests.support.marked import MARKER, REQUESTS, Marked, Sent, store_marked
from tests.support.shared import api_document

_ANSWER_S: Final = 300.0
_LEASE_S: Final = 5.0
_SETTLE_S: Final = 240.0
_KINDS: Final = ("server", "server", "server", "backend", "postgres", "both")
# these change nothing of a tenant, or belong to the whole installation and have a crash proof of their own
_READING: Final = frozenset({
    "search_conversations", "search_turns", "build_context", "recall", "recall_in_conversation", "search_facts",
    "search_memories", "filter_memories", "before_turn", "list_memory_tree", "create_embedding", "verify_erasure",
    "verify_audit",
    "look_up_owner", "compare_space", "add_space", "roll_back_space", "switch_space", "drop_space",
})  # fmt: skip
_ENDING: Final = ("delete_conversation", "delete_openai_conversation", "revoke_key", "create_erasure")
_OPERATORS: Final = frozenset({"create_tenant", "update_tenant", "set_tenant_limits"})
_WEBHOOK: Final = {"url": "https://hooks.example.com/turnkeep"}
_DOCUMENT: Final = api_document()
OPERATIONS: Final = {
    operation["operationId"]: (method.upper(), path, "Idempotency-Key" in str(operation.get("parameters")))
    for path, item in _DOCUMENT["paths"].items()
    for method, operation in item.items()
    if operation["operationId"] not in _READING
    and (method not in {"get", "head"} or operation["operationId"] == "export_conversation")
}
"""Method, path, and whether a key makes it idempotent, of each operation that the proof calls."""


class Unexpected(Exception):
    """An answer that no kill explains."""


class _Patient(Client):
    """A client that repeats a request until it is answered, at one server after the other."""

    def __init__(self, installation: Installation, killer: Killer, counts: Counter[str], key: str) -> None:
        super().__init__(headers={"Authorization": f"Bearer {key}"}, timeout=20)
        self.key = key
        self.operation = "preparation"
        self.interruptions = 0
        self.longest_step_s = 0.0
        """The longest time from the start of a request to the answer of the next one."""
        self._started = time.monotonic()
        self._installation, self._killer, self._counts = installation, killer, counts
        self._servers = itertools.cycle(installation.ports)

    async def request(self, method: str, url: Any, **sent: Any) -> httpx.Response:
        give_up = time.monotonic() + _ANSWER_S
        while time.monotonic() < give_up:
            port, started = next(self._servers), time.monotonic()
            try:
                answer = await super().request(method, f"http://127.0.0.1:{port}{url}", **sent)
            except httpx.TransportError as error:
                # a connection that could not be made was not in the middle of anything
                if not isinstance(error, httpx.ConnectError):
                    self.interruptions += 1
                    self._counts[f"interrupted {self.operation}"] += 1
            else:
                if answer.is_server_error and answer.status_code != 503:
                    raise Unexpected(f"{self.operation}: {answer.text[:300]}")
                if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                    # the database may have been killed after it had committed
                    self.interruptions += 1
                if answer.status_code not in {429, 503} and '"resource_busy"' not in answer.text:
                    self._killer.succeeded(port, started)
                    self.longest_step_s = max(self.longest_step_s, time.monotonic() - self._started)
                    self._started = started
                    return answer
            await asyncio.sleep(0.1)
        raise Unexpected(f"{self.operation}: no answer in {_ANSWER_S:.0f} s")


class Caller:
    """Makes tenants, and calls every operation on each."""

    def __init__(
        self, installation: Installation, killer: Killer, counts: Counter[str], rng: random.Random, number: int
    ) -> None:
        self._installation, self._killer, self._counts, self._rng = installation, killer, counts, rng
        self._name = f"caller {number}"
        self.stopping = False
        self._used = 0

    async def run(self) -> None:
        """Use one tenant after another until `stopping` is set, but at least one."""
        while self._used == 0 or not self.stopping:
            async with self._client(self._installation.key) as operator:
                made = (await operator.post("/v1/admin/tenants", json={"name": self._name})).json()
                async with self._client(made["first_key"]["key"]) as client:
                    await self._use(operator, client, made["id"])

    def _client(self, key: str) -> _Patient:
        return _Patient(self._installation, self._killer, self._counts, key)

    async def _use(self, operator: _Patient, client: _Patient, tenant: str) -> None:
        try:
            marked = await store_marked(client, tenant)
        except AssertionError as error:
            # a server that waited for Postgres may answer when the lease of the open turn has ended
            is_late = '"turn_aborted"' in str(error) and client.longest_step_s >= _LEASE_S
            if not (client.interruptions or is_late):
                raise Unexpected(f"preparation: {error}") from error
            # else a request that was repeated after a kill met what its first try had made
            self._counts["tenants left unfilled"] += 1
            return
        ids = {"webhook_id": await self._webhook(client)}
        order = [name for name in OPERATIONS if name not in _ENDING]
        self._rng.shuffle(order)
        for name in [*order, *self._rng.sample(_ENDING, len(_ENDING))]:
            await self._call(operator if name in _OPERATORS else client, name, marked, ids)
        client.operation = "create_erasure"
        self._counts["create_erasure"] += 1
        await operator.post("/v1/erasures", json={"tenant": tenant})
        self._used += 1

    async def _webhook(self, client: _Patient) -> str:
        made = await client.post("/v1/webhooks", json=_WEBHOOK)
        return str(made.json().get("id"))

    async def _call(self, client: _Patient, name: str, marked: Marked, ids: dict[str, str]) -> None:
        method, path, keyed = OPERATIONS[name]
        client.operation = name
        sent = REQUESTS[name](marked)
        headers = {"Idempotency-Key": f"{name} {self._rng.random()}"} if keyed else {}
        if name == "import_data":
            answer = await self._import(client, marked)
        else:
            answer = await client.request(
                method, path.format_map(_Ids(vars(marked), sent, ids)), json=sent.json, params=dict(sent.params),
                headers=headers,
            )  # fmt: skip
        self._counts[name if answer.is_success else f"refused {name}"] += 1
        if answer.is_client_error and answer.status_code not in {403, 404, 409, 410, 412, 422}:
            raise Unexpected(f"{name}: {answer.status_code} {answer.text[:300]}")
        for made, member in (("create_webhook", "webhook_id"), ("create_response", "response_id")):
            if name == made and answer.is_success:
                ids[member] = answer.json()["id"]
        await self._look_up(client, name, ids)

    async def _look_up(self, client: _Patient, name: str, ids: dict[str, str]) -> None:
        """Learn ids that later operations need."""
        if name == "send_test_event":
            found = await client.get(f"/v1/webhooks/{ids['webhook_id']}/deliveries")
            if found.is_success and found.json()["data"]:
                ids["delivery_id"] = found.json()["data"][0]["id"]
        if name in {"run_maintenance", "extract_facts"}:
            for member, listed in (("job_id", "/v1/admin/jobs"), ("operation_id", "/v1/operations")):
                found = await client.get(listed)
                if found.is_success and found.json()["data"]:
                    ids[member] = found.json()["data"][0]["id"]

    async def _import(self, client: _Patient, marked: Marked) -> httpx.Response:
        exported = await client.get(f"/v1/conversations/{marked.conversation_id}/export")
        if exported.is_error:
            return exported
        return await client.post(
            "/v1/import", content=exported.content, headers={"Content-Type": "application/x-ndjson"}
        )


class _Ids(dict[str, str]):
    """The ids for a path: those the request names, those learnt, those of the tenant's content, else an unknown one."""

    def __init__(self, marked: dict[str, Any], sent: Sent, learnt: dict[str, str]) -> None:
        super().__init__({**{name: str(value) for name, value in marked.items()}, **dict(sent.path), **learnt})

    def __missing__(self, key: str) -> str:
        return "01ARZ3NDEKTSV4RRFFQ69G5FAV"


async def run_round(seed: int, *, kills: int, callers: int, servers: int) -> Report:
    """One round from an empty database to the checks."""
    counts: Counter[str] = Counter()
    violations: list[str] = []
    async with open_fake_chat() as fake:
        fake.reply = partial(plain_reply, summary=f"Ann {MARKER} lives in Berlin.")
        settings = {
            "TURNKEEP_LLM_MODEL": CHAT_MODEL, "TURNKEEP_LLM_BASE_URL": fake.url, "TURNKEEP_JOB_LEASE_S": "2",
            # a request that was killed keeps its idempotency key busy for a lease
            "TURNKEEP_STREAM_LEASE_S": f"{_LEASE_S:g}",
            "TURNKEEP_RATE_LIMITS_ENABLED": "false",
            "TURNKEEP_ENABLE_INTERNAL_AGENT": "true",
        }  # fmt: skip
        installation = Installation(servers, settings)
        options = Options(seed=seed, kills=kills, servers=servers, cycle=_KINDS, longest_pause_s=1.5)
        try:
            await installation.start()
            killer = Killer(installation, options)
            await _storm(installation, killer, counts, violations, callers, seed)
            await installation.ready()
            code, written, complained = await installation.command("doctor", "--invariants")
            if code:
                violations.append(f"doctor: {written[-1500:]} {complained[-500:]}")
            report = make_report(counts, violations, killer, installation)
        finally:
            violations += await installation.stop()
            if violations:
                sys.stderr.write(installation.log_tails() + "\n")
            installation.remove()
    return report


async def _storm(
    installation: Installation, killer: Killer, counts: Counter[str], violations: list[str], callers: int, seed: int
) -> None:
    """Callers and kills, until all kills are done and every caller has its answer."""
    calling = [
        Caller(installation, killer, counts, random.Random(f"{seed} caller {number}"), number)  # noqa: S311 - repeatable
        for number in range(callers)
    ]
    running = [asyncio.create_task(caller.run()) for caller in calling]
    killing = asyncio.create_task(killer.run())
    await asyncio.wait([killing, *running], return_when=asyncio.FIRST_COMPLETED)
    for caller in calling:
        caller.stopping = True
    if not killing.done():
        killing.cancel()
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), _SETTLE_S)
    for task in [killing, *running]:
        if not task.done() or task.cancelled():
            violations.append("a caller or the killer did not end")
        elif (error := task.exception()) is not None:
            violations.append(f"ended with {error!r}")


async def run_all(seed: int, *, kills: int, per_round: int, callers: int, state: Path | None) -> Report:
    """Run rounds until `kills` are done; goes on from the state file."""
    total, done = resume(seed, state)
    while total.kills.total() < kills and not total.violations:
        wanted, servers = min(per_round, kills - total.kills.total()), 1 + done % 2
        started = time.monotonic()
        report = await run_round(seed * 1000 + done, kills=wanted, callers=callers, servers=servers)
        total.add(report)
        done += 1
        say(f"round {done} ({servers} server(s), {time.monotonic() - started:.0f} s)\n{report}")
        save(seed, state, total, done)
    return total


def never_interrupted(report: Report) -> Sequence[str]:
    """Name the operations that no kill met while they ran."""
    return sorted(name for name in OPERATIONS if not report.counts[f"interrupted {name}"])


def never_done(report: Report) -> Sequence[str]:
    """Name the operations that were never answered well."""
    return sorted(name for name in OPERATIONS if not report.counts[name])


def main() -> None:
    """Run the long form; exit code 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--per-round", type=int, default=50)
    parser.add_argument("--callers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TURNKEEP_SOAK_SEED", "1")))
    parser.add_argument("--state", type=Path, default=None)
    given = parser.parse_args()
    total = asyncio.run(
        run_all(given.seed, kills=given.kills, per_round=given.per_round, callers=given.callers, state=given.state)
    )
    say(f"IN ALL\n{total}\nnever interrupted: {json.dumps(never_interrupted(total))}")
    say(f"never done: {json.dumps(never_done(total))}")
    raise SystemExit(1 if total.violations else 0)


if __name__ == "__main__":
    main()
