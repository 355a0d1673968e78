"""The object graph of one process: built once, closed in order. Only it and `embedding` choose concrete providers."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace

from app.agents.ask.service import AskOptions, AskService
from app.agents.generation.openai_conversations import OpenAIConversations
from app.agents.generation.service import Generation, GenerationOptions
from app.agents.lifecycle.service import Lifecycle, LifecycleOptions
from app.agents.tools.tool import ToolServices
from app.context.assembly.parts import Policy
from app.context.service import Compactor, ContextBuilder, TitleWriter
from app.conversations.drafts import DraftLimits
from app.conversations.live.event_listener import event_listener
from app.conversations.live.list_subscription import ListSubscriptionOptions, ListSubscriptions
from app.conversations.live.subscription import ConversationSubscriptions, SubscriptionOptions
from app.conversations.service import TOKEN_EPOCHS, ConversationOptions, Conversations
from app.conversations.streams.open import StreamOptions
from app.core.bus.messages import Bus, Listener, Message, ThrottledCall
from app.core.bus.nats import NatsBus, NatsOptions
from app.core.bus.notify import NotifyBus, NotifyOptions
from app.core.database.revisions import application_name
from app.core.database.servers import Server
from app.core.database.transactions import Database
from app.core.errors import AppError, Unavailable
from app.core.ids import TenantId
from app.core.jobs import JobOptions, JobQueue
from app.core.paging import Cursors
from app.diagnostics.service import Statistics
from app.embedding import base_url, open_ann_maintenance, open_embedders
from app.foundation import Foundation, open_foundation
from app.governance.service import Governance
from app.index.service import (
    AnnMaintenance,
    EmbeddingSpaceRegistry,
    EmbeddingSpaceRuntime,
    IndexOptions,
    SearchIndex,
    VectorBackfill,
)
from app.index.spaces.administration import SpaceAdministration
from app.memory.longterm.service import Memories, MemoryOptions
from app.memory.service import Facts, Kept
from app.providers.chat import ChatOptions, OpenAIChat
from app.providers.schemas import ChatModel, Embedder, TokenCounter
from app.providers.tokens import TiktokenCounter
from app.providers.upstream import Upstream, UpstreamOptions
from app.recall.memory_gateway import MemoryGateway
from app.recall.service import RecallService
from app.settings import Settings
from app.tenancy.administration import Administration
from app.tenancy.first_key import install_first_key, read_bootstrap_key
from app.tenancy.job_admin import JobAdministration
from app.tenancy.schemas import Caller
from app.tenancy.service import Tenancy
from app.tenancy.spending.service import Spending, SpendingOptions

_HOUR_S = 3600
_JOBS_MESSAGE: Message = {"k": "jobs"}
_SPACES_MESSAGE: Message = {"k": "spaces"}
_ANNOUNCE_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Container:
    """Every service of the process."""

    settings: Settings
    database: Database
    server: Server
    tenancy: Tenancy
    administration: Administration
    statistics: Statistics
    conversations: Conversations
    subscriptions: ConversationSubscriptions
    list_subscriptions: ListSubscriptions
    facts: Facts
    memories: Memories
    recall_service: RecallService
    contexts: ContextBuilder
    compactor: Compactor
    title_writer: TitleWriter
    governance: Governance
    lifecycle: Lifecycle
    bus: Bus
    queue: JobQueue
    jobs: JobAdministration
    embedder: Embedder | None
    spending: Spending
    chat: ChatModel | None
    generation: Generation
    openai_conversations: OpenAIConversations
    index: SearchIndex
    ann: AnnMaintenance
    spaces: SpaceAdministration
    ask_service: AskService
    tools: ToolServices
    first_tenant_id: TenantId | None = None
    """The tenant that this start created, if it is the first start and no setting gave the key."""

    def end_live(self) -> None:
        """End the live connections, because the process is stopping. May be called again."""
        self.subscriptions.close()
        self.list_subscriptions.close()

    def memory_of(self, caller: Caller) -> MemoryGateway:
        """Return the long-term memory of the calling agent; raises Forbidden if its key has none."""
        return self.tools.memory_of(caller)

    async def close_chat(self) -> None:
        """Close the chat model's connections, and write its usage."""
        await self.generation.close()
        if isinstance(self.chat, OpenAIChat):
            await self.chat.close()
        await self.spending.flush()

    async def require_ready(self) -> None:
        """Raise Unavailable unless requests can be served: the database answers, the model is loaded."""
        await self.database.ping()
        embedder = self.index.spaces.current.embedder
        if embedder is not None and not embedder.ready():
            raise Unavailable("not_ready", "The embedding model is still loading.", retry_after_s=1)


