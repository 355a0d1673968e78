"""`turnkeep tail`: a process of its own, in a terminal or a pipe, beside a server on a real socket."""

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.cli import cli
from app.core.errors import AppError, Unavailable
from app.core.ids import format_id, new_uuid
from app.tail.connection import TailConnection, TailTarget
from tests.support.api import Client, Service, open_service
from tests.support.command import TURNKEEP
from tests.support.live import Socket, serving, socket_on
from tests.support.postgres import TestDatabase

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0  # a process imports everything before it says anything, and machines are busy
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")


@pytest.fixture(scope="module")
async def port(database: TestDatabase, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[int]:
    quick = {"stream_debounce_ms": 20}
    async with (
        open_service(database, Path(tmp_path_factory.mktemp("tail")), **quick) as opened,
        serving(opened.app, opened.settings) as port,
    ):
        yield port


@pytest.fixture
async def user(service: Service) -> Client:
    return await service.new_tenant()


class Cut:
    """Stands before the server and cuts every connection when told to."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = 0
        self.port = 0
        self.server: asyncio.Server | None = None

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, onward = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers += [writer, onward]
        await asyncio.gather(_copy(reader, onward), _copy(there, writer), return_exceptions=True)

    def stop(self) -> None:
        """Cut, and take no more connections."""
        assert self.server is not None
        self.server.close()
        self.cut()

    def cut(self) -> None:
        while self._writers:
            self._writers.pop().transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def cutting(port: int) -> AsyncIterator[Cut]:
    between = Cut(port)
    between.server = await asyncio.start_server(between.carry, "127.0.0.1", 0)
    between.port = between.server.sockets[0].getsockname()[1]
    yield between
    between.stop()


class Tail:
    """A `turnkeep tail`; what it has written so far is `text`, without what only steers a terminal."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.written = b""
        self.arrived = asyncio.Event()

    def add(self, data: bytes) -> None:
        self.written += data
        self.arrived.set()

    @property
    def text(self) -> str:
        return ESCAPES.sub("", self.written.decode(errors="replace"))

    async def until(self, wanted: str | Callable[[str], bool]) -> str:
        end = time.monotonic() + WAIT_S
        while not (wanted in self.text if isinstance(wanted, str) else wanted(self.text)):
            self.arrived.clear()
            left = end - time.monotonic()
            assert left > 0, f"not seen: {wanted!r} in\n{self.text}"
            with suppress(TimeoutError):
                await asyncio.wait_for(self.arrived.wait(), min(left, 1.0))
        return self.text

    async def stop(self, signal_number: signal.Signals = signal.SIGINT) -> int:
        if self.process.returncode is None:
            self.process.send_signal(signal_number)
        return await asyncio.wait_for(self.process.wait(), WAIT_S)


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    yield ours, theirs
    with suppress(OSError):
        os.close(ours)


@asynccontextmanager
async def tailing(port: int, conversation: str, key: str, *options: str, tty: bool = False) -> AsyncIterator[Tail]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNKEEP_", "DATABASE_URL"))}
    env = kept | {
        "TURNKEEP_URL": f"http://127.0.0.1:{port}", "TURNKEEP_API_KEY": key, "TERM": "xterm-256color",
        "TURNKEEP_DATA_DIR": "nowhere",
    }  # fmt: skip
    command = [*TURNKEEP, "tail", conversation, *options]
    loop = asyncio.get_running_loop()
    with terminal() as (ours, theirs):
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env=env, stdin=asyncio.subprocess.DEVNULL,
            stdout=theirs if tty else asyncio.subprocess.PIPE, stderr=theirs if tty else asyncio.subprocess.STDOUT,
        )  # fmt: skip
        os.close(theirs)
        tail = Tail(process)
        reading = None
        if tty:

            def read() -> None:
                try:
                    tail.add(os.read(ours, 2**16))
                except OSError:
                    loop.remove_reader(ours)

            loop.add_reader(ours, read)
        else:
            reading = asyncio.create_task(_read(process, tail))
        try:
            yield tail
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            if tty:
                await asyncio.sleep(0.05)
                loop.remove_reader(ours)
            if reading is not None:
                await reading


