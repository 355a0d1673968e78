"""Calls of a tenant that has too many are refused while their head is read, with the answer of the application."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from app.conversations.service import Conversations
from app.core.ids import format_id
from app.core.telemetry import configure_logging
from app.routers.http import early_refusals
from app.routers.http.early_refusals import MAX_AT_ONCE, MAX_BODY_BYTES, EarlyRefusals
from app.routers.http.middleware import AddressCheck
from app.routers.http.uvicorn_protocols import BoundedProtocol
from app.settings import Settings
from tests.support.api import Client, Service, open_service
from tests.support.live import serving
from tests.support.postgres import TestDatabase

ORIGIN = "https://page.example"


class Answer(NamedTuple):
    """A response as it was read from the socket."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["code"])


class Wire:
    """A connection on which requests are sent byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, client: Client, path: str, *, method: str = "GET", body: bytes = b"", **more: str) -> Answer:
        """Send a request with the key of a client, and read its answer."""
        self.writer.write(head(client.key, path, method=method, length=len(body), **more) + body)
        return await self.answer()

    async def answer(self) -> Answer:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return Answer(int(lines[0].split()[1]), headers, body)


def head(key: str | None, path: str, *, method: str, length: int, **more: str) -> bytes:
    """Return the head of a request; `more` are headers with `_` for `-`."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {key}"]
    lines += ["Content-Type: application/json", f"Content-Length: {length}"] if method != "GET" else []
    return "\r\n".join(
        [*lines, *(f"{name.replace('_', '-')}: {value}" for name, value in more.items()), "", ""]
    ).encode()


class Full(NamedTuple):
    """A server on a port, and two tenants with a conversation of the same id. All that may wait of `one` waits."""

    service: Service
    port: int
    one: Client
    other: Client
    conversation: str
    seen: list[str]

    @property
    def turns(self) -> str:
        return f"/v1/conversations/{self.conversation}/turns"

    @asynccontextmanager
    async def wire(self) -> AsyncIterator[Wire]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield Wire(reader, writer)
        finally:
            writer.close()


