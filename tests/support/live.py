"""Live conversations in tests: the app on a real socket, clients of both transports, a bus that loses and reorders."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from websockets.asyncio.client import ClientConnection, connect

from app.container import Container
from app.conversations.live.event_listener import event_listener
from app.core.bus.messages import Listener, Message
from app.core.ids import format_id, new_uuid
from app.routers.http import uvicorn_protocols
from app.routers.http.uvicorn_protocols import KEEP_ALIVE_S, protocols
from app.settings import Settings

WAIT_S = 60.0


@asynccontextmanager
async def serving(app: FastAPI, settings: Settings) -> AsyncIterator[int]:
    """The app, whose lifespan is open, on a port of its own; configured as `turnkeep serve` does.

    On the port of the metrics too, where the settings name one.
    """
    stall_s = uvicorn_protocols.STALL_S
    http, socket_protocol = protocols(stall_s=stall_s, body_timeout_s=settings.requests.body_timeout_s)
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        for port in (0, settings.telemetry.metrics_port):
            if port is not None:
                sockets.append(stack.enter_context(socket.socket()))
                sockets[-1].bind(("127.0.0.1", port))
        config = uvicorn.Config(
            app, http=http, ws=socket_protocol, lifespan="off", log_config=None, access_log=False,
            ws_max_size=settings.live.live_frame_bytes, ws_ping_interval=settings.live.live_heartbeat_s,
            ws_ping_timeout=stall_s, ws_per_message_deflate=False, timeout_graceful_shutdown=1,
            timeout_keep_alive=KEEP_ALIVE_S,
        )  # fmt: skip
        server = uvicorn.Server(config)
        server.capture_signals = _NoSignals  # type: ignore[method-assign]
        running = asyncio.create_task(server.serve(sockets=sockets))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        try:
            yield sockets[0].getsockname()[1]
        finally:
            server.should_exit = True
            await running


class _NoSignals:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class Socket:
    """A client's WebSocket: sends frames, and waits for those it asks for."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.received: list[dict[str, Any]] = []

    async def send(self, type_: str, **members: Any) -> None:
        await self.connection.send(json.dumps({"type": type_, **members}))

    async def next(self) -> dict[str, Any]:
        text = await asyncio.wait_for(self.connection.recv(), WAIT_S)
        frame = json.loads(text)
        self.received.append(frame)
        return frame

    async def until(self, wanted: Callable[[dict[str, Any]], bool] | str) -> dict[str, Any]:
        """The next frame of a type, or that a test of it says yes to; others are kept in `received`."""
        while True:
            frame = await self.next()
            if frame["type"] == wanted if isinstance(wanted, str) else wanted(frame):
                return frame

    async def ask(self, type_: str, **members: Any) -> dict[str, Any]:
        """Send a frame and give its own answer."""
        frame_id = format_id(new_uuid())
        await self.send(type_, id=frame_id, **members)
        return await self.until(lambda frame: frame.get("id") == frame_id)

    async def open_turn(self, **turn: Any) -> str:
        answer = await self.ask("open", turn={"role": "assistant", "actor": "bot"} | turn, writer="w")
        assert answer["type"] == "ack", answer
        return answer["turn_id"]

    async def closed(self) -> tuple[int | None, str | None]:
        """The code and reason that the server closes with; frames before it are kept."""
        try:
            async with asyncio.timeout(WAIT_S):
                async for text in self.connection:
                    self.received.append(json.loads(text))
        except Exception:  # noqa: BLE001, S110 - how it ended is what is asked
            pass
        return self.connection.close_code, self.connection.close_reason


@asynccontextmanager
async def socket_on(port: int, conversation: str, key: str | None, **more: Any) -> AsyncIterator[Socket]:
    headers = more.pop("headers", {}) | ({} if key is None else {"Authorization": f"Bearer {key}"})
    query = more.pop("query", "")
    url = f"ws://127.0.0.1:{port}/v1/conversations/{conversation}/live{query}"
    async with connect(url, additional_headers=headers, **{"max_size": None, "proxy": None} | more) as connection:
        yield Socket(connection)


class Events:
    """A client of server-sent events."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()
        self.last_id: str | None = None
        self.comments = 0

    async def next(self) -> dict[str, Any] | None:
        """The next event's data; None at the end of the stream."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(WAIT_S):
            async for line in self._lines:
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif "data" in fields:
                    self.last_id = fields.get("id", self.last_id)
                    data = json.loads(fields["data"])
                    assert data["type"] == fields["event"]
                    return data
                else:
                    fields = {}
        return None

    async def until(self, type_: str) -> dict[str, Any]:
        while True:
            event = await self.next()
            assert event is not None, f"the stream ended before {type_}"
            if event["type"] == type_:
                return event


