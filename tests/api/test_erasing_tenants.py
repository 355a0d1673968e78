"""The erasure of a tenant that has started erasures itself: each of them ends, with a signed receipt."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from app.core.ids import format_id, parse_id
from app.governance.erasures.runner import ErasureRunner
from app.tenancy.schemas import Scope
from tests.support.api import Client, Service
from tests.support.rows import fetch, rows

_TURNS = 150
_ROWS = 20
"""So many rows are deleted in a step: the erasure of a tenant with turns takes more steps than one without."""

_KEPT = {"index_removals", "audit_unsealed", "audit_entries", "audit_days", "tenants", "erasures", "api_keys"}


@pytest.fixture(autouse=True)
def _many_short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an operation pause after each step, so that those of several tenants take turns."""
    monkeypatch.setattr("app.operations.service._RUN_PER_LEASE", 0.0)
    monkeypatch.setattr("app.governance.purge._ROWS", _ROWS)


@asynccontextmanager
async def operators(service: Service, *clients: Client) -> AsyncIterator[list[Client]]:
    """Clients of the same tenants, with keys of operators."""
    async with AsyncExitStack() as stack:
        opened: list[Client] = []
        for client in clients:
            key = await service.container.tenancy.create_key(client.tenant_id, name="operator", scopes=list(Scope))
            opened.append(await stack.enter_async_context(service.client(str(key))))
            opened[-1].tenant_id = client.tenant_id
        yield opened


async def cups(client: Client, owner: str = "ann") -> str:
    conversation = await client.conversation(owner=owner)
    await client.append(conversation, *({"role": "user", "actor": owner, "content": f"cup {n}"} for n in range(_TURNS)))
    return conversation


async def start(client: Client, **subject: Any) -> str:
    answer = await client.post("/v1/erasures", json=subject)
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


async def start_of_tenant(client: Client, tenant: Client) -> str:
    return await start(client, tenant=format_id(tenant.tenant_id))


async def run_erasures(service: Service) -> None:
    """Run all jobs that are due, and again those of erasures that met a lock, as a worker does after a while."""
    later = "kind = 'operations.erasure' and run_at between now() and now() + interval '1 hour'"
    for _ in range(10):
        await service.run_jobs()
        if not await fetch(service, f"select id from jobs where {later}"):  # noqa: S608
            break
        await fetch(service, f"update jobs set run_at = now() where {later}")  # noqa: S608


async def receipt_of(service: Service, client: Client, erasure: str) -> tuple[str, dict[str, int], bool]:
    """Status, deleted rows by table and whether the signature is valid; with a new key: an erased tenant has none."""
    key = await service.container.tenancy.create_key(client.tenant_id, name="reader", scopes=[Scope.ADMIN])
    async with service.client(str(key)) as reader:
        answer = await reader.get(f"/v1/erasures/{erasure}")
        assert answer.status_code == 200, answer.text
        receipt = answer.json()
        checked = await reader.post("/v1/erasures/verify", json={"receipt": receipt})
    deleted = {table: count["deleted"] for table, count in receipt["counts"].items()}
    return receipt["status"], deleted, checked.json()["valid"]


async def tables_with_rows(service: Service, client: Client) -> set[str]:
    """The tables that still have rows of an erased tenant, but not those that keep them."""
    tables = await fetch(service, "select relname from pg_class c join pg_attribute a on a.attrelid = c.oid"
                         " and a.attname = 'tenant_id' where relkind = 'r'")  # fmt: skip
    return {name for (name,) in tables if await rows(service, client, name)} - _KEPT


