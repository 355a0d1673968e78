"""What every bus promises, over Postgres and over NATS: several buses in one process stand for several replicas."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest

from app.core.bus import connection as bus_link
from app.core.bus.connection import ReconnectingBus
from app.core.bus.messages import MAX_MESSAGE_BYTES, Listener, Message
from app.core.bus.wire import encode
from tests.bus.bus_servers import BusServer, NatsPlace, PostgresPlace, RecordingListener, replica, until
from tests.support.nats import NatsServer
from tests.support.proxy import Proxy


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(params=["postgres", "nats"])
def bus_server(request: pytest.FixtureRequest) -> BusServer:
    if request.param == "postgres":
        return PostgresPlace(request.getfixturevalue("database"))
    return NatsPlace(request.getfixturevalue("nats"), f"test.{uuid4().hex}")


@pytest.fixture
async def opened(bus_server: BusServer) -> AsyncIterator[list[ReconnectingBus]]:
    """Buses to close after the test."""
    del bus_server
    buses: list[ReconnectingBus] = []
    yield buses
    await asyncio.gather(*(bus.close() for bus in buses))


@pytest.fixture
async def proxy(bus_server: BusServer) -> AsyncIterator[Proxy]:
    made = Proxy(bus_server.target())
    await made.open()
    yield made
    await made.cut()


def add(opened: list[ReconnectingBus], bus: ReconnectingBus) -> ReconnectingBus:
    opened.append(bus)
    return bus


async def two(
    bus_server: BusServer, opened: list[ReconnectingBus]
) -> tuple[ReconnectingBus, RecordingListener, ReconnectingBus, RecordingListener]:
    """Two replicas that hear each other."""
    one, other = add(opened, bus_server.bus()), add(opened, bus_server.bus())
    return one, await replica(one), other, await replica(other)


async def test_an_own_message_is_received_at_once_and_once(
    bus_server: BusServer, opened: list[ReconnectingBus]
) -> None:
    bus, listener, _, other = await two(bus_server, opened)
    bus.publish({"test": 1})
    assert listener.tests() == [1]
    await until(lambda: other.tests() == [1])
    await asyncio.sleep(0.2)
    assert listener.tests() == [1]
    assert listener.losses == other.losses == 0


async def test_messages_of_each_process_arrive_in_their_order(
    bus_server: BusServer, opened: list[ReconnectingBus]
) -> None:
    buses = [add(opened, bus_server.bus()) for _ in range(3)]
    listeners = [await replica(bus) for bus in buses]
    for number in range(200):
        for name, bus in enumerate(buses):
            bus.publish({"test": number, "by": str(name)})
        if number % 7 == 0:
            await asyncio.sleep(0.001)
    for listener in listeners:
        await until(lambda listener=listener: len(listener.messages) == 600)
        assert all(listener.tests(str(name)) == list(range(200)) for name in range(3))
        assert listener.losses == 0


async def test_ten_thousand_messages_at_once_all_arrive_in_order(
    bus_server: BusServer, opened: list[ReconnectingBus]
) -> None:
    bus, _, _, listener = await two(bus_server, opened)
    for number in range(10_000):
        bus.publish({"test": number, "text": "x" * 100})
    await until(lambda: len(listener.messages) >= 10_000)
    assert listener.tests() == list(range(10_000))
    assert listener.losses == 0


@pytest.mark.parametrize("filler", ["x", "é", "漢", "😀", '"', "\n", "\x00", "\u2028"])
async def test_a_message_of_the_largest_size_arrives_whole(
    bus_server: BusServer, opened: list[ReconnectingBus], filler: str
) -> None:
    bus, _, _, listener = await two(bus_server, opened)
    room = MAX_MESSAGE_BYTES - len(encode({"test": ""}))
    message: Message = {"test": filler * (room // (len(encode({"test": filler})) - len(encode({"test": ""}))))}
    assert MAX_MESSAGE_BYTES - 6 < len(encode(message)) <= MAX_MESSAGE_BYTES
    for _ in range(3):
        bus.publish(message)
    await until(lambda: len(listener.messages) == 3 or listener.losses > 0, seconds=5)
    assert listener.losses == 0
    assert listener.messages == [message] * 3


async def test_half_a_surrogate_pair_arrives_as_it_is(bus_server: BusServer, opened: list[ReconnectingBus]) -> None:
    bus, _, _, listener = await two(bus_server, opened)
    bus.publish({"test": "\ud83d"})
    await until(lambda: listener.tests() == ["\ud83d"])


async def test_a_message_that_is_too_large_is_a_loss_to_the_others(
    bus_server: BusServer, opened: list[ReconnectingBus]
) -> None:
    bus, own, _, listener = await two(bus_server, opened)
    bus.publish({"test": "before"})
    bus.publish({"test": "x" * MAX_MESSAGE_BYTES})
    await until(lambda: listener.losses == 1)
    bus.publish({"test": "after"})
    await until(lambda: listener.tests() == ["before", "after"])
    assert len(own.messages) == 3
    assert own.losses == 0


async def test_after_the_server_has_ended_all_connections_all_listeners_learn_of_the_loss_and_it_works_again(
    bus_server: BusServer, opened: list[ReconnectingBus]
) -> None:
    one, first, other, second = await two(bus_server, opened)
    await bus_server.break_connections()
    await until(lambda: first.losses > 0 and second.losses > 0)
    await until(lambda: one.connected() and other.connected())
    one.publish({"test": "one"})
    await until(lambda: second.tests() == ["one"])
    other.publish({"test": "other"})
    await until(lambda: first.tests() == ["one", "other"])


async def test_what_is_published_in_an_outage_is_a_loss_to_the_others_and_never_comes_late(
    bus_server: BusServer, opened: list[ReconnectingBus], proxy: Proxy
) -> None:
    listener = await replica(add(opened, bus_server.bus()))
    newcomer_before = listener.losses
    bus = add(opened, bus_server.bus(proxy))
    own = await replica(bus)
    bus.publish({"test": 1})
    await until(lambda: listener.tests() == [1])
    await proxy.cut()
    await until(lambda: not bus.connected())
    for number in (2, 3, 4):
        bus.publish({"test": number})
    assert own.tests() == [1, 2, 3, 4]
    assert listener.losses == newcomer_before
    # somebody who has never heard of that process misses them as well
    newcomer = await replica(add(opened, bus_server.bus()))
    await proxy.open()
    await until(lambda: listener.losses > 0 and newcomer.losses > 0)
    await until(bus.connected)
    bus.publish({"test": 5})
    await until(lambda: listener.tests() == [1, 5] and newcomer.tests() == [5])
    assert own.losses > 0


async def test_messages_under_way_when_the_line_is_cut_arrive_or_are_a_loss(
    bus_server: BusServer, opened: list[ReconnectingBus], proxy: Proxy
) -> None:
    listener = await replica(add(opened, bus_server.bus()))
    bus = add(opened, bus_server.bus(proxy))
    await replica(bus)
    for number in range(2000):
        bus.publish({"test": number})
        if number == 1000:
            await proxy.cut()
            await asyncio.sleep(0.05)
            await proxy.open()
        if number % 10 == 0:
            await asyncio.sleep(0.001)
    await until(bus.connected)
    bus.publish({"test": "last"})
    await until(lambda: "last" in listener.tests())
    received = [number for number in listener.tests() if number != "last"]
    assert received == sorted(set(received))
    assert len(received) == 2000 or listener.losses > 0


@pytest.mark.slow
async def test_a_lost_end_is_found_a_second_later_and_then_there_is_silence(
    bus_server: BusServer, opened: list[ReconnectingBus]
) -> None:
    bus = add(opened, bus_server.bus())
    await replica(bus)
    lossy = add(opened, bus_server.bus())
    listener = RecordingListener()
    heard: list[tuple[dict[str, Any], int]] = []
    receive = lossy._receive  # noqa: SLF001

    def drop_some(payload: str) -> None:
        if '"drop"' not in payload:
            receive(payload)
        heard.append((json.loads(payload), listener.losses))

    def from_the_drop_on() -> list[tuple[list[Message], int]]:
        """What was heard of `bus`, each with the losses known then. Other applications may share its server."""
        sender = next(envelope["o"] for envelope, _ in heard if envelope["m"] == [{"test": 1}])
        messages = [(envelope["m"], losses) for envelope, losses in heard if envelope["o"] == sender]
        return messages[messages.index(([{"test": "drop"}], 0)) :]

    lossy._receive = drop_some  # noqa: SLF001
    await lossy.start(listener.callbacks)
    bus.publish({"test": 1})
    await until(lambda: listener.tests() == [1])
    bus.publish({"test": "drop"})
    await until(lambda: listener.losses == 1, seconds=10)
    said = [([{"test": "drop"}], 0), ([], 1)]
    assert from_the_drop_on() == said
    await asyncio.sleep(1.5)
    assert from_the_drop_on() == said


async def test_a_full_queue_is_a_loss_to_the_others(bus_server: BusServer, opened: list[ReconnectingBus]) -> None:
    bus = add(opened, bus_server.bus(queue_bytes=1000))
    own = await replica(bus)
    listener = await replica(add(opened, bus_server.bus()))
    for number in range(100):
        bus.publish({"test": number, "text": "x" * 100})
    assert own.tests() == list(range(100))
    await until(lambda: listener.losses == 1)
    seen = len(listener.messages)
    bus.publish({"test": "after"})
    await until(lambda: len(listener.messages) == seen + 1)
    assert listener.tests()[-1] == "after"
    assert listener.losses == 1


@pytest.mark.slow
async def test_a_slow_listener_receives_all_in_order(bus_server: BusServer, opened: list[ReconnectingBus]) -> None:
    bus, _, _, listener = await two(bus_server, opened)
    listener.delay_s = 0.001
    for number in range(1500):
        bus.publish({"test": number})
        if number % 50 == 0:
            await asyncio.sleep(0)
    await until(lambda: len(listener.messages) == 1500)
    assert listener.tests() == list(range(1500))
    assert listener.losses == 0


async def test_closing_sends_what_waits(bus_server: BusServer, opened: list[ReconnectingBus]) -> None:
    bus, _, _, listener = await two(bus_server, opened)
    for number in range(3000):
        bus.publish({"test": number})
    await bus.close()
    await until(lambda: len(listener.messages) == 3000)
    assert not bus.connected()
    bus.publish({"test": "closed"})
    await bus.close()


async def test_a_server_that_is_down_at_the_start_is_found_when_it_is_there(
    bus_server: BusServer, opened: list[ReconnectingBus], proxy: Proxy
) -> None:
    listener = await replica(add(opened, bus_server.bus()))
    await proxy.cut()
    bus = add(opened, bus_server.bus(proxy))
    own = await replica(bus)
    assert not bus.connected()
    bus.publish({"test": "early"})
    assert own.tests() == ["early"]
    await proxy.open()
    await until(bus.connected)
    await until(lambda: own.losses > 0 and listener.losses > 0)
    bus.publish({"test": "late"})
    await until(lambda: listener.tests() == ["late"])


async def test_a_bus_whose_server_never_came_closes(
    bus_server: BusServer, opened: list[ReconnectingBus], proxy: Proxy
) -> None:
    await proxy.cut()
    bus = add(opened, bus_server.bus(proxy))
    await replica(bus)
    bus.publish({"test": 1})
    async with asyncio.timeout(3):
        await bus.close()


async def test_a_connection_that_dies_in_silence_is_found(
    bus_server: BusServer, opened: list[ReconnectingBus], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_link, "_PROBE_EVERY_S", 0.2)
    monkeypatch.setattr(bus_link, "_PROBE_S", 0.3)
    bus = add(opened, bus_server.bus(proxy))
    listener = await replica(bus)
    proxy.silent = True
    await until(lambda: not bus.connected())
    await proxy.cut()
    await proxy.open()
    await until(lambda: bus.connected() and listener.losses > 0)


async def test_a_listener_that_fails_ends_neither_publisher_nor_connection(
    bus_server: BusServer, opened: list[ReconnectingBus]
) -> None:
    received: list[Message] = []

    def fail(message: Message) -> None:
        received.append(message)
        raise RuntimeError("a mistake")

    bus = add(opened, bus_server.bus())
    await bus.start(Listener(fail, lambda: None))
    other = add(opened, bus_server.bus())
    await other.start(Listener(fail, lambda: None))
    for number in range(3):
        bus.publish({"test": number})
    await until(lambda: [m["test"] for m in received if "test" in m].count(2) == 2)


async def test_a_message_of_a_listener_comes_after_the_messages_that_it_received(
    bus_server: BusServer, opened: list[ReconnectingBus]
) -> None:
    listener = await replica(add(opened, bus_server.bus()))
    bus = add(opened, bus_server.bus())
    await bus.start(
        Listener(lambda m: bus.publish({"test": "answer"}) if m.get("test") == "ask" else None, lambda: None)
    )
    bus.publish({"test": "ask"})
    await until(lambda: listener.tests() == ["ask", "answer"])
