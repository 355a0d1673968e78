"""Two tenants that use the same ids: their streams over both transports, at one process or two, and their followers.

Every text of a tenant has its marker. What a tenant receives is kept in `received`, where no other marker may be.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import httpx

from app.core.ids import format_id, new_uuid
from tests.support.api import Client, Service
from tests.support.live import WAIT_S, Reader, Socket, events_on, socket_on
from tests.support.mcp import call, post

Transport = Literal["rest", "ws"]
Kind = Literal["sse", "ws"]
WRITER = "the writer"
MARKERS = ("ALPHA", "BRAVO")


@dataclass(frozen=True)
class Process:
    """One process of the service, and the port that it listens on."""

    service: Service
    port: int


async def wait_until(is_so: Callable[[], bool], what: Callable[[], object]) -> None:
    until = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < until, what()
        await asyncio.sleep(0.005)


class Sender(Protocol):
    """Sends the operations of streams to one process, in one conversation."""

    async def send(self, operation: str, turn_id: str, **members: Any) -> dict[str, Any]: ...


class RestSender:
    """Over plain HTTP. A problem is given as it came: it has a `code`."""

    def __init__(self, client: Client, conversation: str) -> None:
        self._client, self._path = client, f"/v1/conversations/{conversation}/turns"

    async def send(self, operation: str, turn_id: str, **members: Any) -> dict[str, Any]:
        paths = {"open": "/open", "append": "", "chunk": f"/{turn_id}/chunks"}
        headers = {} if (key := members.pop("idempotency_key", None)) is None else {"Idempotency-Key": key}
        epoch = members.pop("epoch", None)
        answer = await self._client.post(
            self._path + paths.get(operation, f"/{turn_id}/{operation}"), json=members, headers=headers,
            params={} if epoch is None else {"epoch": epoch},
        )  # fmt: skip
        assert "Idempotent-Replayed" not in answer.headers
        return answer.json()


class SocketSender:
    """Over a WebSocket. An error frame is given as it came: it has a `code`."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket

    async def send(self, operation: str, turn_id: str, **members: Any) -> dict[str, Any]:
        members.pop("epoch", None)  # a connection knows its own
        if operation == "open":
            del members["idempotency_key"]  # as the frame does
        if operation not in {"open", "append"}:
            members["turn_id"] = turn_id
        return await self.socket.ask(operation, **members)


