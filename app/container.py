"""The object graph of one process: built once, closed in order. Only it and `embedding` choose concrete providers."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

# describes all tables: the erasure of a tenant deletes from each of them
import app.tables  # noqa: F401  # pyright: ignore[reportUnusedImport]
from app.agents.ask.service import AskService
from app.agents.generation.openai_conversations import OpenAIConversations
from app.agents.generation.responses.service import Responses
from app.agents.generation.service import Generation
from app.agents.lifecycle.service import Lifecycle
from app.agents.tools.tool import ToolServices
from app.audit.service import AuditTrail
from app.composition import (
    WEBHOOKS_MESSAGE,
    MemoryServices,
    WebhookServices,
    build_ask,
    build_compaction,
    build_deletion,
    build_generation,
    build_memory,
    build_models,
    build_recall,
    build_subscriptions,
    build_transfer,
    build_webhooks,
)
from app.context.service import Compactor, ContextBuilder, DryRuns, TitleWriter
from app.conversation_services import ConversationServices, build_parts, build_services
from app.conversations.live.event_listener import event_listener
from app.conversations.live.list_subscription import ListSubscriptions
from app.conversations.live.service import ConversationSubscriptions
from app.conversations.service import (
    TOKEN_EPOCHS,
    Conversations,
    ConversationUpdates,
    Indexing,
    StreamHandover,
    Streams,
    Summaries,
    TrashService,
)
from app.core.bus.messages import Bus, Listener, Message, ThrottledCall
from app.core.bus.notify import NotifyBus
from app.core.bus.replicas import REPLICA, Replicas
from app.core.database.reader import DatabaseReader
from app.core.database.servers import Server
from app.core.database.transactions import Database
from app.core.errors import AppError, Unavailable
from app.core.ids import TenantId
from app.core.jobs import JobQueue
from app.core.paging import Cursors
from app.diagnostics.service import Statistics
from app.embedding import base_url, build_spaces, open_ann_maintenance, open_embedders
from app.foundation import Foundation, open_foundation
from app.governance.service import Erasures, Governance, OwnerViews, Purger
from app.index.search.ann_maintenance import AnnMaintenance
from app.index.search.removals import REMOVALS, apply_removal
from app.index.service import SearchIndex
from app.index.spaces.administration import SpaceAdministration
from app.index.spaces.runtime import EmbeddingSpaceRegistry
from app.memory.longterm.service import Memories
from app.memory.service import FactService
from app.operations.service import Operations
from app.providers.chat import ChatModel
from app.providers.embed_meter import EmbedMeter
from app.providers.reranking.reranker import Reranker
from app.providers.schemas import Embedder
from app.providers.tokens import TiktokenCounter
from app.recall.service import RecallService
from app.settings import Settings
from app.settings.database import JobSettings
from app.settings.server import BusSettings
from app.tenancy.administration import Administration
from app.tenancy.first_key import install_first_key, read_bootstrap_key
from app.tenancy.job_admin import JobAdministration
from app.tenancy.limit_admin import LimitAdministration
from app.tenancy.limits.rate_sharing import RATES, RateSharing
from app.tenancy.service import Tenancy
from app.tenancy.spending.service import Spending
from app.transfer.service import Exports, Forker, Imports
from app.webhooks.outbox import WebhookOutbox

_JOBS_MESSAGE: Message = {"k": "jobs"}
_SPACES_MESSAGE: Message = {"k": "spaces"}
_DELIVERIES_MESSAGE: Message = {"k": "deliveries"}
_ANNOUNCE_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Container:
    """Every service of the process."""

    settings: Settings
    database: Database
    ops: Database
    reader: DatabaseReader
    server: Server
    tenancy: Tenancy
    administration: Administration
    limits: LimitAdministration
    statistics: Statistics
    conversations: Conversations
    updates: ConversationUpdates
    streams: Streams
    handover: StreamHandover
    summaries: Summaries
    trash: TrashService
    indexing: Indexing
    subscriptions: ConversationSubscriptions
    list_subscriptions: ListSubscriptions
    facts: FactService
    memories: Memories
    recall_service: RecallService
    contexts: ContextBuilder
    compactor: Compactor
    dry_runs: DryRuns
    title_writer: TitleWriter
    governance: Governance
    purger: Purger
    erasures: Erasures
    owners: OwnerViews
    exports: Exports
    imports: Imports
    forker: Forker
    lifecycle: Lifecycle
    bus: Bus
    replicas: Replicas
    rate_sharing: RateSharing
    queue: JobQueue
    jobs: JobAdministration
    cursors: Cursors
    operations: Operations
    embedder: Embedder | None
    spending: Spending
    audit: AuditTrail
    chat: ChatModel | None
    generation: Generation
    openai_conversations: OpenAIConversations
    responses: Responses
    index: SearchIndex
    ann: AnnMaintenance
    spaces: SpaceAdministration
    ask_service: AskService
    tools: ToolServices
    webhooks: WebhookServices
    reranker: Reranker | None
    embed_meter: EmbedMeter = field(default_factory=EmbedMeter)
    first_tenant_id: TenantId | None = None
    """The tenant that this start created, if it is the first start and no setting gave the key."""

    def end_live(self) -> None:
        """End the live connections, because the process is stopping. May be called again."""
        self.subscriptions.close()
        self.list_subscriptions.close()

    async def close_chat(self) -> None:
        """Close the chat model's connections, and write its usage."""
        await self.generation.close()
        if self.chat is not None:
            await self.chat.close()
        await self.spending.flush()

    async def require_ready(self) -> None:
        """Raise Unavailable unless requests can be served: the database answers, the model is loaded."""
        await self.database.ping()
        embedder = self.index.spaces.current.embedder
        if embedder is not None and not embedder.ready():
            raise Unavailable("not_ready", "The embedding model is still loading.", retry_after_s=1)


