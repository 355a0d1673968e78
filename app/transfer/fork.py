"""Forks a conversation: creates a new one with copies of its live turns up to one, with index entries and vectors.

The parent is locked while it is copied, so the fork is its state at one moment. The copies have their own salts and
hashes, and their chain starts at a chain hash of the parent. No text is embedded again. A later erasure in the parent
does not change the fork.

Turns that the parent's retention has erased are copied as tombstones, with their summaries. Otherwise the fork would
start in the middle of the conversation and not show it. Other tombstones, and summaries of turns with content, are not
copied.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.conversations.derived_titles import DerivedTitles
from app.conversations.events import EventPublisher
from app.conversations.find import (
    find_by_external_id,
    get_conversation,
    get_first_conversation,
    lock_conversation,
    refuse_trashed,
    require_owner,
)
from app.conversations.policies import require_small
from app.conversations.schemas.conversations import Conversation, ForkRequest, plain_text
from app.conversations.stores import conversation_store, summary_store, turn_list_store
from app.conversations.stores.conversation_store import CHANGEABLE, ConversationRow, TurnRow
from app.conversations.summaries.invalidation import update_summary_mark
from app.conversations.turns.hashes import TurnChain
from app.conversations.views import conversation_view_for, turn_view
from app.core.database.transactions import Database, Transaction
from app.core.errors import Busy, Conflict, FieldError, NotFound
from app.core.ids import ConversationId, TurnId, format_id, new_uuid
from app.core.outbox import EventType
from app.index.schemas import EntryKind
from app.index.service import SearchIndex
from app.settings.conversations import LimitSettings
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult
from app.tenancy.service import Tenancy
from app.transfer import restore_store
from app.transfer.conversation_writer import ConversationWriter
from app.transfer.restore_store import HeadCounters

_BATCH = 500
_BATCH_BYTES = 8 * 2**20
# a copy of a policy, not of a state of the parent
_COPIED = frozenset(CHANGEABLE) - {"archived", "pinned"}


class Forker:
    """The fork operation of conversations."""

    def __init__(
        self,
        database: Database,
        writer: ConversationWriter,
        *,
        tenancy: Tenancy,
        index: SearchIndex,
        publisher: EventPublisher,
        titles: DerivedTitles,
        limits: LimitSettings,
    ) -> None:
        self._database = database
        self._writer = writer
        self._publisher = publisher
        self._titles = titles
        self._idempotency = tenancy.idempotency
        self._quotas = tenancy.quotas
        self._index = index
        self._limits = limits

    async def fork(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        body: ForkRequest,
        idempotency_key: IdempotencyKey | None,
    ) -> RequestResult[Conversation]:
        """Fork a conversation, or return the fork of this id or external id.

        Raises NotFound, Invalid for metadata that is too large, and Conflict `already_superseded` (with the id of the
        live turn) or `conversation_conflict`.
        """
        require_small(body.metadata or {}, maximum=self._limits.max_metadata_bytes)
        async with self._database.transaction(caller.tenant_id) as tx:
            fork = await self._idempotency.run_once(
                caller,
                tx,
                idempotency_key,
                run=lambda: self._fork(caller, tx, conversation_id, body),
                result_ids=lambda row: [row.id],
                read=get_first_conversation,
            )
        return fork.with_value(conversation_view_for(caller, fork.value, external_id=body.external_id))

    async def _fork(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, body: ForkRequest
    ) -> RequestResult[ConversationRow]:
        await lock_conversation(caller, tx, conversation_id)
        # read only after the head is locked, so that no column is from before the lock
        parent = await get_conversation(caller, tx, conversation_id)
        fork_id = await self._insert(caller, tx, parent, body)
        is_new = fork_id is not None
        if fork_id is None:
            fork_id = await self._existing(caller, tx, parent, body)
        row = await get_conversation(caller, tx, fork_id)
        if is_new and row.title is None:
            await self._titles.renew(caller, tx, row)
            row = await get_conversation(caller, tx, fork_id)
        if is_new:
            record(
                tx,
                caller,
                Action.CONVERSATION_FORK,
                ObjectKind.CONVERSATION,
                fork_id,
                head_hash=row.chain_hash,
                counts={"turns": row.turn_count},
            )
            self._publisher.record_conversation(tx, caller.tenant_id, EventType.CONVERSATION_CREATED, fork_id)
        self._publisher.publish_changed(tx, caller.tenant_id, fork_id, rev=row.rev)
        return RequestResult(row, is_new)

    async def _insert(
        self, caller: Caller, tx: Transaction, parent: ConversationRow, body: ForkRequest
    ) -> ConversationId | None:
        """Insert the fork with its turns and return its id; None if its id or external id is taken."""
        newest = await self._last(caller, tx, parent, body)
        start = parent.chain_hash if newest is None else newest.chain_hash or b""
        fork_id = ConversationId(body.id or new_uuid())
        named = body.model_fields_set
        columns = {name: getattr(parent, name) for name in _COPIED} | {
            "id": fork_id,
            "project": parent.project,
            "external_id": body.external_id,
            "owner": caller.owner_of_new(parent.project, body.owner if "owner" in named else parent.owner),
            "title": body.title if "title" in named else parent.title,
            "metadata": parent.metadata if body.metadata is None else body.metadata,
            "forked_from": parent.id,
            "chain_start": start,
            "chain_hash": start,
        }
        if not await conversation_store.insert_conversation(tx, caller.tenant_id, columns):
            return None
        self._quotas.require(caller)
        await self._copy(caller, tx, parent, fork_id, through=None if newest is None else newest.position)
        return fork_id

    async def _last(
        self, caller: Caller, tx: Transaction, parent: ConversationRow, body: ForkRequest
    ) -> TurnRow | None:
        """Return the last turn to copy; None copies all. Raises NotFound, and Conflict if the turn is superseded."""
        parent_id = ConversationId(parent.id)
        if body.through is not None:
            row = await conversation_store.find_turn(tx, caller.tenant_id, parent_id, TurnId(body.through))
        elif body.through_seq is not None:
            row = await turn_list_store.find_by_seq(tx, caller.tenant_id, parent_id, body.through_seq)
        else:
            return None
        if row is None or row.status != "committed":
            at = "/through" if body.through is not None else "/through_seq"
            raise NotFound(
                "not_found",
                "There is no such turn in this conversation.",
                fields=[FieldError(at, "no turn of this conversation")],
            )
        if row.superseded_by is not None:
            raise Conflict(
                "already_superseded",
                "The turn has been superseded; fork at the turn that replaced it.",
                extra={"superseded_by": format_id(row.superseded_by)},
            )
        return row

    async def _existing(
        self, caller: Caller, tx: Transaction, parent: ConversationRow, body: ForkRequest
    ) -> ConversationId:
        """Return the fork that already has this id or external id, because the request was sent before.

        Raises Conflict if it is another conversation, and Busy if it is being deleted.
        """
        row: ConversationRow | None = None
        if body.id is not None:
            row = await conversation_store.find_conversation(tx, caller.tenant_id, ConversationId(body.id))
            if row is not None and not caller.reaches(row.project, row.owner):
                raise NotFound("not_found", "There is no such conversation.")
        if row is None and body.external_id is not None:
            row = await find_by_external_id(caller, tx, parent.project, body.external_id)
        if row is None:
            await refuse_trashed(
                caller, tx, conversation_id=body.id, project=parent.project, external_id=body.external_id
            )
            raise Busy("resource_busy", "This conversation is being deleted right now; send it again.", retry_after_s=1)
        same = (row.id, row.external_id) == (body.id or row.id, body.external_id or row.external_id)
        if not same or row.forked_from != parent.id:
            raise Conflict("conversation_conflict", "Another conversation has this id or external_id.")
        require_owner(row.owner, body.owner)
        return ConversationId(row.id)

    async def _copy(
        self,
        caller: Caller,
        tx: Transaction,
        parent: ConversationRow,
        fork_id: ConversationId,
        *,
        through: int | None,
    ) -> None:
        fork = await get_conversation(caller, tx, fork_id)
        chain, places, newest = TurnChain(fork.chain_hash), list[int](), None
        while True:
            page = await turn_list_store.list_turns(
                tx,
                caller.tenant_id,
                ConversationId(parent.id),
                newest_first=False,
                after=places[-1] if places else 0,
                before=None if through is None else through + 1,
                limit=_BATCH,
                max_bytes=_BATCH_BYTES,
                erased_through=parent.erased_position,
            )
            if not page.rows:
                break
            copies = await asyncio.to_thread(_copies, fork, page.rows, chain)
            await self._writer.insert_turns(caller, tx, copies)
            await self._copy_entries(caller, tx, fork, page.rows, copies)
            newest = copies[-1]
            places.extend(row.position or 0 for row in page.rows)
        if newest is not None:
            session = await self._index.session_around(caller, tx, conversation_id=fork_id, position=chain.seq + 1)
            counters = HeadCounters(session or 1, newest.occurred_at, parent.language)
            await restore_store.write_head(
                tx, caller.tenant_id, fork_id, chain=chain, rev=1, counters=counters, active_at=fork.created_at
            )
        if places and places[0] <= parent.erased_position:
            await self._copy_summaries(caller, tx, parent, fork, places)

    async def _copy_entries(
        self, caller: Caller, tx: Transaction, fork: ConversationRow, rows: Sequence[TurnRow], copies: Sequence[TurnRow]
    ) -> None:
        """Copy the index entries of turns."""
        pairs = [(row.id, copy.id, copy.position) for row, copy in zip(rows, copies, strict=True)]
        texts = {copy.id: plain_text(turn_view(copy)) for copy in copies}
        await self._index.copy(
            caller,
            tx,
            kind=EntryKind.TURN,
            conversation_id=ConversationId(fork.id),
            owner=fork.owner,
            pairs=pairs,
            texts=texts,
        )

    async def _copy_summaries(
        self, caller: Caller, tx: Transaction, parent: ConversationRow, fork: ConversationRow, places: Sequence[int]
    ) -> None:
        """Copy the valid summaries of turns that retention has erased, except those that end after the fork does.

        `places`: the position in the parent of each copied turn.
        """
        valid = await summary_store.list_valid(tx, caller.tenant_id, ConversationId(parent.id))
        copies = [
            (row.id, new_uuid(), bisect_left(places, row.from_position) + 1, bisect_right(places, row.to_position))
            for row in valid
            if row.from_position <= parent.erased_position and row.to_position <= places[-1]
        ]
        copies = [place for place in copies if place[2] <= place[3]]
        fork_id = ConversationId(fork.id)
        await summary_store.copy(tx, caller.tenant_id, fork_id, places=copies, rev=1)
        await self._index.copy(
            caller,
            tx,
            kind=EntryKind.SUMMARY,
            conversation_id=fork_id,
            owner=fork.owner,
            pairs=[(summary_id, copy_id, None) for summary_id, copy_id, _, _ in copies],
            texts={copy_id: "" for _, copy_id, _, _ in copies},
        )
        erased = bisect_right(places, parent.erased_position)
        await update_summary_mark(caller, tx, replace(fork, erased_position=erased), rev=1)


def _copies(fork: ConversationRow, rows: Sequence[TurnRow], chain: TurnChain) -> list[TurnRow]:
    """Return the rows as turns of the fork, at the end of its chain."""
    return [
        chain.append(
            row._replace(
                id=new_uuid(),
                conversation_id=fork.id,
                position=chain.seq + 1,
                rev=1,
                supersedes=None,
                origin_turn_id=row.id,
                created_at=fork.created_at,
                committed_at=fork.created_at,
            )
        )
        for row in rows
    ]
