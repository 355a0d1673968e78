"""Stores turns in the transaction of the caller: prepares them with no transaction open, then writes turns and head.

The head is locked before any lookup, so that the rows found stay valid until the commit.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record, single
from app.conversations.derived_titles import DerivedTitles, title_of_new
from app.conversations.drafts import Draft
from app.conversations.events import EventPublisher
from app.conversations.hash_chain import content_hash, new_salt
from app.conversations.policies import facts_job
from app.conversations.schemas.append import IndexTime
from app.conversations.stores import conversation_store, turn_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.summaries.invalidation import compact_job, is_due
from app.conversations.turns.placement import PlacedTurns, PreparedTurn, is_searchable, new_participants, place
from app.core.database.transactions import Transaction
from app.core.errors import Conflict, FieldError, Invalid
from app.core.ids import ConversationId
from app.core.outbox import EventType
from app.core.threads import map_in_threads
from app.formats.schemas import Role, TokenCounter
from app.index.schemas import IndexDocument
from app.index.service import SearchIndex
from app.tenancy.schemas import Caller
from app.tenancy.service import Tenancy

_UNCALLED: Final = (
    "No turn before it made this call. Send the assistant's message that made it before the result, or leave the"
    " result out."
)


class TurnWriter:
    """Stores new turns with their index entries, in the caller's transactions."""

    def __init__(
        self,
        *,
        tenancy: Tenancy,
        index: SearchIndex,
        counter: TokenCounter,
        session_gap_s: int,
        publisher: EventPublisher,
        titles: DerivedTitles,
    ) -> None:
        self._quotas = tenancy.quotas
        self._index = index
        self._counter = counter
        self._session_gap_s = session_gap_s
        self._publisher = publisher
        self._titles = titles

    def require_quota(self, caller: Caller) -> None:
        """Raise RateLimited `quota_exhausted` if the tenant may store no more today. For new turns, not for commits."""
        self._quotas.require(caller)

    async def prepare_turns(
        self, caller: Caller, drafts: Sequence[Draft], *, vectors: IndexTime = IndexTime.NOW
    ) -> list[PreparedTurn]:
        """Count tokens, hash the stored fields and prepare the index entries, with no transaction open."""
        worked = await map_in_threads(self._count_and_hash, drafts, size=lambda draft: draft.size)
        now = datetime.now(UTC)
        documents = [
            IndexDocument(draft.text, draft.actor, draft.occurred_at or now) for draft in drafts if is_searchable(draft)
        ]
        prepared = iter(await self._index.prepare(caller, documents, deferred=vectors is IndexTime.DEFERRED))
        return [
            PreparedTurn(draft, salt, hashed, count, next(prepared) if is_searchable(draft) else None)
            for draft, (count, salt, hashed) in zip(drafts, worked, strict=True)
        ]

    def _count_and_hash(self, draft: Draft) -> tuple[int, bytes, bytes]:
        salt = new_salt()
        return self._counter.count(draft.text), salt, content_hash(salt, draft.form(with_time=True))

    async def write_last(
        self,
        caller: Caller,
        tx: Transaction,
        head: ConversationRow,
        prepared: Sequence[PreparedTurn],
        *,
        position: int | None = None,
    ) -> PlacedTurns:
        """Store turns as the newest of a conversation, under the lock of its head; one turn at a reserved position."""
        placed = place(head, prepared, session_gap_s=self._session_gap_s)
        if position is not None:
            placed = replace(placed, rows=[row._replace(position=position) for row in placed.rows])
        await self.write(caller, tx, head, placed, [item.draft for item in prepared])
        return placed

    async def write(
        self, caller: Caller, tx: Transaction, head: ConversationRow, placed: PlacedTurns, drafts: Sequence[Draft]
    ) -> None:
        """Store placed turns and their index entries under the lock of the head, and update the head."""
        conversation_id = ConversationId(head.id)
        await conversation_store.insert_turns(tx, caller.tenant_id, placed.rows)
        due = is_due(head, turns=placed.turn_count, tokens=placed.token_count)
        also = [compact_job(conversation_id)] if due else []
        if head.facts.get("enabled"):
            also.append(facts_job(conversation_id))
        title = await title_of_new(caller, tx, head, placed.rows, drafts)
        also.extend(self._titles.due(head, drafts, title))
        entries, language = self._index.inherit_languages(placed.entries, before=head.language)
        await self._index.write(caller, tx, entries=entries, also=also)
        owner = await conversation_store.update_head(
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
            language=language,
            updated_at=placed.at,
        )
        if owner is not None and owner != head.owner:  # the owner was set while this append waited for the lock
            await self._index.set_owner(caller, tx, conversation_id=conversation_id, owner=owner)
        speakers, tools = new_participants(head, placed.rows)
        is_stale = placed.at - head.listed_at >= conversation_store.ACTIVITY_GRAIN
        if speakers or tools or is_stale or title is not None:
            await conversation_store.update_activity(
                tx,
                caller.tenant_id,
                conversation_id,
                active_at=placed.at if is_stale else head.listed_at,
                participants=speakers,
                tools=tools,
                title=title,
            )
        self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=placed.rev)
        self._publisher.outbox.record(
            tx, caller.tenant_id, EventType.TURN_COMMITTED, turn_ids(placed.rows), conversation_id=conversation_id
        )
        size = sum(row.stored_bytes for row in placed.rows)
        self._quotas.count(tx, caller.tenant_id, turns=len(placed.rows), size=size)


