"""Fuzzers of the WebSocket and of MCP: good messages, changed at random, against a server in a process of its own.

    .venv/bin/python -m tests.soak.fuzz --messages 20000

Each message is one of `tests/support/marked.py` with some of its members removed, renamed, doubled or replaced by odd
values, or raw bytes that are no JSON at all. The server may refuse what it gets, in a way that the guides describe, and
close a connection with a code that they name. It must never answer with an unexpected error, log one, or stop. The
seed decides what is sent.
"""

import argparse
import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import httpx
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.soak.installation import Installation
from tests.support.api import Client
from tests.support.live import socket_on
from tests.support.marked import FRAMES, TOOL_ARGUMENTS, Marked, store_marked
from tests.support.mcp import call, message, post

_SETTINGS: Final = {"TURNKEEP_RATE_LIMITS_ENABLED": "false"}
_REQUEST_S: Final = 60.0
_ANSWER_S: Final = 0.5
# a larger one is refused before it is read, which a client can meet as a connection that is reset
_BODY_BYTES: Final = 8 * 2**20
_FRAMES_OF_A_CONNECTION: Final = 40
_METHODS: Final = (
    "initialize", "ping", "tools/list", "resources/list", "resources/read", "resources/templates/list", "prompts/list",
    "completion/complete", "logging/setLevel", "notifications/initialized", "subscriptions/listen", "nothing",
)  # fmt: skip
# the guide of live chat tells a client what to do after each of these
_CLOSES: Final = frozenset({1000, 1001, 1003, 1007, 1009, 1012, 1013, 4400, 4401, 4403, 4404, 4408, 4409, 4429})
_ODD: Final[Sequence[Any]] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 2**200, -0.0, 1e308, 0.5, "", " ", "\0", "\ud800", "\uffff",
    "𝄞" * 40, "x" * 70_000, "<script>", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "../..", "tk_x",
    "' or 1=1 --", "2026-01-01T00:00:00Z",
    [], {}, [[]], [None], {"": None}, {"type": "ping"}, [0] * 300,
)  # fmt: skip
_RAW: Final = (
    b"", b"{", b"[]", b"null", b'"', b"\xff\xfe", b'{"type":"ping"', b'{"type":"ping","type":"append"}', b"[" * 3_000,
    b'{"a":NaN}', b'{"a":1e999}', b"0" * 5_000, b'\xef\xbb\xbf{"type":"ping"}', b'{"\\u0000":1}', b'"\\ud800"',
)  # fmt: skip