def before_each_step(monkeypatch: pytest.MonkeyPatch, of: str, act: Callable[[int], Awaitable[None]]) -> None:
    """Call `act` with the number of each step of the erasure that is about the tenant `of`, before the step."""
    step, number = ErasureRunner._step, 0  # noqa: SLF001

    async def stepping(self: ErasureRunner, erasing: Any, tx: Any) -> None:
        nonlocal number
        if erasing.subject.name == of:
            number += 1

            async def acting(number: int) -> None:
                await act(number)

            # in a context of its own: that of the step is inside its transaction
            await asyncio.get_running_loop().create_task(acting(number), context=contextvars.Context())
        await step(self, erasing, tx)

    monkeypatch.setattr(ErasureRunner, "_step", stepping)


@pytest.mark.parametrize("by", ["an operator of a third tenant", "its own key"])
async def test_the_erasure_of_a_tenant_goes_on_when_the_tenant_that_started_it_is_erased(
    service: Service, client: Client, other: Client, by: str
) -> None:
    await cups(client)
    third = await service.new_tenant()
    async with third, operators(service, other, third) as (operator, operator_of_third):
        of_client = await start_of_tenant(operator, client)
        eraser = operator if by == "its own key" else operator_of_third
        of_other = await start_of_tenant(eraser, other)
        await run_erasures(service)
        status, deleted, valid = await receipt_of(service, other, of_client)
        assert (status, valid, deleted["turns"], deleted["conversations"]) == ("complete", True, _TURNS, 1)
        assert (await receipt_of(service, eraser, of_other))[::2] == ("complete", True)
    assert await tables_with_rows(service, client) == set()
    # what is left are operations that have ended, for a day as always
    assert await tables_with_rows(service, other) <= {"operations"}
    assert await rows(service, other, "operations", "ended_at is null or parameters is not null") == 0


async def test_two_tenants_that_erase_each_other_are_both_erased(
    service: Service, client: Client, other: Client
) -> None:
    await cups(client)
    await cups(other)
    async with operators(service, client, other) as (first, second):
        of_other = await start_of_tenant(first, other)
        of_client = await start_of_tenant(second, client)
        await run_erasures(service)
        for owner, erasure in ((client, of_other), (other, of_client)):
            status, deleted, valid = await receipt_of(service, owner, erasure)
            assert (status, valid, deleted["turns"]) == ("complete", True, _TURNS)
    for tenant in (client, other):
        assert await tables_with_rows(service, tenant) <= {"operations"}
        assert await rows(service, tenant, "operations", "ended_at is null") == 0


