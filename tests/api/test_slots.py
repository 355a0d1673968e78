"""How many calls of a tenant are worked on at once, and what becomes of those that are too many."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from app.conversations.service import Conversations
from app.core.errors import Unavailable
from app.core.ids import TenantId, new_uuid
from app.settings.rates import RateSettings
from app.tenancy.limits import slots as limits_slots
from app.tenancy.limits.slots import TenantSlots
from tests.support.api import Client, Service, open_service, problem
from tests.support.constants import other_constants
from tests.support.live import serving, socket_on
from tests.support.postgres import TestDatabase

ONE, OTHER, THIRD = (TenantId(new_uuid()) for _ in range(3))


def slots(**settings: float) -> TenantSlots:
    given = {"concurrent_calls": 6, "concurrent_calls_shared": 2, "concurrent_calls_wait_s": 20, **settings}
    with other_constants(**given) as values:
        return TenantSlots(RateSettings(**values))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)


async def test_a_tenant_alone_has_all_slots_and_its_further_calls_wait_in_order() -> None:
    own, order = slots(), []
    for _ in range(6):
        await own.acquire(ONE)

    async def call(number: int) -> None:
        async with own.slot(ONE):
            order.append(number)

    calls = [asyncio.create_task(call(number)) for number in range(5)]
    await until(lambda: own.waiting == 5)
    own.release(ONE)
    await asyncio.gather(*calls)
    assert order == [0, 1, 2, 3, 4]
    for _ in range(5):
        own.release(ONE)
    assert (own.waiting, own._used_by, own._waiting) == (0, {}, {})  # noqa: SLF001


async def test_while_another_tenant_calls_each_has_its_share_and_no_call_waits_for_another_tenant() -> None:
    own = slots()
    for _ in range(6):
        await own.acquire(ONE)
    waiting = asyncio.create_task(own.acquire(ONE))
    await until(lambda: own.waiting == 1)
    for tenant in (OTHER, THIRD, OTHER):
        async with asyncio.timeout(60):
            await own.acquire(tenant)
    third = asyncio.create_task(own.acquire(OTHER))
    await until(lambda: own.waiting == 2)
    for _ in range(4):
        own.release(ONE)
    await asyncio.sleep(0)
    assert own.waiting == 2, "two of its slots are its share"
    own.release(ONE)
    own.release(OTHER)
    async with asyncio.timeout(60):
        await waiting
        await third


async def test_a_tenant_that_is_alone_again_has_all_slots_again(monkeypatch: pytest.MonkeyPatch) -> None:
    own, now = slots(), 1000.0
    monkeypatch.setattr(limits_slots, "monotonic", lambda: now)
    await own.acquire(OTHER)
    for _ in range(2):
        await own.acquire(ONE)
    calls = [asyncio.create_task(own.acquire(ONE)) for _ in range(5)]
    await until(lambda: own.waiting == 5)
    now += limits_slots.SHARED_S
    own.release(ONE)
    await asyncio.gather(*calls)
    assert own._used_by[ONE] == 6  # noqa: SLF001


async def test_a_call_that_waits_too_long_or_behind_too_many_is_refused_and_leaves_nothing() -> None:
    own = slots(concurrent_calls=1, concurrent_calls_shared=1, concurrent_calls_wait_s=0.05, concurrent_calls_waiting=2)
    await own.acquire(ONE)
    calls = [asyncio.create_task(own.acquire(ONE)) for _ in range(3)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [getattr(answer, "code", None) for answer in answers] == ["overloaded"] * 3
    assert own.waiting == 0
    own.release(ONE)
    await own.acquire(ONE)
    gone = asyncio.create_task(own.acquire(ONE))
    await asyncio.sleep(0)
    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    own.release(ONE)
    await own.acquire(ONE)
    assert own._used_by == {ONE: 1}  # noqa: SLF001


async def test_a_cancelled_call_that_was_just_granted_its_slot_gives_it_back() -> None:
    own = slots(concurrent_calls=1, concurrent_calls_shared=1)
    await own.acquire(ONE)
    waiting = asyncio.create_task(own.acquire(ONE))
    await until(lambda: own.waiting == 1)
    own.release(ONE)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert (own._used_by, own.waiting) == ({}, 0)  # noqa: SLF001


async def test_calls_beyond_those_that_may_wait_are_refused_one_by_one() -> None:
    own = slots(concurrent_calls=1, concurrent_calls_shared=1, concurrent_calls_waiting=1)
    await own.acquire(ONE)
    waiting = asyncio.create_task(own.acquire(ONE))
    await asyncio.sleep(0)
    await own.require_room(OTHER)
    refused = [asyncio.create_task(own.require_room(ONE)) for _ in range(20)]
    counts = [0]
    while counts[-1] < len(refused):
        await asyncio.sleep(0)
        counts.append(sum(task.done() for task in refused))
    assert max(after - before for before, after in pairwise(counts)) == 1
    assert {getattr(task.exception(), "code", None) for task in refused} == {"overloaded"}

    late = asyncio.create_task(own.require_room(ONE))
    own.release(ONE)
    await waiting
    assert await late is None, "there is room again before its turn"
    own.release(ONE)


# over the API


class Held:
    """Calls that append, which stop until a test lets them go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = asyncio.Event()
        self.running: list[TenantId] = []
        append = Conversations.append

        async def held(conversations: Conversations, caller, *args, **more):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN202
            self.running.append(caller.key_tenant_id)
            await self.go_on.wait()
            return await append(conversations, caller, *args, **more)

        monkeypatch.setattr(Conversations, "append", held)