@pytest.fixture
async def full(words_database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Full]:
    settings = {
        "concurrent_calls": 2, "concurrent_calls_shared": 1, "concurrent_calls_waiting": 2,
        "concurrent_calls_wait_s": 300, "embedder": "none", "cors_origins": [ORIGIN],
        "allowed_hosts": ["localhost", "127.0.0.1"],
    }  # fmt: skip
    go_on, append, seen = asyncio.Event(), Conversations.append, list[str]()

    async def held(conversations: Conversations, caller, *args, **more):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN202
        if caller.key_tenant_id == one.tenant_id:
            await go_on.wait()
        return await append(conversations, caller, *args, **more)

    async with open_service(words_database, tmp_path, **settings) as service, AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(await service.new_tenant()) for _ in range(2)]
        conversation = await one.conversation()
        await other.conversation(id=conversation)
        answered = EarlyRefusals.answer

        def watched(self: EarlyRefusals, *call: Any, port: int | None) -> bytes | None:
            answer = answered(self, *call, port=port)
            seen.append("passed on" if answer is None else "refused")
            return answer

        monkeypatch.setattr(EarlyRefusals, "answer", watched)
        monkeypatch.setattr(Conversations, "append", held)
        async with serving(service.app, service.settings) as port:
            path, slots = f"/v1/conversations/{conversation}/turns", service.container.tenancy.slots
            turn = {"turns": [{"role": "user", "content": "kept"}]}
            calls: list[asyncio.Task[httpx.Response]] = []
            async with asyncio.timeout(60):
                while not slots.is_full(one.tenant_id):
                    calls.append(asyncio.create_task(one.post(path, json=turn)))
                    await asyncio.sleep(0.01)
            yield Full(service, port, one, other, conversation, seen)
            go_on.set()
            answers = [answer.status_code for answer in await asyncio.gather(*calls)]
            # on a busy machine one or more are sent before it is seen that there is no room for them
            assert set(answers) <= {201, 503}
            assert len(await one.history(conversation)) == answers.count(201) >= 3, "each call that waited was answered"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The warnings of the service."""
    written = io.StringIO()
    configure_logging(Settings(log_level="warning").telemetry, written)
    yield written
    configure_logging(Settings(log_level="error").telemetry)


async def test_a_refusal_is_that_of_the_application_but_for_its_id_and_date(full: Full) -> None:
    async with full.wire() as wire:
        early = await wire.ask(full.one, full.turns, X_Request_Id="mine.1")
        late = await wire.ask(full.one, full.turns, Connection="close")
    assert full.seen == ["refused"], "one that closes its connection goes to the application"
    assert (early.status, early.code, late.status) == (503, "overloaded", 503)
    assert early.headers["x-request-id"] == json.loads(early.body)["request_id"] == "mine.1"
    assert late.headers.pop("connection") == "close"
    assert late.headers.pop("vary") == "origin", "the answer is never cached, and a page has the application's"
    assert early.headers.keys() == late.headers.keys()
    for name in early.headers.keys() - {"x-request-id", "date", "content-length", "ratelimit"}:
        assert early.headers[name] == late.headers[name], name
    assert json.loads(early.body) | {"request_id": ""} == json.loads(late.body) | {"request_id": ""}


async def test_the_connection_goes_on_after_a_refused_body_in_parts_and_after_pipelined_calls(full: Full) -> None:
    body = b"{" + b" " * (MAX_BODY_BYTES - 1)
    async with full.wire() as wire:
        wire.writer.write(head(full.one.key, full.turns, method="POST", length=len(body)) + body[:10])
        assert (await wire.answer()).code == "overloaded", "it does not wait for the body"
        wire.writer.write(body[10:5000])
        await asyncio.sleep(0.05)
        wire.writer.write(body[5000:])
        assert (await wire.ask(full.other, full.turns)).status == 200
        wire.writer.write(head(full.one.key, full.turns, method="GET", length=0) * 2)
        wire.writer.write(head(full.other.key, full.turns, method="GET", length=0))
        wire.writer.write(head(full.one.key, full.turns, method="GET", length=0))
        assert [(await wire.answer()).status for _ in range(4)] == [503, 503, 200, 503]
    assert full.seen.count("refused") >= 3


async def test_every_other_call_goes_to_the_application(full: Full) -> None:
    """Of another tenant with the same ids, with unknown keys, to other routes and hosts, with unusual heads."""
    one, other, json_type = full.one, full.other, {"method": "POST", "body": b"{"}
    chunks = f"/v1/conversations/{full.conversation}/turns/{full.conversation}/chunks"
    async with full.wire() as wire:
        assert (await wire.ask(one, full.turns)).code == "overloaded"
        assert full.seen == ["refused"]
        assert (await wire.ask(other, full.turns)).status == 200
        wire.writer.write(head(f"{one.key}x", full.turns, method="GET", length=0))
        assert (await wire.answer()).code == "unauthenticated"
        assert (await wire.ask(one, chunks, **json_type)).code == "malformed_json"
        assert (await wire.ask(one, "/v1/unknown")).code == "route_not_found"
        assert (await wire.ask(one, "/healthz")).status == 200
        paged = await wire.ask(one, full.turns, Origin=ORIGIN)
        assert (paged.code, paged.headers["access-control-allow-origin"]) == ("overloaded", ORIGIN)
        elsewhere = head(one.key, full.turns, method="GET", length=0)
        wire.writer.write(elsewhere.replace(b"Host: 127.0.0.1", b"Host: other.example"))
        assert (await wire.answer()).code == "host_not_allowed"
        wire.writer.write(elsewhere.replace(b"GET /", b"GET http://other.example/"))
        assert (await wire.answer()).code == "host_not_allowed"
        wire.writer.write(head(one.key, full.turns, method="POST", length=MAX_BODY_BYTES + 1))
        wire.writer.write(b" " * (MAX_BODY_BYTES + 1))
        assert (await wire.answer()).code == "overloaded"
        padded = head(one.key, full.turns, method="POST", length=10**7).replace(b": 10000000", b": " + b"0" * 20 + b"3")
        wire.writer.write(padded + b"   ")
        assert (await wire.answer()).code == "overloaded"
        wire.writer.write(elsewhere.replace(b"Host: 127.0.0.1", b"Host: 127.0.0.1\r\nHost: other.example"))
        assert (await wire.answer()).code == "malformed_request"
    assert full.seen == ["refused"] + ["passed on"] * 11


async def test_the_host_of_an_absolute_target_decides_about_a_refusal_too(full: Full) -> None:
    absolute = head(full.one.key, f"http://127.0.0.1{full.turns}", method="GET", length=0)
    async with full.wire() as wire:
        wire.writer.write(absolute.replace(b"Host: 127.0.0.1", b"Host: other.example"))
        assert (await wire.answer()).code == "overloaded"
    assert full.seen == ["refused"]


async def test_the_port_of_the_metrics_has_nothing_else(full: Full) -> None:
    settings = full.service.settings
    telemetry = settings.telemetry.model_copy(update={"metrics_port": full.port})
    full.service.app.state.address_check = AddressCheck(settings.model_copy(update={"telemetry": telemetry}))
    async with full.wire() as wire:
        await wire.ask(full.one, full.turns)
    assert full.seen == ["passed on"]


async def test_the_time_of_an_idle_connection_does_not_end_the_call_after_a_refused_one(
    full: Full, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a refused call and the head of the next one arrive together."""
    ended: list[BoundedProtocol] = []
    made = BoundedProtocol.connection_made

    def made_with_little_time(self: BoundedProtocol, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        self.timeout_keep_alive = 0  # type: ignore[assignment]

    def end(self: BoundedProtocol) -> None:
        ended.append(self)

    monkeypatch.setattr(BoundedProtocol, "connection_made", made_with_little_time)
    monkeypatch.setattr(BoundedProtocol, "timeout_keep_alive_handler", end)
    go_on, waiting, history = asyncio.Event(), asyncio.Event(), Conversations.history

    async def held(*args: Any, **more: Any) -> Any:
        waiting.set()
        await go_on.wait()
        return await history(*args, **more)

    monkeypatch.setattr(Conversations, "history", held)
    async with full.wire() as wire:
        wire.writer.write(head(full.one.key, full.turns, method="POST", length=3))
        assert (await wire.answer()).code == "overloaded"
        wire.writer.write(b"   " + head(full.other.key, full.turns, method="GET", length=0))
        await asyncio.wait_for(waiting.wait(), 60)
        await asyncio.sleep(0.05)
        assert ended == []
        go_on.set()
        assert (await wire.answer()).status == 200


async def test_a_flood_is_refused_in_small_parts_and_counted_and_logged(
    full: Full, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_refusals, "_LOG_S", 0.01)
    refusals, key = EarlyRefusals(full.service.app), full.one.key.encode()
    call = ("GET", full.turns.encode(), [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer " + key)])
    for _ in range(2):
        at_once = [refusals.answer(*call, port=80) for _ in range(3 * MAX_AT_ONCE)]
        assert [answer is None for answer in at_once] == [False] * MAX_AT_ONCE + [True] * 2 * MAX_AT_ONCE
        await asyncio.sleep(0)

    def lines() -> list[dict[str, Any]]:
        return [line for text in log.getvalue().splitlines() if (line := json.loads(text))["event"] == "calls.refused"]

    async with asyncio.timeout(60):
        while sum(line["count"] for line in lines()) < 2 * MAX_AT_ONCE:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
    assert len(lines()) <= 2
    assert {line["tenant_id"] for line in lines()} == {format_id(full.one.tenant_id)}
    assert sum(line["count"] for line in lines()) == 2 * MAX_AT_ONCE
    exported = (await full.service.client(None).get("/metrics")).text
    route = 'method="GET",route="/v1/conversations/{conversation_id}/turns",status="503"'
    assert f"turnkeep_http_requests_total{{{route}}} {2 * MAX_AT_ONCE}.0" in exported


async def test_a_flood_over_many_connections_is_answered_whole(full: Full) -> None:
    count = 4 * MAX_AT_ONCE
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(full.wire()) for _ in range(count)]
        for wire in wires:
            wire.writer.write(head(full.one.key, full.turns, method="GET", length=0))
        answers = [await wire.answer() for wire in wires]
    assert {answer.status for answer in answers} == {503}
    assert len({answer.headers["x-request-id"] for answer in answers}) == count
