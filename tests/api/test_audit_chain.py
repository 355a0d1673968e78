"""The hash chains of the audit: sealing, verification, tampering by the owner of the database, retention."""

# ruff: noqa: S608 - some statements are put together

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.audit import store
from app.audit.schemas import Action, AuditVerification, Command, Entry, ObjectKind
from app.audit.sealing import AuditSealer
from app.audit.service import Checkpoint, record, verify_audit
from app.core.database.transactions import Database
from app.core.errors import Busy
from app.core.ids import TenantId, format_id, new_uuid, parse_id
from app.tenancy.schemas import Scope
from tests.support.api import Client, Service, open_service, problem
from tests.support.postgres import TestDatabase, earlier, on_citus
from tests.support.process import Process

A_MICROSECOND = "interval '1 microsecond'"

TODAY = datetime.now(UTC).date()


def ops_of(service: Service) -> Database:
    return service.container.audit._ops  # noqa: SLF001


@asynccontextmanager
async def superuser(service: Service) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(service.database.superuser)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def logged_in_as_application(service: Service, tenant_id: TenantId) -> AsyncIterator[Any]:
    """A connection with the application's own login, as a tenant; it cannot take another role."""
    connection = await asyncpg.connect(service.database.app)
    try:
        assert await connection.fetchval("select session_user = current_user") is True
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("set role turnkeep_ops")
        async with connection.transaction():
            await connection.execute(f"set local app.tenant = '{tenant_id}'")
            yield connection
    finally:
        await connection.close()


async def verified(service: Service, tenant_id: TenantId, **more: Any) -> AuditVerification:
    return (await verify_audit(ops_of(service), tenant_id, **more))[tenant_id]


async def verified_in_parts(
    client: Client, *, max_entries: int, cursor: str | None = None, **body: Any
) -> list[dict[str, Any]]:
    """The parts of a verification over REST, up to the last one."""
    parts: list[dict[str, Any]] = []
    while not parts or cursor is not None:
        given = {"max_entries": max_entries, "cursor": cursor, **body}
        answer = await client.post("/v1/admin/audit/verify", json=given)
        assert answer.status_code == 200, answer.text
        parts.append(answer.json())
        assert parts[-1]["entries"] <= max_entries
        cursor = parts[-1]["next_cursor"]
        assert parts[-1]["has_more"] == (cursor is not None)
    assert all(part["valid"] for part in parts[:-1])
    return parts


async def add(service: Service, tenant_id: TenantId, *days: date) -> None:
    """Entries of days that are past, as a process with these times would write them, sealed in this order."""
    for day in days:
        at = datetime.combine(day, datetime.min.time(), UTC) + timedelta(hours=12)
        entry = Entry(
            tenant_id, new_uuid(), at, new_uuid(), "key", Action.RECALL, None, None, None, None, None, None, {}, None
        )  # fmt: skip
        async with ops_of(service).across_tenants() as tx:
            await store.insert_unsealed(tx, [entry])
        await service.container.audit.sealer.seal()


@pytest.fixture(autouse=True)
async def _without_broken_chains(client: Client, service: Service) -> AsyncIterator[None]:
    """Delete the entries afterwards: the command verifies the chains of all tenants, in other tests too."""
    yield
    async with superuser(service) as connection:
        for table in ("audit_unsealed", "audit_entries", "audit_days"):
            await connection.execute(f"delete from {table} where tenant_id = $1", client.tenant_id)


@pytest.fixture
async def chained(client: Client, service: Service) -> Client:
    """A tenant with two days of entries, and seven more of today, which the others' chains are linked to."""
    await service.container.audit.sealer.seal()
    await add(service, client.tenant_id, TODAY - timedelta(days=2), TODAY - timedelta(days=1))
    conversation = await client.conversation()
    for number in range(4):
        await client.append(conversation, f"turn {number}")
    await service.container.audit.sealer.seal()
    return client


