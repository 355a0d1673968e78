"""The WebSocket of a conversation, on a real socket: publish, follow, and everything a client may do wrong."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi import WebSocket
from websockets.frames import Frame, Opcode

from app.container import Container
from app.conversations.live.service import Subscription
from app.core.ids import ConversationId, TurnId, format_id, new_uuid
from app.routers.live import connection as sockets
from app.routers.live import frames as live_frames
from app.tenancy.schemas import Caller
from tests.support.api import Client, Service, open_service
from tests.support.live import Reader, Socket, events_on, serving, socket_on
from tests.support.postgres import TestDatabase

QUICK = {
    "stream_debounce_ms": 50, "live_recheck_s": 0.3, "live_auth_timeout_s": 0.5, "live_heartbeat_s": 1.0,
    "live_check_s": 0.5, "live_bad_frames": 3, "live_queue_frames": 100, "live_queue_bytes": 200_000,
    "live_stall_s": 8.0, "embedder": "none",
}  # fmt: skip


@pytest.fixture(scope="module")
async def live(
    words_database: TestDatabase, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Service, int]]:
    """An app on a socket, quick in everything that tests would wait for."""
    folder = Path(tmp_path_factory.mktemp("live"))
    async with open_service(words_database, folder, **QUICK) as opened, serving(opened.app, opened.settings) as port:
        yield opened, port


@pytest.fixture
async def user(live: tuple[Service, int]) -> AsyncIterator[Client]:
    async with await live[0].new_tenant() as opened:
        yield opened


@pytest.fixture
def port(live: tuple[Service, int]) -> int:
    return live[1]


async def test_a_turn_is_written_seen_as_it_grows_and_committed(user: Client, port: int) -> None:
    conversation = await user.conversation()
    await user.append(conversation, "hello")
    async with socket_on(port, conversation, user.key) as writer, socket_on(port, conversation, user.key) as reader:
        assert (await reader.ask("subscribe"))["type"] == "ack"
        snapshot = await reader.next()
        assert (snapshot["type"], snapshot["rev"], snapshot["seq"], snapshot["more"]) == ("snapshot", 1, 1, False)
        assert [turn["content"] for turn in snapshot["turns"]] == ["hello"]
        turn_id = await writer.open_turn(model="m")
        assert (await reader.next())["turn"]["id"] == turn_id
        presence = await reader.next()
        assert presence == {
            "type": "presence", "writers": [{"turn_id": turn_id, "writer": "w", "actor": "bot"}],
        }  # fmt: skip
        for offset, text in ((0, "Hi "), (3, "there 😀")):
            ack = await writer.ask("chunk", turn_id=turn_id, offset=offset, delta=text)
            assert (ack["offset"], ack["turn_id"]) == (offset + len(text), turn_id)
            delta = await reader.next()
            assert delta == {
                "type": "turn.delta", "turn_id": turn_id, "part": "content", "offset": offset, "delta": text,
            }  # fmt: skip
        durable = await writer.until(lambda frame: frame["type"] == "ack" and frame.get("durable_offset") == 10)
        assert "id" not in durable
        done = await writer.ask("commit", turn_id=turn_id, length=10, usage={"completion_tokens": 3})
        assert (done["turn"]["content"], done["turn"]["seq"], done["turn"]["model"]) == ("Hi there 😀", 2, "m")
        committed = await reader.next()
        assert (committed["type"], committed["rev"], committed["turn"]) == ("turn.committed", 2, done["turn"])
        assert await reader.next() == {"type": "presence", "writers": []}
        assert (await writer.ask("commit", turn_id=turn_id, length=10))["turn"] == done["turn"], "again the same"


async def test_late_and_returning_subscribers_have_every_character_once(user: Client, port: int) -> None:
    conversation = await user.conversation()
    readers: list[tuple[Socket, Reader]] = []
    text = "".join(f"{n} wörter 😀 " for n in range(60))
    async with socket_on(port, conversation, user.key) as writer:
        turn_id = await writer.open_turn()
        opened: list[Any] = []
        for start in range(0, len(text), 9):
            await writer.ask("chunk", turn_id=turn_id, offset=start, delta=text[start : start + 9])
            if start % 90 == 0:
                connection = socket_on(port, conversation, user.key)
                opened.append(connection)
                one = await connection.__aenter__()
                await one.send("subscribe")
                readers.append((one, Reader()))
        assert (await writer.ask("commit", turn_id=turn_id, length=len(text)))["turn"]["content"] == text
        for one, reader in readers:
            while not reader.live:
                before = dict(reader.texts)
                reader.apply(await one.next())
            assert text.startswith(before.get(turn_id, ""))
            assert reader.said == [text]
        for connection in opened:
            await connection.__aexit__(None, None, None)


async def test_a_subscriber_goes_on_after_a_rev_a_seq_or_shows_the_newest(user: Client, port: int) -> None:
    conversation = await user.conversation()
    made = (await user.append(conversation, *(f"t{n}" for n in range(60))))["turns"]
    await user.post(f"/v1/conversations/{conversation}/turns/{made[3]['id']}/revisions", json={"content": "new"})
    async with socket_on(port, conversation, user.key) as one:
        await one.ask("subscribe")
        snapshot = await one.until("snapshot")
        assert [turn["position"] for turn in snapshot["turns"]] == list(range(11, 61))
        await one.ask("subscribe", after_rev=1)
        snapshot = await one.until("snapshot")
        assert [(turn["seq"], turn["superseded_by"] is None) for turn in snapshot["turns"]] == [(4, False), (61, True)]
        await one.ask("subscribe", after_seq=59)
        snapshot = await one.until("snapshot")
        assert [turn["seq"] for turn in snapshot["turns"]] == [60, 61]
        refused = await one.ask("subscribe", after_seq=59, after_rev=1)
        assert (refused["type"], refused["code"]) == ("error", "invalid_request")


async def test_a_long_snapshot_comes_in_frames_and_misses_nothing(user: Client, port: int) -> None:
    conversation = await user.conversation()
    await user.append(conversation, *(f"t{n}" for n in range(450)))
    async with socket_on(port, conversation, user.key) as one:
        await one.ask("subscribe", after_rev=0)
        frames = [await one.until("snapshot")]
        while frames[-1]["more"]:
            frames.append(await one.until("snapshot"))
        seqs = [turn["seq"] for frame in frames for turn in frame["turns"]]
        assert seqs == list(range(1, 451))
        assert max(len(frame["turns"]) for frame in frames) <= 200


async def test_changes_of_turns_are_sent(user: Client, port: int) -> None:
    conversation = await user.conversation()
    path = f"/v1/conversations/{conversation}"
    reader = Reader()
    async with socket_on(port, conversation, user.key) as one:
        await one.ask("subscribe")
        answer = await one.ask("append", turns=[{"role": "user", "content": c} for c in "abc"], idempotency_key="k")
        again = await one.ask("append", turns=[{"role": "user", "content": c} for c in "abc"], idempotency_key="k")
        assert answer["turns"] == again["turns"]
        ids = [turn["id"] for turn in answer["turns"]]
        await user.post(f"{path}/turns/{ids[1]}/revisions", json={"content": "B", "truncate_after": True})
        await user.delete(f"{path}/turns/{ids[0]}")
        turn_id = await one.open_turn()
        if not any(frame["type"] == "turn.opened" for frame in one.received):
            await one.until("turn.opened")
        await one.ask("chunk", turn_id=turn_id, offset=0, delta="half")
        assert (await one.ask("abort", turn_id=turn_id, reason="enough"))["turn"]["status"] == "aborted"
        for frame in one.received:
            reader.apply(frame)
        while turn_id not in reader.aborted:
            reader.apply(await one.next())
        assert reader.said == [None, "B"]
        assert reader.aborted == {turn_id: 4}
        history = await user.history(conversation)
        assert [turn["id"] for turn in history] == [reader.live[at]["id"] for at in sorted(reader.live)]
        await user.delete(path)
        assert await one.closed() == (4404, "not_found")
        assert one.received[-1]["code"] == "not_found"


async def test_wrong_frames_are_answered_without_effect_on_other_connections(user: Client, port: int) -> None:
    conversation = await user.conversation()
    async with socket_on(port, conversation, user.key) as one, socket_on(port, conversation, user.key) as other:
        await other.ask("subscribe")
        turn_id = await one.open_turn()
        unknown = await one.ask("chunk", turn_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", offset=0, delta="SECRET")
        assert (unknown["type"], unknown["code"]) == ("error", "not_found")
        assert (await one.ask("chunk", turn_id=turn_id, offset=0, delta="abc"))["offset"] == 3
        assert (await one.ask("chunk", turn_id=turn_id, offset=1, delta="bcd"))["offset"] == 4, "overlapping"
        gap = await one.ask("chunk", turn_id=turn_id, offset=9, delta="SECRET")
        assert (gap["code"], gap["expected_offset"], gap["turn_id"]) == ("stream_gap", 4, turn_id)
        wrong = await one.ask("commit", turn_id=turn_id, length=99)
        assert wrong["code"] == "length_mismatch"
        await one.ask("commit", turn_id=turn_id, length=4)
        late = await one.ask("chunk", turn_id=turn_id, offset=4, delta="SECRET")
        assert late["code"] == "turn_committed"
        bad = await one.ask("open", turn={"role": "robot", "SECRET!": 1, "acter": "mia"})
        assert bad["code"] == "invalid_request"
        assert {error["pointer"]: error["detail"] for error in bad["errors"]} == {
            "/turn/role": "'user', 'assistant', 'system' or 'tool' is expected",
            "/turn": "Unknown field: number 2 of this object.",
            "/turn/acter": "Unknown field `acter`. Did you mean `actor`?",
        }
        unreadable = await one.ask("chunk", turn_id=turn_id, offset=-1, delta=7)
        assert {error["pointer"] for error in unreadable["errors"]} == {"/offset", "/delta"}
        assert "SECRET" not in json.dumps(one.received)
        assert (await one.ask("ping"))["type"] == "pong"
        assert {frame["type"] for frame in other.received} <= {
            "ack", "snapshot", "turn.opened", "turn.delta", "turn.committed", "presence",
        }  # fmt: skip
        assert (await other.ask("ping"))["type"] == "pong"


async def test_a_replaced_writer_gets_an_error(user: Client, port: int) -> None:
    conversation = await user.conversation()
    async with socket_on(port, conversation, user.key) as one, socket_on(port, conversation, user.key) as two:
        turn_id = await one.open_turn()
        await one.ask("chunk", turn_id=turn_id, offset=0, delta="abc")
        await one.until(lambda frame: frame.get("durable_offset") == 3)
        other = await two.ask("resume", turn_id=turn_id, writer="another")
        assert other["code"] == "writer_mismatch"
        resumed = await two.ask("resume", turn_id=turn_id, writer="w")
        assert (resumed["durable_offset"], resumed["epoch"]) == (3, 2)
        assert (await one.until("error"))["code"] == "stream_fenced"
        assert (await two.ask("chunk", turn_id=turn_id, offset=3, delta="def"))["offset"] == 6
        assert (await two.ask("commit", turn_id=turn_id))["turn"]["content"] == "abcdef"


async def test_a_fenced_writer_writes_and_ends_nothing_until_it_resumes(user: Client, port: int) -> None:
    conversation = await user.conversation()
    async with socket_on(port, conversation, user.key) as one, socket_on(port, conversation, user.key) as two:
        turn_id = await one.open_turn()
        # a beginning of what follows: on a busy machine it is durable before the turn is resumed
        await one.ask("chunk", turn_id=turn_id, offset=0, delta="tru")
        await two.ask("resume", turn_id=turn_id, writer="w")
        await one.until("error")
        for frame in ({"type_": "chunk", "offset": 0, "delta": "forged"}, {"type_": "commit"}, {"type_": "abort"}):
            assert (await one.ask(turn_id=turn_id, **frame))["code"] == "stream_fenced"
        assert (await two.ask("chunk", turn_id=turn_id, offset=0, delta="true"))["offset"] == 4
        resumed = await one.ask("resume", turn_id=turn_id, writer="w")
        assert (await one.ask("commit", turn_id=turn_id))["turn"]["content"] == "true"[: resumed["durable_offset"]]


async def test_a_repeated_open_returns_the_durable_offset(user: Client, port: int) -> None:
    conversation, turn_id = await user.conversation(), format_id(new_uuid())
    async with socket_on(port, conversation, user.key) as lost:
        await lost.open_turn(id=turn_id)
    async with socket_on(port, conversation, user.key) as writer:
        assert await writer.open_turn(id=turn_id) == turn_id
        await writer.send("chunk", turn_id=turn_id, offset=0, delta="abc")
        assert await writer.until(lambda frame: frame.get("durable_offset") == 3)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "7",
        '{"type":"ping","type":"ping"}',
        '{"type":"nothing"}',
        "{}",
        "[" * 100,
        '{"type":"ping","id":"\\u0000"}',
    ],
)
async def test_what_is_no_frame_is_refused_and_too_many_end_the_connection(user: Client, port: int, text: str) -> None:
    conversation = await user.conversation()
    async with socket_on(port, conversation, user.key) as one:
        for _ in range(3):
            await one.connection.send(text)
        code, _ = await one.closed()
        assert code == 4400
        assert [frame["type"] for frame in one.received] == ["error"] * 3


async def test_binary_large_and_broken_messages_end_the_connection_with_a_code(user: Client, port: int) -> None:
    conversation = await user.conversation()
    async with socket_on(port, conversation, user.key) as one:
        await one.connection.send(b"\x00\x01")
        assert (await one.closed())[0] == 1003
    async with socket_on(port, conversation, user.key) as one:
        await one.send("ping", id="x" * 2_000_000)
        assert (await one.closed())[0] == 1009
    async with socket_on(port, conversation, user.key) as one:
        one.connection.transport.write(Frame(Opcode.TEXT, b"\xff\xfe").serialize(mask=True))
        assert (await one.closed())[0] == 1007
    async with socket_on(port, conversation, user.key) as one:
        piece = Frame(Opcode.CONT, b"1," * 2048, fin=False).serialize(mask=True)
        one.connection.transport.write(Frame(Opcode.TEXT, b"[", fin=False).serialize(mask=True) + piece * 300)
        assert (await one.closed())[0] == 1009, "JSON that never ends"


async def test_of_an_unauthenticated_client_no_more_is_read_than_a_key_has(
    user: Client, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await user.conversation()
    read: list[int] = []
    original = live_frames.parse_json

    def counting(data: bytes, **options: Any) -> Any:
        read.append(len(data))
        return original(data, **options)

    monkeypatch.setattr(live_frames, "parse_json", counting)
    async with socket_on(port, conversation, None) as one:
        await one.send("auth", token="x" * 9000)
        code, reason = await one.closed()
        assert code == 1009
        assert "8 KiB" in (reason or "")
    assert read == []
    async with socket_on(port, conversation, None) as one:
        await one.send("auth", id="a", token=user.key, more="x" * 7000)
        assert (await one.next())["code"] == "invalid_request", "read, and wrong in its way"


async def test_large_frames_are_read_in_a_thread_and_in_order_and_small_ones_in_none(
    user: Client, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await user.conversation()
    ran_in: list[threading.Thread] = []
    original = live_frames.parse_json

    def recording(data: bytes, **options: Any) -> Any:
        ran_in.append(threading.current_thread())
        return original(data, **options)

    monkeypatch.setattr(live_frames, "parse_json", recording)
    async with socket_on(port, conversation, user.key) as one:
        turns = [{"role": "user", "content": "x" * 600}] * 30
        await one.send("append", id="1", turns=turns)
        await one.send("ping", id="2")
        await one.send("open", id="3", turn={"role": "user", "metadata": {"a": [[[]]] * 9000}, "no": 1})
        await one.send("ping", id="4")
        assert [(await one.next())["id"] for _ in range(4)] == ["1", "2", "3", "4"]
        assert one.received[2]["code"] == "invalid_request"
        assert [error["pointer"] for error in one.received[2]["errors"]] == ["/turn/no"]
    assert [thread is threading.current_thread() for thread in ran_in] == [False, True, False, True]


async def test_so_many_bytes_a_second_are_carried_out(
    words_database: TestDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    original = asyncio.sleep

    async def recording(delay: float, *more: Any) -> Any:
        slept.append(delay)
        return await original(min(delay, 0.05), *more)

    async with (
        open_service(words_database, tmp_path, **QUICK, live_bytes_per_s=20_000) as service,
        serving(service.app, service.settings) as its_port,
        await service.new_tenant() as user,
    ):
        conversation = await user.conversation()
        async with socket_on(its_port, conversation, user.key) as one:
            await one.ask("ping")
            monkeypatch.setattr("app.core.limits.asyncio.sleep", recording)
            for _ in range(3):
                await one.ask("append", turns=[{"role": "user", "content": "x" * 15_000}])
    assert max(slept) > 0.3


async def test_who_connects_says_who_it_is_by_header_subprotocol_or_first_frame(user: Client, port: int) -> None:
    conversation = await user.conversation()
    protocols = ["turnkeep.v1", f"bearer.{user.key}"]
    async with socket_on(port, conversation, None, subprotocols=protocols) as one:
        assert one.connection.subprotocol == "turnkeep.v1"
        assert (await one.ask("ping"))["type"] == "pong"
    async with socket_on(port, conversation, None, headers={"X-API-Key": user.key}) as one:
        assert (await one.ask("ping"))["type"] == "pong"
    async with socket_on(port, conversation, None) as one:
        assert (await one.ask("auth", token=user.key))["type"] == "ack"
        assert (await one.ask("ping"))["type"] == "pong"
    async with socket_on(port, conversation, None) as one:
        assert (await one.ask("auth", token="tk_wrong"))["code"] == "unauthenticated"
        assert (await one.closed())[0] == 4401
    async with socket_on(port, conversation, None) as one:
        await one.send("ping")
        assert (await one.closed())[0] == 4400
    async with socket_on(port, conversation, None) as one:
        assert (await one.closed())[0] == 4408
    for name in ("token", "key"):
        async with socket_on(port, conversation, user.key, query=f"?{name}={user.key}") as one:
            code, reason = await one.closed()
            assert code == 4401
            assert "URL" in (reason or "")


async def test_no_such_conversation_another_tenants_and_a_key_that_may_not(
    live: tuple[Service, int], user: Client, port: int
) -> None:
    service, _ = live
    conversation = await user.conversation()
    async with await service.new_tenant() as stranger:
        for key, path, expected in (
            (stranger.key, conversation, 4404),
            (user.key, "01ARZ3NDEKTSV4RRFFQ69G5FAV", 4404),
            (user.key, "nonsense", 4404),
            ("tk_nonsense", conversation, 4401),
        ):
            async with socket_on(port, path, key) as one:
                assert (await one.closed())[0] == expected
    reader = (await user.post("/v1/admin/keys", json={"name": "r", "scopes": ["read"]})).json()["key"]
    writer = (await user.post("/v1/admin/keys", json={"name": "w", "scopes": ["write"]})).json()["key"]
    admin = (await user.post("/v1/admin/keys", json={"name": "a", "scopes": ["admin"]})).json()["key"]
    async with socket_on(port, conversation, reader) as one:
        assert (await one.ask("subscribe"))["type"] == "ack"
        assert (await one.ask("open", turn={"role": "assistant"}))["code"] == "forbidden"
    async with socket_on(port, conversation, writer) as one:
        assert (await one.ask("subscribe"))["code"] == "forbidden"
        assert await one.open_turn()
    async with socket_on(port, conversation, admin) as one:
        assert (await one.closed())[0] == 4403


async def test_a_key_revoked_while_connected_ends_the_connection_and_another_can_take_its_place(
    user: Client, port: int
) -> None:
    conversation = await user.conversation()
    made = (await user.post("/v1/admin/keys", json={"name": "r"})).json()
    async with socket_on(port, conversation, made["key"]) as one, socket_on(port, conversation, made["key"]) as two:
        await one.ask("subscribe")
        assert (await two.ask("auth", token=user.key))["type"] == "ack"
        await user.delete(f"/v1/admin/keys/{made['id']}")
        assert await one.closed() == (4401, "key_revoked")
        assert (await two.ask("ping"))["type"] == "pong"


async def test_what_becomes_of_a_key_that_was_replaced_meanwhile_ends_no_connection(
    user: Client, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await user.conversation()
    made = (await user.post("/v1/admin/keys", json={"name": "r"})).json()
    is_asked, may_answer = asyncio.Event(), asyncio.Event()
    original = sockets.recheck

    async def slow(container: Container, token: str | None) -> Caller | None:
        is_asked.set()
        await may_answer.wait()
        return await original(container, token)

    async with socket_on(port, conversation, made["key"]) as one:
        monkeypatch.setattr(sockets, "recheck", slow)
        await asyncio.wait_for(is_asked.wait(), 60)
        assert (await one.ask("auth", token=user.key))["type"] == "ack"
        await user.delete(f"/v1/admin/keys/{made['id']}")
        may_answer.set()
        await asyncio.sleep(0.5)
        assert (await one.ask("ping"))["type"] == "pong"


async def test_a_connection_that_continues_with_a_key_without_read_follows_no_more_and_may_write(
    user: Client, port: int
) -> None:
    conversation = await user.conversation()
    writer = (await user.post("/v1/admin/keys", json={"name": "w", "scopes": ["write"]})).json()["key"]
    async with socket_on(port, conversation, user.key) as one:
        await one.ask("subscribe")
        await one.until("snapshot")
        await one.send("auth", id="a", token=writer)
        ended = await one.next()
        assert (ended["type"], ended["code"], ended["id"]) == ("error", "forbidden", None)
        assert (await one.next())["id"] == "a"
        seen = len(one.received)
        await user.append(conversation, "not for a writer")
        assert await one.open_turn()
        await asyncio.sleep(0.5)
        await one.ask("ping")
        assert {frame["type"] for frame in one.received[seen:]} <= {"ack", "pong"}
        assert (await one.ask("subscribe"))["code"] == "forbidden"
        assert (await one.ask("auth", token=user.key))["type"] == "ack"
        assert (await one.ask("subscribe"))["type"] == "ack"
        assert [turn["content"] for turn in (await one.until("snapshot"))["turns"]] == ["not for a writer"]


@pytest.fixture
def renewed(live: tuple[Service, int], monkeypatch: pytest.MonkeyPatch) -> Callable[[Socket], Awaitable[set[str]]]:
    """What turns are renewed by a connection's next frame."""
    given: list[str] = []

    def renew(_caller: Caller, _conversation_id: ConversationId, *, epochs: Mapping[TurnId, int]) -> None:
        given.extend(format_id(turn_id) for turn_id in epochs)

    monkeypatch.setattr(live[0].container.streams, "renew", renew)

    async def by(one: Socket) -> set[str]:
        given.clear()
        await asyncio.sleep(1.1)
        await one.ask("ping")
        return set(given)

    return by


