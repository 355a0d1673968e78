"""The object graph of one process: built once, closed in order. Only it and `embedding` choose concrete providers."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version

# describes all tables: the erasure of a tenant deletes from each of them
import app.tables  # noqa: F401  # pyright: ignore[reportUnusedImport]
from app.agents.ask.service import AskService
from app.agents.generation.openai_conversations import OpenAIConversations
from app.agents.generation.responses.service import Responses
from app.agents.generation.service import Generation
from app.agents.lifecycle.service import Lifecycle
from app.agents.tools.tool import ToolServices
from app.audit.service import AuditTrail
from app.context.service import Compactor, ContextBuilder, DryRuns, TitleWriter
from app.conversations.derived_titles import DerivedTitles
from app.conversations.events import EventPublisher
from app.conversations.live.event_listener import event_listener
from app.conversations.live.list_subscription import ListSubscriptions
from app.conversations.live.subscription import ConversationSubscriptions
from app.conversations.service import TOKEN_EPOCHS, Conversations
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
from app.governance.service import Erasures, Governance
from app.index.search.ann_maintenance import AnnMaintenance
from app.index.search.removals import REMOVALS, apply_removal
from app.index.service import SearchIndex
from app.index.spaces.administration import SpaceAdministration
from app.index.spaces.runtime import EmbeddingSpaceRegistry
from app.memory.longterm.service import Memories
from app.memory.service import FactService
from app.operations.service import OperationHandler, Operations
from app.providers.chat import ChatModel
from app.providers.embed_meter import EmbedMeter
from app.providers.queues.endpoint_calls import EndpointCalls
from app.providers.receivers.webhook_sender import WebhookSender
from app.providers.schemas import Embedder
from app.providers.tokens import TiktokenCounter
from app.providers.upstream import Upstream
from app.providers.window import LearntWindows
from app.recall.service import RecallService
from app.settings import Settings
from app.settings.database import JobSettings
from app.settings.models import ChatSettings
from app.settings.server import BusSettings
from app.tenancy.administration import Administration
from app.tenancy.first_key import install_first_key, read_bootstrap_key
from app.tenancy.job_admin import JobAdministration
from app.tenancy.limit_admin import LimitAdministration
from app.tenancy.limits.rate_sharing import RATES, RateSharing
from app.tenancy.service import Tenancy
from app.tenancy.spending.service import Spending
from app.transfer.service import IMPORT, ConversationWriter, Exports, Forker, ImportRunner, Imports
from app.webhooks.dispatch import Dispatcher
from app.webhooks.outbox import WebhookOutbox
from app.webhooks.rendering import EventRenderer
from app.webhooks.service import SECRET_PURPOSE, Webhooks

_JOBS_MESSAGE: Message = {"k": "jobs"}
_SPACES_MESSAGE: Message = {"k": "spaces"}
_WEBHOOKS_MESSAGE: Message = {"k": "webhooks"}
_DELIVERIES_MESSAGE: Message = {"k": "deliveries"}
_ANNOUNCE_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class WebhookServices:
    """The parts of webhooks: the API, the outbox that changes are recorded in, and what sends."""

    api: Webhooks
    outbox: WebhookOutbox
    dispatcher: Dispatcher
    sender: WebhookSender


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
        await container.webhooks.outbox.refresh()
        stack.push_async_callback(_end, asyncio.create_task(container.webhooks.outbox.follow_forever()))
        stack.push_async_callback(container.webhooks.sender.close)
        auditing = asyncio.create_task(container.audit.run_forever())
        stack.push_async_callback(_end_and_write, auditing, container.audit.flush)
        await container.index.spaces.follow()
        stack.push_async_callback(_end, asyncio.create_task(container.index.spaces.follow_forever()))
        handlers = container.subscriptions, container.list_subscriptions, container.conversations.streams.handover
        await bus.start(_listener(container, event_listener(*handlers)))
        stack.callback(container.rate_sharing.share)
        stack.push_async_callback(_end, asyncio.create_task(container.rate_sharing.share_forever()))
        stack.callback(container.end_live)
        checking = asyncio.create_task(container.subscriptions.check_forever())
        stack.push_async_callback(_end, checking)
        streaming = asyncio.create_task(container.conversations.streams.run_forever())
        stack.push_async_callback(container.conversations.streams.close)
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
        elif message.get("k") == _WEBHOOKS_MESSAGE["k"]:
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


def _models(settings: ChatSettings, base: Foundation, spending: Spending) -> tuple[ChatModel | None, Upstream | None]:
    """Return the chat model for the service's own calls, and the same endpoint for generated answers."""
    endpoint = settings.endpoint
    if endpoint is None:
        return None, None
    guard = partial(_refuse_in_transaction, base)
    calls, windows = EndpointCalls(settings), LearntWindows(settings.llm_context_tokens)
    return (
        ChatModel(endpoint, settings=settings, ledger=spending, guard=guard, calls=calls, windows=windows),
        Upstream(endpoint, settings=settings, ledger=spending, guard=guard, calls=calls, windows=windows),
    )


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


