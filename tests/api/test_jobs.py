"""Jobs: run at least once and by one worker, whatever dies meanwhile; retried, parked, cancelled, listed."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from app.core.database.transactions import Database, PoolOptions
from app.core.errors import Unavailable
from app.core.ids import format_id, new_uuid
from app.core.jobs import INSTALLATION, Job, JobQueue, NewJob
from app.core.times import format_time
from app.settings.database import JobSettings
from app.tenancy.schemas import Scope
from app.worker.runner import JobHandler, Worker, working
from tests.support.api import Client, Service, open_service, problem

Handler = Callable[[Job], Awaitable[None]]


def job_settings(**more: float) -> JobSettings:
    """Settings with times that are shorter than they may be outside of tests."""
    given = {"job_lease_s": 0.6, "job_max_attempts": 3, "job_retry_max_s": 0.05} | more
    return JobSettings().model_copy(update=given)


@pytest.fixture
async def queue(service: Service, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JobQueue]:
    """A queue with short leases and waits, on the ops role's own pool; its workers look for jobs often."""
    monkeypatch.setattr("app.core.jobs._RETRY_BASE_S", 0.01)
    monkeypatch.setattr("app.worker.runner._POLL_S", 0.05)
    ops = Database(PoolOptions(service.database.ops, 4, timeout_s=10, name="turnkeep-ops-test"))
    await ops.open()
    yield JobQueue(ops, settings=job_settings())
    await ops.close()


@pytest.fixture
def kind() -> str:
    """A kind of job of this test alone."""
    return "test." + "".join(char for char in format_id(new_uuid()).lower() if char.isalpha())


def worker(
    queue: JobQueue,
    kind: str,
    handler: Handler,
    *,
    every_s: float | None = None,
    grace_s: float = 5,
) -> Worker:
    settings = job_settings(job_timeout_s=5)
    return Worker(queue, {kind: JobHandler(handler, every_s)}, settings=settings, grace_s=grace_s)


async def enqueue(service: Service, queue: JobQueue, client: Client, *jobs: NewJob) -> None:
    async with service.container.database.transaction(client.tenant_id) as tx:
        await queue.enqueue(tx, client.tenant_id, jobs)