@asynccontextmanager
async def open_container(settings: Settings, *, migrate: bool) -> AsyncGenerator[Container]:
    """Start all services, and stop them in reverse order. `migrate`: bring the schema up to date first."""
    read_bootstrap_key(settings)  # before anything is created: an invalid key ends the start
    async with AsyncExitStack() as stack:
        base = await stack.enter_async_context(open_foundation(settings, migrate=migrate, epochs=TOKEN_EPOCHS))
        base.reader.start()
        first_tenant_id = await install_first_key(settings, base.tenancy)
        tenancy = base.tenancy
        tending = asyncio.create_task(tenancy.flush_last_used_forever())
        stack.push_async_callback(_end_and_write, tending, tenancy.flush_last_used)
        counting = asyncio.create_task(tenancy.quotas.flush_forever())
        stack.push_async_callback(_end_and_write, counting, tenancy.quotas.flush)
        bus = make_bus(settings.bus, base.server)
        stack.push_async_callback(bus.close)
        meter, guard = EmbedMeter(), base.reader.refuse_in_transaction
        embedders = await open_embedders(settings.embedding, guard=guard, stack=stack, meter=meter)
        runtimes = [(one, await open_ann_maintenance(settings.index, base.ops, base.server, one)) for one in embedders]
        built = build_container(settings, base, runtimes, bus)
        container = replace(built, first_tenant_id=first_tenant_id, embed_meter=meter)
        for runtime in container.index.spaces.runtimes.values():
            stack.push_async_callback(_end, asyncio.create_task(runtime.ann.run_forever()))
        loading = asyncio.create_task(container.index.resident.load_forever(base.database))
        stack.push_async_callback(_end, loading)
        await container.webhooks.outbox.refresh()
        stack.push_async_callback(_end, asyncio.create_task(container.webhooks.outbox.follow_forever()))
        stack.push_async_callback(container.webhooks.sender.close)
        if container.reranker is not None:
            stack.push_async_callback(container.reranker.close)
        auditing = asyncio.create_task(container.audit.run_forever())
        stack.push_async_callback(_end_and_write, auditing, container.audit.flush)
        await container.index.spaces.follow()
        stack.push_async_callback(_end, asyncio.create_task(container.index.spaces.follow_forever()))
        handlers = container.subscriptions, container.list_subscriptions, container.handover
        await bus.start(_listener(container, event_listener(*handlers)))
        stack.callback(container.rate_sharing.share)
        stack.push_async_callback(_end, asyncio.create_task(container.rate_sharing.share_forever()))
        stack.callback(container.end_live)
        checking = asyncio.create_task(container.subscriptions.check_forever())
        stack.push_async_callback(_end, checking)
        streaming = asyncio.create_task(container.streams.run_forever())
        stack.push_async_callback(container.streams.close)
        stack.push_async_callback(_end, streaming)
        # closed first: answers that are being stored end before their turns are released
        stack.push_async_callback(container.close_chat)
        yield container


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _end_and_write(task: "asyncio.Task[None]", write: Callable[[], Awaitable[None]]) -> None:
    """End a task that writes from time to time, and write what is left."""
    await _end(task)
    with suppress(AppError):  # an unavailable database must not block the shutdown
        await write()