def _subscriptions(settings: Settings, database: Database, facts: FactService) -> ConversationSubscriptions:
    subscriptions = ConversationSubscriptions(database, settings=settings)
    subscriptions.event_sources.append(facts.recorded)
    return subscriptions


def _generation(
    settings: Settings, conversations: Conversations, contexts: ContextBuilder, governance: Governance,
    forker: Forker, upstream: Upstream | None, subscriptions: ConversationSubscriptions,
) -> tuple[Generation, Responses]:  # fmt: skip
    generation = Generation(
        conversations=conversations, contexts=contexts, governance=governance, forker=forker, upstream=upstream,
        settings=settings,
    )  # fmt: skip
    responses = Responses(
        generation=generation, conversations=conversations, governance=governance, subscriptions=subscriptions
    )
    return generation, responses


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
    conversations = Conversations(
        database, tenancy=tenancy, index=index, counter=counter, cursors=cursors, settings=settings, ops=ops, bus=bus,
        outbox=outbox, jobs=queue, reader=reader,
    )  # fmt: skip
    spending = Spending(database, ops, cursors=cursors, settings=settings.chat)
    chat, upstream = _models(settings.chat, base, spending)
    facts = FactService(
        database, ops, reader, tenancy=tenancy, conversations=conversations, index=index, outbox=outbox, chat=chat,
        max_output_tokens=settings.chat.llm_max_output_tokens, cursors=cursors, settings=settings.facts,
    )  # fmt: skip
    memories = Memories(database, reader, tenancy=tenancy, index=index, cursors=cursors, settings=settings.limits)
    recall_service = _recall(settings, database, conversations, facts, memories, index)
    contexts = ContextBuilder(
        conversations=conversations, facts=facts, recall_service=recall_service, counters=counters,
        settings=settings.context,
    )  # fmt: skip
    compactor, dry_runs = _compaction(settings, database, conversations, facts, chat, counter)
    audit = AuditTrail(database, ops, cursors=cursors, settings=settings.audit)
    governance, operations = _governance(
        base, settings, queue, cursors, conversations=conversations, facts=facts, memories=memories, index=index
    )
    imports, forker = _transfer(base, settings, queue, operations, index, facts, counter, EventPublisher(bus, outbox))
    lifecycle = Lifecycle(
        database, conversations=conversations, contexts=contexts, compactor=compactor, governance=governance,
        facts=facts, queue=queue, secret=tenancy.secret_for("operation-tokens"), settings=settings,
    )  # fmt: skip
    subscriptions = _subscriptions(settings, database, facts)
    generation, responses = _generation(settings, conversations, contexts, governance, forker, upstream, subscriptions)
    tools = ToolServices(conversations, contexts, recall_service, memories, compactor, facts)
    ask_service = AskService(tools, governance=governance, audit=audit, chat=chat, settings=settings)
    return Container(
        settings=settings, database=database, ops=ops, reader=reader, server=base.server, tenancy=tenancy,
        conversations=conversations, facts=facts, memories=memories, recall_service=recall_service,
        contexts=contexts, compactor=compactor, governance=governance, lifecycle=lifecycle, bus=bus, queue=queue,
        exports=Exports(database, audit=audit, cursors=cursors), imports=imports, forker=forker, spending=spending,
        chat=chat, replicas=Replicas(bus.publish), rate_sharing=RateSharing(tenancy.rates, publish=bus.publish),
        administration=Administration(ops, tenancy=tenancy, cursors=cursors), dry_runs=dry_runs,
        statistics=Statistics(database, ops=ops, searched=lambda: spaces.current.space.id),
        subscriptions=subscriptions, audit=audit, index=index, responses=responses,
        list_subscriptions=ListSubscriptions(database, settings=settings),
        title_writer=TitleWriter(conversations=conversations, chat=chat),
        limits=LimitAdministration(ops, tenancy=tenancy, rates=settings.rates, chat=settings.chat),
        jobs=JobAdministration(database, ops, queue=queue, cursors=cursors), operations=operations, cursors=cursors,
        openai_conversations=OpenAIConversations(conversations=conversations, governance=governance),
        embedder=spaces.first.embedder, ann=spaces.first.ann, spaces=_space_administration(base, spaces, queue, bus),
        tools=replace(tools, lifecycle=lifecycle, agent=ask_service), generation=generation, ask_service=ask_service,
        webhooks=_webhooks(settings, base, queue, cursors, bus, outbox=outbox, operations=operations,
                           read=(conversations, facts)),
    )  # fmt: skip


