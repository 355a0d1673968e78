"""Random histories on two server processes that are killed, and their search held against the reference of `search`.

Writers and searchers go on while one of the servers, Postgres or one of its sessions is killed with SIGKILL, and while
notices are lost and doubled: connections that listen are cut, and messages of the bus are sent again. A request whose
server is away waits for it. A write whose answer was cut off is not repeated, since it may have been stored.

After each kill both servers must find what the reference computes from the rows alone. An append that was answered is
found at once; of one that was not answered, all turns are found or none. What was erased is never found again.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import httpx
from turnkeep_minilm import FOLDER

from app.core.bus.notify import CHANNEL
from app.core.ids import parse_id
from app.index.schemas import EntryKind, Mode, SearchScope
from app.index.service import PreparedQuery
from app.providers.local.minilm import MiniLM
from tests.soak.installation import Installation
from tests.soak.search import (
    UNANSWERED,
    History,
    Row,
    in_scope,
    match,
    random_scope,
    read_rows,
    search_always,
    text_of,
    write_at_once,
)
from tests.support.api import Client

KILLS = {"server": 4, "postgres": 2, "backend": 3, "both": 1}
"""The kinds of kills, and how often each is chosen."""
_ANSWER_S = 300.0
_MOST_HITS = 200
_SCOPES = 4
_TRIES = 40
_REPEATED = ("/recall", "/search", "/v1/conversations", "/v1/admin/tenants")


class _PatientTransport(httpx.AsyncBaseTransport):
    """Repeats a request until it is answered, except a write that a server may have stored: that one is unanswered."""

    def __init__(self, counts: Counter[str]) -> None:
        self._inner = httpx.AsyncHTTPTransport()
        self._counts = counts

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        repeatable = (
            request.method == "GET" or path.endswith(_REPEATED) or path in {"/v1/conversations", "/v1/admin/tenants"}
        )
        give_up = time.monotonic() + _ANSWER_S
        while True:
            was_sent = True
            try:
                answer = await self._inner.handle_async_request(request)
                content = await answer.aread()
                assert answer.status_code != 500, content
                if answer.status_code < 500:
                    return httpx.Response(answer.status_code, content=content)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                was_sent = False
            except httpx.TransportError:
                self._counts["cut off"] += 1
            if was_sent and not repeatable:
                self._counts["writes unanswered"] += 1
                return httpx.Response(503, json={}, headers={UNANSWERED: "1"})
            assert time.monotonic() < give_up, f"{request.method} {path} found no answer in {_ANSWER_S:.0f} s"
            await asyncio.sleep(0.05)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _client(port: int, key: str, counts: Counter[str]) -> Client:
    return Client(
        transport=_PatientTransport(counts),
        base_url=f"http://127.0.0.1:{port}",
        headers={"Authorization": f"Bearer {key}"},
    )


async def run_history(installation: Installation, seed: int, number: int, *, steps: int, kind: str) -> Counter[str]:
    """Run one history with one kill of this kind, and hold the search of both servers against the reference."""
    chance = random.Random(f"{seed}-{number}")  # noqa: S311 - repeatable, not secret
    counts: Counter[str] = Counter()
    async with _client(installation.ports[0], installation.key, counts) as admin:
        answer = await admin.post("/v1/admin/tenants", json={"name": f"history {number}"})
        assert answer.is_success, answer.text
        made = answer.json()
    key = made["first_key"]["key"]
    one, two = (_client(port, key, counts) for port in installation.ports)
    async with one, two:
        history, done = History(counts=counts), asyncio.Event()
        beside = [
            asyncio.create_task(search_always((one, two), history, random.Random(chance.random()), done)),  # noqa: S311
            asyncio.create_task(_disturb(installation, random.Random(chance.random()), done, counts)),  # noqa: S311
            asyncio.create_task(_kill(installation, random.Random(chance.random()), kind, counts)),  # noqa: S311
        ]
        try:
            await write_at_once(one, two, history, chance, steps=steps)
            await beside[2]
            await installation.ready()
        finally:
            done.set()
            await asyncio.gather(*beside)
        await _compare(installation, (one, two), parse_id(made["id"]), history, chance)
    return counts


async def _kill(installation: Installation, chance: random.Random, kind: str, counts: Counter[str]) -> None:
    """Kill once, at a random moment."""
    await asyncio.sleep(chance.uniform(0.1, 1.5))
    server = chance.randrange(len(installation.servers))
    give_up = time.monotonic() + _ANSWER_S
    while not _killed(installation, chance, kind, server):
        assert time.monotonic() < give_up, f"no {kind} to kill"
        await asyncio.sleep(0.05)
    counts[f"kills of {kind}"] += 1


def _killed(installation: Installation, chance: random.Random, kind: str, server: int) -> bool:
    if kind == "server":
        return installation.kill_server(server)
    if kind == "backend":
        return installation.kill_backend(chance)
    done = installation.kill_postgres(whole=chance.random() < 0.5)
    return done and (kind == "postgres" or installation.kill_server(server))


async def _disturb(
    installation: Installation, chance: random.Random, done: asyncio.Event, counts: Counter[str]
) -> None:
    """Send messages of the bus again, late, and cut connections that listen, so that messages are lost."""
    while not done.is_set():
        # the driver's own error: a statement is sent while the server closes the connection
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            connection = await asyncpg.connect(installation.superuser_url)
            try:
                await _disturb_by(connection, chance, done, counts)
            finally:
                connection.terminate()
        await asyncio.sleep(0.1)


async def _disturb_by(
    connection: "asyncpg.Connection[asyncpg.Record]", chance: random.Random, done: asyncio.Event, counts: Counter[str]
) -> None:
    waiting: list[str] = []
    own: set[str] = set()

    def on_message(_connection: object, _pid: int, _channel: str, payload: object) -> None:
        message = str(payload)
        if message not in own and chance.random() < 0.5:
            waiting.append(message)

    await connection.add_listener(CHANNEL, on_message)
    while not done.is_set():
        await asyncio.sleep(chance.uniform(0.02, 0.3))
        own.update(waiting)
        for message in waiting:
            await connection.execute("select pg_notify($1, $2)", CHANNEL, message)
        counts["messages doubled"] += len(waiting)
        waiting.clear()
        if chance.random() < 0.15:
            cut = await connection.fetchval(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'turnkeep-listen%'"
                " order by random() limit 1"
            )
            counts["listeners cut"] += cut is True


def kinds_of(seed: int, numbers: Iterable[int]) -> list[str]:
    """Return the kind of kill of each history."""
    chances = (random.Random(f"{seed}-{number} kind") for number in numbers)  # noqa: S311 - repeatable, not secret
    return [chance.choices(list(KILLS), list(KILLS.values()))[0] for chance in chances]


async def run_round(seed: int, numbers: Sequence[int], *, steps: int, kinds: Sequence[str]) -> Counter[str]:
    """Run histories, each with one kill, on a new installation. Raises AssertionError for what must not be."""
    # the reference is in English; a few words drawn at random can be taken for another language
    installation = Installation(2, {"TURNKEEP_LANGUAGE": "en"})
    counts: Counter[str] = Counter()
    try:
        await installation.start()
        for number, kind in zip(numbers, kinds, strict=True):
            counts += await run_history(installation, seed, number, steps=steps, kind=kind)
    except BaseException:
        sys.stderr.write(installation.log_tails() + "\n")
        raise
    finally:
        wrong = await installation.stop()
        installation.remove()
    assert wrong == []
    return counts


# the comparison


async def _compare(
    installation: Installation, clients: Sequence[Client], tenant: UUID, history: History, chance: random.Random
) -> None:
    """Hold both servers against the reference in random scopes, and look for the appends without an answer."""
    for conversation, word, turns in history.unanswered:
        found = [await _found(client, f"/v1/conversations/{conversation}/recall", word) for client in clients]
        assert found[0] in {0, turns}, f"{found[0]} of {turns} turns of an append without an answer are found"
        assert found[0] == found[1], "the servers differ in an append without an answer"
        history.counts["unanswered appends " + ("found" if found[0] else "not found")] += 1
    model = MiniLM(FOLDER)
    for _ in range(_SCOPES):
        scope = random_scope(await _rows(installation, tenant), chance)
        scope = await _askable(clients[0], scope)
        text, mode = text_of(chance), chance.choice((Mode.HYBRID, Mode.TEXT))
        vector = None if mode is Mode.TEXT else model.embed_one(text)
        query = PreparedQuery(text, language="en", max_words=64, vector=vector)
        for client in clients:
            await _compare_once(installation, client, tenant, history, scope, text, mode, query)


async def _found(client: Client, path: str, word: str) -> int:
    answer = await client.post(path, json={"query": word, "mode": "text", "k": _MOST_HITS})
    return len(answer.json()["data"]) if answer.is_success else 0


async def _askable(client: Client, scope: SearchScope) -> SearchScope:
    """Return the part of a scope that the API takes, and in which it hides nothing by other rules."""
    if EntryKind.FACT in scope.kinds:
        scope = replace(scope, project=None)  # facts of a project are hidden from others
    if scope.conversation_ids is None:
        return scope
    # a fact may outlive its conversation, and named conversations must be of the project and the owner
    ids = [one for one in scope.conversation_ids if (await client.get(f"/v1/conversations/{one}")).is_success]
    return replace(scope, conversation_ids=ids or None, project=None, owner=None)


async def _compare_once(
    installation: Installation, client: Client, tenant: UUID, history: History, scope: SearchScope, text: str,
    mode: Mode, query: PreparedQuery,
) -> None:  # fmt: skip
    """Compare one answer. It is asked for again if jobs have changed entries meanwhile (late vectors and dates)."""
    erased = {parse_id(turn) for turn in history.erased}
    rows = await _rows(installation, tenant)
    for _ in range(_TRIES):
        answer = await client.post("/v1/recall", json=_body(scope, text, mode))
        assert answer.is_success, answer.text
        hits = answer.json()["data"]
        assert not erased & {parse_id(hit["id"]) for hit in hits}, "an erased turn was found"
        before, rows = rows, await _rows(installation, tenant)
        if _signature(before) == _signature(rows):
            assert not erased & {row.id for row in rows}, "an erased turn has an entry"
            _check(hits, [row for row in rows if in_scope(row, scope)], query, mode)
            history.counts["comparisons"] += 1
            return
        await asyncio.sleep(0.25)
    raise AssertionError("the entries did not come to rest")


async def _rows(installation: Installation, tenant: UUID) -> list[Row]:
    connection = await asyncpg.connect(installation.superuser_url)
    try:
        space: int = await connection.fetchval("select id from embedding_spaces where provider = 'local'")
    finally:
        await connection.close()
    return await read_rows(installation.superuser_url, tenant, space)


def _signature(rows: Sequence[Row]) -> set[tuple[object, ...]]:
    return {(row.id, row.length, row.cues, len(row.vectors), row.owner, tuple(sorted(row.counts))) for row in rows}


def _body(scope: SearchScope, text: str, mode: Mode) -> dict[str, Any]:
    filters = {
        "actors": scope.actors,
        "roles": scope.roles,
        "occurred_after": scope.occurred_after and scope.occurred_after.isoformat(),
        "occurred_before": scope.occurred_before and scope.occurred_before.isoformat(),
        "metadata": scope.metadata and json.loads(scope.metadata),
    }
    body = {
        "query": text, "mode": mode, "k": _MOST_HITS, "explain": True, "kinds": list(scope.kinds),
        "conversation_ids": scope.conversation_ids and [str(one) for one in scope.conversation_ids],
        "project": scope.project, "owner": scope.owner, "agent_id": scope.agent_id,
        "filters": {name: value for name, value in filters.items() if value is not None},
    }  # fmt: skip
    return {name: value for name, value in body.items() if value is not None}


def _check(hits: Sequence[dict[str, Any]], rows: Sequence[Row], query: PreparedQuery, mode: Mode) -> None:
    """Compare the hits with the reference: which they are, their cosine and BM25, and their order."""
    wanted = match(rows, query)
    if mode is Mode.TEXT:
        wanted = {entry_id: one for entry_id, one in wanted.items() if one[1] > 0}
    ids = [parse_id(hit["id"]) for hit in hits]
    assert len(ids) == len(set(ids)) <= _MOST_HITS
    if len(ids) < _MOST_HITS:  # equal texts are one hit
        assert sum(hit["count"] for hit in hits) == len(wanted), (len(ids), len(wanted))
    assert set(ids) <= set(wanted), set(ids) - set(wanted)
    for entry_id, hit in zip(ids, hits, strict=True):
        cosine, bm25, _ = wanted[entry_id]
        found = hit["explain"]
        assert found["cosine"] is None if cosine is None else abs(found["cosine"] - cosine) < 1e-3
        assert abs(found["bm25"] - bm25) < 1e-3 * (1 + bm25), (entry_id, found, bm25)
    scores = [hit["score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)