async def test_entries_are_sealed_in_a_chain_for_each_day_which_verifies(chained: Client, service: Service) -> None:
    report = await verified(service, chained.tenant_id)
    assert (report.first_break, report.unsealed, report.deleted_days) == (None, 0, 0)
    # a day with the tenant's first key, which came first, and the conversation with its four turns
    assert [(end.day, end.entries) for end in report.chains[-2:]] == [
        (TODAY - timedelta(days=2), 1),
        (TODAY - timedelta(days=1), 1),
    ]
    assert (report.chains[0].day, report.chains[0].entries, report.entries) == (TODAY, 6, 8)
    await chained.conversation()
    assert (await verified(service, chained.tenant_id)).unsealed == 1
    assert await service.container.audit.sealer.seal() >= 1
    assert (await verified(service, chained.tenant_id)).entries == 9


Tamper = Callable[[Any, TenantId], Coroutine[Any, Any, Any]]


def sql(text: str) -> Tamper:
    async def run(connection: Any, tenant_id: TenantId) -> None:
        status = await connection.execute(text.replace("TODAY", f"'{TODAY}'"), tenant_id)
        assert status.rsplit(" ", 1)[1] != "0", status

    return run


async def exchange_two(connection: Any, tenant_id: TenantId) -> None:
    """The third entry and the fourth take each other's place, each with its hash."""
    for number, place in ((3, 1003), (4, 3), (1003, 4)):
        await connection.execute(
            "update audit_entries set number = $3 where tenant_id = $1 and day = $2 and number = $4",
            tenant_id, TODAY, place, number,
        )  # fmt: skip


async def exchange_what_two_say(connection: Any, tenant_id: TenantId) -> None:
    """The third entry and the fourth take each other's content; numbers and hashes stay in their places."""
    members = (
        "id, recorded_at, key_id, actor, action, object_kind, object_id, conversation_id, first_seq, last_seq,"
        " head_hash, counts, request_id"
    )
    await connection.execute(
        f"update audit_entries e set ({members}) = (select {members} from audit_entries o where o.tenant_id = $1"
        " and o.day = $2 and o.number = 7 - e.number) where tenant_id = $1 and day = $2 and number in (3, 4)",
        tenant_id, TODAY,
    )  # fmt: skip


async def insert_in_the_middle(connection: Any, tenant_id: TenantId) -> None:
    await connection.execute(
        "update audit_entries set number = number + 100 where tenant_id = $1 and day = $2 and number > 2",
        tenant_id, TODAY,
    )  # fmt: skip
    await connection.execute(
        "update audit_entries set number = number - 99 where tenant_id = $1 and day = $2 and number > 100",
        tenant_id, TODAY,
    )  # fmt: skip
    await connection.execute(
        "insert into audit_entries select tenant_id, day, 3, gen_random_uuid(), recorded_at, key_id, actor, action,"
        " object_kind, object_id, conversation_id, first_seq, last_seq, head_hash, counts, request_id, hash"
        " from audit_entries where tenant_id = $1 and day = $2 and number = 2",
        tenant_id, TODAY,
    )  # fmt: skip