@pytest.mark.slow
async def test_turns_are_renewed_by_who_may_write_them_and_not_by_who_came_after(
    user: Client, port: int, renewed: Callable[[Socket], Awaitable[set[str]]]
) -> None:
    conversation = await user.conversation()
    path = f"/v1/conversations/{conversation}/tokens"
    ann, again = [
        (await user.post(path, json={"access": "append", "actor": "ann", "ttl_s": n})).json()["token"] for n in (60, 90)
    ]
    bob = (await user.post(path, json={"access": "append", "actor": "bob"})).json()["token"]
    reader = (await user.post("/v1/admin/keys", json={"name": "r", "scopes": ["read"]})).json()["key"]
    async with socket_on(port, conversation, ann) as one:
        turn_id = await one.open_turn(role="user", actor="ann")
        assert await renewed(one) == {turn_id}
        for token, expected in ((again, {turn_id}), (bob, set()), (user.key, set()), (reader, set())):
            assert (await one.ask("auth", token=token))["type"] == "ack"
            assert await renewed(one) == expected
        assert (await one.ask("auth", token=again))["type"] == "ack"
        assert (await one.ask("chunk", turn_id=turn_id, offset=0, delta="x"))["type"] == "ack"
        assert await renewed(one) == {turn_id}, "it is seen to write it"


