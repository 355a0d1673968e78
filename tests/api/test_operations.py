"""Long operations: started in a transaction, run in steps by jobs, resumed after a death, cancelled, removed."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from app.core.errors import Busy, Invalid, RateLimited
from app.core.ids import format_id, parse_id
from app.operations.schemas import OperationStatus
from app.operations.service import OperationHandler, OperationRun, Operations, OperationStopped
from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, problem

KIND = "counting"


class Counting:
    """An operation that counts its steps: as many as its parameters say."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.steps = 0
        self.fail: Exception | None = None
        self.between: Any = None

    async def run(self, run: OperationRun) -> None:
        goal = run.parameters["steps"]
        assert isinstance(goal, int)
        while run.done < goal:
            if self.between is not None:
                await self.between(run)
            async with self.service.container.database.transaction(run.tenant_id) as tx:
                await run.checkpoint(tx, done=run.done + 1, total=goal, state={"at": run.done + 1})
            self.steps += 1
            if self.fail is not None and self.steps == 2:
                raise self.fail
            if run.pause_is_due:
                return
        async with self.service.container.database.transaction(run.tenant_id) as tx:
            await run.succeed(tx, result={"counted": run.done})

    @staticmethod
    async def stop(run: OperationRun, _tx: object, status: OperationStatus) -> dict[str, Any]:
        return {"counted": run.done, "status": status.value}


@pytest.fixture
def operations(service: Service) -> Operations:
    return service.container.operations


@pytest.fixture
def counting(service: Service, operations: Operations) -> Iterator[Counting]:
    made = Counting(service)
    operations.handlers[KIND] = OperationHandler(made.run, made.stop)
    yield made
    del operations.handlers[KIND]


async def start(service: Service, client: Client, steps: int = 3) -> str:
    caller = await service.container.tenancy.authenticate(client.key)
    async with service.container.database.transaction(caller.tenant_id) as tx:
        made = await service.container.operations.start(
            caller, tx, kind=KIND, parameters={"steps": steps, "owner": "ann"}
        )
    return made.id


async def get(client: Client, operation: str) -> dict[str, Any]:
    answer = await client.get(f"/v1/operations/{operation}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stored(service: Service, operation: str) -> asyncpg.Record:
    connection = await asyncpg.connect(service.database.superuser)
    try:
        return await connection.fetchrow("select * from operations where id = $1", parse_id(operation))
    finally:
        await connection.close()


async def execute(service: Service, sql: str, *args: object) -> None:
    connection = await asyncpg.connect(service.database.superuser)
    try:
        await connection.execute(sql, *args)
    finally:
        await connection.close()


@pytest.mark.usefixtures("counting")
@pytest.mark.slow
async def test_an_operation_runs_to_its_end_and_its_parameters_are_removed(service: Service, client: Client) -> None:
    operation = await start(service, client)
    queued = await get(client, operation)
    assert (queued["status"], queued["progress"]) == ("queued", {"done": 0, "total": None})
    assert "ann" in (await stored(service, operation))["parameters"]
    assert "ann" not in str(queued)
    await service.run_jobs()
    ended = await get(client, operation)
    assert (ended["status"], ended["progress"]) == ("succeeded", {"done": 3, "total": 3})
    assert ended["result"] == {"counted": 3}
    assert ended["created_at"] <= ended["started_at"] <= ended["ended_at"] < ended["expires_at"]
    row = await stored(service, operation)
    assert (row["parameters"], row["state"]) == (None, None)


@pytest.mark.slow
async def test_what_is_rolled_back_has_not_started(service: Service, client: Client, counting: Counting) -> None:
    caller = await service.container.tenancy.authenticate(client.key)

    async def roll_back() -> None:
        async with service.container.database.transaction(caller.tenant_id) as tx:
            await service.container.operations.start(caller, tx, kind=KIND, parameters={"steps": 1})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await roll_back()
    await service.run_jobs()
    assert (await client.get("/v1/operations")).json()["data"] == []
    assert counting.steps == 0


async def test_a_run_that_pauses_is_continued_by_a_further_job(
    service: Service, client: Client, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.operations.service._RUN_PER_LEASE", 0.0)
    operation = await start(service, client, 4)
    await service.run_jobs()
    assert (await get(client, operation))["result"] == {"counted": 4}
    assert (await stored(service, operation))["run"] == 5  # the last one finds that all is done
    assert counting.steps == 4


async def test_a_step_that_failed_is_repeated_from_the_last_checkpoint(
    service: Service, client: Client, counting: Counting
) -> None:
    counting.fail = Busy("resource_busy", "again")
    operation = await start(service, client, 4)
    await service.run_jobs()
    assert (await get(client, operation))["status"] == "running"
    await execute(service, "update jobs set run_at = now() where tenant_id = $1", client.tenant_id)
    await service.run_jobs()
    assert (await get(client, operation))["result"] == {"counted": 4}
    assert counting.steps == 4


async def test_an_error_that_does_not_pass_ends_the_operation_with_what_was_done(
    service: Service, client: Client, counting: Counting
) -> None:
    counting.fail = Invalid("invalid_request", "no")
    operation = await start(service, client, 4)
    await service.run_jobs()
    ended = await get(client, operation)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "invalid_request")
    assert ended["error"]["type"] == "/docs/errors#invalid_request"
    assert ended["result"] == {"counted": 2, "status": "failed"}
    assert (await stored(service, operation))["parameters"] is None


@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_cancelled_operation_ends_and_keeps_what_it_did(
    service: Service, client: Client, counting: Counting, when: str
) -> None:
    operation = await start(service, client, 5)
    if when == "before":
        assert (await client.post(f"/v1/operations/{operation}/cancel")).json()["status"] == "cancelling"
    else:

        async def cancel(run: OperationRun) -> None:
            if run.done == 2:
                await client.post(f"/v1/operations/{operation}/cancel")

        counting.between = cancel
    await service.run_jobs()
    ended = await get(client, operation)
    done = 0 if when == "before" else 2
    assert (ended["status"], ended["result"]) == ("cancelled", {"counted": done, "status": "cancelled"})
    assert counting.steps == done
    assert (await client.post(f"/v1/operations/{operation}/cancel")).json() == ended


@pytest.mark.usefixtures("counting")
async def test_an_operation_that_has_ended_cannot_be_cancelled(service: Service, client: Client) -> None:
    operation = await start(service, client)
    await service.run_jobs()
    problem(await client.post(f"/v1/operations/{operation}/cancel"), 409, "operation_ended")


async def test_of_two_runs_only_the_later_one_writes(service: Service, client: Client, counting: Counting) -> None:
    """A worker that lost its lease, and has not noticed yet, cannot repeat a step that another one has done."""
    operation = await start(service, client, 3)
    runs = [await service.container.operations._begin(client.tenant_id, parse_id(operation)) for _ in range(2)]  # noqa: SLF001
    first, second = runs
    assert first is not None
    assert second is not None
    await counting.run(second)
    with pytest.raises(OperationStopped):
        async with service.container.database.transaction(client.tenant_id) as tx:
            await first.checkpoint(tx, done=1)
    assert (await get(client, operation))["result"] == {"counted": 3}


@pytest.mark.usefixtures("counting")
async def test_the_sweep_deletes_what_ended_a_day_ago_and_ends_what_lost_its_job(
    service: Service, client: Client, operations: Operations
) -> None:
    old, parked, lost = [await start(service, client) for _ in range(3)]
    sql = "update jobs set state = 'parked', last_error = $2 where dedupe_key = $1"
    await execute(service, sql, str(parse_id(parked)), "internal_error")
    await execute(service, sql, str(parse_id(lost)), "worker_lost")
    await service.run_jobs()
    await execute(service, "update operations set ended_at = now() - $2::interval where id = $1",
                  parse_id(old), timedelta(hours=25))  # fmt: skip
    await operations.sweep()
    problem(await client.get(f"/v1/operations/{old}"), 404, "not_found")
    ended = await get(client, parked)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "internal_error")
    await service.run_jobs()
    assert (await get(client, lost))["status"] == "succeeded"