@asynccontextmanager
async def open_container(settings: Settings) -> AsyncGenerator[Container]:
    """Start all services, and stop them in reverse order."""
    read_bootstrap_key(settings)  # before anything is created: an invalid key ends the start
    async with AsyncExitStack() as stack:
        base = await stack.enter_async_context(
            open_foundation(settings, migrate=settings.migrate_on_start, epochs=TOKEN_EPOCHS)
        )
        first_tenant_id = await install_first_key(settings, base.tenancy)
        await base.tenancy.idempotency.hash_plain_keys()
        tending = asyncio.create_task(base.tenancy.flush_last_used_forever())
        stack.push_async_callback(_end_last_used, tending, base.tenancy)
        bus = make_bus(settings, base.server)
        stack.push_async_callback(bus.close)
        embedders = await open_embedders(settings, guard=base.database.refuse_in_transaction, stack=stack)
        runtimes = [(one, await open_ann_maintenance(settings, base.ops, base.server, one)) for one in embedders]
        container = replace(build_container(settings, base, runtimes, bus), first_tenant_id=first_tenant_id)
        for runtime in container.index.spaces.runtimes.values():
            stack.push_async_callback(_end, asyncio.create_task(runtime.ann.run_forever()))
        await container.index.spaces.follow()
        stack.push_async_callback(_end, asyncio.create_task(container.index.spaces.follow_forever()))
        handlers = container.subscriptions, container.list_subscriptions, container.conversations.streams.handover
        await bus.start(_listener(container, event_listener(*handlers)))
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


async def _end_last_used(tending: "asyncio.Task[None]", tenancy: Tenancy) -> None:
    tending.cancel()
    await asyncio.gather(tending, return_exceptions=True)
    with suppress(AppError):  # an unavailable database must not block the shutdown
        await tenancy.flush_last_used()


def make_bus(settings: Settings, server: Server) -> Bus:
    """Return the bus of an installation, not yet started: over NATS if configured, else over the database."""
    if settings.nats_url is not None:
        urls = settings.nats_url.get_secret_value()
        return NatsBus(NatsOptions.from_urls(urls, subject=settings.nats_subject, queue_bytes=settings.bus_queue_bytes))
    application = application_name("turnkeep-{}")
    return NotifyBus(NotifyOptions(server.app.url, server.app.role, application, settings.bus_queue_bytes))


def _listener(container: Container, live: Listener) -> Listener:
    """Return the process's handler of bus messages: wake the worker or the spaces, pass other messages to `live`."""

    def on_message(message: Message) -> None:
        if message.get("k") == _JOBS_MESSAGE["k"]:
            container.queue.enqueued.set()
        elif message.get("k") == _SPACES_MESSAGE["k"]:
            container.index.spaces.wake()
        else:
            live.on_message(message)

    return Listener(on_message, live.on_loss)


def _queue(settings: Settings, base: Foundation, bus: Bus) -> JobQueue:
    options = JobOptions(
        lease_s=settings.job_lease_s,
        max_attempts=settings.job_max_attempts,
        retry_base_s=settings.job_retry_base_s,
        retry_max_s=settings.job_retry_max_s,
    )
    notify = ThrottledCall(lambda: bus.publish(_JOBS_MESSAGE), interval_s=_ANNOUNCE_EVERY_S)
    return JobQueue(base.ops, options=options, notify=notify)


