"""Statistics, checks of the environment, and checks of the data.

Nothing here writes. The checks of the environment need no running service and continue without a database. Those of the
data read in bounded steps, each conversation in one snapshot, while the service may write.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

from app.core.bus.replicas import Replicas
from app.core.database.reader import examine_standby
from app.core.database.revisions import known_revisions
from app.core.database.servers import Login, Server
from app.core.database.transactions import Database
from app.core.errors import AppError, NotFound
from app.core.ids import TenantId, format_id, parse_id
from app.core.paging import Cursors, Page, PageRequest, page_of_views
from app.core.views import view_of
from app.diagnostics import store, summary_store
from app.diagnostics.checks import (
    ROLES,
    check_chat,
    check_chat_calls,
    check_schema,
    check_server,
    check_settings,
    check_space,
    check_standby,
    check_vectors,
    configured_spaces,
    knows,
)
from app.diagnostics.invariants import ConversationCheck
from app.diagnostics.machine import check_cpu, check_data_directory, check_model, check_port
from app.diagnostics.monitor import MAX_MINUTES, FinishedCall, Monitor, ProcessFigures
from app.diagnostics.reference_store import LISTINGS, Listing, list_rows
from app.diagnostics.schemas import (
    Check,
    Fault,
    Level,
    ProjectStats,
    ReplicaView,
    Stats,
    SummaryStats,
    TableSize,
    TenantStats,
)
from app.diagnostics.store import ServerFacts
from app.diagnostics.summary_checks import check_coverage
from app.index.service import read_chosen_space
from app.providers.chat import probe
from app.providers.local.embedder import LOCAL_MODELS
from app.settings import Settings
from app.settings.models import ChatSettings
from app.tenancy.schemas import Caller, Scope

__all__ = [
    "MAX_MINUTES",
    "DataCheck",
    "FinishedCall",
    "Monitor",
    "ProcessFigures",
    "Statistics",
    "check_installation",
    "examine",
    "list_replicas",
]

_TURNS, _CONVERSATIONS, _OWNERS = 500, 200, 5000
_MAX_FAULTS = 10_000
_POOL = "turnkeep-doctor"
_STANDBY_WAIT_S = 0.5

Progress = Callable[[int, int], None]


class Statistics:
    """Statistics of a tenant or of the installation."""

    def __init__(self, database: Database, *, ops: Database, searched: Callable[[], int]) -> None:
        """`searched` returns the id of the searched embedding space."""
        self._database = database
        self._ops = ops
        self._searched = searched

    async def stats(self, caller: Caller, *, of: Literal["tenant", "installation"], top: int) -> Stats:
        """Return the size of the data, with the `top` largest projects or tenants.

        The installation needs an operator.
        """
        caller.require(Scope.OPERATOR if of == "installation" else Scope.ADMIN)
        if of == "installation":
            async with self._ops.snapshot() as tx:
                counts = await store.count_installation(tx, self._searched())
                sizes = await store.table_sizes(tx)
                summaries = await store.count_summaries(tx, None)
                tenants = await store.top_tenants(tx, top)
            return _stats(of, counts, sizes, summaries, tenants=tenants)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            counts = await store.count_tenant(tx, caller.tenant_id, self._searched())
            sizes = await store.table_sizes(tx)
            summaries = await store.count_summaries(tx, caller.tenant_id)
            projects = await store.top_projects(tx, caller.tenant_id, top)
        shares = [_share(size, counts) for size in sizes]
        return _stats(of, counts, shares, summaries, projects=projects)


def list_replicas(caller: Caller, replicas: Replicas, *, cursors: Cursors, asked: PageRequest) -> Page[ReplicaView]:
    """List the processes that have announced themselves lately, by their start. For operators."""
    caller.require(Scope.OPERATOR)
    scope = f"replicas|{asked.order}"
    seen = cursors.window(scope, asked, parse_id).rows_of(replicas.seen(), key=lambda process: process.replica.id)
    page = cursors.page(seen, asked, scope=scope, key=lambda process: [format_id(process.replica.id)])
    return page_of_views(
        page,
        Page[ReplicaView],
        lambda process: view_of(
            ReplicaView, process.replica, is_this=process.replica.id == replicas.own_id, seen_at=process.seen_at
        ),
    )


def _stats(
    of: Literal["tenant", "installation"],
    counts: Mapping[str, int],
    sizes: list[TableSize],
    summaries: list[SummaryStats],
    *,
    projects: Sequence[ProjectStats] = (),
    tenants: Sequence[TenantStats] = (),
) -> Stats:
    figures = {name: counts[name] for name in ("conversations", "turns", "tokens", "entries", "vectors")}
    return Stats(
        of=of,
        **figures,
        vectors_pending=counts["pending"],
        bytes=sum(size.bytes for size in sizes),
        summaries=summaries,
        tables=sizes,
        projects=list(projects),
        tenants=list(tenants),
    )


def _share(size: TableSize, counts: Mapping[str, int]) -> TableSize:
    of_table = {
        "conversations": "conversations",
        "conversation_heads": "conversations",
        "turns": "all_turns",
        "index_entries": "entries",
        "vectors": "vectors",
    }
    rows = counts[of_table[size.table]]
    # before the planner has analysed a table, its row estimate is 0
    return TableSize(table=size.table, rows=rows, bytes=size.bytes * rows // max(size.rows, rows, 1))


# the place


async def examine(settings: Settings, *, environment: Mapping[str, str]) -> list[Check]:
    """Run every check of the environment: settings, machine, database. Starts and changes nothing."""
    checks = [*check_settings(settings, environment), *check_data_directory(settings), await check_port(settings)]
    if settings.database.database_url is None:
        checks.append(check_cpu())
    names = dict.fromkeys([settings.embedding.embedder, settings.embedding.next_embedder or ""])
    checks += [await asyncio.to_thread(check_model, LOCAL_MODELS[name]()) for name in names if name in LOCAL_MODELS]
    checks.append(await _examine_chat(settings.chat))
    return checks + await _examine_database(settings)


async def _examine_chat(settings: ChatSettings) -> Check:
    endpoint = settings.endpoint
    if endpoint is None:
        return check_chat(None)
    return check_chat(await probe(endpoint, timeout_s=settings.llm_timeout_s), endpoint.model)


async def _examine_database(settings: Settings) -> list[Check]:
    server = Server(settings.database)
    try:
        await server.read_configuration()
    except AppError:
        remedy = "Start it with `turnkeep serve` and run this again: the checks of the database were skipped."
        return [Check("database", Level.WARN, "the embedded Postgres is not running", remedy)]
    checks: list[Check] = []
    facts: list[ServerFacts] = []
    for login, use in ((server.app, "the application"), (server.ops, "ops")):
        answers, refusal = await _facts(server, login, use)
        checks += [refusal] if refusal is not None else []
        if answers is None:
            return checks
        facts.append(answers)
    checks += check_server(facts[0], facts[1], settings, now=datetime.now(UTC))
    if server.standby is not None:
        checks += await _examine_standby(server, server.standby)
    of_schema = await _examine_schema(server)
    checks.append(of_schema)
    if settings.embedding.embedder != "none" and of_schema.level is Level.OK:
        checks += await _examine_vectors(server, settings)
    if settings.chat.endpoint is not None and of_schema.level is Level.OK:
        checks.append(await _examine_chat_calls(server, settings.chat))
    return checks


async def _facts(server: Server, login: Login, use: str) -> tuple[ServerFacts | None, Check | None]:
    """Return the server's answers to a login, and a check if the login's role is not available."""
    try:
        return await _ask(server, login), None
    except AppError as error:
        refusal = Check("database", Level.FAIL, f"{use} cannot connect", error.detail)
    if login.role is None:
        return None, refusal
    try:
        facts = await _ask(server, Login(login.url, None))
    except AppError:
        return None, refusal
    remedy = f"As a superuser: create role {login.role} nologin; (if it is missing) grant {login.role} to the login;"
    return facts, Check(f"role of {use}", Level.FAIL, f"the login cannot take on {login.role}", remedy)


async def _ask(server: Server, login: Login) -> ServerFacts:
    async with server.opened(login, name=_POOL) as database, database.snapshot() as tx:
        return await store.server_facts(tx, ROLES)


async def _examine_standby(server: Server, login: Login) -> list[Check]:
    try:
        async with server.opened(server.app, name=_POOL) as primary:
            identity = await primary.identify()
            async with server.opened(login, name=_POOL, standby_of=identity) as standby:
                await standby.require_role_without_bypass()
                state = await examine_standby(primary, standby, wait_s=_STANDBY_WAIT_S)
    except AppError as error:
        return check_standby(None, refusal=error.detail, now=datetime.now(UTC))
    return check_standby(state, now=datetime.now(UTC))


async def _examine_schema(server: Server) -> Check:
    try:
        revision = await server.recorded_revision()
    except AppError as error:
        return Check("schema", Level.FAIL, "cannot be read", error.detail)
    return check_schema(revision, known_revisions())


async def _examine_chat_calls(server: Server, settings: ChatSettings) -> Check:
    try:
        async with server.opened(server.ops, name=_POOL) as ops, ops.snapshot() as tx:
            return check_chat_calls(await store.chat_facts(tx), settings)
    except AppError as error:
        return Check("chat model: time-outs", Level.WARN, "cannot be counted", error.detail)


async def _examine_vectors(server: Server, settings: Settings) -> list[Check]:
    first, *more = configured_spaces(settings)
    try:
        async with server.opened(server.ops, name=_POOL) as ops, ops.snapshot() as tx:
            chosen = await read_chosen_space(tx)
            searched = first if chosen is None or not knows([first, *more], chosen.name) else chosen.name
            facts = await store.vector_facts(
                tx, provider=searched.provider, model=searched.model, dimensions=searched.dimensions or None
            )
    except AppError as error:
        return [Check("vectors", Level.WARN, "cannot be counted", error.detail)]
    return [check_space(chosen, [first, *more]), check_vectors(facts, settings)]


# the data


async def check_installation(
    settings: Settings, *, tenant_id: TenantId | None, limit: int | None, progress: Progress
) -> list[Fault]:
    """Return all faults in the data, of one tenant or of all, in the `limit` newest conversations of each.

    `progress` receives the number of finished and of all conversations. Raises Unavailable without a database, NotFound
    for an unknown tenant.
    """
    server = Server(settings.database)
    await server.read_configuration()
    async with server.opened(server.ops, name=_POOL) as ops:
        async with ops.snapshot() as tx:
            tenants = await store.list_tenants(tx)
            total = await store.count_conversations(tx, tenant_id)
        if tenant_id is not None and tenant_id not in tenants:
            raise NotFound("not_found", "There is no such tenant.")
        faults: list[Fault] = []
        done = 0
        for tenant in tenants if tenant_id is None else [tenant_id]:
            check = DataCheck(ops, tenant)
            async for conversation_faults in check.conversations(limit=limit):
                done += 1
                progress(done, total)
                faults += conversation_faults
                if len(faults) >= _MAX_FAULTS:
                    return faults
            faults += await check.references()
    return faults


class DataCheck:
    """Checks the data of one tenant, with a pool of the ops role."""

    def __init__(self, ops: Database, tenant_id: TenantId) -> None:
        self._ops = ops
        self._tenant_id = tenant_id

    async def conversations(self, *, limit: int | None) -> AsyncIterator[list[Fault]]:
        """Yield the faults of one conversation after the other, newest first."""
        before: UUID | None = None
        left = limit
        while left is None or left > 0:
            step = _CONVERSATIONS if left is None else min(left, _CONVERSATIONS)
            async with self._ops.snapshot() as tx:
                ids = await store.list_heads(tx, self._tenant_id, before=before, limit=step)
            for conversation_id in ids:
                yield await self._conversation(conversation_id)
            if len(ids) < step:
                return
            before = ids[-1]
            left = None if left is None else left - len(ids)

    async def _conversation(self, conversation_id: UUID) -> list[Fault]:
        async with self._ops.snapshot() as tx:
            head = await store.find_head(tx, self._tenant_id, conversation_id)
            if head is None:  # deleted meanwhile
                return []
            mark = await summary_store.find_mark(tx, self._tenant_id, conversation_id)
            check = ConversationCheck(head, erased_position=0 if mark is None else mark.erased_position)
            faults: list[Fault] = []
            after = 0
            while True:
                turns = await store.list_turns(tx, self._tenant_id, conversation_id, after=after, limit=_TURNS)
                faults += check.feed(turns)
                if len(turns) < _TURNS:
                    break
                after = turns[-1].row.seq or 0
            for turn in await store.list_unplaced_turns(tx, self._tenant_id, conversation_id, limit=_TURNS):
                faults += check.unplaced(turn)
            if mark is not None:
                summaries = await summary_store.list_summaries(tx, self._tenant_id, conversation_id)
                covered = await summary_store.measure(tx, self._tenant_id, conversation_id, position=mark.position)
                faults += check_coverage(head.tenant_id, conversation_id, mark, summaries, covered)
        return [*faults, *check.end()]

    async def references(self) -> list[Fault]:
        """Return the faults of rows that refer to other rows."""
        return [fault for listing in LISTINGS for fault in await self._listed(listing)]

    async def _listed(self, listing: Listing) -> list[Fault]:
        faults: list[Fault] = []
        after: UUID | str | None = listing.first
        limit = min(_OWNERS, listing.max_page)
        while True:
            async with self._ops.snapshot() as tx:
                rows = await list_rows(tx, listing, self._tenant_id, after=after, limit=limit)
            faults += [fault for row in rows for fault in listing.faults(self._tenant_id, row)]
            if len(rows) < limit:
                return faults
            after = rows[-1]["id"]