async def test_turns_that_have_ended_elsewhere_are_renewed_no_more(
    user: Client, port: int, renewed: Callable[[Socket], Awaitable[set[str]]]
) -> None:
    conversation = await user.conversation()
    async with socket_on(port, conversation, user.key) as one, socket_on(port, conversation, user.key) as other:
        kept, committed, aborted = [await one.open_turn() for _ in range(3)]
        await other.ask("commit", turn_id=committed)
        await other.ask("abort", turn_id=aborted)
        for turn_id in (committed, aborted):
            assert (await one.ask("chunk", turn_id=turn_id, offset=0, delta="x"))["type"] == "error"
        assert await renewed(one) == {kept}


@pytest.mark.slow
async def test_a_subscriber_that_stops_reading_is_dropped_and_slows_no_other(
    words_database: TestDatabase, tmp_path: Path
) -> None:
    patient = QUICK | {"live_stall_s": 300}  # or a busy machine cuts the connection before its queue is full
    async with (
        open_service(words_database, tmp_path, **patient) as service,
        serving(service.app, service.settings) as port,
        await service.new_tenant() as user,
    ):
        await drop_who_stops_reading(service, user, port)


async def drop_who_stops_reading(service: Service, user: Client, port: int) -> None:
    conversation = await user.conversation()
    async with (
        socket_on(port, conversation, user.key, max_queue=1) as deaf,
        socket_on(port, conversation, user.key) as one,
    ):
        await deaf.send("subscribe")
        await one.ask("subscribe")
        await asyncio.sleep(0.2)
        deaf.connection.transport.pause_reading()
        filler = "some words " * 40_000
        for n in range(60):
            turns = [{"role": "user", "content": f"{n} {filler}"}]
            answer = await asyncio.wait_for(one.ask("append", turns=turns), 30)
            assert answer["type"] == "ack"
            if service.container.subscriptions.rereads:
                break
        else:
            raise AssertionError("never dropped")
        deaf.connection.transport.resume_reading()
        reread = await deaf.until("reread")
        await deaf.send("subscribe", after_rev=reread["after_rev"])
        seqs = {turn["seq"] for f in deaf.received if f["type"] == "snapshot" for turn in f["turns"]}
        seqs |= {f["turn"]["seq"] for f in deaf.received if f["type"] == "turn.committed"}
        while len(seqs) < n + 1:
            frame = await deaf.next()
            if frame["type"] == "snapshot":
                seqs |= {turn["seq"] for turn in frame["turns"]}
            elif frame["type"] == "turn.committed":
                seqs.add(frame["turn"]["seq"])
        assert seqs == set(range(1, n + 2)), "subscribed again, it has everything"