def _conversation_options(settings: Settings) -> ConversationOptions:
    return ConversationOptions(
        limits=DraftLimits(
            max_turns=settings.max_turns_per_append,
            max_text_bytes=settings.max_text_bytes,
            max_metadata_bytes=settings.max_metadata_bytes,
            clock_skew_s=settings.clock_skew_s,
        ),
        session_gap_s=settings.session_gap_s,
        compaction={
            "strategy": "rolling",
            "trigger_turns": settings.compaction_trigger_turns,
            "trigger_tokens": settings.compaction_trigger_tokens,
            "summarizer_model": None,
        },
        facts={"enabled": settings.fact_extraction_enabled, "redact": True},
        default_ttl_s=settings.conversation_ttl_hours * _HOUR_S or None,
        streams=StreamOptions(
            debounce_s=settings.stream_debounce_ms / 1000,
            lease_s=settings.stream_lease_s,
            max_chunk_bytes=settings.max_chunk_bytes,
            max_open_per_conversation=settings.max_open_turns_per_conversation,
            max_open_per_tenant=settings.max_open_turns,
            max_open_per_token=settings.max_open_turns_per_token,
            max_unflushed=settings.max_unflushed_characters,
            wait_s=settings.database_timeout_s,
            handover_s=settings.stream_handover_ms / 1000,
        ),
        session_lock_wait_ms=settings.session_lock_wait_ms,
        max_answer_bytes=settings.max_answer_bytes,
        erase_without_summary=settings.erase_without_summary,
        title_model=settings.llm_model if settings.title_generation_enabled else None,
    )


def _refusal(base: Foundation) -> Callable[[], None]:
    def refuse_in_transaction() -> None:
        base.database.refuse_in_transaction()
        base.ops.refuse_in_transaction()

    return refuse_in_transaction


def _chat(settings: Settings, base: Foundation, spending: Spending) -> OpenAIChat | None:
    options = ChatOptions.of(settings)
    return None if options is None else OpenAIChat(options, ledger=spending, guard=_refusal(base))


def _generation(
    settings: Settings, base: Foundation, spending: Spending, conversations: Conversations, contexts: ContextBuilder,
    governance: Governance,
) -> Generation:  # fmt: skip
    endpoint = UpstreamOptions.of(settings)
    upstream = None if endpoint is None else Upstream(endpoint, ledger=spending, guard=_refusal(base))
    options = GenerationOptions.of(settings)
    return Generation(
        conversations=conversations, contexts=contexts, governance=governance, upstream=upstream, options=options
    )


def _conversations(
    settings: Settings,
    base: Foundation,
    index: SearchIndex,
    counter: TokenCounter,
    cursors: Cursors,
    bus: Bus,
    jobs: JobQueue,
) -> Conversations:
    return Conversations(
        base.database,
        tenancy=base.tenancy,
        index=index,
        counter=counter,
        cursors=cursors,
        options=_conversation_options(settings),
        ops=base.ops,
        bus=bus,
        jobs=jobs,
    )


def _spaces(
    settings: Settings, base: Foundation, runtimes: Sequence[tuple[Embedder | None, AnnMaintenance]], queue: JobQueue
) -> EmbeddingSpaceRegistry:
    most = settings.max_vectors_per_entry
    made = {
        # of two runtimes for the same space, keep the first
        ann.space.id: EmbeddingSpaceRuntime(
            embedder,
            ann,
            VectorBackfill(base.ops, embedder, space=ann.space, jobs=queue, max_vectors_per_entry=most),
        )
        for embedder, ann in reversed(runtimes)
    }
    return EmbeddingSpaceRegistry(base.ops, list(reversed(made.values())))


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


def _facts(
    settings: Settings, base: Foundation, conversations: Conversations, index: SearchIndex, chat: ChatModel | None,
    cursors: Cursors,
) -> Facts:  # fmt: skip
    return Facts(
        base.database,
        base.ops,
        tenancy=base.tenancy,
        conversations=conversations,
        index=index,
        chat=chat,
        cursors=cursors,
        kept=Kept.of(settings),
    )


def _list_subscriptions(settings: Settings, base: Foundation) -> ListSubscriptions:
    options = ListSubscriptionOptions(settings.live_queue_frames, settings.max_answer_bytes)
    return ListSubscriptions(base.database, options=options)


def _subscriptions(settings: Settings, base: Foundation, facts: Facts) -> ConversationSubscriptions:
    subscriptions = ConversationSubscriptions(base.database, options=SubscriptionOptions.of(settings))
    subscriptions.event_sources.append(facts.recorded)
    return subscriptions