OF_TODAY = "where tenant_id = $1 and day = TODAY"
TAMPERED: dict[str, tuple[Tamper, tuple[str, int, int | None]]] = {
    "a changed action": (
        sql(f"update audit_entries set action = 'turns.erase' {OF_TODAY} and number = 4"),
        ("entry_changed", 0, 4),
    ),
    "a changed time": (
        sql(
            f"update audit_entries set recorded_at = {earlier('recorded_at', A_MICROSECOND)} {OF_TODAY} and number = 2"
        ),
        ("entry_changed", 0, 2),
    ),
    "changed counts": (
        sql(f"""update audit_entries set counts = '{{"turns": 2}}' {OF_TODAY} and number = 3"""),
        ("entry_changed", 0, 3),
    ),
    "a changed hash": (
        sql(f"update audit_entries set hash = sha256('x') {OF_TODAY} and number = 5"),
        ("entry_changed", 0, 5),
    ),
    "a removed entry": (sql(f"delete from audit_entries {OF_TODAY} and number = 3"), ("entry_removed", 0, 3)),
    "the first entry removed": (sql(f"delete from audit_entries {OF_TODAY} and number = 1"), ("entry_removed", 0, 1)),
    "the last entry removed": (sql(f"delete from audit_entries {OF_TODAY} and number = 6"), ("entry_removed", 0, 6)),
    "an entry added at the end": (
        sql(
            "insert into audit_entries (tenant_id, day, number, id, recorded_at, actor, action, hash)"
            " select $1, TODAY, 7, gen_random_uuid(), now(), 'key', 'keys.list', sha256('x')"
        ),
        ("entry_added", 0, 7),
    ),
    "an entry added in the middle": (insert_in_the_middle, ("entry_changed", 0, 3)),
    "two entries exchanged": (exchange_two, ("entry_changed", 0, 3)),
    "the contents of two entries exchanged": (exchange_what_two_say, ("entry_changed", 0, 3)),
    "a removed seal": (sql(f"delete from audit_days {OF_TODAY}"), ("seal_removed", 0, None)),
    "a removed seal between others": (
        sql("delete from audit_days where tenant_id = $1 and day = TODAY::date - 2"),
        ("seal_removed", 2, None),
    ),
    "the last seal removed, its entries kept": (
        sql("delete from audit_days where tenant_id = $1 and day = TODAY::date - 1"),
        ("seal_removed", 1, None),
    ),
    "a seal with another hash": (
        sql("update audit_days set hash = sha256('x') where tenant_id = $1 and day = TODAY::date - 1"),
        ("seal_changed", 1, None),
    ),
    "a seal that counts fewer": (sql(f"update audit_days set entries = 5 {OF_TODAY}"), ("entry_added", 0, 6)),
    "a seal with another start": (
        sql("update audit_days set previous_hash = sha256('x') where tenant_id = $1 and day = TODAY::date - 2"),
        ("seal_changed", 0, 1),
    ),
}


@pytest.mark.parametrize("case", TAMPERED)
async def test_the_first_break_is_named(chained: Client, service: Service, case: str) -> None:
    tamper, (kind, days_ago, number) = TAMPERED[case]
    other = await service.new_tenant()
    await other.conversation()
    await service.container.audit.sealer.seal()
    async with superuser(service) as connection:
        await tamper(connection, chained.tenant_id)
    day = TODAY - timedelta(days=days_ago)
    found = (await verified(service, chained.tenant_id)).first_break
    assert found is not None
    assert (found.kind, found.day, found.number) == (kind, day, number)
    last = (await verified_in_parts(chained, max_entries=2))[-1]
    assert (last["valid"], last["first_break"]) == (False, {"kind": kind, "day": str(day), "number": number})
    assert (await verified(service, other.tenant_id)).first_break is None
    assert all(part["valid"] for part in await verified_in_parts(other, max_entries=2))


@pytest.mark.parametrize("max_entries", [1, 2, 6, 10_000])
async def test_the_parts_of_a_verification_cover_all_chains_once(
    chained: Client, service: Service, max_entries: int
) -> None:
    report = await verified(service, chained.tenant_id)
    await chained.conversation()
    parts = await verified_in_parts(chained, max_entries=max_entries)
    assert (parts[-1]["valid"], parts[-1]["first_break"], parts[-1]["unsealed"]) == (True, None, 1)
    assert sum(part["entries"] for part in parts) == report.entries == 8
    assert len(parts) <= 8 // max_entries + 1
    assert [chain for part in parts for chain in part["chains"]] == [
        {"day": str(end.day), "entries": end.entries, "hash": end.hash} for end in report.chains
    ]
    assert sum(part["deleted_days"] for part in parts) == 0


async def test_a_verification_continues_while_entries_are_sealed_and_old_days_are_deleted(
    client: Client, service: Service
) -> None:
    await add(service, client.tenant_id, *[TODAY - timedelta(days=9)] * 3, TODAY - timedelta(days=1))
    first = (await client.post("/v1/admin/audit/verify", json={"max_entries": 2})).json()
    # the day of the tenant's first key was sealed with one entry, so the second entry is in the middle of a day
    assert (first["valid"], first["entries"], first["has_more"]) == (True, 2, True)
    await AuditSealer(ops_of(service), retention_days=5).delete_old()
    await client.conversation()
    await service.container.audit.sealer.seal()
    rest = await verified_in_parts(client, max_entries=2, cursor=first["next_cursor"])
    assert [part["valid"] for part in rest] == [True] * len(rest)
    assert sum(part["deleted_days"] for part in rest) == 1
    assert (await verified(service, client.tenant_id)).first_break is None


