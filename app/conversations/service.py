"""Conversations and their turns: create, read, change, append.

What always holds: seq is gapless in commit order (the head's row lock serialises appends of one conversation), an
append is stored whole or not at all, every turn extends the hash chain and is in the search index in the same
transaction, and a repeated turn id or Idempotency-Key stores nothing twice.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

from app.conversations import store
from app.conversations.appending import Incoming, Placed, is_searchable, new_participants, place
from app.conversations.chain import GENESIS, content_hash
from app.conversations.drafts import Draft, DraftLimits, make_drafts
from app.conversations.schemas import (
    MAX_PARTICIPANTS,
    AppendResult,
    CompactionIn,
    Conversation,
    ConversationCreate,
    ConversationFilter,
    ConversationUpdate,
    Participant,
    Turn,
    TurnInput,
)
from app.conversations.store import ConversationRow, TurnRow
from app.conversations.views import canonical_turn, conversation_view, turn_view
from app.core.db import Database, Transaction
from app.core.errors import Busy, Conflict, FieldError, Invalid, NotFound
from app.core.ids import ConversationId, TurnId, format_id, new_uuid
from app.core.paging import Cursors, Key, Page, make_page
from app.formats.schemas import CanonicalTurn, JsonObject
from app.index.schemas import Document
from app.index.service import SearchIndex
from app.providers.schemas import TokenCounter
from app.tenancy.schemas import Caller, Repeatable, Replay
from app.tenancy.service import Tenancy

_TOUCH_AFTER = timedelta(minutes=1)
_COUNT_IN_THREAD_CHARACTERS = 20_000
_NO_CONVERSATION = "There is no such conversation."
_CREATED, _OK = 201, 200

Order = Literal["asc", "desc"]


@dataclass(frozen=True, slots=True)
class ConversationOptions:
    """Settings of conversations."""

    limits: DraftLimits
    session_gap_s: int
    compaction_trigger_turns: int
    compaction_trigger_tokens: int
    default_ttl_s: int | None


@dataclass(frozen=True, slots=True)
class Recent:
    """The newest live turns of a conversation, oldest first, and the seq it stood at."""

    turns: Sequence[CanonicalTurn]
    seq: int
    participants: Sequence[Participant]
    more_before: bool


class Conversations:
    """The door to conversations and turns."""

    def __init__(
        self,
        database: Database,
        *,
        tenancy: Tenancy,
        index: SearchIndex,
        counter: TokenCounter,
        cursors: Cursors,
        options: ConversationOptions,
    ) -> None:
        self._database = database
        self._tenancy = tenancy
        self._index = index
        self._counter = counter
        self._cursors = cursors
        self._options = options

    # conversations

    async def create(
        self, caller: Caller, *, body: ConversationCreate, repeat: Repeatable | None
    ) -> tuple[Conversation, bool, bool]:
        """Create, or get the one that has this id or external id. Says whether it was created, and replayed."""
        async with self._database.transaction(caller.tenant_id) as tx:
            if repeat is not None:
                replay = await self._tenancy.claim(caller, tx, request=repeat)
                if replay is not None:
                    row = await _get(caller, tx, ConversationId(replay.result_ids[0]))
                    return conversation_view(row), replay.status == _CREATED, True
            row, created = await self._get_or_create(caller, tx, body)
            if repeat is not None:
                status = _CREATED if created else _OK
                await self._tenancy.remember(caller, tx, request=repeat, status=status, result_ids=[row.id])
        return conversation_view(row), created, False

    async def _get_or_create(
        self, caller: Caller, tx: Transaction, body: ConversationCreate
    ) -> tuple[ConversationRow, bool]:
        self._check_metadata(body.metadata)
        created = await store.insert_conversation(
            tx,
            caller.tenant_id,
            conversation_id := ConversationId(body.id or new_uuid()),
            project=body.project,
            external_id=body.external_id,
            owner=body.owner,
            title=body.title,
            participants=_participants(body.participants),
            metadata=body.metadata,
            retention=body.retention.value,
            compaction=self._compaction(body.compaction),
            facts=body.facts.model_dump(),
            ttl_s=self._options.default_ttl_s if body.ttl_s is None else body.ttl_s,
            genesis=GENESIS,
        )
        row = None
        if created or body.id is not None:
            row = await store.find_conversation(tx, caller.tenant_id, conversation_id)
        if row is None and body.external_id is not None:
            row = await store.find_by_external_id(tx, caller.tenant_id, body.project, body.external_id)
        if row is None:
            raise Busy("resource_busy", "This conversation is being deleted right now; send it again.")
        asked = (body.id or row.id, body.external_id or row.external_id, body.project)
        if asked != (row.id, row.external_id, row.project if body.external_id else body.project):
            raise Conflict(
                "conversation_conflict",
                "A conversation exists that has this id or external_id, but not both as given.",
                fields=[FieldError("/external_id", "belongs to another conversation than id")],
            )
        return row, created

    def _check_metadata(self, metadata: JsonObject) -> None:
        limit = self._options.limits.max_metadata_bytes
        if len(json.dumps(metadata, ensure_ascii=False, separators=(",", ":")).encode()) > limit:
            raise Invalid(
                "invalid_request",
                "The metadata is too large.",
                fields=[FieldError("/metadata", f"over {limit} bytes as JSON")],
            )

    def _compaction(self, given: CompactionIn, current: JsonObject | None = None) -> JsonObject:
        base: JsonObject = current or {
            "strategy": "rolling",
            "trigger_turns": self._options.compaction_trigger_turns,
            "trigger_tokens": self._options.compaction_trigger_tokens,
            "summarizer_model": None,
        }
        return {**base, **given.model_dump(exclude_none=True)}

    async def get(self, caller: Caller, conversation_id: ConversationId) -> Conversation:
        """One conversation."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            return conversation_view(await _get(caller, tx, conversation_id))

    async def list_conversations(
        self, caller: Caller, *, where: ConversationFilter, order: Order, limit: int, cursor: str | None
    ) -> Page[Conversation]:
        """Conversations by latest activity."""
        scope = f"conversations|{caller.tenant_id}|{order}|{where!r}"
        after: tuple[datetime, UUID] | None = None
        if cursor is not None:
            moment, last_id = self._cursors.read(scope, cursor)
            after = (datetime.fromisoformat(str(moment)), UUID(str(last_id)))
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            rows = await store.list_conversations(
                tx, caller.tenant_id, where=where, newest_first=order == "desc", after=after, limit=limit + 1
            )
        page = make_page(rows, limit=limit, cursors=self._cursors, scope=scope, key=_activity_key)
        return Page[Conversation](
            object="list",
            data=[conversation_view(row) for row in page.data],
            has_more=page.has_more,
            next_cursor=page.next_cursor,
        )

    async def update(
        self, caller: Caller, conversation_id: ConversationId, *, body: ConversationUpdate
    ) -> Conversation:
        """Change what was given; everything left out stays."""
        given = body.model_fields_set
        self._check_metadata(body.metadata)
        async with self._database.transaction(caller.tenant_id) as tx:
            row = await _lock(caller, tx, conversation_id)
            await store.update_conversation(
                tx,
                caller.tenant_id,
                conversation_id,
                title=body.title if "title" in given else row.title,
                participants=_participants(body.participants) if "participants" in given else row.participants,
                metadata=body.metadata if "metadata" in given else row.metadata,
                retention=body.retention.value if "retention" in given else row.retention,
                compaction=self._compaction(body.compaction, row.compaction),
                facts={**row.facts, **body.facts.model_dump(exclude_unset=True)},
                ttl_s=body.ttl_s if "ttl_s" in given else row.ttl_s,
            )
            return conversation_view(await _get(caller, tx, conversation_id))

    async def erase(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> dict[str, int]:
        """Delete a conversation and its turns, in the transaction of whoever erases."""
        return await store.delete_conversation(tx, caller.tenant_id, conversation_id)

    async def lock(self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId) -> None:
        """Hold a conversation until the transaction ends, so that nothing is appended meanwhile; NotFound without it."""
        await _lock(caller, tx, conversation_id)

    # turns

    async def append(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        turns: Sequence[TurnInput],
        expected_seq: int | None = None,
        repeat: Repeatable | None = None,
    ) -> tuple[AppendResult, bool, bool]:
        """Append turns, all or none. Says whether anything was stored now, and whether it is a replay by key.

        Raises Conflict `conversation_advanced` (with the current seq), `turn_id_conflict`, `idempotency_mismatch`;
        Invalid where a turn breaks a rule.
        """
        drafts = make_drafts(turns, limits=self._options.limits, now=datetime.now(UTC))
        if repeat is not None:
            async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
                replay = await self._tenancy.find_replay(caller, tx, request=repeat)
                if replay is not None:
                    return await self._replayed(caller, tx, replay), replay.status == _CREATED, True
        incoming = await self._work_out(drafts)
        async with self._database.transaction(caller.tenant_id) as tx:
            if repeat is not None:
                replay = await self._tenancy.claim(caller, tx, request=repeat)
                if replay is not None:
                    return await self._replayed(caller, tx, replay), replay.status == _CREATED, True
            rows, stored = await self._store(caller, tx, conversation_id, incoming, expected_seq)
            if repeat is not None:
                await self._tenancy.remember(
                    caller,
                    tx,
                    request=repeat,
                    status=_CREATED if stored else _OK,
                    result_ids=[row.id for row in rows],
                )
        return _append_result(rows), stored, False

    async def _work_out(self, drafts: Sequence[Draft]) -> list[Incoming]:
        """Count tokens and prepare the index, with no transaction open."""
        texts = [draft.text for draft in drafts]
        if sum(map(len, texts)) > _COUNT_IN_THREAD_CHARACTERS:
            counts = await asyncio.to_thread(lambda: [self._counter.count(text) for text in texts])
        else:
            counts = [self._counter.count(text) for text in texts]
        now = datetime.now(UTC)
        documents = [
            Document(draft.text, draft.actor, draft.occurred_at or now) for draft in drafts if is_searchable(draft)
        ]
        prepared = iter(await self._index.prepare(documents))
        return [
            Incoming(draft, count, next(prepared) if is_searchable(draft) else None)
            for draft, count in zip(drafts, counts, strict=True)
        ]

    async def _store(
        self,
        caller: Caller,
        tx: Transaction,
        conversation_id: ConversationId,
        incoming: Sequence[Incoming],
        expected_seq: int | None,
    ) -> tuple[list[TurnRow], bool]:
        head = await _lock(caller, tx, conversation_id)
        known = await self._known(caller, tx, conversation_id, incoming)
        fresh = [item for item in incoming if item.draft.id is None or item.draft.id not in known]
        placed: Placed | None = None
        if fresh:
            if expected_seq is not None and expected_seq != head.last_seq:
                raise Conflict(
                    "conversation_advanced",
                    "The conversation is not at the expected seq; read on from it and decide again.",
                    fields=[FieldError("/expected_seq", "not the conversation's seq")],
                    extra={"seq": head.last_seq},
                )
            await self._check_answers(caller, tx, conversation_id, incoming)
            placed = place(head, fresh, session_gap_s=self._options.session_gap_s)
            await self._write(caller, tx, head, placed, [item.draft for item in fresh])
        new_rows = iter(placed.rows if placed else ())
        rows = [
            known[item.draft.id] if item.draft.id is not None and item.draft.id in known else next(new_rows)
            for item in incoming
        ]
        return rows, placed is not None

    async def _write(
        self, caller: Caller, tx: Transaction, head: ConversationRow, placed: Placed, drafts: Sequence[Draft]
    ) -> None:
        conversation_id = ConversationId(head.id)
        await store.insert_turns(tx, caller.tenant_id, placed.rows)
        await self._index.write(caller, tx, entries=placed.entries)
        await store.update_head(
            tx,
            caller.tenant_id,
            conversation_id,
            last_seq=placed.last_seq,
            rev=placed.rev,
            turn_count=placed.turn_count,
            token_count=placed.token_count,
            chain_hash=placed.chain,
            session=placed.session,
            last_occurred_at=placed.last_occurred_at,
            updated_at=head.now,
        )
        participants = new_participants(head, drafts, at_most=MAX_PARTICIPANTS)
        if participants is not None or head.now - head.active_at >= _TOUCH_AFTER:
            await store.touch_conversation(
                tx,
                caller.tenant_id,
                conversation_id,
                active_at=head.now if head.now - head.active_at >= _TOUCH_AFTER else head.active_at,
                participants=head.participants if participants is None else participants,
            )

    async def _known(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, incoming: Sequence[Incoming]
    ) -> dict[UUID, TurnRow]:
        """Turns of this append that are stored already, by id; a different body under the same id is a Conflict."""
        ids = [item.draft.id for item in incoming if item.draft.id is not None]
        if not ids:
            return {}
        known = await store.find_turns(tx, caller.tenant_id, ids)
        wrong = [
            FieldError(f"/turns/{index}/id", "a turn of this id has another body, or is of another conversation")
            for index, item in enumerate(incoming)
            if item.draft.id in known and not _same(known[item.draft.id], item.draft, conversation_id)
        ]
        if wrong:
            raise Conflict("turn_id_conflict", "A turn id is taken by another turn; nothing was stored.", fields=wrong)
        return known

    async def _check_answers(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, incoming: Sequence[Incoming]
    ) -> None:
        """Every tool result answers a call made before it, in this append or in the conversation."""
        called: set[str] = set()
        open_questions: list[tuple[str, FieldError]] = []
        for index, item in enumerate(incoming):
            for number, call_id in enumerate(item.draft.answered_ids):
                if call_id not in called:
                    at = "tool_call_id" if item.draft.tool_call_id else f"tool_results/{number}/tool_call_id"
                    error = FieldError(f"/turns/{index}/{at}", "no turn before it made this call")
                    open_questions.append((call_id, error))
            called.update(item.draft.call_ids)
        if open_questions:
            ids = [call_id for call_id, _ in open_questions]
            earlier = await store.open_call_ids(tx, caller.tenant_id, conversation_id, ids)
            wrong = [error for call_id, error in open_questions if call_id not in earlier]
            if wrong:
                raise Invalid("tool_call_unknown", "A tool result has no call; nothing was stored.", fields=wrong)

    async def _replayed(self, caller: Caller, tx: Transaction, replay: Replay) -> AppendResult:
        rows = await store.find_turns(tx, caller.tenant_id, replay.result_ids)
        if len(rows) != len(replay.result_ids):
            raise NotFound("not_found", "What this Idempotency-Key made has been deleted since.")
        return _append_result([rows[turn_id] for turn_id in replay.result_ids])

    async def turn(self, caller: Caller, conversation_id: ConversationId, *, turn_id: TurnId) -> Turn:
        """One turn of a conversation."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            row = await store.find_turn(tx, caller.tenant_id, conversation_id, turn_id)
        if row is None:
            raise NotFound("not_found", "There is no such turn in this conversation.")
        return turn_view(row)

    async def history(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        order: Order,
        after: int | None,
        before: int | None,
        actors: Sequence[str] | None,
        limit: int,
        cursor: str | None,
    ) -> Page[Turn]:
        """Live turns in the order of their position, between two positions (both exclusive)."""
        scope = f"turns|{caller.tenant_id}|{conversation_id}|{order}|{after}|{before}|{actors!r}"
        newest_first = order == "desc"
        if cursor is not None:
            place_ = int(self._cursors.read(scope, cursor)[0])
            after, before = (after, place_) if newest_first else (place_, before)
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            rows = await store.list_turns(
                tx,
                caller.tenant_id,
                conversation_id,
                newest_first=newest_first,
                after=after,
                before=before,
                actors=actors,
                limit=limit + 1,
            )
            if not rows:
                await _get(caller, tx, conversation_id)
        page = make_page(rows, limit=limit, cursors=self._cursors, scope=scope, key=_position_key)
        return Page[Turn](
            object="list",
            data=[turn_view(row) for row in page.data],
            has_more=page.has_more,
            next_cursor=page.next_cursor,
        )

    # for recall and context

    async def recent(
        self, caller: Caller, conversation_id: ConversationId, *, limit: int, actors: Sequence[str] | None
    ) -> Recent:
        """The newest live turns as contexts see them. `actors` narrows; results of tools stay with their calls."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            head = await _get(caller, tx, conversation_id)
            rows = await store.list_turns(
                tx,
                caller.tenant_id,
                conversation_id,
                newest_first=True,
                after=None,
                # what was appended between the two statements belongs to the next context
                before=head.last_seq + 1,
                actors=actors,
                limit=limit + 1,
                with_tools=True,
            )
        participants = [Participant.model_validate(item) for item in head.participants]
        turns = [canonical_turn(row) for row in reversed(rows[:limit])]
        return Recent(turns, head.last_seq, participants, more_before=len(rows) > limit)

    async def participants(
        self,
        caller: Caller,
        *,
        conversation_ids: Sequence[UUID] | None,
        project: str | None,
        owner: str | None,
        limit: int,
    ) -> dict[UUID, list[Participant]]:
        """Who takes part in conversations of a scope, by conversation; the most recently active ones first."""
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            found = await store.list_participants(
                tx,
                caller.tenant_id,
                conversation_ids=conversation_ids,
                project=project,
                owner=owner,
                limit=limit,
            )
        return {key: [Participant.model_validate(item) for item in items] for key, items in found}

    async def hydrate(
        self, caller: Caller, tx: Transaction, *, turn_ids: Sequence[UUID]
    ) -> dict[UUID, tuple[Turn, CanonicalTurn]]:
        """Turns by id, for whoever found them, in that one's transaction."""
        rows = await store.find_turns(tx, caller.tenant_id, turn_ids)
        return {turn_id: (turn_view(row), canonical_turn(row)) for turn_id, row in rows.items()}

    async def neighbours(
        self, caller: Caller, tx: Transaction, *, places: Sequence[tuple[UUID, int]], reach: int
    ) -> list[Turn]:
        """Live turns around places (conversation, position), the places themselves included."""
        rows = await store.list_neighbours(tx, caller.tenant_id, places, reach)
        return [turn_view(row) for row in rows]


async def _get(caller: Caller, tx: Transaction, conversation_id: ConversationId) -> ConversationRow:
    row = await store.find_conversation(tx, caller.tenant_id, conversation_id)
    if row is None:
        raise NotFound("not_found", _NO_CONVERSATION)
    return row


async def _lock(caller: Caller, tx: Transaction, conversation_id: ConversationId) -> ConversationRow:
    row = await store.lock_conversation(tx, caller.tenant_id, conversation_id)
    if row is None:
        raise NotFound("not_found", _NO_CONVERSATION)
    return row


def _participants(given: Sequence[Participant]) -> list[JsonObject]:
    by_actor = {item.actor: item.model_dump() for item in given}
    return list(by_actor.values())


def _same(row: TurnRow, draft: Draft, conversation_id: ConversationId) -> bool:
    if row.conversation_id != conversation_id or row.salt is None:
        return False
    return content_hash(row.salt, draft.form(row.created_at)) == row.content_hash


def _append_result(rows: Sequence[TurnRow]) -> AppendResult:
    last = max(rows, key=lambda row: row.seq or 0)
    return AppendResult(
        conversation_id=format_id(last.conversation_id),
        turns=[turn_view(row) for row in rows],
        seq=last.seq or 0,
        rev=last.rev,
        head_hash=(last.chain_hash or b"").hex(),
    )


def _activity_key(row: ConversationRow) -> Key:
    return [row.active_at.isoformat(), str(row.id)]


def _position_key(row: TurnRow) -> Key:
    return [row.position or 0]