@pytest.fixture
async def narrow(words_database: TestDatabase, tmp_path: Path) -> AsyncIterator[Service]:
    settings = {
        "concurrent_calls": 8, "concurrent_calls_shared": 2, "concurrent_calls_waiting": 3,
        "concurrent_calls_wait_s": 30, "embedder": "none",
    }  # fmt: skip
    async with open_service(words_database, tmp_path, **settings) as opened:
        yield opened


async def test_a_tenant_with_many_calls_leaves_another_one_its_turn_and_nothing_acknowledged_is_lost(
    narrow: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await narrow.new_tenant() as one, await narrow.new_tenant() as other:
        shared = await one.conversation()
        await other.conversation(id=shared)
        held = Held(monkeypatch)

        async def append(client: Client, number: int) -> int:
            turns = {"turns": [{"role": "user", "content": f"turn {number}"}]}
            answer = await client.post(f"/v1/conversations/{shared}/turns", json=turns)
            if answer.status_code != 201:
                assert problem(answer, 503, "overloaded")["retryable"] is True
                assert answer.headers["Retry-After"] == "1"
            return answer.status_code

        calls = [asyncio.create_task(append(one, number)) for number in range(9)]
        await until(lambda: sum(call.done() for call in calls) == 4)
        assert held.running == [one.tenant_id] * 2
        assert (await other.get(f"/v1/conversations/{shared}")).status_code == 200
        theirs = asyncio.create_task(append(other, 0))
        await until(lambda: other.tenant_id in held.running)
        assert (await narrow.client(None).get("/healthz")).status_code == 200
        held.go_on.set()
        assert sorted(await asyncio.gather(*calls)) == [201] * 5 + [503] * 4
        assert await theirs == 201
        assert len(await one.history(shared)) == 5
        assert len(await other.history(shared)) == 1
        assert narrow.container.tenancy.slots._used_by == {}  # noqa: SLF001


async def test_a_call_beyond_those_that_may_wait_is_refused_before_it_is_read(
    narrow: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await narrow.new_tenant() as one, await narrow.new_tenant() as other:
        conversation = await one.conversation()
        await other.conversation(id=conversation)
        path = f"/v1/conversations/{conversation}/turns"
        held = Held(monkeypatch)
        json_type = {"Content-Type": "application/json"}
        turns = {"turns": [{"role": "user", "content": "kept"}]}
        calls = [asyncio.create_task(one.post(path, json=turns)) for _ in range(5)]
        await until(lambda: narrow.container.tenancy.slots.waiting == 3)

        refused = await one.post(path, content=b"{", headers=json_type)
        assert problem(refused, 503, "overloaded")["retryable"] is True
        assert "RateLimit" in refused.headers, "it counts as a call of its key"
        problem(await one.get(f"{path}?limit=1&unknown=1"), 503, "overloaded")
        problem(await one.post("/openai/v1/embeddings", content=b"{", headers=json_type), 400, "malformed_json")
        problem(await other.post(path, content=b"{", headers=json_type), 400, "malformed_json")
        problem(await narrow.client(None).get(path), 401, "unauthenticated")
        problem(await narrow.client("tk_unknown").get(path), 401, "unauthenticated")

        held.go_on.set()
        assert [answer.status_code for answer in await asyncio.gather(*calls)] == [201] * 5
        problem(await one.post(path, content=b"{", headers=json_type), 400, "malformed_json")


async def test_frames_and_tools_take_slots_too(narrow: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await narrow.new_tenant() as one, await narrow.new_tenant() as other:
        conversation = await one.conversation()
        await other.conversation()
        held = Held(monkeypatch)
        async with serving(narrow.app, narrow.settings) as port, socket_on(port, conversation, one.key) as socket:
            await socket.send("append", id="a", turns=[{"role": "user", "content": "one"}])
            await until(lambda: len(held.running) == 1)
            assert narrow.container.tenancy.slots._used_by == {one.tenant_id: 1}  # noqa: SLF001
            held.go_on.set()
            assert (await socket.until(lambda frame: frame.get("id") == "a"))["type"] == "ack"
        assert narrow.container.tenancy.slots._used_by == {}  # noqa: SLF001


def test_the_error_of_too_many_calls_is_temporary() -> None:
    assert Unavailable.retryable