async def test_a_verification_compares_with_chains_that_were_kept_elsewhere(
    chained: Client, other: Client, service: Service
) -> None:
    kept = [chain for part in await verified_in_parts(chained, max_entries=3) for chain in part["chains"]]
    parts = await verified_in_parts(chained, max_entries=3, known=kept)
    assert parts[-1]["valid"]
    cursor = parts[0]["next_cursor"]
    for body in ({"cursor": cursor}, {"cursor": cursor, "known": kept[1:]}):
        problem(await chained.post("/v1/admin/audit/verify", json=body), 422, "cursor_invalid")
    problem(await other.post("/v1/admin/audit/verify", json={"cursor": cursor, "known": kept}), 422, "cursor_invalid")
    wrong = [{**kept[0], "hash": "ab" * 32}]
    found = (await verified_in_parts(chained, max_entries=100, known=wrong))[-1]["first_break"]
    assert found == {"kind": "seal_changed", "day": kept[0]["day"], "number": kept[0]["entries"]}
    more = [{**kept[0], "entries": kept[0]["entries"] + 1}]
    found = (await verified_in_parts(chained, max_entries=100, known=more))[-1]["first_break"]
    assert found == {"kind": "entry_removed", "day": kept[0]["day"], "number": kept[0]["entries"] + 1}
    day = TODAY - timedelta(days=1)
    async with superuser(service) as connection:
        for table in ("audit_entries", "audit_days"):  # the whole last day, with its seal: nothing points to it
            await connection.execute(f"delete from {table} where tenant_id = $1 and day = $2", chained.tenant_id, day)
    assert (await verified_in_parts(chained, max_entries=100))[-1]["valid"]
    last = (await verified_in_parts(chained, max_entries=100, known=kept))[-1]
    assert last["first_break"] == {"kind": "seal_removed", "day": str(day), "number": None}


async def test_a_verification_is_for_administrators_and_leaves_an_entry(client: Client, service: Service) -> None:
    key = await service.container.tenancy.create_key(client.tenant_id, name="r", scopes=[Scope.READ, Scope.WRITE])
    async with service.client(str(key)) as reader:
        problem(await reader.post("/v1/admin/audit/verify", json={}), 403, "forbidden")
    for body, pointer in (
        ({"max_entries": 0}, "/max_entries"),
        ({"max_entries": 50_001}, "/max_entries"),
        ({"known": [{"day": "today", "entries": 1, "hash": "00" * 32}]}, "/known/0/day"),
        ({"known": [{"day": str(TODAY), "entries": 1, "hash": "xx"}]}, "/known/0/hash"),
    ):
        problem(await client.post("/v1/admin/audit/verify", json=body), 422, "invalid_request", pointer)
    verified_ = (await client.post("/v1/admin/audit/verify", json={})).json()
    listed = (await client.get("/v1/admin/audit", params={"action": "audit.verify"})).json()["data"]
    assert [one["counts"] for one in listed] == [{"entries": verified_["entries"]}]


@pytest.mark.slow
async def test_the_command_verifies_and_its_exit_code_says_whether_a_chain_is_broken(
    chained: Client, service: Service, tmp_path: Path
) -> None:
    database = service.database
    process = Process(
        tmp_path, database_url=database.app, ops_database_url=database.ops, owner_database_url=database.owner
    )
    words = ("audit", "verify", "--tenant", format_id(chained.tenant_id))
    whole = process.command(*words, "--json")
    assert whole.returncode == 0, whole.stderr
    [report] = json.loads(whole.stdout)
    assert (report["entries"], report["unsealed"], report["first_break"]) == (8, 0, None)
    kept = tmp_path / "chains.json"
    kept.write_text(whole.stdout)
    assert process.command(*words, "--against", str(kept)).returncode == 0
    async with superuser(service) as connection:
        await connection.execute(
            "delete from audit_entries where tenant_id = $1 and day = $2 and number = 6", chained.tenant_id, TODAY
        )
    broken = process.command(*words)
    assert broken.returncode == 1
    assert f"BROKEN: entry_removed on {TODAY}, entry 6" in broken.stdout
    kept.write_text("[1]")
    assert "--against is not the output" in process.command(*words, "--against", str(kept)).stderr


