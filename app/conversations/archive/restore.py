"""Stores records of a conversation with their ids, seq, hashes and links, in the transaction of an import.

Invariants: the hash chain of the records is verified before the transaction ends, so a restored conversation verifies.
Index entries are made again from the live turns; their vectors are made by jobs.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from pydantic import JsonValue

from app.conversations.archive import restore_store as store
from app.conversations.archive.restore_store import HeadCounters
from app.conversations.archive.store import ExportedConversation, ExportedSummary
from app.conversations.drafts import content_errors, plain_text
from app.conversations.events import EventPublisher
from app.conversations.hash_chain import GENESIS, chain_hash
from app.conversations.policies import facts_job
from app.conversations.responses import store as response_store
from app.conversations.responses.store import ResponseRow
from app.conversations.schemas.records import (
    ConversationOutcome,
    ConversationRecord,
    RecordRefusedError,
    RestoredConversation,
    SummaryRecord,
    TurnRecord,
)
from app.conversations.stores import conversation_store, turn_list_store
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.turns.verify import content_holds
from app.conversations.views import turn_view
from app.core.database.transactions import Transaction
from app.core.errors import FieldError
from app.core.ids import ConversationId
from app.core.times import truncate_ms
from app.formats.schemas import JsonObject, Kind, kind_of
from app.index.schemas import EntryKind, IndexDocument, IndexEntry
from app.index.service import SearchIndex
from app.settings.conversations import LimitSettings
from app.tenancy.schemas import Caller
from app.tenancy.service import Tenancy

BATCH_TURNS = 200
BATCH_BYTES = 2 * 2**20
_ANALYSED = 200
MAX_RESERVED = 1_000_000
"""How far the position of a turn may be after its seq: open turns may have reserved positions before it."""
_NOT_SEARCHED = frozenset({Kind.SYSTEM_INSTRUCTION.value, Kind.COMPACTION.value})
_NEEDED = (
    "id", "seq", "position", "rev", "kind", "actor", "content_tokens", "created_at", "occurred_at", "content_hash",
    "chain_hash",
)  # fmt: skip
_CONTENT = ("content", "tool_calls", "tool_results", "usage", "metadata", "response")

Children = AsyncIterator[tuple[int, TurnRecord | SummaryRecord, int]]
"""The records of a conversation: the number of the line, the record, the size of the line in bytes."""


class NotExactError(Exception):
    """The records cannot keep their ids and hashes: an id is taken, or the chain does not verify."""


class ConversationRestorer:
    """Writer of records of conversations."""

    def __init__(
        self, *, tenancy: Tenancy, index: SearchIndex, publisher: EventPublisher, limits: LimitSettings,
        session_gap_s: int,
    ) -> None:  # fmt: skip
        self._quotas = tenancy.quotas
        self._limits = limits
        self._index = index
        self._publisher = publisher
        self._gap = timedelta(seconds=session_gap_s)

    @property
    def has_vectors(self) -> bool:
        """Return whether turns wait for vectors."""
        return self._index.spaces.current.embedder is not None

    async def restore(
        self, caller: Caller, tx: Transaction, record: ConversationRecord, line: int, children: Children
    ) -> RestoredConversation:
        """Store a conversation exactly. Raises NotExactError; RecordRefusedError."""
        conversation = _exact(record, line)
        conversation_id = ConversationId(conversation.id)
        existing = RestoredConversation(ConversationOutcome.EXISTING, conversation_id, 0, 0)
        if await self._exists(caller, tx, conversation):
            return existing
        if not await store.insert_conversation(tx, caller.tenant_id, conversation_id, conversation):
            # another import may have stored it since: the insert waited for that
            if await self._exists(caller, tx, conversation):
                return existing
            raise NotExactError
        walk = _RestoredChain(conversation.chain_start or GENESIS, self._limits)
        turns = summaries = 0
        async for batch in batches(children):
            added = [(at, one) for at, one in batch if isinstance(one, TurnRecord)]
            if added:
                rows = await asyncio.to_thread(walk.rows, conversation, added, has_vectors=self.has_vectors)
                await self.insert(caller, tx, rows)
                await self.insert_responses(caller, tx, recorded_responses(zip(rows, added, strict=True)))
                turns += len(rows)
            made = [summary_row(one) for _, one in batch if isinstance(one, SummaryRecord)]
            if made and not await store.insert_summaries(tx, caller.tenant_id, conversation_id, made):
                raise NotExactError
            summaries += len(made)
        if (walk.seq, walk.chain) != (conversation.last_seq, conversation.chain_hash):
            raise NotExactError
        await self.finish(caller, tx, conversation, line=line, after_seq=0)
        return RestoredConversation(ConversationOutcome.RESTORED, conversation_id, turns, summaries)

    async def _exists(self, caller: Caller, tx: Transaction, conversation: ExportedConversation) -> bool:
        """Return whether the conversation is stored with this chain. Raises NotExactError if its id is taken."""
        conversation_id = ConversationId(conversation.id)
        if await store.is_deleting(tx, caller.tenant_id, conversation_id):
            raise NotExactError
        exists, stored = await store.find_hash_at(tx, caller.tenant_id, conversation_id, seq=conversation.last_seq)
        if exists and stored != conversation.chain_hash:
            raise NotExactError
        return exists

    async def insert(self, caller: Caller, tx: Transaction, rows: Sequence[TurnRow]) -> None:
        """Insert turns. Raises NotExactError if an id is taken."""
        ids = [row.id for row in rows]
        if len(set(ids)) < len(ids) or await store.filter_known(tx, caller.tenant_id, ids):
            raise NotExactError
        await conversation_store.insert_turns(tx, caller.tenant_id, rows)
        self._quotas.count(tx, caller.tenant_id, turns=len(rows), size=sum(map(_stored_bytes, rows)))

    async def insert_responses(self, caller: Caller, tx: Transaction, rows: Sequence[ResponseRow]) -> None:
        """Insert the responses of turns that were inserted."""
        for row in rows:
            await response_store.insert(tx, caller.tenant_id, row)
            self._quotas.count(tx, caller.tenant_id, size=len(row.request.encode()))

    async def finish(
        self, caller: Caller, tx: Transaction, conversation: ExportedConversation, *, line: int, after_seq: int
    ) -> None:
        """Check the links of the turns, index those after a seq, and write the counters of the head."""
        conversation_id = ConversationId(conversation.id)
        if await store.has_wrong_links(tx, caller.tenant_id, conversation_id, through=conversation.summarized_through):
            raise RecordRefusedError(line, [FieldError("", "Its turns have wrong links, or two share a position.")])
        counters = await self._index_turns(caller, tx, conversation, after_seq=after_seq)
        await self._index_summaries(caller, tx, conversation)
        await store.update_counters(tx, caller.tenant_id, conversation_id, counters)
        if conversation.facts and cast_bool(conversation.facts, "enabled"):
            await self._index.write(caller, tx, entries=[], also=[facts_job(conversation_id)])
        self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=conversation.rev)

    async def _index_turns(
        self, caller: Caller, tx: Transaction, conversation: ExportedConversation, *, after_seq: int
    ) -> HeadCounters:
        """Write the entries of live turns after a seq; sessions and positions follow from all live turns."""
        after = position = session = 0
        last: datetime | None = None
        language: str | None = None
        conversation_id = ConversationId(conversation.id)
        while True:
            found = await turn_list_store.list_turns(
                tx, caller.tenant_id, conversation_id, newest_first=False, after=after,
                limit=_ANALYSED, max_bytes=BATCH_BYTES,
            )  # fmt: skip
            if not found.rows:
                return HeadCounters(session, last, language)
            due: list[tuple[TurnRow, int, int]] = []
            for row in found.rows:
                position += 1
                session += last is None or abs(row.occurred_at - last) > self._gap
                last = row.occurred_at
                if row.index_state != "none" and (row.seq or 0) > after_seq:
                    due.append((row, position, session))
            language = await self._write_entries(caller, tx, conversation, due, language=language)
            after = found.rows[-1].position or 0

    async def _write_entries(
        self,
        caller: Caller,
        tx: Transaction,
        conversation: ExportedConversation,
        due: Sequence[tuple[TurnRow, int, int]],
        *,
        language: str | None,
    ) -> str | None:
        """Write the entries of turns; return the language of the last one that shows it, `language` before them."""
        if not due:
            return language
        documents = [IndexDocument(plain_text(turn_view(row)), row.actor, row.occurred_at) for row, _, _ in due]
        prepared = await self._index.prepare(caller, documents, deferred=True)
        entries = [
            IndexEntry(
                source_id=row.id, kind=EntryKind.TURN, conversation_id=ConversationId(conversation.id),
                project=conversation.project, owner=conversation.owner, agent_id=None, actor=row.actor, role=row.role,
                position=position, session=session, occurred_at=row.occurred_at, metadata=row.metadata or "{}",
                prepared=one,
            )
            for (row, position, session), one in zip(due, prepared, strict=True)
        ]  # fmt: skip
        settled, language = self._index.inherit_languages(entries, before=language)
        await self._index.write(caller, tx, entries=settled)
        return language

    async def _index_summaries(self, caller: Caller, tx: Transaction, conversation: ExportedConversation) -> None:
        """Write the entries of valid summaries of a model that have none."""
        after: tuple[int, UUID] | None = None
        conversation_id = ConversationId(conversation.id)
        while True:
            rows = await store.list_unindexed_summaries(
                tx, caller.tenant_id, conversation_id, after=after, limit=_ANALYSED
            )
            if not rows:
                return
            documents = [IndexDocument(row.text or "", "", row.created_at) for row in rows]
            prepared = await self._index.prepare(caller, documents, deferred=True)
            entries = [
                IndexEntry(
                    source_id=row.id, kind=EntryKind.SUMMARY, conversation_id=conversation_id,
                    project=conversation.project, owner=conversation.owner, agent_id=None, actor=None, role=None,
                    position=None, session=None, occurred_at=row.created_at, metadata="{}",
                    # a job for vectors reads only turns; the backfill finds the others
                    prepared=replace(one, vectors_due=False, dates_due=False),
                )
                for row, one in zip(rows, prepared, strict=True)
            ]  # fmt: skip
            await self._index.write(caller, tx, entries=entries)
            after = (rows[-1].to_position, rows[-1].id)


class _RestoredChain:
    """The hash chain of the records of a conversation, followed from its start."""

    def __init__(self, start: bytes, limits: LimitSettings) -> None:
        self.chain = start
        self.seq = 0
        self._limits = limits

    def rows(
        self, conversation: ExportedConversation, records: Sequence[tuple[int, TurnRecord]], *, has_vectors: bool
    ) -> list[TurnRow]:
        """Return the rows of the next records. Raises NotExactError, RecordRefusedError."""
        rows: list[TurnRow] = []
        for line, record in records:
            _require(record, line)
            require_content(record, line, self._limits)
            row = turn_row(conversation, record, has_vectors=has_vectors)
            if row.status == "committed":
                self._follow(row)
            rows.append(row)
        return rows

    def _follow(self, row: TurnRow) -> None:
        is_kept = row.erased_at is None and row.content_hash is not None
        if row.seq != self.seq + 1 or (is_kept and not content_holds(row)):
            raise NotExactError
        self.seq += 1
        self.chain = chain_hash(
            self.chain, turn_id=row.id, seq=self.seq, role=row.role, kind=row.kind, created_at=row.created_at,
            content=row.content_hash or b"",
        )  # fmt: skip
        if self.chain != row.chain_hash:
            raise NotExactError


async def batches(children: Children) -> AsyncIterator[list[tuple[int, TurnRecord | SummaryRecord]]]:
    """Yield the records in groups that are bounded in number and bytes."""
    batch: list[tuple[int, TurnRecord | SummaryRecord]] = []
    size = 0
    async for line, record, line_bytes in children:
        batch.append((line, record))
        size += line_bytes
        if len(batch) >= BATCH_TURNS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def require_content(record: TurnRecord, line: int, limits: LimitSettings) -> None:
    """Refuse a turn that is larger than an append stores, and content of an erased turn: no hash covers it."""
    if record.erased_at is not None:
        kept = [name for name in _CONTENT if getattr(record, name)]
        wrong = [FieldError(f"/{name}", "an erased turn has no content") for name in kept]
    else:
        wrong = content_errors(record, limits=limits)
    if wrong:
        raise RecordRefusedError(line, wrong)


def _require(record: TurnRecord, line: int) -> None:
    needed = _NEEDED if record.status == "committed" else ("id", "rev", "created_at", "occurred_at")
    missing = [FieldError(f"/{name}", "This is required.") for name in needed if getattr(record, name) is None]
    if record.status == "committed":
        if (record.position or 0) > (record.seq or 0) + MAX_RESERVED:
            missing.append(FieldError("/position", f"at most {MAX_RESERVED} after its seq"))
    elif record.seq is not None:
        missing.append(FieldError("/seq", "only a committed turn has a seq"))
    if missing:
        raise RecordRefusedError(line, missing)


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def cast_bool(policy: object, name: str) -> bool:
    """Return a flag of a policy."""
    return isinstance(policy, dict) and bool(policy.get(name))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def turn_row(conversation: ExportedConversation, record: TurnRecord, *, has_vectors: bool) -> TurnRow:
    """Return the row of a complete record."""
    kind = (record.kind or kind_of(record.role, calls=bool(record.tool_calls))).value
    is_live = record.status == "committed" and record.superseded_by is None and record.erased_at is None
    searched = is_live and kind not in _NOT_SEARCHED and bool(plain_text(record).strip())
    created_at = truncate_ms(record.created_at or conversation.created_at)
    return TurnRow(
        id=record.id or UUID(int=0),
        conversation_id=conversation.id,
        seq=record.seq,
        position=record.position,
        rev=min(record.rev or 0, conversation.rev),
        kind=kind,
        actor=record.actor or record.role.value,
        role=record.role.value,
        content=None if record.content is None else _dumped(record.content),
        tool_calls=_dumped(record.tool_calls) if record.tool_calls else None,
        tool_call_id=record.tool_call_id,
        tool_results=_dumped(record.tool_results) if record.tool_results else None,
        usage=None if record.usage is None else _dumped(record.usage),
        content_tokens=record.content_tokens or 0,
        model=record.model,
        adapter=record.adapter,
        status=record.status,
        superseded_by=record.superseded_by,
        supersedes=record.supersedes,
        origin_turn_id=record.origin_turn_id,
        metadata=_dumped(record.metadata) if record.metadata else None,
        occurred_at=truncate_ms(record.occurred_at or created_at),
        created_at=created_at,
        committed_at=None if record.committed_at is None else truncate_ms(record.committed_at),
        salt=None if record.salt is None else bytes.fromhex(record.salt),
        content_hash=None if record.content_hash is None else bytes.fromhex(record.content_hash),
        chain_hash=None if record.chain_hash is None else bytes.fromhex(record.chain_hash),
        index_state="none" if not searched else "pending" if has_vectors else "indexed",
        erased_at=None if record.erased_at is None else truncate_ms(record.erased_at),
    )


def recorded_responses(
    pairs: Iterable[tuple[TurnRow, tuple[int, TurnRecord]]], turn_id: Callable[[UUID], UUID] = lambda known: known
) -> list[ResponseRow]:
    """Return the responses in the records of turns. `turn_id` returns the stored id of a turn of the file."""
    return [
        ResponseRow(
            turn_id=row.id,
            conversation_id=row.conversation_id,
            previous_turn_id=None if given.previous_turn_id is None else turn_id(given.previous_turn_id),
            input_turn_ids=[turn_id(one) for one in given.input_turn_ids],
            owns_conversation=given.owns_conversation,
            request=_dumped(given.request),
            created_at=truncate_ms(given.created_at),
        )
        for row, (_, record) in pairs
        if (given := record.response) is not None
    ]


def _exact(record: ConversationRecord, line: int) -> ExportedConversation:
    needed = ("id", "last_seq", "head_hash", "rev", "created_at", "updated_at", "active_at")
    missing = [FieldError(f"/{name}", "This is required.") for name in needed if getattr(record, name) is None]
    if missing:
        raise RecordRefusedError(line, missing)
    return conversation_row(record)


def conversation_row(record: ConversationRecord) -> ExportedConversation:
    """Return the row of a complete record."""
    created_at = truncate_ms(record.created_at or datetime.now(UTC))
    title, summarized = record.derived_title, record.summarized
    return ExportedConversation(
        id=record.id or UUID(int=0),
        project=record.project,
        external_id=record.external_id,
        owner=record.owner,
        title=record.title,
        derived_title=None if title is None else title.text,
        derived_title_source=None if title is None else title.source,
        derived_title_turn_ids=None if title is None else title.turn_ids,
        derived_title_model=None if title is None else title.model,
        participants=_objects([one.model_dump(exclude_unset=True) for one in record.participants]),
        tools=_objects([one.model_dump(exclude_unset=True) for one in record.tools]),
        metadata=record.metadata,
        retention=record.retention.value,
        compaction=record.compaction.model_dump(exclude_unset=True),
        facts=record.facts.model_dump(exclude_unset=True),
        ttl_s=record.ttl_s,
        expires_at=None if record.expires_at is None else truncate_ms(record.expires_at),
        created_at=created_at,
        updated_at=truncate_ms(record.updated_at or created_at),
        active_at=truncate_ms(record.active_at or created_at),
        forked_from=record.forked_from,
        chain_start=None if record.chain_start is None else bytes.fromhex(record.chain_start),
        archived=record.archived,
        pinned=record.pinned,
        token_epoch=record.token_epoch,
        last_seq=record.last_seq or 0,
        chain_hash=GENESIS if record.head_hash is None else bytes.fromhex(record.head_hash),
        rev=record.rev or 0,
        summarized_through=None if summarized is None else summarized.turn_id,
        summarized_position=0 if summarized is None else summarized.position,
        summarized_turns=0 if summarized is None else summarized.turns,
        summarized_tokens=0 if summarized is None else summarized.tokens,
        erased_position=record.erased_position,
        facts_seq=record.facts_seq,
        facts_rev=record.facts_rev,
        facts_held=record.facts_held,
    )


def _objects(items: Sequence[JsonObject]) -> list[JsonObject]:
    return list(items)


def summary_row(record: SummaryRecord) -> ExportedSummary:
    """Return the row of a summary, with the ids and the rev of its record."""
    lines: list[list[JsonValue]] = [[str(line.turn_id), line.text, line.tokens] for line in record.lines]
    return ExportedSummary(
        id=record.id,
        kind=record.kind.value,
        level=record.level,
        from_position=record.from_position,
        to_position=max(record.to_position, record.from_position),
        actors=record.actors,
        text=record.text,
        abstract=record.abstract,
        lines=lines,
        tokens=record.tokens,
        model=record.model,
        prompt_version=record.prompt_version,
        refused_for=record.refused_for,
        doubtful=[[one.start, one.end, one.reason] for one in record.doubtful],
        replaced_by=record.replaced_by,
        rev=record.rev,
        created_at=truncate_ms(record.created_at),
    )


def _stored_bytes(row: TurnRow) -> int:
    stored = (row.content, row.tool_calls, row.tool_results, row.metadata)
    return sum(len(text.encode()) for text in stored if text is not None)