class Mutator:
    """Changes JSON values at random, the same way for the same seed."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - repeatable, not secret

    def raw(self) -> bytes:
        """Bytes that are mostly no message."""
        if self.rng.random() < 0.5:
            return self.rng.choice(_RAW)
        return self.rng.randbytes(self.rng.randrange(1, 200))

    def change(self, value: Any) -> Any:
        """Change none, one or a few places of a value."""
        for _ in range(self.rng.choice((0, 1, 1, 1, 2, 3, 8))):
            value = self._changed(value)
        return value

    def _changed(self, value: Any) -> Any:
        rng = self.rng
        if isinstance(value, dict) and value and rng.random() < 0.85:
            return self._object(value)
        if isinstance(value, list) and value and rng.random() < 0.85:
            at = rng.randrange(len(value))
            changed = [*value[:at], self._changed(value[at]), *value[at + 1 :]]
            return changed * rng.choice((1, 1, 1, 2, 30 if len(changed) < 10 else 1))
        if isinstance(value, str) and value and rng.random() < 0.3:
            at = rng.randrange(len(value))
            return value[:at] + rng.choice(("\0", "\ud800", "é", "", '"', " ")) + value[at + 1 :]
        return rng.choice(_ODD)

    def _object(self, value: dict[str, Any]) -> dict[str, Any]:
        """Remove, double, add or change a member."""
        rng = self.rng
        name = rng.choice(sorted(value))
        match rng.randrange(8):
            case 0:
                return {other: member for other, member in value.items() if other != name}
            case 1:
                return value | {f"{name}_": value[name]}
            case 2:
                return value | {str(rng.choice(_ODD))[:100]: rng.choice(_ODD)}
            case _:
                return value | {name: self._changed(value[name])}


async def fuzz_frames(port: int, client: Client, marked: Marked, *, seed: int, messages: int) -> Counter[str]:
    """Send frames over one WebSocket after another. Return how many were sent, answered and closed on, by kind."""
    counts: Counter[str] = Counter()
    mutator = Mutator(f"{seed} frames")
    while counts["frames sent"] < messages:
        conversation = marked.conversation_id if mutator.rng.random() < 0.8 else await client.conversation()
        async with socket_on(port, conversation, client.key) as socket:
            answered = asyncio.Event()
            reading = asyncio.create_task(_read(socket.connection, counts, answered))
            try:
                for _ in range(min(_FRAMES_OF_A_CONNECTION, messages - counts["frames sent"])):
                    counts["frames sent"] += 1
                    answered.clear()
                    await socket.connection.send(_frame(mutator, marked))
                    # what is sent to a connection that the server closes can cost the client the code
                    with suppress(TimeoutError):
                        await asyncio.wait_for(answered.wait(), _ANSWER_S)
                await socket.connection.send(json.dumps({"type": "ping", "id": "last"}))
                await asyncio.wait_for(reading, _REQUEST_S)
            except ConnectionClosed:
                await reading
        code = socket.connection.close_code
        counts[f"closed with {code}"] += 1
        assert code in _CLOSES, f"closed with {code} {socket.connection.close_reason!r} after {counts['frames sent']}"
    return counts


def _frame(mutator: Mutator, marked: Marked) -> str | bytes:
    """One frame, mostly as text: binary ones end the connection."""
    chance = mutator.rng.random()
    if chance < 0.01:
        return mutator.raw()
    if chance < 0.04:
        return mutator.raw().decode(errors="replace")
    kind = mutator.rng.choice(sorted(set(FRAMES) - {"auth"}) if chance < 0.98 else sorted(FRAMES))
    frame = {"type": kind, "id": str(mutator.rng.random()), **FRAMES[kind](marked)}
    # a surrogate cannot be sent as UTF-8, but stands in JSON as an escape
    return json.dumps(mutator.change(frame))


async def _read(connection: ClientConnection, counts: Counter[str], answered: asyncio.Event) -> None:
    """Count answers until the one to the last frame, or the end of the connection."""
    try:
        async for text in connection:
            frame = json.loads(text)
            counts[f"answered {frame['type']}"] += 1
            assert frame.get("code") != "internal_error", frame
            answered.set()
            if frame.get("id") == "last":
                return
    except ConnectionClosed:
        return
    finally:
        answered.set()


async def fuzz_mcp(port: int, client: Client, marked: Marked, *, seed: int, messages: int) -> Counter[str]:
    """Send messages to `/mcp`, a few at a time. Return how many were sent and answered, by status and kind."""
    counts: Counter[str] = Counter()
    mutator = Mutator(f"{seed} messages")
    async with httpx.AsyncClient(timeout=_REQUEST_S) as http:
        while counts["messages sent"] < messages:
            few = min(8, messages - counts["messages sent"])
            counts["messages sent"] += few
            bodies = [body for _ in range(few) if len(body := _message(mutator, marked)) <= _BODY_BYTES]
            for answer in await asyncio.gather(*(post(http, port, client.key, body) for body in bodies)):
                counts[f"answered {answer.status_code}"] += 1
                assert answer.status_code < 500 or answer.status_code == 503, answer.text[:500]
                # -32603 is the protocol's internal error
                assert '"code":-32603' not in answer.text.replace(" ", ""), answer.text[:500]
                assert '"code":"internal_error"' not in answer.text.replace(" ", ""), answer.text[:500]
    return counts


def _message(mutator: Mutator, marked: Marked) -> bytes:
    chance = mutator.rng.random()
    if chance < 0.03:
        return mutator.raw()
    if chance < 0.2:
        sent = message(mutator.rng.choice(_METHODS), {"name": "recall", "uri": "turnkeep://conversations"})
        return json.dumps(mutator.change(sent)).encode()
    tool = mutator.rng.choice(sorted(TOOL_ARGUMENTS))
    arguments = TOOL_ARGUMENTS[tool](marked)
    if chance < 0.85:
        return json.dumps(call(tool, mutator.change(arguments))).encode()
    return json.dumps(mutator.change(call(tool, arguments))).encode()


async def run(seed: int, *, messages: int) -> Counter[str]:
    """Fuzz both on a new installation; fail at the first thing that must not be, and for errors in its log."""
    installation = Installation(1, _SETTINGS)
    try:
        await installation.start()
        port = installation.ports[0]
        async with Client(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {installation.key}"}, timeout=60
        ) as client:
            client.key = installation.key
            marked = await store_marked(client, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
            counts = await fuzz_frames(port, client, marked, seed=seed, messages=messages)
            counts += await fuzz_mcp(port, client, marked, seed=seed, messages=messages)
            verified = (await client.get(f"/v1/conversations/{marked.conversation_id}/verify")).json()
        assert verified["valid"], verified
        assert installation.errors_logged() == []
        assert installation.servers[0].own_exits == []
        code, written, complained = await installation.command("doctor", "--invariants")
        assert code == 0, written + complained
    except BaseException:
        sys.stderr.write(installation.log_tails() + "\n")
        raise
    finally:
        stopped = await installation.stop()
        installation.remove()
    assert stopped == []
    return counts


def main() -> None:
    """Run the long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TURNKEEP_SOAK_SEED", "1")))
    given = parser.parse_args()
    counts = asyncio.run(run(given.seed, messages=given.messages))
    sys.stdout.write("".join(f"{name}: {count}\n" for name, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