async def _read(process: asyncio.subprocess.Process, tail: Tail) -> None:
    assert process.stdout is not None
    while data := await process.stdout.read(2**16):
        tail.add(data)


async def write(socket: Socket, turn_id: str, offset: int, delta: str, part: str = "content") -> None:
    answer = await socket.ask("chunk", turn_id=turn_id, offset=offset, delta=delta, part=part)
    assert answer["type"] == "ack", answer


@pytest.mark.slow
async def test_a_terminal_shows_the_newest_turns_then_text_of_several_writers_as_it_grows(
    user: Client, port: int
) -> None:
    conversation = await user.conversation()
    await user.append(conversation, {"role": "user", "actor": "ann", "content": "Where to?"})
    async with (
        tailing(port, conversation, user.key, tty=True) as tail,
        socket_on(port, conversation, user.key) as socket,
    ):
        await tail.until("Where to?")
        one = await socket.open_turn(actor="guide")
        two = await socket.open_turn(actor="pilot")
        await write(socket, one, 0, "To the 🌊, ")
        await write(socket, two, 0, "Up and away")
        await tail.until(lambda text: "To the 🌊, ▌" in text and "Up and away▌" in text)
        await write(socket, one, 10, "along the river.")
        await write(socket, one, 0, "find_tram", "tool_calls/0/name")
        await write(socket, one, 0, '{"stop": "Gra', "tool_calls/0/arguments")
        await tail.until('→ find_tram {"stop": "Gra▌')
        calls = [{"id": "c", "name": "find_tram", "arguments": '{"stop": "Graça"}'}]
        await socket.ask("commit", turn_id=one, tool_calls=calls)
        await socket.ask("abort", turn_id=two)
        shown = await tail.until("Up and away (given up)")
        assert "To the 🌊, along the river." in shown
        assert '→ find_tram {"stop": "Graça"}' in shown
        assert await tail.stop() == 0
        assert tail.written.rstrip().endswith(b"\x1b[?25h") or b"\x1b[?25h" in tail.written[-200:], "the cursor is back"
        assert "Traceback" not in tail.text


@pytest.mark.slow
async def test_it_connects_again_by_itself_and_misses_and_repeats_nothing(user: Client, port: int) -> None:
    conversation = await user.conversation()
    async with (
        cutting(port) as between,
        tailing(between.port, conversation, user.key) as tail,
        socket_on(port, conversation, user.key) as socket,
    ):
        await user.append(conversation, "one", "two")
        turn_id = await socket.open_turn()
        await write(socket, turn_id, 0, "three, ")
        await tail.until("two")
        between.cut()
        await write(socket, turn_id, 7, "and more")
        await socket.ask("commit", turn_id=turn_id)
        await user.append(conversation, "four")
        await tail.until("trying again")
        await tail.until("four")
        await user.append(conversation, "five")
        await tail.until("five")
        evil = "a\x1b]0;title\x07b\x1b[2Jc\r\nd [bold]e[/bold]\u202ef"
        await user.append(conversation, {"role": "user", "actor": "x\x1b[31m", "content": evil})
        await tail.until("[bold]e[/bold]")
        assert b"\x1b" not in tail.written, "what was said cannot steer the terminal"
        assert "\u202e" not in tail.text
        said = [line.partition(": ")[2] for line in tail.text.splitlines() if not line.startswith("turnkeep")]
        assert said[:5] == ["one", "two", "three, and more", "four", "five"]
        assert len(said) == 7
        assert between.connections >= 2
        assert await tail.stop(signal.SIGTERM) == 0


