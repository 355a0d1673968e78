"""Groups of services that the container puts together."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from app.agents.ask.service import AskService
from app.agents.generation.openai_conversations import OpenAIConversations
from app.agents.generation.responses.service import Responses
from app.agents.generation.service import Generation
from app.agents.tools.tool import ToolServices
from app.audit.service import AuditTrail
from app.context.service import Compactor, ContextBuilder, DryRuns
from app.conversation_services import ConversationParts, ConversationServices
from app.conversations.live.service import ConversationSubscriptions
from app.conversations.service import ConversationUpdates, Indexing
from app.core.bus.messages import Bus, Message
from app.core.database.transactions import Database
from app.core.jobs import JobQueue
from app.core.outbox import EventOutbox
from app.core.paging import Cursors
from app.formats.schemas import TokenCounter
from app.foundation import Foundation
from app.governance.service import (
    ERASURE,
    ErasureReceipts,
    ErasureRunner,
    Erasures,
    Governance,
    Purger,
    PurgeSteps,
    ReceiptSigner,
)
from app.index.schemas import EntryKind
from app.index.service import SearchIndex
from app.memory.extraction.service import Extractor
from app.memory.facts.assertion import Asserter
from app.memory.facts.fact_writer import FactWriter
from app.memory.longterm.service import Memories
from app.memory.service import FactService
from app.operations.service import OperationHandler, Operations
from app.providers.chat import ChatModel
from app.providers.queues.endpoint_calls import EndpointCalls
from app.providers.receivers.webhook_sender import WebhookSender
from app.providers.reranking.reranker import Reranker
from app.providers.tokens import TiktokenCounter
from app.providers.upstream import Upstream
from app.providers.window import LearntWindows
from app.recall.hit_search import HitSearch
from app.recall.long_turns import LongTurns
from app.recall.service import RecallService, VectorWait
from app.settings import Settings
from app.settings.models import ChatSettings, RerankerSettings
from app.tenancy.spending.service import Spending
from app.transfer.service import IMPORT, ConversationWriter, Forker, ImportRunner, Imports
from app.webhooks.dispatch import Dispatcher
from app.webhooks.outbox import WebhookOutbox
from app.webhooks.rendering import EventRenderer
from app.webhooks.service import REPLAY, SECRET_PURPOSE, Webhooks

WEBHOOKS_MESSAGE: Message = {"k": "webhooks"}
"""Tells other processes that webhooks have changed."""


@dataclass(frozen=True, slots=True)
class WebhookServices:
    """The parts of webhooks: the API, the outbox that changes are recorded in, and what sends."""

    api: Webhooks
    outbox: WebhookOutbox
    dispatcher: Dispatcher
    sender: WebhookSender


@dataclass(frozen=True, slots=True)
class MemoryServices:
    """Facts, long-term memories, and what depends on both."""

    writer: FactWriter
    facts: FactService
    memories: Memories
    updates: ConversationUpdates
    indexing: Indexing


@dataclass(frozen=True, slots=True)
class DeletionServices:
    """What deletes and erases."""

    governance: Governance
    purger: Purger
    erasures: Erasures


def build_deletion(
    base: Foundation,
    cursors: Cursors,
    operations: Operations,
    parts: ConversationParts,
    *,
    facts: FactService,
    memories: Memories,
    index: SearchIndex,
) -> DeletionServices:
    """Return what deletes and erases, and register the runner of erasures."""
    database, ops, tenancy = base.database, base.ops, base.tenancy
    steps = PurgeSteps(expiry=parts.expiry, facts=facts, index=index)
    purger = Purger(database, ops, expiry=parts.expiry, steps=steps)
    signer = ReceiptSigner(
        subject_secret=tenancy.secret_for("erasure-subjects"), receipt_secret=tenancy.secret_for("erasure-receipts")
    )
    receipts = ErasureReceipts(signer=signer)
    runner = ErasureRunner(
        database,
        ops,
        expiry=parts.expiry,
        trash=parts.trash,
        actors=parts.actors,
        facts=facts,
        memories=memories,
        index=index,
        purge=steps,
        receipts=receipts,
        operations=operations,
    )
    operations.handlers[ERASURE] = OperationHandler(runner.run, receipts.stop)
    governance = Governance(
        database,
        ops,
        eraser=parts.eraser,
        expiry=parts.expiry,
        trash=parts.trash,
        retention=parts.retention,
        responses=parts.responses,
        facts=facts,
        memories=memories,
        index=index,
        purger=purger,
    )
    erasures = Erasures(database, ops, tenancy=tenancy, operations=operations, cursors=cursors, signer=signer)
    return DeletionServices(governance, purger, erasures)


def build_models(
    settings: ChatSettings, base: Foundation, spending: Spending
) -> tuple[ChatModel | None, Upstream | None]:
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


def _reranker(settings: RerankerSettings, base: Foundation) -> Reranker | None:
    if settings.reranker_url is None:
        return None
    return Reranker(settings.reranker_url, settings=settings, guard=partial(_refuse_in_transaction, base))


def _refuse_in_transaction(base: Foundation) -> None:
    base.reader.refuse_in_transaction()
    base.ops.refuse_in_transaction()


def build_subscriptions(settings: Settings, database: Database, facts: FactService) -> ConversationSubscriptions:
    """Return the subscriptions of conversations, which also read the facts that were recorded."""
    subscriptions = ConversationSubscriptions(database, settings=settings)
    subscriptions.event_sources.append(facts.recorded)
    return subscriptions


def build_generation(
    settings: Settings,
    services: ConversationServices,
    memory: MemoryServices,
    contexts: ContextBuilder,
    governance: Governance,
    forker: Forker,
    upstream: Upstream | None,
    subscriptions: ConversationSubscriptions,
) -> tuple[Generation, Responses, OpenAIConversations]:
    """Return what generates answers, and its forms with responses and with conversations of OpenAI."""
    conversations = services.conversations
    generation = Generation(
        conversations=conversations,
        streams=services.streams,
        exchanges=services.streams.exchanges,
        sessions=services.sessions,
        contexts=contexts,
        governance=governance,
        forker=forker,
        upstream=upstream,
        settings=settings,
    )
    responses = Responses(
        generation=generation,
        conversations=conversations,
        responses=services.responses,
        governance=governance,
        subscriptions=subscriptions,
    )
    openai_conversations = OpenAIConversations(
        conversations=conversations, updates=memory.updates, responses=services.responses, governance=governance
    )
    return generation, responses, openai_conversations


def build_ask(
    settings: Settings,
    services: ConversationServices,
    tools: ToolServices,
    governance: Governance,
    audit: AuditTrail,
    chat: ChatModel | None,
) -> AskService:
    """Return the agent that answers queries with tools."""
    exchanges = services.streams.exchanges
    return AskService(tools, exchanges=exchanges, governance=governance, audit=audit, chat=chat, settings=settings)


def build_recall(
    settings: Settings,
    base: Foundation,
    services: ConversationServices,
    parts: ConversationParts,
    memory: MemoryServices,
    index: SearchIndex,
    counters: Mapping[str, TokenCounter],
) -> tuple[RecallService, ContextBuilder, Reranker | None]:
    """Return what searches, what makes contexts of the results, and the reranker that both use, if there is one."""
    reranker = _reranker(settings.reranker, base)
    vector_wait = VectorWait(base.database, index=index)
    recall_service = RecallService(
        base.database,
        reads=parts.reads,
        facts=memory.facts,
        search=HitSearch(parts.reads, memory.facts, memory.memories, index),
        index=index,
        long_turns=LongTurns(index.pieces, settings.index),
        # searches are the longest statements; leave connections for others
        concurrent_searches=max(1, settings.database.database_pool_size // 2),
        reranker=reranker,
        vector_wait=vector_wait,
    )
    contexts = ContextBuilder(
        conversations=services.conversations,
        facts=memory.facts,
        recall_service=recall_service,
        vector_wait=vector_wait,
        counters=counters,
        settings=settings.context,
    )
    return recall_service, contexts, reranker


def build_webhooks(
    settings: Settings,
    base: Foundation,
    queue: JobQueue,
    cursors: Cursors,
    bus: Bus,
    *,
    outbox: WebhookOutbox,
    operations: Operations,
    read: tuple[ConversationServices, FactService],
) -> WebhookServices:
    """Return the API of webhooks, and what sends their deliveries. `read`: the services that events are read from."""
    services, facts = read
    renderer = EventRenderer(conversations=services.conversations, summaries=services.summaries, facts=facts)
    sender = WebhookSender(settings.webhooks, guard=partial(_refuse_in_transaction, base))
    api = Webhooks(
        base.database,
        base.ops,
        tenancy=base.tenancy,
        operations=operations,
        jobs=queue,
        cursors=cursors,
        outbox=outbox,
        announce=lambda: bus.publish(WEBHOOKS_MESSAGE),
        settings=settings.webhooks,
    )
    operations.handlers[REPLAY] = OperationHandler(api.run_replay)
    dispatcher = Dispatcher(
        base.database,
        base.ops,
        renderer=renderer,
        sender=sender,
        secret=base.tenancy.secret_for(SECRET_PURPOSE),
        user_agent=f"Turnkeep/{version('turnkeep')}",
        grace_s=settings.server.graceful_shutdown_s,
    )
    return WebhookServices(api, outbox, dispatcher, sender)


def build_transfer(
    settings: Settings,
    base: Foundation,
    operations: Operations,
    parts: ConversationParts,
    memory: MemoryServices,
    *,
    index: SearchIndex,
    counter: TokenCounter,
) -> tuple[Imports, Forker]:
    """Return what imports, its runner registered, and what forks conversations."""
    database, tenancy, publisher = base.database, base.tenancy, parts.publisher
    writer = ConversationWriter(tenancy=tenancy, index=index, publisher=publisher, settings=settings.conversations)
    runner = ImportRunner(
        database, writer, fact_writer=memory.writer, tenancy=tenancy, index=index, counter=counter, settings=settings
    )
    operations.handlers[IMPORT] = OperationHandler(runner.run, runner.stop)
    imports = Imports(database, base.ops, tenancy=tenancy, operations=operations, settings=settings.requests)
    forker = Forker(
        database,
        writer,
        tenancy=tenancy,
        index=index,
        publisher=publisher,
        titles=parts.titles,
        limits=settings.limits,
    )
    return imports, forker


def build_compaction(
    settings: Settings,
    database: Database,
    services: ConversationServices,
    parts: ConversationParts,
    facts: FactService,
    chat: ChatModel | None,
    counter: TiktokenCounter,
) -> tuple[Compactor, DryRuns]:
    """Return what makes summaries, and what says beforehand what it would do."""
    compactor = Compactor(summaries=services.summaries, chat=chat, counter=counter, settings=settings)
    dry_runs = DryRuns(
        database,
        conversations=services.conversations,
        summaries=services.summaries,
        retention=parts.retention,
        facts=facts,
        chat=chat,
        settings=settings,
    )
    return compactor, dry_runs


def build_memory(
    settings: Settings,
    base: Foundation,
    parts: ConversationParts,
    services: ConversationServices,
    *,
    index: SearchIndex,
    outbox: EventOutbox,
    chat: ChatModel | None,
    cursors: Cursors,
    jobs: JobQueue,
) -> MemoryServices:
    """Return what stores facts and memories, with what writes owners and vectors to them."""
    database, tenancy, sources = base.database, base.tenancy, parts.sources
    writer = FactWriter(index=index, settings=settings.facts, outbox=outbox)
    facts = FactService(
        database,
        base.ops,
        base.reader,
        sources=sources,
        index=index,
        cursors=cursors,
        writer=writer,
        asserter=Asserter(
            database, tenancy=tenancy, conversations=services.conversations, sources=sources, writer=writer
        ),
        extractor=Extractor(
            database,
            sources=sources,
            turns=services.sources,
            writer=writer,
            chat=chat,
            max_output_tokens=settings.chat.llm_max_output_tokens,
        ),
    )
    memories = Memories(database, base.reader, tenancy=tenancy, index=index, cursors=cursors, settings=settings.limits)
    updates = ConversationUpdates(
        database,
        settings=settings.limits,
        publisher=parts.publisher,
        jobs=jobs,
        titles=parts.titles,
        # facts first: the job that makes their vectors locks a fact before its index entry
        owned=[facts, index],
    )
    makers = {EntryKind.FACT: facts.fill_vectors, EntryKind.MEMORY: memories.make_vectors}
    return MemoryServices(writer, facts, memories, updates, Indexing(database, index=index, makers=makers))