def make_bus(settings: BusSettings, server: Server) -> Bus:
    """Return the bus of an installation, not yet started: over NATS if configured, else over the database."""
    if settings.nats_url is not None:
        from app.core.bus.nats import NatsBus, NatsCluster  # noqa: PLC0415 - its client is for installations with NATS

        return NatsBus(NatsCluster.from_urls(settings.nats_url.get_secret_value()), settings=settings)
    return NotifyBus(server.direct.url, role=server.direct.role, application="turnkeep-{}")


def _listener(container: Container, live: Listener) -> Listener:
    """Return the process's handler of bus messages: wake the worker or the spaces, pass other messages to `live`."""

    def on_message(message: Message) -> None:
        if message.get("k") == _JOBS_MESSAGE["k"]:
            container.queue.enqueued.set()
        elif message.get("k") == _SPACES_MESSAGE["k"]:
            container.index.spaces.wake()
        elif message.get("k") == RATES:
            container.rate_sharing.on_message(message)
        elif message.get("k") == REPLICA:
            container.replicas.on_message(message)
        elif message.get("k") == REMOVALS:
            apply_removal(container.index.resident, message)
        elif message.get("k") == WEBHOOKS_MESSAGE["k"]:
            container.webhooks.outbox.refresh_soon()
        elif message.get("k") == _DELIVERIES_MESSAGE["k"]:
            container.webhooks.dispatcher.wake()
        else:
            live.on_message(message)

    def on_loss() -> None:
        container.index.resident.evict_all()
        container.webhooks.outbox.mark_stale()
        live.on_loss()

    return Listener(on_message, on_loss)


def _queue(settings: JobSettings, ops: Database, bus: Bus) -> JobQueue:
    notify = ThrottledCall(lambda: bus.publish(_JOBS_MESSAGE), interval_s=_ANNOUNCE_EVERY_S)
    return JobQueue(ops, settings=settings, notify=notify)


def _space_administration(
    base: Foundation, spaces: EmbeddingSpaceRegistry, queue: JobQueue, bus: Bus
) -> SpaceAdministration:
    return SpaceAdministration(
        base.ops,
        spaces=spaces,
        jobs=queue,
        announce=lambda: bus.publish(_SPACES_MESSAGE),
        drop_index=lambda space_id: base.server.drop_vector_index(space_id=space_id),
        base_urls={
            key: url for key, runtime in spaces.runtimes.items() if (url := base_url(runtime.embedder)) is not None
        },
    )


def _tools(
    settings: Settings,
    services: ConversationServices,
    memory: MemoryServices,
    contexts: ContextBuilder,
    recall_service: RecallService,
    compactor: Compactor,
) -> ToolServices:
    return ToolServices(
        services.conversations,
        services.sessions,
        contexts,
        recall_service,
        memory.memories,
        compactor,
        memory.facts,
        max_answer_bytes=settings.tools.max_answer_bytes,
    )


