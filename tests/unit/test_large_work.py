"""Large texts: the threads that they are worked on in, the memory that is returned, what is counted of them."""

import asyncio
import ctypes
import subprocess
import sys
import threading
import time
from uuid import uuid4

import pytest

from app.core.errors import Unavailable
from app.core.ids import TenantId
from app.core.limits import TenantLimiter
from app.core.threads import bound_threads, map_in_threads
from app.providers import tokens
from app.providers.tokens import TiktokenCounter
from app.settings import Settings


def test_long_work_is_done_in_three_threads_at_most_and_the_loop_goes_on() -> None:
    busy, most = 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        time.sleep(0.02)
        with lock:
            busy -= 1

    async def run() -> None:
        bound_threads()
        await asyncio.gather(*(asyncio.to_thread(work) for _ in range(30)))

    asyncio.run(run())
    assert most == 3


async def test_items_are_worked_on_in_order_and_large_ones_step_by_step() -> None:
    loop_thread = threading.current_thread()
    threads: list[threading.Thread] = []

    def work(item: str) -> int:
        threads.append(threading.current_thread())
        return len(item)

    short = ["a", "bb", "ccc"]
    assert await map_in_threads(work, short, size=len) == [1, 2, 3]
    assert set(threads) == {loop_thread}
    threads.clear()
    others = 0

    async def count_turns_of_the_loop() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns_of_the_loop())
    long = ["x" * 70_000, "y" * 10, "z" * 70_000, "w" * 70_000]
    assert await map_in_threads(work, long, size=len) == [70_000, 10, 70_000, 70_000]
    counting.cancel()
    assert loop_thread not in threads
    assert others >= 3


A, B, C, D, E = (TenantId(uuid4()) for _ in range(5))


def halves(*, wait_s: float = 0) -> TenantLimiter:
    return TenantLimiter(50, total=100, wait_s=wait_s)


def test_a_tenant_has_at_most_half_of_what_is_shared() -> None:
    shares = halves()
    assert not shares.try_acquire(A, 51)
    assert shares.try_acquire(A, 50)
    assert not shares.try_acquire(A, 1)
    assert shares.try_acquire(B, 30)
    assert not shares.try_acquire(C, 21)
    assert shares.try_acquire(C, 20)
    shares.release(A, 50)
    assert shares.used == 50
    assert shares.try_acquire(A, 50)


async def test_who_waits_is_not_overtaken_by_its_own_tenant_nor_where_there_is_too_little_for_all() -> None:
    shares = halves(wait_s=20)
    assert shares.try_acquire(A, 50)
    assert shares.try_acquire(B, 40)
    served: list[str] = []

    async def wait(name: str, tenant: TenantId, amount: int) -> None:
        await shares.acquire(tenant, amount)
        served.append(name)

    tasks = [asyncio.create_task(wait("a first", A, 50)), asyncio.create_task(wait("a second", A, 1))]
    await asyncio.sleep(0)
    await wait("b at once", B, 10)
    tasks += [asyncio.create_task(wait("c", C, 30)), asyncio.create_task(wait("d", D, 1))]
    await asyncio.sleep(0.01)
    assert served == ["b at once"]
    shares.release(B, 20)  # too little for c, and d came after it
    await asyncio.sleep(0.01)
    assert served == ["b at once"]
    given_up = asyncio.create_task(wait("e", E, 1))
    await asyncio.sleep(0.01)
    given_up.cancel()
    shares.release(B, 10)
    await asyncio.sleep(0.01)
    assert served == ["b at once", "c"]
    shares.release(A, 50)
    await tasks[0]
    shares.release(A, 50)
    await asyncio.gather(*tasks)
    assert served == ["b at once", "c", "a first", "a second", "d"]


async def test_a_wait_that_is_cancelled_leaves_nothing_behind() -> None:
    shares = halves(wait_s=20)
    assert shares.try_acquire(A, 50)
    waiting = asyncio.create_task(shares.acquire(A, 50))
    await asyncio.sleep(0.01)
    shares.release(A, 50)  # granted, and cancelled before the task goes on
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert shares.used == 0
    await shares.acquire(A, 50)


async def test_a_request_without_room_is_refused_in_time() -> None:
    shares = halves()
    await shares.acquire(A, 50)
    with pytest.raises(Unavailable):
        await shares.acquire(A, 1)
    assert (shares.used, shares.waiting) == (50, 0)


def test_a_limit_of_bytes_in_flight_has_room_for_the_largest_request_of_two_tenants() -> None:
    assert Settings().bytes_in_flight == 2 * Settings().requests.max_request_bytes
    assert Settings(max_request_bytes=1000).bytes_in_flight == 2 * Settings().live.live_frame_bytes


_HOLES = """
import sys
from app.cli.serving.process_memory import keep_large_blocks_apart
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
if sys.argv[1] == "apart":
    keep_large_blocks_apart()
before = resident()
for _ in range(3):
    bytearray(16 * 2**20)  # a large block that is freed: from now on glibc maps none of this size
blocks = [bytearray(2**20) for _ in range(100)]
for block in blocks:
    block[:] = bytes(2**20)
last = bytearray(200_000)
del block, blocks
print((resident() - before) // 2**20)
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"),
    reason="the C library is not glibc: run it where it is",
)
def test_large_blocks_are_returned_when_they_are_freed() -> None:
    left: dict[str, int] = {}
    for mode in ("as it is", "apart"):
        found = subprocess.run([sys.executable, "-c", _HOLES, mode], capture_output=True, text=True, check=True)
        left[mode] = int(found.stdout)
    assert left["apart"] < 10
    assert left["as it is"] > 50


def test_long_texts_count_as_short_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = TiktokenCounter("o200k_base")
    texts = [
        "",
        "Good morning",
        "don't <|endoftext|> stop\n\n",
        "日本語のテキスト" * 50,
        "a\u0301 é  \U0001f600!" * 200,
    ]
    short = [counter.count(text) for text in texts]
    monkeypatch.setattr(tokens, "_LONG_TEXT", 0)
    assert [counter.count(text) for text in texts] == short
