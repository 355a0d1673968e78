"""The part of the object graph for conversations: parts, and the services on them.

A part runs in the transaction of its caller, and a service opens its own.
"""

from dataclasses import dataclass

from app.conversations.derived_titles import DerivedTitles, Titles
from app.conversations.events import EventPublisher
from app.conversations.queries.reads import ConversationReads
from app.conversations.queries.sources import FactSources, FactSourceService
from app.conversations.responses.service import ResponseEraser, ResponseService
from app.conversations.retention.expiry import ConversationExpiry
from app.conversations.retention.service import RetentionEraser
from app.conversations.retention.trash import ConversationTrash, TrashService
from app.conversations.service import Conversations
from app.conversations.streams.abort import TurnAborter
from app.conversations.streams.commit import TurnFinalizer
from app.conversations.streams.open import TurnOpener
from app.conversations.streams.service import Streams
from app.conversations.summaries.service import Summaries
from app.conversations.turns.append import AppendService
from app.conversations.turns.erase import ConversationEraser
from app.conversations.turns.erase_actor import ActorEraser
from app.conversations.turns.replace import TurnReplacer
from app.conversations.turns.revise import ReviseService
from app.conversations.turns.sessions import Sessions
from app.conversations.turns.turn_writer import TurnWriter
from app.core.bus.messages import Bus
from app.core.ids import new_uuid
from app.core.jobs import JobQueue
from app.core.outbox import EventOutbox
from app.core.paging import Cursors
from app.formats.schemas import TokenCounter
from app.foundation import Foundation
from app.index.service import SearchIndex
from app.settings import Settings


@dataclass(frozen=True, slots=True)
class ConversationParts:
    """What runs in the transactions of other services."""

    publisher: EventPublisher
    titles: DerivedTitles
    writer: TurnWriter
    replacer: TurnReplacer
    aborter: TurnAborter
    sources: FactSources
    reads: ConversationReads
    expiry: ConversationExpiry
    trash: ConversationTrash
    eraser: ConversationEraser
    actors: ActorEraser
    retention: RetentionEraser
    responses: ResponseEraser


@dataclass(frozen=True, slots=True)
class ConversationServices:
    """The services of conversations."""

    conversations: Conversations
    streams: Streams
    summaries: Summaries
    responses: ResponseService
    sessions: Sessions
    titles: Titles
    sources: FactSourceService
    trash: TrashService


def build_parts(
    settings: Settings,
    base: Foundation,
    *,
    index: SearchIndex,
    counter: TokenCounter,
    bus: Bus,
    outbox: EventOutbox,
    jobs: JobQueue,
) -> ConversationParts:
    """Build the parts of conversations."""
    options, without_summary = settings.conversations, settings.conversations.erase_without_summary
    publisher = EventPublisher(bus, outbox)
    titles = DerivedTitles(jobs, model=settings.chat.title_model)
    writer = TurnWriter(
        tenancy=base.tenancy,
        index=index,
        counter=counter,
        session_gap_s=options.session_gap_s,
        publisher=publisher,
        titles=titles,
    )
    aborter = TurnAborter(publisher=publisher, jobs=jobs, settings=settings.streams)
    eraser = ConversationEraser(index=index, jobs=jobs, titles=titles, publisher=publisher)
    return ConversationParts(
        publisher=publisher,
        titles=titles,
        writer=writer,
        replacer=TurnReplacer(index=index, writer=writer, jobs=jobs, outbox=outbox, titles=titles),
        aborter=aborter,
        sources=FactSources(jobs=jobs, publisher=publisher),
        reads=ConversationReads(max_bytes=settings.limits.max_answer_bytes),
        expiry=ConversationExpiry(publisher=publisher),
        trash=ConversationTrash(
            index=index, publisher=publisher, jobs=jobs, days=options.trash_days, abort_open=aborter.abort_open
        ),
        eraser=eraser,
        actors=ActorEraser(publisher=publisher, eraser=eraser),
        retention=RetentionEraser(publisher=publisher, titles=titles, without_summary=without_summary),
        responses=ResponseEraser(),
    )


def build_services(
    settings: Settings,
    base: Foundation,
    parts: ConversationParts,
    *,
    index: SearchIndex,
    cursors: Cursors,
    jobs: JobQueue,
) -> ConversationServices:
    """Build the services of conversations on their parts."""
    database, ops, reader, tenancy = base.database, base.ops, base.reader, base.tenancy
    limits, options, publisher, writer = settings.limits, settings.conversations, parts.publisher, parts.writer
    return ConversationServices(
        conversations=_conversations(settings, base, parts, cursors=cursors),
        streams=_streams(settings, base, parts),
        summaries=Summaries(
            database,
            ops,
            reader,
            tenancy=tenancy,
            index=index,
            jobs=jobs,
            publisher=publisher,
            cursors=cursors,
            max_bytes=limits.max_answer_bytes,
            erase_without_summary=options.erase_without_summary,
        ),
        responses=ResponseService(database, max_bytes=limits.max_answer_bytes),
        sessions=Sessions(database, writer=writer, publisher=publisher, settings=settings),
        titles=Titles(database, publisher=publisher),
        sources=FactSourceService(database, jobs=jobs),
        trash=TrashService(database, trash=parts.trash),
    )


def _streams(settings: Settings, base: Foundation, parts: ConversationParts) -> Streams:
    tenancy, publisher, limits, holder = base.tenancy, parts.publisher, settings.limits, new_uuid()
    return Streams(
        base.database,
        base.ops,
        tenancy=tenancy,
        writer=parts.writer,
        aborter=parts.aborter,
        finalizer=TurnFinalizer(
            base.database,
            tenancy=tenancy,
            writer=parts.writer,
            replacer=parts.replacer,
            aborter=parts.aborter,
            holder=holder,
            publisher=publisher,
            limits=limits,
        ),
        opener=TurnOpener(
            limits=limits,
            settings=settings.streams,
            holder=holder,
            aborter=parts.aborter,
            publisher=publisher,
            tenancy=tenancy,
        ),
        publisher=publisher,
        settings=settings,
        holder=holder,
    )


def _conversations(
    settings: Settings, base: Foundation, parts: ConversationParts, *, cursors: Cursors
) -> Conversations:
    database, tenancy, limits = base.database, base.tenancy, settings.limits
    return Conversations(
        database,
        base.reader,
        tenancy=tenancy,
        cursors=cursors,
        settings=settings,
        publisher=parts.publisher,
        appends=AppendService(database, tenancy=tenancy, writer=parts.writer, limits=limits),
        revisions=ReviseService(
            database,
            tenancy=tenancy,
            writer=parts.writer,
            replacer=parts.replacer,
            limits=limits,
            expire=parts.aborter.expire,
        ),
    )