def record_turns(tx: Transaction, caller: Caller, action: Action, rows: Sequence[TurnRow]) -> None:
    """Record in the audit that turns of one conversation were stored."""
    newest_row = rows[-1]
    record(
        tx,
        caller,
        action,
        ObjectKind.TURN,
        single(turn_ids(rows)),
        conversation_id=newest_row.conversation_id,
        seqs=(rows[0].seq or 0, newest_row.seq or 0),
        head_hash=newest_row.chain_hash,
        counts={"turns": len(rows)},
    )


def turn_ids(rows: Sequence[TurnRow]) -> list[UUID]:
    """Return the ids of turns."""
    return [row.id for row in rows]


def require_seq(head: ConversationRow, expected_seq: int | None) -> None:
    """Raise Conflict `conversation_advanced` if the conversation is not at `expected_seq`."""
    if expected_seq is not None and expected_seq != head.last_seq:
        raise Conflict(
            "conversation_advanced",
            "The conversation is not at the expected seq; read on from it and decide again.",
            fields=[FieldError("/expected_seq", "not the conversation's seq")],
            extra={"seq": head.last_seq},
        )


def require_unerased(row: TurnRow, conversation_id: ConversationId, pointer: str) -> None:
    """Raise Conflict `turn_erased` if a turn that is sent again was erased: it stays erased."""
    if row.conversation_id == conversation_id and row.erased_at is not None:
        raise Conflict(
            "turn_erased",
            "A turn of this id was stored and has been erased since; nothing was stored.",
            fields=[FieldError(pointer, "the turn of this id is erased")],
        )


async def check_answers(
    caller: Caller,
    tx: Transaction,
    conversation_id: ConversationId,
    prepared: Sequence[PreparedTurn],
    *,
    root: str | None = None,
    before: int | None = None,
    stored: Collection[UUID] = (),
    of_history: Collection[UUID] = (),
) -> None:
    """Raise Invalid unless every tool result answers an earlier call, and only once.

    The call is in this append or in a live turn. `root`: the JSON pointer of a turn that is not in a list. `before`:
    the position that this turn takes. `stored`: ids of turns that are already stored and are sent again. `of_history`:
    ids of turns whose results are stored without a call, too. The codes are `tool_call_unknown` and
    `tool_call_answered`.
    """
    ids = {call_id for item in prepared for call_id in item.draft.answered_ids}
    if not ids:
        return
    is_answered = await turn_store.find_calls(tx, caller.tenant_id, conversation_id, sorted(ids), before=before)
    uncalled: list[FieldError] = []
    answered: list[FieldError] = []
    for turn_number, item in enumerate(prepared):
        if item.draft.id in stored:
            continue
        for number, call_id in enumerate(item.draft.answered_ids):
            at = "tool_call_id" if item.draft.columns["tool_call_id"] else f"tool_results/{number}/tool_call_id"
            pointer = f"{f'/turns/{turn_number}' if root is None else root}/{at}"
            if item.draft.id in of_history:
                is_answered[call_id] = True
            elif call_id not in is_answered:
                uncalled.append(FieldError(pointer, _UNCALLED))
            elif is_answered[call_id]:
                answered.append(FieldError(pointer, "This call has a result already. Leave this one out."))
            else:
                is_answered[call_id] = True
        is_answered.update(dict.fromkeys(item.draft.call_ids, False))
    if uncalled:
        raise Invalid("tool_call_unknown", "A tool result has no call; nothing was stored.", fields=uncalled)
    if answered:
        raise Invalid("tool_call_answered", "A tool call has one result; nothing was stored.", fields=answered)


def results_of_history(messages: Sequence[Draft]) -> list[UUID]:
    """Return the ids of those tool turns of a request that other messages follow.

    A client that sends its history cannot change it. So a result without a call is stored there, and no model is shown
    it; the results at the end of a request must have calls, because the answer is about them.
    """
    newest = max((at for at, draft in enumerate(messages) if draft.role is not Role.TOOL), default=-1)
    return [draft.id for draft in messages[: newest + 1] if draft.role is Role.TOOL and draft.id is not None]


def same_turn(row: TurnRow, draft: Draft, conversation_id: ConversationId) -> bool:
    """Return whether a stored turn has the same content as a draft, which a repeated id requires."""
    if row.conversation_id != conversation_id or row.salt is None:
        return False
    return content_hash(row.salt, draft.form(with_time=draft.counts_time(row.created_at))) == row.content_hash