@pytest.mark.slow
async def test_who_reads_nothing_at_all_is_cut(user: Client, port: int) -> None:
    conversation = await user.conversation()
    await user.append(conversation, *({"role": "user", "content": "some words " * 90_000} for _ in range(7)))
    async with socket_on(port, conversation, user.key, max_queue=1, ping_interval=None) as deaf:
        deaf.connection.transport.pause_reading()
        await deaf.send("subscribe", after_rev=0)
        service_connections = "turnkeep_live_connections"
        for _ in range(200):
            lines = (await user.get("/metrics")).text.splitlines()
            if f'{service_connections}{{kind="websocket"}} 0.0' in lines:
                return
            await asyncio.sleep(0.1)
        raise AssertionError("still connected")


@pytest.mark.slow
async def test_answers_that_are_not_read_wait_in_so_many_bytes_and_then_no_more_is_done(
    live: tuple[Service, int], user: Client, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await user.conversation()
    streams, done = live[0].container.streams, 0
    original = streams.commit

    async def counting(*args: Any, **more: Any) -> Any:
        nonlocal done
        done += 1
        return await original(*args, **more)

    monkeypatch.setattr(streams, "commit", counting)
    async with socket_on(port, conversation, user.key, max_queue=1) as deaf:
        turn_id = await deaf.open_turn()
        for n in range(16):
            await deaf.ask("chunk", turn_id=turn_id, offset=n * 60_000, delta="x" * 60_000)
        await deaf.ask("commit", turn_id=turn_id)
        deaf.connection.transport.pause_reading()
        for n in range(100):
            await deaf.send("commit", id=str(n), turn_id=turn_id)
        await asyncio.sleep(3)
        assert done < 30, "what the sockets of the system hold, and little more"
        deaf.connection.transport.resume_reading()
        for n in range(100):
            assert (await deaf.until(lambda frame: "turn" in frame))["id"] == str(n)


async def test_an_answer_that_waits_to_be_sent_is_not_lost_with_what_was_followed(
    user: Client, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = await user.conversation()
    may_send = asyncio.Event()
    original = WebSocket.send_text

    async def waiting(websocket: WebSocket, text: str) -> None:
        await may_send.wait()
        await original(websocket, text)

    async with socket_on(port, conversation, user.key) as one:
        turn_id = await one.open_turn()
        monkeypatch.setattr(WebSocket, "send_text", waiting)
        await one.send("commit", id="0", turn_id=turn_id)
        for n in range(1, 4):
            await one.send("subscribe", id=str(n))
        await one.send("ping", id="4")
        await asyncio.sleep(0.5)
        may_send.set()
        await one.until(lambda frame: frame.get("id") == "4")
        assert [frame["id"] for frame in one.received if frame.get("id") in set("01234")] == list("01234")


async def test_open_turns_are_limited_and_their_connection_lives_on(user: Client, port: int) -> None:
    conversation = await user.conversation()
    async with socket_on(port, conversation, user.key) as one:
        codes: list[str] = []
        for _ in range(70):
            answer = await one.ask("open", turn={"role": "assistant"})
            codes.append(answer.get("code", "ack"))
        assert codes[:64] == ["ack"] * 64
        assert set(codes[64:]) == {"too_many_open_turns"}
        assert (await one.ask("ping"))["type"] == "pong"


async def test_many_frames_at_once_are_answered_in_order(user: Client, port: int) -> None:
    conversation = await user.conversation()
    async with socket_on(port, conversation, user.key) as one:
        turn_id = await one.open_turn()
        for n in range(1500):
            await one.send("chunk", id=str(n), turn_id=turn_id, offset=2 * n, delta="ab")
        answers = []
        while len(answers) < 1500:
            frame = await one.next()
            if "id" in frame:
                assert frame["type"] == "ack", frame
                answers.append(frame["id"])
        assert answers == [str(n) for n in range(1500)]
        assert (await one.ask("commit", turn_id=turn_id, length=3000))["turn"]["content"] == "ab" * 1500


async def test_a_conversation_token_follows_and_writes_its_own_conversation_only(user: Client, port: int) -> None:
    conversation, other = await user.conversation(), await user.conversation()
    body = {"access": "append", "actor": "ann", "roles": ["user"]}
    token = (await user.post(f"/v1/conversations/{conversation}/tokens", json=body)).json()["token"]

    protocols = ["turnkeep.v1", f"bearer.{token}"]
    async with socket_on(port, conversation, None, subprotocols=protocols) as one:
        assert (await one.ask("subscribe"))["type"] == "ack"
        turn_id = await one.open_turn(role="user", actor="ann")
        assert (await one.ask("chunk", turn_id=turn_id, offset=0, delta="mine"))["type"] == "ack"
        assert (await one.ask("commit", turn_id=turn_id))["turn"]["actor"] == "ann"
        assert (await one.ask("open", turn={"role": "system"}))["code"] == "token_not_allowed"
        await user.delete(f"/v1/conversations/{conversation}/tokens")
        assert (await one.closed())[0] == 4401, "void while connected"
    async with socket_on(port, other, token) as one:
        assert (await one.closed())[0] in {4401, 4404}


@pytest.mark.slow
async def test_a_connection_ends_with_its_token_and_a_fresh_one_lets_it_go_on(
    words_database: TestDatabase, tmp_path: Path
) -> None:
    seldom = QUICK | {"live_recheck_s": 60, "live_heartbeat_s": 60}
    async with (
        open_service(words_database, tmp_path, **seldom) as service,
        serving(service.app, service.settings) as its_port,
        await service.new_tenant() as user,
    ):
        conversation = await user.conversation()
        path = f"/v1/conversations/{conversation}"

        async def token(ttl_s: int) -> str:
            return (await user.post(f"{path}/tokens", json={"access": "read", "ttl_s": ttl_s})).json()["token"]

        brief, long = await token(5), await token(60)
        started = asyncio.get_running_loop().time()
        async with (
            socket_on(its_port, conversation, brief) as one,
            socket_on(its_port, conversation, brief) as renewed,
            socket_on(its_port, conversation, long) as shortened,
            events_on(its_port, f"{path}/events", brief) as events,
        ):
            await renewed.ask("auth", token=long)
            await one.ask("subscribe")
            assert (await shortened.ask("auth", token=brief))["type"] == "ack"
            assert await one.closed() == (4401, "token_expired")
            assert one.received[-1]["code"] == "token_expired"
            assert await shortened.closed() == (4401, "token_expired")
            assert (await events.until("error"))["code"] == "token_expired"
            assert await events.next() is None
            assert asyncio.get_running_loop().time() - started < 15
            assert (await renewed.ask("ping"))["type"] == "pong"


async def test_a_token_for_reading_does_not_write(user: Client, port: int) -> None:
    conversation, other = await user.conversation(), await user.conversation()
    token = (await user.post(f"/v1/conversations/{conversation}/tokens", json={"access": "read"})).json()["token"]
    async with socket_on(port, other, token) as one:
        assert (await one.closed())[0] == 4404
    async with socket_on(port, conversation, token) as one:
        assert (await one.ask("subscribe"))["type"] == "ack"
        assert (await one.ask("open", turn={"role": "user"}))["code"] == "token_not_allowed"
        assert (await one.ask("append", turns=[{"role": "user", "content": "x"}]))["code"] == "token_not_allowed"


async def test_a_key_of_another_tenant_does_not_take_a_connection_over(
    live: tuple[Service, int], user: Client, port: int
) -> None:
    conversation = await user.conversation()
    async with await live[0].new_tenant() as stranger, socket_on(port, conversation, user.key) as one:
        assert (await one.ask("auth", token=stranger.key))["code"] == "forbidden"
        assert (await one.ask("ping"))["type"] == "pong"


async def test_a_client_that_has_closed_while_it_is_sent_something_is_no_failure_of_ours(
    user: Client, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[BaseException] = []
    monkeypatch.setattr("app.routers.live.connection._log_failure", failures.append)
    conversation = await user.conversation()
    for frame in ("ping", "subscribe"):
        async with socket_on(port, conversation, user.key) as reader:
            await reader.ask("ping")
            with monkeypatch.context() as patched:
                # what uvicorn raises when it has answered the client's close frame and we do not know yet
                patched.setattr(WebSocket, "send_text", _refuse_to_send)
                await reader.send(frame)
                await reader.closed()
    assert failures == []


@pytest.mark.parametrize("where", ["read", "pump"])
async def test_a_connection_that_fails_for_any_reason_is_closed_and_no_longer_counted(
    live: tuple[Service, int], user: Client, port: int, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    conversation = await user.conversation()
    service, _ = live
    async with socket_on(port, conversation, user.key) as one:
        turn_id = await one.open_turn()
        with monkeypatch.context() as patched:
            # as what many wait for does, when it is cancelled
            if where == "read":
                patched.setattr(service.container.streams, "chunk", _cancelled)
            else:
                patched.setattr(Subscription, "next_frames", _cancelled)
            await one.send("subscribe")
            await one.send("chunk", turn_id=turn_id, offset=0, delta="x")
            assert (await one.closed())[0] == 1011
    for _ in range(100):
        if 'turnkeep_live_connections{kind="websocket"} 0.0' in (await user.get("/metrics")).text.splitlines():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("its place is taken still")


async def _cancelled(*_: Any, **__: Any) -> Any:
    raise asyncio.CancelledError


async def _refuse_to_send(_websocket: WebSocket, _text: str) -> None:
    raise RuntimeError("Unexpected ASGI message 'websocket.send', after sending 'websocket.close'.")