@asynccontextmanager
async def events_on(port: int, path: str, key: str, *, last: str | None = None) -> AsyncIterator[Events]:
    headers = {"Authorization": f"Bearer {key}"} | ({} if last is None else {"Last-Event-ID": last})
    url = f"http://127.0.0.1:{port}"
    # the certificates that `verify` loads for every client take longer than most tests
    async with (
        httpx.AsyncClient(base_url=url, headers=headers, timeout=WAIT_S, verify=False) as client,  # noqa: S501
        client.stream("GET", path) as response,
    ):
        yield Events(response)


class Hub:
    """Joins processes; between them messages may be lost, doubled and late, by a seeded chance."""

    def __init__(self, *, lossy: bool = False, seed: int = 0) -> None:
        self.lossy = lossy
        self.drops: Callable[[Message], bool] = lambda _: False
        self._random = random.Random(seed)  # noqa: S311 - chance, not secrets
        self._ends: list[End] = []

    def join(self, container: Container) -> "End":
        """Put a process on this bus instead of its own."""
        end = End(self, event_listener(container.subscriptions, container.list_subscriptions))
        self._ends.append(end)
        container.conversations._publisher._bus = end  # noqa: SLF001
        return end

    def carry(self, sender: "End", message: Message) -> None:
        sender.listener.on_message(message)
        for end in self._ends:
            if end is sender or self.drops(message):
                continue
            fate = self._random.choice(["well", "well", "lost", "late", "twice"]) if self.lossy else "well"
            loop = asyncio.get_running_loop()
            for _ in range({"lost": 0, "twice": 2}.get(fate, 1)):
                delay_s = self._random.uniform(0, 0.1) if fate == "late" else 0.0
                loop.call_later(delay_s, end.listener.on_message, message)


class End:
    """One process's end of a hub."""

    def __init__(self, hub: Hub, heard: Listener) -> None:
        self._hub = hub
        self.listener = heard

    async def start(self, listener: Listener) -> None:
        self.listener = listener

    def publish(self, message: Message) -> None:
        self._hub.carry(self, message)

    def connected(self) -> bool:
        return True

    async def close(self) -> None:
        """Nothing to end."""


class Reader:
    """A client that applies frames as they come, as the guide says: turns by position, text by offset."""

    def __init__(self) -> None:
        self.live: dict[int, dict[str, Any]] = {}
        self.texts: dict[str, str] = {}
        self.rev = 0
        self.aborted: dict[str, int] = {}

    def apply(self, frame: dict[str, Any]) -> None:  # noqa: C901 - one for each kind of frame
        match frame["type"]:
            case "snapshot":
                for turn in frame["turns"]:
                    self._put(turn)
                if not frame["more"]:
                    self.rev = frame["rev"]
                    self.texts = {
                        one["turn"]["id"]: next((p["text"] for p in one["parts"] if p["part"] == "content"), "")
                        for one in frame["pending"]
                    }
            case "turn.opened":
                self.texts[frame["turn"]["id"]] = ""
            case "turn.delta" if frame["part"] == "content":
                held = self.texts[frame["turn_id"]]
                assert frame["offset"] <= len(held), "text behind a hole"
                self.texts[frame["turn_id"]] = held[: frame["offset"]] + frame["delta"]
            case "turn.committed":
                self.texts.pop(frame["turn"]["id"], None)
                self._put(frame["turn"])
                self.rev = frame["rev"]
            case "turn.aborted":
                self.texts.pop(frame["turn_id"])
                self.aborted[frame["turn_id"]] = frame["length"]
            case "turn.superseded":
                self._remove(frame["turn_id"])
                self.rev = frame["rev"]
            case "turn.erased":
                self.rev = frame["rev"]
                for turn in self.live.values():
                    if turn["id"] == frame["turn_id"]:
                        turn["content"] = None
            case _:
                pass

    def _put(self, turn: dict[str, Any]) -> None:
        if turn["superseded_by"] is None:
            self.live[turn["position"]] = turn
        else:
            self._remove(turn["id"])

    def _remove(self, turn_id: str) -> None:
        self.live = {at: turn for at, turn in self.live.items() if turn["id"] != turn_id}

    @property
    def said(self) -> list[Any]:
        """What the live turns say, in order."""
        return [self.live[at]["content"] for at in sorted(self.live)]