class Following:
    """A follower of a conversation, which applies what it is sent."""

    def __init__(self, tenant: "Tenant", next_frame: Callable[[], Awaitable[dict[str, Any] | None]]) -> None:
        self._tenant, self._next = tenant, next_frame
        self.reader = Reader()
        self.frames: list[dict[str, Any]] = []
        self.grown: dict[str, list[str]] = {}
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while (frame := await self._next()) is not None:
            if frame["type"] in {"ack", "pong"}:
                continue
            self.frames.append(frame)
            self._tenant.received.append(json.dumps(frame, ensure_ascii=False))
            self.reader.apply(frame)
            for turn_id, text in self.reader.texts.items():
                self.grown.setdefault(turn_id, []).append(text)

    async def until(self, is_so: Callable[[], bool]) -> None:
        def so_or_over() -> bool:
            return self._task.done() or is_so()

        await wait_until(so_or_over, lambda: (self.reader.texts, self.reader.said, self.frames[-3:]))
        if self._task.done():
            self._task.result()
        assert is_so(), "the follower's stream has ended"

    async def until_text(self, turn_id: str, text: str) -> None:
        await self.until(lambda: self.reader.texts.get(turn_id) == text)

    async def until_ended(self, turn_id: str, status: str) -> dict[str, Any]:
        def ends() -> list[dict[str, Any]]:
            if status == "aborted":
                return [one for one in self.frames if one["type"] == "turn.aborted" and one["turn_id"] == turn_id]
            return [one for one in self.frames if one["type"] == "turn.committed" and one["turn"]["id"] == turn_id]

        await self.until(lambda: bool(ends()))
        assert len(ends()) == 1
        return ends()[0]

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@dataclass
class Tenant:
    """A tenant at some processes, in one conversation."""

    marker: str
    processes: Sequence[Process]
    clients: list[Client]
    conversation: str
    stack: AsyncExitStack
    received: list[str] = field(default_factory=list)
    followers: list[Following] = field(default_factory=list)

    @property
    def client(self) -> Client:
        return self.clients[0]

    async def senders(self, transport: Transport, conversation: str | None = None) -> list[Sender]:
        """One for each process."""
        conversation = conversation or self.conversation
        if transport == "rest":
            return [RestSender(client, conversation) for client in self.clients]
        return [SocketSender(await self.socket(process, conversation)) for process in self.processes]

    async def socket(self, process: Process, conversation: str | None = None) -> Socket:
        connection = socket_on(process.port, conversation or self.conversation, self.client.key)
        return await self.stack.enter_async_context(connection)

    async def stream(self, transport: Transport, turn_id: str, conversation: str | None = None) -> "Stream":
        """A turn to write: the first tenant stays at one process, the other moves with every call."""
        senders = await self.senders(transport, conversation)
        if self.marker == MARKERS[0]:
            del senders[1:]
        return Stream(self, senders, turn_id, conversation or self.conversation)

    async def follow(self, kind: Kind, process: Process) -> Following:
        if kind == "ws":
            socket = await self.socket(process)
            await socket.send("subscribe")
            following = Following(self, socket.next)
        else:
            path = f"/v1/conversations/{self.conversation}/events"
            events = await self.stack.enter_async_context(events_on(process.port, path, self.client.key))
            following = Following(self, events.next)
        self.stack.push_async_callback(following.close)
        await following.until(lambda: any(frame["type"] == "snapshot" for frame in following.frames))
        self.followers.append(following)
        return following

    async def tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool over MCP, at the last process."""
        async with httpx.AsyncClient(timeout=WAIT_S, verify=False) as http:  # noqa: S501 - it is not TLS
            answer = await post(http, self.processes[-1].port, self.client.key, call(name, arguments))
        self.received.append(answer.text)
        return answer.json()["result"]["structuredContent"]

    def require_own(self) -> None:
        """Nothing that this tenant was sent has another's text, actor or answer."""
        others = [marker for marker in MARKERS if marker != self.marker]
        for text in self.received:
            assert not any(other in text for other in others), text