async def test_erasures_that_start_at_any_step_of_the_erasure_of_their_tenant_end(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant that erases itself keeps the key that asked, so that it can start more erasures meanwhile."""
    tenants = [await service.new_tenant() for _ in range(20)]
    for tenant in tenants:
        await tenant.conversation(owner="ann")
    of_tenants: list[str] = []
    of_own_data: list[str] = []
    async with operators(service, client) as (operator,):

        async def act(number: int) -> None:
            if number <= len(tenants):
                of_own_data.append(await start(operator, owner="ann"))
                # it waits, as behind a backoff
                sql = "update jobs set run_at = now() + interval '1 day' where tenant_id = $1 and subject_ids = $2"
                await fetch(service, sql, client.tenant_id, [parse_id(of_own_data[-1])])
                of_tenants.append(await start_of_tenant(operator, tenants[number - 1]))

        before_each_step(monkeypatch, str(client.tenant_id), act)
        await client.conversation(owner="ann")
        own = await start_of_tenant(operator, client)
        await run_erasures(service)
    assert (await receipt_of(service, client, own))[::2] == ("complete", True)
    assert len(of_tenants) > 6
    for erasure, tenant in zip(of_tenants, tenants, strict=False):
        status, deleted, valid = await receipt_of(service, client, erasure)
        assert (status, valid, deleted["conversations"]) == ("complete", True, 1)
        assert await tables_with_rows(service, tenant) == set()
    for erasure in of_own_data:
        assert await receipt_of(service, client, erasure) == ("cancelled", {}, True)
    assert await rows(service, client, "operations", "ended_at is null or parameters is not null") == 0
    for tenant in tenants:
        await tenant.aclose()


async def test_an_erasure_of_own_data_that_starts_before_the_last_step_ends_before_that_of_the_tenant(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, late = ErasureRunner._step, list[str]()  # noqa: SLF001

    async def start_late() -> None:
        late.append(await start(client, owner="ann"))
        # it waits, as behind a backoff
        sql = "update jobs set run_at = now() + interval '1 day' where tenant_id = $1 and subject_ids = $2"
        await fetch(service, sql, client.tenant_id, [parse_id(late[0])])

    async def stepping(self: ErasureRunner, erasing: Any, tx: Any) -> None:
        if erasing.state.phase == 5 and not late:  # all is deleted, and only the last check is left
            await asyncio.get_running_loop().create_task(start_late(), context=contextvars.Context())
        await step(self, erasing, tx)

    monkeypatch.setattr(ErasureRunner, "_step", stepping)
    own = await start_of_tenant(client, client)
    await run_erasures(service)
    assert (await receipt_of(service, client, own))[::2] == ("complete", True)
    assert await receipt_of(service, client, late[0]) == ("cancelled", {}, True)
    assert await rows(service, client, "operations", "ended_at is null or parameters is not null") == 0
    assert await rows(service, client, "jobs") == 0


async def test_open_erasures_of_a_tenants_own_data_end_with_receipts_when_the_tenant_is_erased(
    service: Service, client: Client, other: Client
) -> None:
    await cups(client)
    conversation = await client.conversation()
    subjects = ({"owner": "ann"}, {"actor": "ann"}, {"conversation_id": conversation})
    async with operators(service, other) as (operator,):
        of_own_data = [await start(client, **subject) for subject in subjects]
        # they wait, as behind a backoff
        await fetch(service, "update jobs set run_at = now() + interval '1 day' where tenant_id = $1", client.tenant_id)
        same_tenant = await start_of_tenant(client, client)
        of_client = await start_of_tenant(operator, client)
        await run_erasures(service)
        receipts = [await receipt_of(service, client, erasure) for erasure in of_own_data]
        assert receipts == [("cancelled", {}, True)] * len(subjects)
        two = [await receipt_of(service, client, same_tenant), await receipt_of(service, other, of_client)]
        assert [(status, valid) for status, _, valid in two] == [("complete", True)] * 2
        assert sum(deleted.get("turns", 0) for _, deleted, _ in two) == _TURNS, "each row in one of both receipts"
    assert await tables_with_rows(service, client) <= {"operations"}
    assert await rows(service, client, "operations", "ended_at is null or parameters is not null") == 0


async def test_a_cancelled_erasure_of_own_data_counts_what_it_deleted_and_writes_no_more(
    service: Service, client: Client, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cups(client)
    done: list[int] = []
    async with operators(service, other) as (operator,):

        async def erase_tenant(number: int) -> None:
            if number == 4:  # some turns are deleted
                erasure = await start_of_tenant(operator, client)
                while (run := await begin(service, other, erasure)) is not None:
                    await service.container.operations.handlers["erasure"].run(run)
                done.append((await receipt_of(service, other, erasure))[1]["turns"])

        before_each_step(monkeypatch, "ann", erase_tenant)
        of_owner = await start(client, owner="ann")
        await run_erasures(service)
    status, deleted, valid = await receipt_of(service, client, of_owner)
    assert (status, valid) == ("cancelled", True)
    assert 0 < deleted["turns"] < _TURNS
    assert [deleted["turns"] + turns for turns in done] == [_TURNS]
    assert await tables_with_rows(service, client) == set()


async def begin(service: Service, client: Client, operation: str) -> Any:
    return await service.container.operations._begin(client.tenant_id, parse_id(operation))  # noqa: SLF001


async def test_erasures_of_a_tenant_and_of_the_tenant_that_started_it_resume_after_kills(
    service: Service, client: Client, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of both dies once after its statements and before its commit, as by kill -9."""
    await cups(client)
    third = await service.new_tenant()
    step = ErasureRunner._step  # noqa: SLF001
    last: dict[str, bool] = {}

    async def dying(self: ErasureRunner, erasing: Any, tx: Any) -> None:
        await step(self, erasing, tx)
        name = erasing.subject.name
        last[name] = not last.get(name, False)
        if last[name]:
            raise asyncio.CancelledError

    monkeypatch.setattr(ErasureRunner, "_step", dying)
    async with third, operators(service, other, third) as (operator, operator_of_third):
        of_client = await start_of_tenant(operator, client)
        of_other = await start_of_tenant(operator_of_third, other)
        waiting = [(other, of_client), (third, of_other)]
        for _ in range(200):
            for one in list(waiting):
                run = await begin(service, *one)
                if run is None:
                    waiting.remove(one)
                    continue
                try:
                    await service.container.operations.handlers["erasure"].run(run)
                except asyncio.CancelledError:
                    continue
        assert waiting == []
        status, deleted, valid = await receipt_of(service, other, of_client)
        assert (status, valid, deleted["turns"], deleted["conversations"]) == ("complete", True, _TURNS, 1)
        assert (await receipt_of(service, third, of_other))[::2] == ("complete", True)
    assert await tables_with_rows(service, client) == set()


async def test_operations_and_jobs_of_another_tenant_with_the_same_ids_stay(
    service: Service, client: Client, other: Client
) -> None:
    """And an erasure that is open in the other tenant keeps no row of the erased one."""
    await client.conversation(owner="ann")
    twin = await service.new_tenant()
    third = await service.new_tenant()
    async with twin, third, operators(service, other, third) as (operator, operator_of_third):
        of_client = await start_of_tenant(operator, client)
        of_ann = await start(twin, owner="ann")
        await copy(service, "operations", other, twin, of_client)
        await copy(service, "jobs", other, twin, of_client)
        await copy(service, "jobs", twin, other, of_ann)
        await fetch(service, "update jobs set run_at = now() + interval '1 day' where tenant_id = $1", twin.tenant_id)
        await fetch(
            service, "update jobs set run_at = now() + interval '1 day' where tenant_id = $1 and subject_ids = $2",
            other.tenant_id, [parse_id(of_ann)],
        )  # fmt: skip
        before = await digests(service, twin)
        of_other = await start_of_tenant(operator_of_third, other)
        await run_erasures(service)
        assert (await receipt_of(service, third, of_other))[::2] == ("complete", True)
        assert (await receipt_of(service, other, of_client))[::2] == ("complete", True)
        assert await rows(service, other, "jobs") == 0
        assert await digests(service, twin) == before
        await fetch(service, "update jobs set run_at = now() where tenant_id = $1 and subject_ids = $2",
                    twin.tenant_id, [parse_id(of_ann)])  # fmt: skip
        await run_erasures(service)
        assert (await receipt_of(service, twin, of_ann))[::2] == ("complete", True)


async def digests(service: Service, client: Client) -> list[str]:
    found: list[str] = []
    for table in ("operations", "jobs", "erasures"):
        sql = f"select t::text as row from {table} t where tenant_id = $1 order by 1"  # noqa: S608
        found += [row["row"] for row in await fetch(service, sql, client.tenant_id)]
    assert len(found) == 5
    return found


async def copy(service: Service, table: str, source: Client, target: Client, erasure: str) -> None:
    condition = "id = $3" if table == "operations" else "$3 = any(subject_ids)"
    columns = ", ".join(
        row["name"]
        for row in await fetch(
            service,
            "select attname as name from pg_attribute where attrelid = $1::text::regclass and attnum > 0"
            " and not attisdropped and attname <> 'tenant_id'",
            table,
        )
    )
    sql = (
        f"insert into {table} (tenant_id, {columns}) select $2, {columns} from {table}"  # noqa: S608
        f" where tenant_id = $1 and {condition}"
    )
    await fetch(service, sql, source.tenant_id, target.tenant_id, parse_id(erasure))