async def rows(service: Service, kind: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(service.database.superuser)
    try:
        return await connection.fetch("select * from jobs where kind = $1 order by id", kind)
    finally:
        await connection.close()


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - what is waited for is in the database
            await asyncio.sleep(0.02)


async def test_a_job_is_enqueued_with_its_transaction_or_not_at_all(
    service: Service, queue: JobQueue, client: Client, kind: str
) -> None:
    queue.enqueued.clear()
    with pytest.raises(Unavailable):  # noqa: PT012 - it is the transaction that must end by it
        async with service.container.database.transaction(client.tenant_id) as tx:
            await queue.enqueue(tx, client.tenant_id, [NewJob(kind)])
            raise Unavailable("not_ready", "Something else failed.")
    assert not queue.enqueued.is_set()
    assert await rows(service, kind) == []
    subjects = [new_uuid(), new_uuid()]
    await enqueue(service, queue, client, NewJob(kind, subject_ids=subjects), NewJob(kind))
    assert queue.enqueued.is_set()
    assert [list(row["subject_ids"]) for row in await rows(service, kind)] == [subjects, []]


async def test_two_workers_run_each_job_once(service: Service, queue: JobQueue, client: Client, kind: str) -> None:
    seen: list[UUID] = []

    async def handle(job: Job) -> None:
        await asyncio.sleep(0.001)
        seen.append(job.id)

    await enqueue(service, queue, client, *[NewJob(kind) for _ in range(200)])
    ids = [row["id"] for row in await rows(service, kind)]
    async with working(worker(queue, kind, handle)), working(worker(queue, kind, handle)):
        await until(lambda: _none_left(service, kind))
    assert sorted(seen) == sorted(ids)


async def test_a_tenant_with_many_jobs_leaves_half_of_the_places_to_others(
    service: Service, queue: JobQueue, client: Client, kind: str
) -> None:
    held, started, most, most_shared = Counter[UUID](), Counter[UUID](), Counter[UUID](), 0
    others = [await service.new_tenant() for _ in range(2)]
    full = asyncio.Event()

    async def handle(job: Job) -> None:
        nonlocal most_shared
        started[job.tenant_id] += 1
        held[job.tenant_id] += 1
        most[job.tenant_id] = max(most[job.tenant_id], held[job.tenant_id])
        # with four places, jobs of others still wait until the fifth of them starts
        if sum(started[other.tenant_id] for other in others) < 5:
            most_shared = max(most_shared, held[client.tenant_id])
        if held[client.tenant_id] == 4:
            full.set()
        await asyncio.sleep(0.05)
        if job.tenant_id == client.tenant_id and sum(started[other.tenant_id] for other in others) == 8:
            # alone now: a slow machine may take longer than a job to start the next
            with suppress(TimeoutError):
                await asyncio.wait_for(full.wait(), 60)
        held[job.tenant_id] -= 1

    # the first has enqueued all of its jobs before anybody else has one
    await enqueue(service, queue, client, *[NewJob(kind) for _ in range(20)])
    for other in others:
        await enqueue(service, queue, other, *[NewJob(kind) for _ in range(4)])
    async with working(worker(queue, kind, handle)):
        await until(lambda: _none_left(service, kind))
    assert most_shared == 2
    assert most[client.tenant_id] == 4, "what others leave is not left idle"
    for other in others:
        await other.aclose()


async def test_two_tenants_have_jobs_of_the_same_id(
    service: Service, queue: JobQueue, client: Client, other: Client, kind: str
) -> None:
    started, ended, may_end = list[UUID](), list[UUID](), asyncio.Event()

    async def handle(job: Job) -> None:
        started.append(job.tenant_id)
        await (may_end.wait() if job.tenant_id == other.tenant_id else asyncio.sleep(0))
        ended.append(job.tenant_id)

    async def all_started() -> bool:
        return len(started) == 2

    for tenant in (client, other):
        await enqueue(service, queue, tenant, NewJob(kind))
    connection = await asyncpg.connect(service.database.superuser)
    await connection.execute("update jobs set id = $2 where kind = $1", kind, new_uuid())
    await connection.close()
    async with working(worker(queue, kind, handle)):
        await until(all_started)
        # longer than a lease: the one that is running still is renewed
        await asyncio.sleep(1)
        assert sorted(started) == sorted([client.tenant_id, other.tenant_id])
        assert ended == [client.tenant_id]
        may_end.set()
        await until(lambda: _none_left(service, kind))
    assert ended == [client.tenant_id, other.tenant_id]


async def _none_left(service: Service, kind: str) -> bool:
    return not await rows(service, kind)


async def test_a_job_of_a_worker_that_was_killed_is_run_by_another(
    service: Service, queue: JobQueue, client: Client, kind: str
) -> None:
    await enqueue(service, queue, client, NewJob(kind))
    (claimed,) = await queue.claim(new_uuid(), kinds=[kind], limit=5)  # who claimed it is never heard of again
    assert await queue.claim(new_uuid(), kinds=[kind], limit=5) == []
    seen: list[int] = []

    async def handle(job: Job) -> None:
        seen.append(job.attempts)

    async with working(worker(queue, kind, handle)):
        await until(lambda: _none_left(service, kind))
    assert (claimed.attempts, seen) == (1, [2])


@pytest.mark.slow
async def test_a_job_that_kills_its_workers_is_parked(
    service: Service, queue: JobQueue, client: Client, kind: str
) -> None:
    await enqueue(service, queue, client, NewJob(kind))
    for _ in range(3):
        await until(lambda: _claimed(queue, kind))
    await asyncio.sleep(0.7)
    assert await queue.claim(new_uuid(), kinds=[kind], limit=1) == []
    (row,) = await rows(service, kind)
    assert (row["state"], row["last_error"], row["locked_by"]) == ("parked", "worker_lost", None)


@pytest.mark.slow
async def test_a_periodic_job_that_kills_its_workers_waits_long_and_comes_again(
    service: Service, queue: JobQueue, kind: str
) -> None:
    patient = JobQueue(queue._ops, settings=job_settings(job_retry_max_s=60))  # noqa: SLF001
    await patient.ensure_periodic([kind])
    for _ in range(3):
        await until(lambda: _claimed(patient, kind))
    await asyncio.sleep(0.7)
    assert await patient.claim(new_uuid(), kinds=[kind], limit=1) == []
    (row,) = await rows(service, kind)
    assert (row["state"], row["last_error"], row["locked_by"]) == ("queued", "worker_lost", None)
    connection = await asyncpg.connect(service.database.superuser)
    waits_s = "select extract(epoch from run_at - now())::float8 from jobs where kind = $1"
    assert 50 < await connection.fetchval(waits_s, kind) <= 60
    await connection.execute("update jobs set run_at = now() where kind = $1", kind)
    await connection.close()
    assert await _claimed(patient, kind)


async def _claimed(queue: JobQueue, kind: str) -> bool:
    return bool(await queue.claim(new_uuid(), kinds=[kind], limit=1))


@pytest.mark.slow
async def test_a_lease_is_renewed_as_long_as_a_job_runs(
    service: Service, queue: JobQueue, client: Client, kind: str
) -> None:
    runs: list[int] = []

    async def handle(job: Job) -> None:
        runs.append(job.attempts)
        await asyncio.sleep(1.5)

    await enqueue(service, queue, client, NewJob(kind))
    async with working(worker(queue, kind, handle)), working(worker(queue, kind, handle)):
        await until(lambda: _none_left(service, kind))
    assert runs == [1]


async def test_a_failing_job_is_tried_again_then_parked_and_retried_by_an_administrator(
    service: Service, queue: JobQueue, client: Client, kind: str
) -> None:
    runs, broken = 0, True

    async def handle(_job: Job) -> None:
        nonlocal runs
        runs += 1
        if broken and runs == 2:
            raise RuntimeError("quokka")  # what nobody expected counts as well, and its message goes nowhere
        if broken:
            raise Unavailable("embedder_overloaded", "Too much.")

    await enqueue(service, queue, client, NewJob(kind))
    async with working(worker(queue, kind, handle)):
        await until(lambda: _state(service, kind, "parked"))
        assert runs == 3
        (listed,) = (await client.get("/v1/admin/jobs", params={"kind": kind, "state": "parked"})).json()["data"]
        assert (listed["attempts"], listed["last_error"]) == (3, "embedder_overloaded")
        broken = False
        assert (await client.get(f"/v1/admin/jobs/{listed['id']}")).json() == listed
        retried = await client.post(f"/v1/admin/jobs/{listed['id']}/retry")
        assert (retried.status_code, retried.json()["state"], retried.json()["attempts"]) == (200, "queued", 0)
        await until(lambda: _none_left(service, kind))
    assert runs == 4
    problem(await client.post(f"/v1/admin/jobs/{listed['id']}/retry"), 404, "not_found")
    problem(await client.get(f"/v1/admin/jobs/{listed['id']}"), 404, "not_found")


async def _state(service: Service, kind: str, state: str) -> bool:
    return all(row["state"] == state for row in await rows(service, kind))


async def test_waits_between_attempts_double_and_are_bounded(
    service: Service, queue: JobQueue, client: Client, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.jobs._RETRY_BASE_S", 2)
    settings = job_settings(job_lease_s=60, job_max_attempts=9, job_retry_max_s=10)
    patient = JobQueue(queue._ops, settings=settings)  # noqa: SLF001
    await enqueue(service, patient, client, NewJob(kind))
    connection = await asyncpg.connect(service.database.superuser)
    for longest in (2, 4, 8, 10, 10):
        await connection.execute("update jobs set run_at = now() where kind = $1", kind)
        me = new_uuid()
        (job,) = await patient.claim(me, kinds=[kind], limit=1)
        await patient.fail(me, job, code="internal_error")
        waits = await connection.fetchval("select extract(epoch from run_at - now()) from jobs where kind = $1", kind)
        assert longest / 2 - 0.5 < waits <= longest
    await connection.close()


async def test_the_same_work_does_not_wait_twice_but_is_done_again_if_asked_for_while_it_runs(
    service: Service, queue: JobQueue, client: Client, other: Client, kind: str
) -> None:
    one = NewJob(kind, dedupe_key="x")
    await enqueue(service, queue, client, one, one)
    await enqueue(service, queue, client, one)
    await enqueue(service, queue, other, one)
    assert len(await rows(service, kind)) == 2
    me = new_uuid()
    claimed = await queue.claim(me, kinds=[kind], limit=5)
    await enqueue(service, queue, client, one)
    assert len(await rows(service, kind)) == 3
    # the one that waits does what the failed one was to do
    for job in claimed:
        await queue.fail(me, job, code="internal_error")
    left = await rows(service, kind)
    assert sorted(str(row["tenant_id"]) for row in left) == sorted([str(client.tenant_id), str(other.tenant_id)])
    assert {row["attempts"] for row in left if row["tenant_id"] == client.tenant_id} == {0}


async def test_work_that_is_asked_for_while_it_runs_is_done_again_only_afterwards(
    service: Service, queue: JobQueue, client: Client, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, ended = 0, 0, 0
    first_started, may_end = asyncio.Event(), asyncio.Event()

    async def handle(job: Job) -> None:
        nonlocal running, most, ended
        if job.dedupe_key is None:
            may_end.set()
            return
        running += 1
        most = max(most, running)
        first_started.set()
        await may_end.wait()
        running -= 1
        ended += 1

    await enqueue(service, queue, client, NewJob(kind, dedupe_key="x"))
    # it does not poll: the end of the first one makes it look for the job that waits
    monkeypatch.setattr("app.worker.runner._POLL_S", 600)
    async with working(worker(queue, kind, handle)):
        await asyncio.wait_for(first_started.wait(), 60)
        # the older one would be claimed first, but it waits; the other lets the first one end
        await enqueue(service, queue, client, NewJob(kind, dedupe_key="x"))
        await enqueue(service, queue, client, NewJob(kind))
        await until(lambda: _none_left(service, kind))
    assert (most, ended) == (1, 2)


@pytest.mark.parametrize("end", ["finish", "fail", "release"])
async def test_work_asked_for_in_the_moment_its_job_ends_is_left_to_the_job_that_waits(
    service: Service, queue: JobQueue, client: Client, kind: str, end: str
) -> None:
    await enqueue(service, queue, client, NewJob(kind, dedupe_key="x"))
    me = new_uuid()
    (job,) = await queue.claim(me, kinds=[kind], limit=1)
    ends: dict[str, Callable[[], Awaitable[object]]] = {
        "finish": lambda: queue.finish(me, job, again_in_s=60),
        "fail": lambda: queue.fail(me, job, code="internal_error"),
        "release": lambda: queue.release(me, [job]),
    }
    async with service.container.database.transaction(client.tenant_id) as tx:
        await queue.enqueue(tx, client.tenant_id, [NewJob(kind, dedupe_key="x")])
        ending = asyncio.ensure_future(ends[end]())
        await asyncio.sleep(0.2)
    await ending
    (left,) = await rows(service, kind)
    assert left["id"] != job.id
    assert (left["attempts"], left["locked_by"]) == (0, None)


async def test_cancelling_takes_a_job_back_even_from_its_worker(
    service: Service, queue: JobQueue, client: Client, kind: str
) -> None:
    started, given_up = asyncio.Event(), asyncio.Event()

    async def handle(_job: Job) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            given_up.set()
            raise

    await enqueue(service, queue, client, NewJob(kind))
    async with working(worker(queue, kind, handle)):
        await asyncio.wait_for(started.wait(), 60)
        (job,) = (await client.get("/v1/admin/jobs", params={"kind": kind})).json()["data"]
        assert job["state"] == "running"
        problem(await client.post(f"/v1/admin/jobs/{job['id']}/retry"), 409, "job_running")
        cancelled = await client.post(f"/v1/admin/jobs/{job['id']}/cancel")
        assert cancelled.json()["state"] == "cancelled"
        await asyncio.wait_for(given_up.wait(), 60)
    assert await _state(service, kind, "cancelled")
    assert await queue.claim(new_uuid(), kinds=[kind], limit=1) == []
    again = (await client.post(f"/v1/admin/jobs/{job['id']}/retry")).json()
    assert again["state"] == "queued"


async def test_a_retry_is_refused_where_the_same_work_waits_already(
    service: Service, queue: JobQueue, client: Client, kind: str
) -> None:
    await enqueue(service, queue, client, NewJob(kind, dedupe_key="x"))
    (job,) = await rows(service, kind)
    await client.post(f"/v1/admin/jobs/{format_id(job['id'])}/cancel")
    await enqueue(service, queue, client, NewJob(kind, dedupe_key="x"))
    problem(await client.post(f"/v1/admin/jobs/{format_id(job['id'])}/retry"), 409, "job_waiting")


async def test_a_stop_finishes_what_it_can_and_gives_the_rest_back_untried(
    service: Service, queue: JobQueue, client: Client, kind: str
) -> None:
    started = asyncio.Event()
    finished: list[UUID] = []

    async def handle(job: Job) -> None:
        if job.priority:
            await asyncio.sleep(0.1)
            finished.append(job.id)
        else:
            started.set()
            await asyncio.sleep(60)

    await enqueue(service, queue, client, NewJob(kind, priority=1), NewJob(kind))
    async with working(worker(queue, kind, handle, grace_s=0.3)):
        await asyncio.wait_for(started.wait(), 60)
    (left,) = await rows(service, kind)
    assert len(finished) == 1
    assert (left["locked_by"], left["attempts"], left["state"]) == (None, 0, "queued")


async def test_a_periodic_job_is_one_row_for_all_workers_and_comes_again(
    service: Service, queue: JobQueue, kind: str
) -> None:
    runs = 0

    async def handle(_job: Job) -> None:
        nonlocal runs
        runs += 1
        if runs % 2:
            raise Unavailable("database_unavailable", "Now and then.")

    crew = [worker(queue, kind, handle, every_s=0.02) for _ in range(3)]
    async with working(crew[0]), working(crew[1]), working(crew[2]):
        await until(lambda: _has(lambda: runs >= 8))
    (row,) = await rows(service, kind)
    assert (row["tenant_id"], row["state"]) == (INSTALLATION, "queued")


async def test_a_failing_periodic_job_waits_longer_each_time_and_is_due_again_at_a_start(
    service: Service, queue: JobQueue, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.jobs._RETRY_BASE_S", 2)
    settings = job_settings(job_lease_s=60, job_max_attempts=20, job_retry_max_s=900)
    patient = JobQueue(queue._ops, settings=settings)  # noqa: SLF001
    connection = await asyncpg.connect(service.database.superuser)
    waits_s = "select extract(epoch from run_at - now())::float8 from jobs where kind = $1"
    await patient.ensure_periodic([kind])
    for asked, longest in ((0.0, 2), (0.0, 4), (0.0, 8), (0.0, 10), (0.0, 10), (50.0, 51)):
        await patient.ensure_periodic([kind], at_once=[kind])
        me = new_uuid()
        (job,) = await patient.claim(me, kinds=[kind], limit=1)
        await patient.fail(me, job, code="embedder_unavailable", max_s=10, not_before_s=asked)
        waits = await connection.fetchval(waits_s, kind)
        assert max(asked, longest / 2) - 0.5 < waits <= longest
    await patient.ensure_periodic([kind])
    assert await connection.fetchval(waits_s, kind) > 40
    await patient.ensure_periodic([kind], at_once=[kind])
    assert await connection.fetchval(waits_s, kind) <= 0
    (job,) = await patient.claim(me, kinds=[kind], limit=1)
    await patient.finish(me, job, again_in_s=5)
    assert [(row["attempts"], row["last_error"]) for row in await rows(service, kind)] == [(0, None)]
    await connection.close()


async def _has(condition: Callable[[], bool]) -> bool:
    return condition()


@pytest.mark.slow
async def test_expired_idempotency_records_are_swept_by_a_job(service: Service, client: Client) -> None:
    await client.post("/v1/conversations", json={}, headers={"Idempotency-Key": "k"})
    connection = await asyncpg.connect(service.database.superuser)
    await connection.execute("update idempotency_records set expires_at = now() where tenant_id = $1", client.tenant_id)
    await connection.execute("update jobs set run_at = now() where kind = 'installation.sweep'")
    await service.run_jobs()
    left = await connection.fetchval("select count(*) from idempotency_records where tenant_id = $1", client.tenant_id)
    await connection.close()
    assert left == 0


async def test_lists_page_and_filter_and_an_operator_sees_all_tenants(
    service: Service, queue: JobQueue, client: Client, other: Client, kind: str
) -> None:
    await enqueue(service, queue, client, *[NewJob(kind, priority=n) for n in range(5)])
    await enqueue(service, queue, other, NewJob(kind))
    seen: list[dict[str, Any]] = []
    params: dict[str, Any] = {"kind": kind, "limit": 2, "order": "asc"}
    while True:
        page = (await client.get("/v1/admin/jobs", params=params)).json()
        seen += page["data"]
        if not page["has_more"]:
            break
        params["cursor"] = page["next_cursor"]
    assert [job["priority"] for job in seen] == [0, 1, 2, 3, 4]
    assert (await client.get("/v1/admin/jobs", params={"kind": kind, "state": "parked"})).json()["data"] == []
    key = await service.container.tenancy.create_key(client.tenant_id, name="o", scopes=[Scope.OPERATOR])
    async with service.client(str(key)) as operator:
        everything = {"kind": kind, "all_tenants": "true"}
        listed = (await operator.get("/v1/admin/jobs", params=everything)).json()["data"]
        assert {job["tenant_id"] for job in listed} == {format_id(one.tenant_id) for one in (client, other)}
        problem(await operator.get("/v1/admin/jobs", params={"kind": kind}), 403, "forbidden")
        foreign = next(job["id"] for job in listed if job["tenant_id"] == format_id(other.tenant_id))
        path = f"/v1/admin/jobs/{foreign}/cancel"
        assert (await operator.post(path, params={"all_tenants": "true"})).json()["state"] == "cancelled"


# late vectors


async def state_of(client: Client, conversation: str) -> list[str]:
    return [turn["index_state"] for turn in await client.history(conversation)]


async def test_turns_whose_embedder_failed_get_their_vectors_when_it_is_back(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_args: object, **_options: object) -> None:
        raise Unavailable("embedder_overloaded", "Too much to embed.")

    conversation = await client.conversation()
    call = {"role": "assistant", "tool_calls": [{"id": "c", "name": "feed", "arguments": '{"animal": "tortoise"}'}]}
    monkeypatch.setattr(service.container.embedder, "embed", fail)
    await client.append(conversation, "The tortoise is called Shelly.", call)
    assert await state_of(client, conversation) == ["pending", "pending"]
    await service.run_jobs()
    (job,) = (await client.get("/v1/admin/jobs", params={"kind": "index.vectors"})).json()["data"]
    assert (job["state"], job["last_error"]) == ("queued", "embedder_overloaded")
    assert job["attempts"] >= 1, "more than one, if doing all other jobs takes longer than the delay of a retry"
    monkeypatch.undo()
    await client.post(f"/v1/admin/jobs/{job['id']}/retry")
    await service.run_jobs()
    assert await state_of(client, conversation) == ["indexed", "indexed"]
    answer = await client.post(f"/v1/conversations/{conversation}/recall", json={"query": "Shelly", "mode": "vector"})
    assert answer.json()["degraded"] == []
    assert answer.json()["data"][0]["text"] == "The tortoise is called Shelly."
    assert (await client.get("/v1/admin/jobs")).json()["data"] == []


@pytest.mark.slow
async def test_more_turns_than_are_embedded_at_once_are_found_and_completed(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *[f"parrot number {n}" for n in range(200)])
    assert (await state_of(client, conversation)).count(
        "pending"
    ) == 200 - service.settings.index.max_vectors_per_append
    path, body = f"/v1/conversations/{conversation}/recall", {"query": "parrot number 199", "k": 1}
    early = (await client.post(path, json=body)).json()
    assert early["degraded"] == ["vectors_pending"]
    await service.run_jobs()
    assert set(await state_of(client, conversation)) == {"indexed"}
    late = (await client.post(path, json=body)).json()
    assert late["degraded"] == []
    assert {answer["data"][0]["text"] for answer in (early, late)} == {"parrot number 199"}
    assert await vectors_of(service, client) == 200


async def vectors_of(service: Service, client: Client) -> int:
    connection = await asyncpg.connect(service.database.superuser)
    try:
        return await connection.fetchval("select count(*) from vectors where tenant_id = $1", client.tenant_id)
    finally:
        await connection.close()


@pytest.mark.parametrize(
    "change",
    [
        "update turns set superseded_by = id where tenant_id = $1",
        "update turns set content = null, salt = null, erased_at = now() where tenant_id = $1",
        # another hash each time: two jobs read the same turns, one perhaps after the change that the other caused
        "update turns set content_hash = sha256(content_hash) where tenant_id = $1",
        "delete",
    ],
)
async def test_what_changed_while_it_was_worked_on_is_left_alone(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The change comes after the job has read its sources, and before it writes."""
    conversation = await client.conversation()
    turns = [f"the wombat came {when}" for when in ("yesterday", "last week")] + ["filler"] * 32
    await client.append(conversation, *reversed(turns))
    index = service.container.index
    embed, resolve = index.backfill.embed, index.resolve_dates

    async def changing(original: Callable[[Any], Awaitable[Any]], given: Any) -> Any:
        made = await original(given)
        if change == "delete":
            await client.delete(f"/v1/conversations/{conversation}")
            return made
        connection = await asyncpg.connect(service.database.superuser)
        await connection.execute(change, client.tenant_id)
        await connection.close()
        return made

    monkeypatch.setattr(index.backfill, "embed", lambda texts: changing(embed, texts))
    monkeypatch.setattr(index, "resolve_dates", lambda documents: changing(resolve, documents))
    before = await vectors_of(service, client)
    await service.run_jobs()
    assert await vectors_of(service, client) == (0 if change == "delete" else before)
    connection = await asyncpg.connect(service.database.superuser)
    query = "select count(*) from index_entries where tenant_id = $1 and dates is not null"
    assert await connection.fetchval(query, client.tenant_id) == 0
    # one that summarises meanwhile finds its turns changed, and comes back later
    left = "select kind, last_error from jobs where tenant_id = $1 and kind <> 'conversation.compact'"
    assert await connection.fetch(left, client.tenant_id) == []
    await connection.close()


@pytest.mark.slow
async def test_a_job_run_twice_gives_the_same(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    turns = (await client.append(conversation, *["We sailed last Friday."] * 130))["turns"]
    connection = await asyncpg.connect(service.database.superuser)
    copies = "insert into jobs select tenant_id, gen_random_uuid(), kind, subject_ids, dedupe_key, priority, state,"
    copies += " attempts, max_attempts from jobs where tenant_id = $1 and dedupe_key is null"
    await connection.execute(copies, client.tenant_id)
    await service.run_jobs()
    lengths = await connection.fetch("select distinct doc_length from index_entries where tenant_id = $1",
                                     client.tenant_id)  # fmt: skip
    await connection.close()
    assert await vectors_of(service, client) == len(turns)
    assert len(lengths) == 1


@pytest.mark.slow
async def test_a_fork_of_what_waits_gets_its_vectors_and_dates_too(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, *["We sailed last Friday."] * 10, *["filler"] * 125)
    fork = (await client.post(f"/v1/conversations/{conversation}/fork", json={})).json()["id"]
    pending = (await state_of(client, conversation)).count("pending")
    assert pending > 0
    assert (await state_of(client, fork)).count("pending") == pending
    await service.run_jobs()
    assert set(await state_of(client, conversation)) == set(await state_of(client, fork)) == {"indexed"}
    assert await vectors_of(service, client) == 2 * 135
    for one in (conversation, fork):
        hits = await client.recall(one, "sailed", k=10)
        assert all(hit["dates"] for hit in hits if "Friday" in hit["text"])
    # what is resolved comes with the copy, and nothing is due
    again = (await client.post(f"/v1/conversations/{fork}/fork", json={})).json()["id"]
    assert (await client.get("/v1/admin/jobs")).json()["data"] == []
    hits = await client.recall(again, "sailed", k=10)
    assert [hit["count"] for hit in hits if hit["dates"]] == [10]


@pytest.mark.parametrize("change", ["erase", "revise", "truncate"])
async def test_a_turn_that_went_while_it_waited_is_left_alone(service: Service, client: Client, change: str) -> None:
    conversation = await client.conversation()
    turns = (await client.append(conversation, *["filler"] * 34, "We sailed last Friday."))["turns"]
    path = f"/v1/conversations/{conversation}/turns"
    if change == "erase":
        answer = await client.delete(path, params={"ids": [turns[34]["id"]]})
    else:
        turn = turns[34 if change == "revise" else 24]["id"]
        body = {"content": "We stayed.", "truncate_after": change == "truncate"}
        answer = await client.post(f"{path}/{turn}/revisions", json=body)
    assert answer.status_code in {200, 201}, answer.text
    before = await vectors_of(service, client)
    await service.run_jobs()
    assert (await client.get("/v1/admin/jobs")).json()["data"] == []
    assert await vectors_of(service, client) == before + (0 if change == "truncate" else 2)
    assert "pending" not in await state_of(client, conversation)
    assert not any("sailed" in hit["text"] or hit["dates"] for hit in await client.recall(conversation, "sailed"))


# resolved dates


async def test_relative_dates_are_found_by_what_they_mean_and_shown(service: Service, client: Client) -> None:
    conversation = await client.conversation()
    said = {"role": "user", "occurred_at": "2023-05-10T15:00:00Z"}
    texts = ("\U0001f600 Bob moved out last Friday, I think.", "Next year we go to Peru.", "Nothing of note.")
    await client.append(conversation, *[said | {"content": text} for text in texts])
    await service.run_jobs()
    (hit, *_) = await client.recall(conversation, "what happened on 5 May", mode="text", k=1)
    (date,) = hit["dates"]
    assert (date["first_day"], date["last_day"]) == ("2023-05-05", "2023-05-05")
    assert hit["text"][date["start"] : date["end"]] == "last Friday"
    (hit, *_) = await client.recall(conversation, "2024", mode="text", k=1)
    assert [(date["first_day"], date["last_day"]) for date in hit["dates"]] == [("2024-01-01", "2024-12-31")]
    (hit, *_) = await client.recall(conversation, "note", mode="text", k=1)
    assert hit["dates"] == []


async def test_no_job_is_made_where_nothing_is_due(client: Client) -> None:
    conversation = await client.conversation()
    await client.append(conversation, "A plain remark about Friday in May.", "This may be the last of it.")
    assert (await client.get("/v1/admin/jobs")).json()["data"] == []


@pytest.mark.slow
async def test_a_server_with_its_worker_does_late_work_by_itself_and_counts_it(
    service: Service, client: Client, tmp_path: Path
) -> None:
    running = open_service(service.database, tmp_path, worker_in_process=True, job_lease_s=1)
    async with running as own, own.client(client.key) as caller:
        conversation = await caller.conversation()
        await caller.append(conversation, *["It rained yesterday."] * 140)

        async def done() -> bool:
            return not (await caller.get("/v1/admin/jobs")).json()["data"]

        await until(done)
        assert set(await state_of(caller, conversation)) == {"indexed"}
        assert all(hit["dates"] for hit in await caller.recall(conversation, "rained"))
        await asyncio.sleep(0.5)
        assert 'turnkeep_jobs{state="parked"}' in (await caller.get("/metrics")).text


async def test_a_tenant_with_much_to_do_leaves_places_to_others(
    service: Service, queue: JobQueue, client: Client, other: Client, kind: str
) -> None:
    """Half of the places at most, as long as somebody else has work; all, where nobody has."""
    ran: list[UUID] = []
    gate = asyncio.Event()

    async def handler(job: Job) -> None:
        ran.append(job.tenant_id)
        await (gate.wait() if len(ran) <= 4 else asyncio.sleep(0))

    await enqueue(service, queue, client, *[NewJob(kind) for _ in range(30)])
    async with working(worker(queue, kind, handler)):
        await until(lambda: _count(ran, 4))
        assert set(ran) == {client.tenant_id}
        await enqueue(service, queue, other, NewJob(kind))
        gate.set()
        await until(lambda: _count(ran, 31))
    assert ran.index(other.tenant_id) < 10


async def _count(ran: list[UUID], most: int) -> bool:
    return len(ran) >= most


async def test_jobs_are_counted_by_kind_and_state(
    service: Service, queue: JobQueue, client: Client, other: Client, kind: str
) -> None:
    await enqueue(service, queue, client, *[NewJob(kind, delay_s=60 * number) for number in range(4)])
    await enqueue(service, queue, client, NewJob(f"{kind}2", delay_s=3600))
    await enqueue(service, queue, other, NewJob(kind))
    [claimed] = await queue.claim(new_uuid(), kinds=[kind], limit=1, skipped_tenants=[other.tenant_id])
    [_, first, second, _] = [row["id"] for row in await rows(service, kind) if row["tenant_id"] == client.tenant_id]
    assert claimed.id not in {first, second}
    assert (await client.post(f"/v1/admin/jobs/{format_id(second)}/cancel")).status_code == 200
    connection = await asyncpg.connect(service.database.superuser)
    await connection.execute("update jobs set state = 'parked' where id = $1", first)
    run_at = await connection.fetchval("select max(run_at) from jobs where kind = $1", kind)
    await connection.close()
    counts = (await client.get("/v1/admin/jobs/counts")).json()
    assert {name: counts[name] for name in ("queued", "running", "parked", "cancelled")} == {
        "queued": 2, "running": 1, "parked": 1, "cancelled": 1
    }  # fmt: skip
    one, two = counts["kinds"]
    assert one == {
        "kind": kind, "queued": 1, "running": 1, "parked": 1, "cancelled": 1, "next_run_at": format_time(run_at),
    }  # fmt: skip
    assert (two["kind"], two["queued"], two["running"]) == (f"{kind}2", 1, 0)
    problem(await client.get("/v1/admin/jobs/counts", params={"all_tenants": "true"}), 403, "forbidden")
    key = await service.container.tenancy.create_key(other.tenant_id, name="operator", scopes=list(Scope))
    async with service.client(str(key)) as operator:
        every = (await operator.get("/v1/admin/jobs/counts", params={"all_tenants": "true"})).json()
        assert {row["kind"]: row["queued"] for row in every["kinds"]}[kind] == 2
        assert {
            row["kind"]: row["queued"] for row in (await operator.get("/v1/admin/jobs/counts")).json()["kinds"]
        } == {kind: 1}