def _recall(
    settings: Settings,
    database: Database,
    conversations: Conversations,
    facts: FactService,
    memories: Memories,
    index: SearchIndex,
) -> RecallService:
    # searches are the longest statements; leave connections for others
    searches = max(1, settings.database.database_pool_size // 2)
    return RecallService(
        database, conversations=conversations, facts=facts, memories=memories, index=index, concurrent_searches=searches
    )


def _outbox(settings: Settings, ops: Database, bus: Bus) -> WebhookOutbox:
    notify = ThrottledCall(lambda: bus.publish(_DELIVERIES_MESSAGE), interval_s=_ANNOUNCE_EVERY_S)
    return WebhookOutbox(ops, settings=settings.webhooks, notify=notify)


def _webhooks(
    settings: Settings,
    base: Foundation,
    queue: JobQueue,
    cursors: Cursors,
    bus: Bus,
    *,
    outbox: WebhookOutbox,
    operations: Operations,
    read: tuple[Conversations, FactService],
) -> WebhookServices:
    """Return the API of webhooks, and what sends their deliveries. `read`: the services that events are read from."""
    conversations, facts = read
    renderer = EventRenderer(conversations=conversations, facts=facts)
    sender = WebhookSender(settings.webhooks, guard=partial(_refuse_in_transaction, base))
    api = Webhooks(
        base.database, base.ops, tenancy=base.tenancy, operations=operations, jobs=queue, cursors=cursors,
        outbox=outbox, announce=lambda: bus.publish(_WEBHOOKS_MESSAGE), settings=settings.webhooks,
    )  # fmt: skip
    dispatcher = Dispatcher(
        base.database, base.ops, renderer=renderer, sender=sender, secret=base.tenancy.secret_for(SECRET_PURPOSE),
        user_agent=f"Turnkeep/{version('turnkeep')}",
        grace_s=settings.server.graceful_shutdown_s,
    )  # fmt: skip
    return WebhookServices(api, outbox, dispatcher, sender)


def _refuse_in_transaction(base: Foundation) -> None:
    base.reader.refuse_in_transaction()
    base.ops.refuse_in_transaction()


def _counters() -> tuple[dict[str, TiktokenCounter], TiktokenCounter]:
    """Return the counters of tokens by name, and the one that counts what is stored."""
    counters = {name: TiktokenCounter(name) for name in ("o200k_base", "cl100k_base")}
    counter = counters["o200k_base"]
    counter.load()
    return counters, counter


def _governance(
    base: Foundation,
    settings: Settings,
    queue: JobQueue,
    cursors: Cursors,
    *,
    conversations: Conversations,
    facts: FactService,
    memories: Memories,
    index: SearchIndex,
) -> tuple[Governance, Operations]:
    """Return what deletes and erases, and the operations of erasures and imports."""
    operations = Operations(base.database, base.ops, queue=queue, cursors=cursors, settings=settings.jobs)
    erasures = Erasures(base.database, base.ops, tenancy=base.tenancy, operations=operations, cursors=cursors)
    governance = Governance(
        base.database, base.ops, conversations=conversations, facts=facts, memories=memories, index=index,
        erasures=erasures,
    )  # fmt: skip
    return governance, operations


def _transfer(
    base: Foundation,
    settings: Settings,
    queue: JobQueue,
    operations: Operations,
    index: SearchIndex,
    facts: FactService,
    counter: TiktokenCounter,
    publisher: EventPublisher,
) -> tuple[Imports, Forker]:
    """Return what imports, its runner registered, and what forks conversations."""
    database, tenancy, limits = base.database, base.tenancy, settings.limits
    writer = ConversationWriter(tenancy=tenancy, index=index, publisher=publisher, settings=settings.conversations)
    runner = ImportRunner(
        database, writer, fact_writer=facts.writer, tenancy=tenancy, index=index, counter=counter, settings=settings
    )
    operations.handlers[IMPORT] = OperationHandler(runner.run, runner.stop)
    titles = DerivedTitles(queue, model=settings.chat.title_model)
    return (
        Imports(database, base.ops, tenancy=tenancy, operations=operations, settings=settings.requests),
        Forker(database, writer, tenancy=tenancy, index=index, publisher=publisher, titles=titles, limits=limits),
    )


def _compaction(
    settings: Settings,
    database: Database,
    conversations: Conversations,
    facts: FactService,
    chat: ChatModel | None,
    counter: TiktokenCounter,
) -> tuple[Compactor, DryRuns]:
    """Return what makes summaries, and what says beforehand what it would do."""
    compactor = Compactor(conversations=conversations, chat=chat, counter=counter, settings=settings)
    return compactor, DryRuns(database, conversations=conversations, facts=facts, chat=chat, settings=settings)