async def test_raw_prints_frames_as_lines_after_a_rev(user: Client, port: int) -> None:
    conversation = await user.conversation()
    await user.append(conversation, "before")
    rev = (await user.append(conversation, "known"))["rev"]
    await user.append(conversation, "news")
    async with tailing(port, conversation, user.key, "--raw", "--after-rev", str(rev)) as tail:
        await tail.until("snapshot")
        await user.append(conversation, "later")
        await tail.until("later")
        frames: list[dict[str, Any]] = [json.loads(line) for line in tail.text.splitlines()]
        assert [turn["content"] for turn in frames[0]["turns"]] == ["news"]
        assert frames[-1]["turn"]["content"] == "later"


@pytest.mark.parametrize(("key", "sentence"), [("own", "There is no such conversation"), ("bad", "refuses this key")])
async def test_where_connecting_again_cannot_help_it_ends_with_a_sentence(
    user: Client, service: Service, port: int, key: str, sentence: str
) -> None:
    other = await (await service.new_tenant()).conversation()
    target = TailTarget(f"http://127.0.0.1:{port}", user.key if key == "own" else user.key[:-3] + "xyz", other)
    said: list[str | None] = []
    with pytest.raises(AppError, match=sentence):
        async for _ in TailConnection(target, lambda: None, said.append).frames():
            pass
    assert said == [None], "it connected once"


def test_without_a_conversation_or_key_nothing_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNKEEP_DATA_DIR", str(tmp_path))
    for argument, sentence in (("not an id", "An external_id is none"), (format_id(new_uuid()), "data/admin-key")):
        done = CliRunner().invoke(cli, ["tail", argument])
        assert done.exit_code == 1
        assert sentence in done.stderr


async def test_a_conversation_is_named_by_its_external_id(
    user: Client, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    async def show(target: TailTarget, **_options: object) -> None:
        shown.append(target.conversation)

    monkeypatch.setattr("app.tail.service.tail", show)
    for name, value in (("TURNKEEP_URL", f"http://127.0.0.1:{port}"), ("TURNKEEP_API_KEY", user.key)):
        monkeypatch.setenv(name, value)
    conversation = await user.conversation(external_id="trip")
    elsewhere = await user.conversation(external_id="trip", project="p2")

    async def tail(*words: str) -> str:
        done = await asyncio.to_thread(CliRunner().invoke, cli, ["tail", *words])
        return done.stderr

    assert await tail("--external-id", "trip") == ""
    assert await tail("--external-id", "trip", "--project", "p2") == ""
    assert shown == [conversation, elsewhere]
    assert "no conversation with this external_id" in await tail("--external-id", "none")
    assert "give it as --external-id" in await tail("trip")
    assert "give the id of a conversation, or its --external-id" in await tail()
    assert "give the id of a conversation, or its --external-id" in await tail(conversation, "--external-id", "trip")


@pytest.mark.slow
def test_a_server_that_is_not_there_is_named_and_given_up() -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEP_")}
    began = time.monotonic()
    done = subprocess.run(
        [*TURNKEEP, "tail", format_id(new_uuid()), "--url", "http://127.0.0.1:9"], cwd=ROOT, capture_output=True,
        text=True, timeout=WAIT_S, check=False, env=kept | {"TURNKEEP_API_KEY": "x"},
    )  # fmt: skip
    assert done.returncode == 1
    assert time.monotonic() - began < WAIT_S
    assert "http://127.0.0.1:9 cannot be reached" in done.stderr.splitlines()[-1]
    assert "turnkeep serve" in done.stderr.splitlines()[-1]


async def test_a_server_that_does_not_come_back_is_given_up(user: Client, port: int) -> None:
    conversation = await user.conversation()
    async with cutting(port) as between:
        target = TailTarget(f"http://127.0.0.1:{between.port}", user.key, conversation)
        connection = TailConnection(target, lambda: None, lambda _: None, timeout_s=1.0)
        frames = connection.frames()
        while '"snapshot"' not in await anext(frames):
            pass
        between.stop()
        with pytest.raises(Unavailable, match=f"http://127.0.0.1:{between.port} cannot be reached"):
            async for _ in frames:
                pass