def build_container(
    settings: Settings, base: Foundation, runtimes: Sequence[tuple[Embedder | None, AnnMaintenance]], bus: Bus
) -> Container:
    """Build every service on the opened resources. The first embedder leads; the bus may still be stopped."""
    database, ops, reader, tenancy = base.database, base.ops, base.reader, base.tenancy
    counters, counter = _counters()
    queue = _queue(settings.jobs, ops, bus)
    cursors = Cursors(tenancy.secret_for("cursors"))
    spaces = build_spaces(ops, runtimes, queue, tenancy)
    index = SearchIndex(spaces, ops, reader, jobs=queue, settings=settings.index, publish=bus.publish, tenancy=tenancy)
    outbox = _outbox(settings, ops, bus)
    parts = build_parts(settings, base, index=index, counter=counter, bus=bus, outbox=outbox, jobs=queue)
    services = build_services(settings, base, parts, index=index, cursors=cursors, jobs=queue)
    conversations = services.conversations
    spending = Spending(database, ops, cursors=cursors, settings=settings.chat)
    chat, upstream = build_models(settings.chat, base, spending)
    memory = build_memory(
        settings, base, parts, services, index=index, outbox=outbox, chat=chat, cursors=cursors, jobs=queue
    )
    facts, memories = memory.facts, memory.memories
    recall_service, contexts, reranker = build_recall(settings, base, services, parts, memory, index, counters)
    compactor, dry_runs = build_compaction(settings, database, services, parts, facts, chat, counter)
    audit = AuditTrail(database, ops, cursors=cursors, settings=settings.audit)
    operations = Operations(database, ops, queue=queue, cursors=cursors, settings=settings.jobs)
    deletion = build_deletion(base, cursors, operations, parts, facts=facts, memories=memories, index=index)
    governance = deletion.governance
    imports, forker = build_transfer(settings, base, operations, parts, memory, index=index, counter=counter)
    lifecycle = Lifecycle(
        database, conversations=conversations, sessions=services.sessions, summaries=services.summaries,
        contexts=contexts, compactor=compactor, governance=governance, facts=facts, queue=queue,
        secret=tenancy.secret_for("operation-tokens"), settings=settings,
    )  # fmt: skip
    subscriptions = build_subscriptions(settings, database, facts)
    generation, responses, openai_conversations = build_generation(
        settings, services, memory, contexts, governance, forker, upstream, subscriptions
    )
    tools = _tools(settings, services, memory, contexts, recall_service, compactor)
    ask_service = build_ask(settings, services, tools, governance, audit, chat)
    return Container(
        settings=settings, database=database, ops=ops, reader=reader, server=base.server, tenancy=tenancy,
        conversations=conversations, updates=memory.updates, streams=services.streams, summaries=services.summaries,
        handover=services.streams.handover, trash=services.trash, indexing=memory.indexing, facts=facts,
        memories=memories, recall_service=recall_service, contexts=contexts, compactor=compactor,
        governance=governance, purger=deletion.purger, erasures=deletion.erasures,
        owners=OwnerViews(database, conversations=conversations, expiry=parts.expiry, facts=facts, memories=memories),
        exports=Exports(database, audit=audit, cursors=cursors), imports=imports, forker=forker, lifecycle=lifecycle,
        bus=bus, queue=queue, spending=spending, chat=chat, replicas=Replicas(bus.publish),
        rate_sharing=RateSharing(tenancy.rates, publish=bus.publish), dry_runs=dry_runs, audit=audit, index=index,
        administration=Administration(ops, tenancy=tenancy, cursors=cursors), responses=responses,
        statistics=Statistics(database, ops=ops, searched=lambda: spaces.current.space.id),
        subscriptions=subscriptions, list_subscriptions=ListSubscriptions(database, settings=settings),
        title_writer=TitleWriter(titles=services.titles, chat=chat), reranker=reranker,
        limits=LimitAdministration(ops, tenancy=tenancy, rates=settings.rates, chat=settings.chat),
        jobs=JobAdministration(database, ops, queue=queue, cursors=cursors), operations=operations, cursors=cursors,
        openai_conversations=openai_conversations,
        embedder=spaces.first.embedder, ann=spaces.first.ann, spaces=_space_administration(base, spaces, queue, bus),
        tools=replace(tools, lifecycle=lifecycle, agent=ask_service), generation=generation, ask_service=ask_service,
        webhooks=build_webhooks(settings, base, queue, cursors, bus, outbox=outbox, operations=operations,
                           read=(services, facts)),
    )  # fmt: skip


def _outbox(settings: Settings, ops: Database, bus: Bus) -> WebhookOutbox:
    notify = ThrottledCall(lambda: bus.publish(_DELIVERIES_MESSAGE), interval_s=_ANNOUNCE_EVERY_S)
    return WebhookOutbox(ops, settings=settings.webhooks, notify=notify)


def _counters() -> tuple[dict[str, TiktokenCounter], TiktokenCounter]:
    """Return the counters of tokens by name, and the one that counts what is stored."""
    counters = {name: TiktokenCounter(name) for name in ("o200k_base", "cl100k_base")}
    counter = counters["o200k_base"]
    counter.load()
    return counters, counter