async def test_ends_of_chains_that_were_kept_elsewhere_show_a_chain_that_was_made_again(
    chained: Client, service: Service
) -> None:
    tenant_id = chained.tenant_id
    before = await verified(service, tenant_id)
    known = {(tenant_id, end.day): Checkpoint(end.entries, bytes.fromhex(end.hash)) for end in before.chains}
    await chained.conversation()
    await service.container.audit.sealer.seal()
    assert (await verified(service, tenant_id, trusted=known)).first_break is None
    async with superuser(service) as connection:
        day = TODAY - timedelta(days=1)
        for table in ("audit_entries", "audit_days"):  # the whole last day, with its seal: nothing points to it
            await connection.execute(f"delete from {table} where tenant_id = $1 and day = $2", tenant_id, day)
    assert (await verified(service, tenant_id)).first_break is None
    found = (await verified(service, tenant_id, trusted=known)).first_break
    assert found is not None
    assert (found.kind, found.day) == ("seal_removed", day)


async def test_an_entry_that_commits_after_its_neighbours_were_sealed_is_sealed_next(
    client: Client, service: Service
) -> None:
    is_there, may_commit = asyncio.Event(), asyncio.Event()

    async def commit_late() -> None:
        async with service.container.database.transaction(client.tenant_id) as tx:
            record(tx, Command(client.tenant_id), Action.KEY_LIST)
            # sent now instead of with the commit, so that it is stored before the others
            await tx.execute(tx.at_commit.pop())
            is_there.set()
            await may_commit.wait()

    late = asyncio.create_task(commit_late())
    await is_there.wait()
    await client.conversation()
    await service.container.audit.sealer.seal()
    between = await verified(service, client.tenant_id)
    assert (between.first_break, between.unsealed) == (None, 0)
    may_commit.set()
    await late
    after = await verified(service, client.tenant_id)
    assert (after.first_break, after.unsealed, after.entries) == (None, 1, between.entries)
    await service.container.audit.sealer.seal()
    after = await verified(service, client.tenant_id)
    assert (after.first_break, after.unsealed, after.entries) == (None, 0, between.entries + 1)


async def test_appends_and_several_sealers_at_once_leave_one_chain_with_every_entry(
    client: Client, service: Service
) -> None:
    conversations = [await client.conversation() for _ in range(4)]
    sealers = [AuditSealer(ops_of(service), retention_days=0) for _ in range(2)]

    async def append(conversation: str) -> None:
        for _ in range(10):
            await client.append(conversation, "hello")

    async def seal(sealer: AuditSealer) -> None:
        for _ in range(15):
            await sealer.seal()
            await asyncio.sleep(0)

    await asyncio.gather(*map(append, conversations), *map(seal, sealers))
    await service.container.audit.sealer.seal()
    report = await verified(service, client.tenant_id)
    assert (report.first_break, report.unsealed, report.entries) == (None, 0, 1 + 4 + 40)


async def test_the_chains_verify_in_another_database_and_grow_there(
    chained: Client, service: Service, words_database: TestDatabase, tmp_path: Any
) -> None:
    """What a dump and a restore do to the rows: nothing of them is bound to the server that wrote them."""
    tenant_id = chained.tenant_id
    await chained.conversation()
    async with superuser(service) as source, open_service(words_database, tmp_path) as other:
        target = await asyncpg.connect(words_database.superuser)
        for table in ("audit_days", "audit_entries", "audit_unsealed"):
            rows = await source.fetch(f"select * from {table} where tenant_id = $1", tenant_id)
            for row in rows:
                places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
                await target.execute(f"insert into {table} values ({places})", *row.values())
        await target.close()
        report = await verified(other, tenant_id)
        assert (report.first_break, report.entries, report.unsealed) == (None, 8, 1)
        await add(other, tenant_id, TODAY)
        report = await verified(other, tenant_id)
        assert (report.first_break, report.entries, report.unsealed) == (None, 10, 0)