def _recall_service(
    settings: Settings, base: Foundation, conversations: Conversations, facts: Facts, memories: Memories,
    index: SearchIndex,
) -> RecallService:  # fmt: skip
    return RecallService(
        base.database,
        conversations=conversations,
        facts=facts,
        memories=memories,
        index=index,
        # searches are the longest statements; leave connections for others
        concurrent_searches=max(1, settings.database_pool_size // 2),
    )


def _contexts(
    settings: Settings, conversations: Conversations, facts: Facts, recall_service: RecallService,
    counters: Mapping[str, TokenCounter],
) -> ContextBuilder:  # fmt: skip
    return ContextBuilder(
        conversations=conversations,
        facts=facts,
        recall_service=recall_service,
        counters=counters,
        policy=Policy.of(settings),
        default_recent_turns=settings.max_context_messages,
        facts_limit=settings.recall_facts_limit,
        max_memories=settings.search_limit,
    )


def _lifecycle(
    settings: Settings, base: Foundation, conversations: Conversations, contexts: ContextBuilder,
    compactor: Compactor, governance: Governance, facts: Facts, queue: JobQueue,
) -> Lifecycle:  # fmt: skip
    return Lifecycle(
        base.database,
        conversations=conversations,
        contexts=contexts,
        compactor=compactor,
        governance=governance,
        facts=facts,
        queue=queue,
        secret=base.tenancy.secret_for("operation-tokens"),
        options=LifecycleOptions.of(settings),
    )


def _compactor(
    settings: Settings, conversations: Conversations, chat: ChatModel | None, counter: TokenCounter
) -> Compactor:
    return Compactor(
        conversations=conversations, chat=chat, counter=counter, highlight_tokens=settings.highlight_tokens
    )


def build_container(
    settings: Settings, base: Foundation, runtimes: Sequence[tuple[Embedder | None, AnnMaintenance]], bus: Bus
) -> Container:
    """Build every service on the opened resources; the bus may still be stopped.

    `runtimes`: the first embedder leads.
    """
    counters = {name: TiktokenCounter(name) for name in ("o200k_base", "cl100k_base")}
    counters["o200k_base"].load()
    queue = _queue(settings, base, bus)
    cursors = Cursors(base.tenancy.secret_for("cursors"))
    spaces = _spaces(settings, base, runtimes, queue)
    index = SearchIndex(spaces, jobs=queue, options=IndexOptions.of(settings))
    conversations = _conversations(settings, base, index, counters["o200k_base"], cursors, bus, queue)
    spending = Spending(base.database, base.ops, cursors=cursors, options=SpendingOptions.of(settings))
    chat = _chat(settings, base, spending)
    facts = _facts(settings, base, conversations, index, chat, cursors)
    bounds = MemoryOptions.of(settings)
    memories = Memories(base.database, tenancy=base.tenancy, index=index, cursors=cursors, options=bounds)
    recall_service = _recall_service(settings, base, conversations, facts, memories, index)
    contexts = _contexts(settings, conversations, facts, recall_service, counters)
    compactor = _compactor(settings, conversations, chat, counters["o200k_base"])
    governance = Governance(
        base.database, base.ops, conversations=conversations, facts=facts, memories=memories, index=index
    )
    lifecycle = _lifecycle(settings, base, conversations, contexts, compactor, governance, facts, queue)
    tools = ToolServices(conversations, contexts, recall_service, memories, compactor, facts)
    ask_service = AskService(tools, governance=governance, chat=chat, options=AskOptions.of(settings))
    return Container(
        settings=settings,
        database=base.database,
        server=base.server,
        tenancy=base.tenancy,
        administration=Administration(base.ops, tenancy=base.tenancy, cursors=cursors),
        statistics=Statistics(base.database, ops=base.ops, searched=lambda: spaces.current.space.id),
        conversations=conversations,
        subscriptions=_subscriptions(settings, base, facts),
        list_subscriptions=_list_subscriptions(settings, base),
        facts=facts,
        memories=memories,
        recall_service=recall_service,
        contexts=contexts,
        compactor=compactor,
        title_writer=TitleWriter(conversations=conversations, chat=chat),
        governance=governance,
        lifecycle=lifecycle,
        bus=bus,
        queue=queue,
        jobs=JobAdministration(base.database, base.ops, queue=queue, cursors=cursors),
        embedder=spaces.first.embedder,
        spending=spending,
        chat=chat,
        generation=_generation(settings, base, spending, conversations, contexts, governance),
        openai_conversations=OpenAIConversations(conversations=conversations, governance=governance),
        index=index,
        ann=spaces.first.ann,
        spaces=_space_administration(base, spaces, queue, bus),
        ask_service=ask_service,
        tools=replace(tools, lifecycle=lifecycle, agent=ask_service),
    )