class Stream:
    """A turn that a tenant writes. Of several senders each call takes the next, beginning with the last."""

    def __init__(self, tenant: Tenant, senders: Sequence[Sender], turn_id: str, conversation: str) -> None:
        self.tenant, self.id, self.conversation = tenant, turn_id, conversation
        self.text = ""
        self.epoch = 0
        self.senders = senders
        self._calls = len(senders) - 2
        self._pieces = 0

    async def open(self) -> None:
        turn = {"role": "assistant", "id": self.id, "actor": self.tenant.marker, "metadata": {"of": self.tenant.marker}}
        answer = await self._sender().send("open", self.id, turn=turn, writer=WRITER, idempotency_key=f"open {self.id}")
        assert "code" not in answer, answer
        assert (answer["epoch"], answer["durable_offset"]) == (1, 0), answer
        self.epoch = 1

    async def write(self) -> None:
        """Send a piece of text, which is taken at the offset that it was sent at."""
        self._pieces += 1
        await self.write_text(f"{self.tenant.marker} {self._pieces} wörter 🦘 ")

    async def write_text(self, text: str) -> None:
        sender = await self._moved()
        answer = await self._send(sender, "chunk", offset=len(self.text), delta=text)
        assert "code" not in answer, answer
        self.text += text
        assert answer["offset"] == len(self.text)
        assert answer["durable_offset"] <= len(self.text)

    async def until_durable(self) -> None:
        """Wait until all of the text is durable."""
        await self._until_durable(await self._moved())

    async def _until_durable(self, sender: Sender) -> None:
        until = time.monotonic() + WAIT_S
        durable = -1
        while durable < len(self.text):
            assert time.monotonic() < until, durable
            answer = await self._send(sender, "chunk", offset=len(self.text), delta="")
            assert "code" not in answer, answer
            durable = answer["durable_offset"]
            await asyncio.sleep(0.01)
        assert durable == len(self.text)

    async def renew(self) -> None:
        answer = await self._send(await self._moved(), "chunk", offset=len(self.text), delta="")
        assert answer.get("offset") == len(self.text), answer

    async def resume(self) -> None:
        await self._resume(self._sender())

    async def _resume(self, sender: Sender) -> None:
        answer = await sender.send("resume", self.id, writer=WRITER)
        assert "code" not in answer, answer
        self.epoch += 1
        assert answer["epoch"] == self.epoch
        # the process that took the text has written it
        assert answer["durable_offset"] == len(self.text), answer

    async def commit(self) -> None:
        await self.until_followed()
        answer = await self._send(await self._moved(), "commit", length=len(self.text))
        assert "code" not in answer, answer
        await self.require_ended(answer.get("turn", answer), "committed")

    async def abort(self) -> None:
        await self.until_followed()
        answer = await self._send(await self._moved(), "abort", reason=self.tenant.marker)
        assert "code" not in answer, answer
        await self.require_ended(answer.get("turn", answer), "aborted")

    async def until_followed(self) -> None:
        """Wait until every follower has all of the text."""
        if self.conversation == self.tenant.conversation:
            for subscriptions in self.tenant.followers:
                await subscriptions.until_text(self.id, self.text)

    async def require_ended(self, turn: dict[str, Any], status: str) -> None:
        """The turn is as it was sent: in the answer, in the rows, and in the events."""
        expected = (self.id, self.conversation, status, self.text, self.tenant.marker, self.tenant.marker)
        path = f"/v1/conversations/{self.conversation}/turns/{self.id}"
        read = [(await client.get(path)).json() for client in self.tenant.clients]
        for one in (turn, *read):
            found = (one["id"], one["conversation_id"], one["status"], one["content"], one["actor"])
            assert (*found, one["metadata"]["of"]) == expected
        if self.conversation != self.tenant.conversation:
            return
        for subscriptions in self.tenant.followers:
            end = await subscriptions.until_ended(self.id, status)
            assert end.get("length", len(self.text)) == len(self.text)
            if status == "committed":
                assert {**end["turn"], "index_state": ""} == {**turn, "index_state": ""}
            assert all(self.text.startswith(text) for text in subscriptions.grown[self.id])
        self.tenant.require_own()

    async def _send(self, sender: Sender, operation: str, **members: Any) -> dict[str, Any]:
        # who has resumed says so by the epoch: another process may not have noticed it yet
        epoch = {} if self.epoch == 1 else {"epoch": self.epoch}
        return await sender.send(operation, self.id, **members, **epoch)

    def _sender(self) -> Sender:
        self._calls += 1
        return self.senders[self._calls % len(self.senders)]

    async def _moved(self) -> Sender:
        """Where the next call goes; a connection to another process resumes first."""
        sender = self._sender()
        if len(self.senders) > 1 and isinstance(sender, SocketSender):
            await self._resume(sender)
        return sender


async def new_tenant(
    marker: str, processes: Sequence[Process], stack: AsyncExitStack, *, conversation: str, follow: bool = True
) -> Tenant:
    """A tenant with a conversation of this id, and two followers of it: one by events, one by a WebSocket."""
    first = await stack.enter_async_context(await processes[0].service.new_tenant())
    tenant = Tenant(marker, processes, [first], conversation, stack)
    for process in processes[1:]:
        client = await stack.enter_async_context(process.service.client(first.key))
        client.key, client.tenant_id = first.key, first.tenant_id
        tenant.clients.append(client)

    async def record(response: httpx.Response) -> None:
        await response.aread()
        tenant.received.append(response.text)

    for client in tenant.clients:
        client.event_hooks["response"].append(record)
    made = await tenant.client.conversation(id=conversation, external_id="the room", title=marker)
    assert made == conversation
    if follow:
        kinds: tuple[Kind, Kind] = ("sse", "ws") if marker == MARKERS[0] else ("ws", "sse")
        for kind, process in zip(kinds, (processes[0], processes[-1]), strict=True):
            await tenant.follow(kind, process)
    return tenant


def new_id() -> str:
    return format_id(new_uuid())