async def test_retention_deletes_whole_days_and_the_rest_still_verifies(client: Client, service: Service) -> None:
    days = [TODAY - timedelta(days=ago) for ago in (9, 8, 3)]
    await service.container.audit.sealer.seal()
    await add(service, client.tenant_id, *days)
    sealer = AuditSealer(ops_of(service), retention_days=5)
    assert await sealer.delete_old() >= 2
    report = await verified(service, client.tenant_id)
    assert (report.first_break, report.deleted_days, report.entries) == (None, 2, 2)
    await add(service, client.tenant_id, days[0])  # of a deleted day: it goes into the chain of today
    report = await verified(service, client.tenant_id)
    assert (report.first_break, report.deleted_days, report.entries) == (None, 2, 3)
    assert await sealer.delete_old() == 0
    async with superuser(service) as connection:
        await connection.execute("delete from audit_days where tenant_id = $1 and day = $2", client.tenant_id, days[1])
    found = (await verified(service, client.tenant_id)).first_break
    assert found is not None
    assert found.kind == "seal_removed"


MEMBERS, VALUES = "tenant_id, id, actor, action", "$1, gen_random_uuid(), 'key', 'x'"


@pytest.mark.parametrize(
    ("statement", "may"),
    [
        ("select count(*) from audit_unsealed", True),
        ("select count(*) from audit_entries", True),
        (f"insert into audit_unsealed ({MEMBERS}) values ({VALUES})", True),
        # a trigger on the node sets the time there
        (f"insert into audit_unsealed (recorded_at, {MEMBERS}) values (now(), {VALUES})", on_citus()),
        ("update audit_unsealed set action = 'x'", False),
        ("delete from audit_unsealed", False),
        ("truncate audit_unsealed", False),
        (f"insert into audit_entries (day, number, hash, {MEMBERS}) values (now(), 1, '', {VALUES})", False),
        ("update audit_entries set action = 'x'", False),
        ("delete from audit_entries", False),
        ("select count(*) from audit_days", False),
        ("update audit_days set entries = 0", False),
        ("delete from audit_days", False),
    ],
)  # fmt: skip
async def test_the_application_can_only_insert_and_read(
    client: Client, service: Service, statement: str, *, may: bool
) -> None:
    given = (client.tenant_id,) if "$1" in statement else ()
    async with logged_in_as_application(service, client.tenant_id) as connection:
        if may:
            await connection.execute(statement, *given)
            return
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement, *given)


async def test_the_application_reaches_no_entry_of_another_tenant(client: Client, service: Service) -> None:
    other = await service.new_tenant()
    await other.conversation()
    async with logged_in_as_application(service, client.tenant_id) as connection:
        assert {row["tenant_id"] for row in await connection.fetch("select tenant_id from audit_unsealed")} <= {
            client.tenant_id
        }
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await connection.execute(
                "insert into audit_unsealed (tenant_id, id, actor, action) values ($1, gen_random_uuid(), 'key', 'x')",
                other.tenant_id,
            )


async def test_an_entry_and_its_action_are_stored_both_or_neither(client: Client, service: Service) -> None:
    """An entry that cannot be stored takes its action with it, and the connection stays usable."""
    database, conversation = service.container.database, await client.conversation()

    async def rename() -> None:
        async with database.transaction(client.tenant_id) as tx:
            await tx.execute(
                "update conversations set title = 'x' where tenant_id = $1 and id = $2",
                client.tenant_id, parse_id(conversation),
            )  # fmt: skip
            for _ in range(2):
                record(
                    tx, Command(client.tenant_id), Action.CONVERSATION_UPDATE, ObjectKind.CONVERSATION, uuid.UUID(int=5)
                )
            tx.at_commit[1] = tx.at_commit[0]  # the same id twice

    with pytest.raises(Busy):
        await rename()
    assert (await client.get(f"/v1/conversations/{conversation}")).json()["title"] is None
    async with superuser(service) as connection:
        found = await connection.fetch(
            "select 1 from audit_unsealed where tenant_id = $1 and action = 'conversations.update'", client.tenant_id
        )
    assert found == []
    for _ in range(12):  # more than the pool has connections
        await client.append(conversation, "still works")