@pytest.mark.usefixtures("counting")
async def test_a_tenant_has_a_limited_number_of_open_operations(
    service: Service, client: Client, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.operations.service._MAX_OPEN", 2)
    for _ in range(2):
        await start(service, client)
    with pytest.raises(RateLimited, match="2 operations"):
        await start(service, client)
    await start(service, other)
    await service.run_jobs()
    await start(service, client)


@pytest.mark.usefixtures("counting")
async def test_pages_and_filters_and_a_key_without_admin_sees_its_own(service: Service, client: Client) -> None:
    made = [await start(service, client) for _ in range(3)]
    await client.post(f"/v1/operations/{made[0]}/cancel")
    page = (await client.get("/v1/operations", params={"limit": 2})).json()
    assert [item["id"] for item in page["data"]] == made[:0:-1]
    rest = (await client.get("/v1/operations", params={"limit": 2, "cursor": page["next_cursor"]})).json()
    assert [item["id"] for item in rest["data"]] == made[:1]
    assert not rest["has_more"]
    found = (await client.get("/v1/operations", params={"status": "cancelling", "kind": KIND})).json()["data"]
    assert [item["id"] for item in found] == made[:1]
    assert (await client.get("/v1/operations", params={"kind": "other"})).json()["data"] == []
    problem(await client.get("/v1/operations", params={"kind": "Robert'); drop table"}), 422, "invalid_request")
    problem(await client.get("/v1/operations", params={"cursor": "x", "kind": KIND}), 422, "cursor_invalid")
    key = await service.container.tenancy.create_key(client.tenant_id, name="writer", scopes=[Scope.READ, Scope.WRITE])
    async with service.client(str(key)) as writer:
        writer.tenant_id, writer.key = client.tenant_id, str(key)
        assert (await writer.get("/v1/operations")).json()["data"] == []
        problem(await writer.get(f"/v1/operations/{made[0]}"), 404, "not_found")
        problem(await writer.post(f"/v1/operations/{made[0]}/cancel"), 404, "not_found")
        own = await start(service, writer)
        assert [item["id"] for item in (await writer.get("/v1/operations")).json()["data"]] == [own]
    assert (await get(client, own))["id"] == own


@pytest.mark.usefixtures("counting")
async def test_the_same_id_in_two_tenants_is_two_operations(service: Service, client: Client, other: Client) -> None:
    operation = await start(service, client, 2)
    caller = await service.container.tenancy.authenticate(other.key)
    async with service.container.database.transaction(caller.tenant_id) as tx:
        await service.container.operations.start(
            caller, tx, kind=KIND, parameters={"steps": 5}, operation_id=parse_id(operation)
        )
    await asyncio.gather(other.post(f"/v1/operations/{operation}/cancel"), service.run_jobs())
    await service.run_jobs()
    assert (await get(client, operation))["result"] == {"counted": 2}
    assert (await get(other, operation))["status"] in {"cancelled", "succeeded"}
    assert format_id(parse_id(operation)) == operation
