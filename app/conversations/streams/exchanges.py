"""Exchanges: messages and their answer, opened together, and committed or aborted together.

Invariants: the messages are stored completely as pending rows from the start. The answer is an open turn, whose text is
flushed and sent to subscribers while it streams. One commit gives all of them their seq in order. The open turns of a
process that died are aborted when their leases expire.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from app.conversations.drafts import Draft, make_draft
from app.conversations.find import lock_conversation
from app.conversations.schemas.conversations import Turn, TurnInput
from app.conversations.schemas.frames import Opening, OpenTurn
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.streams.buffer import OpenTurnBuffer
from app.conversations.streams.commit import TurnFinalizer, TurnReplacement
from app.conversations.streams.flush import Flusher
from app.conversations.streams.open import TurnOpener
from app.conversations.turns.append import Appender, check_answers
from app.conversations.turns.placement import PreparedTurn
from app.conversations.views import turn_view
from app.core.database.transactions import Database
from app.core.errors import AppError, Conflict, FieldError, Invalid
from app.core.ids import ConversationId, TurnId, new_uuid
from app.core.telemetry import get_logger
from app.formats.schemas import Role
from app.settings.conversations import LimitSettings
from app.tenancy.schemas import Caller, IdempotencyKey, Scope
from app.tenancy.service import Tenancy

BufferFactory = Callable[[Caller, TurnRow, str], OpenTurnBuffer]


@dataclass(frozen=True, slots=True)
class Exchange:
    """An open exchange: the messages as they will be stored, and the open turn of the answer."""

    conversation_id: ConversationId
    answer_id: TurnId
    epoch: int
    messages: Sequence[Draft]
    created_at: datetime
    buffers: Sequence[OpenTurnBuffer]
    replaced: TurnReplacement | None
    idempotency_key: IdempotencyKey | None


class Exchanges:
    """Opens, commits and aborts exchanges, for callers with a key, not with a conversation token."""

    def __init__(
        self,
        database: Database,
        *,
        tenancy: Tenancy,
        appender: Appender,
        opener: TurnOpener,
        finalizer: TurnFinalizer,
        flusher: Flusher,
        make_buffer: BufferFactory,
        limits: LimitSettings,
    ) -> None:
        self._database = database
        self._idempotency = tenancy.idempotency
        self._appender = appender
        self._opener = opener
        self._finalizer = finalizer
        self._flusher = flusher
        self._make_buffer = make_buffer
        self._limits = limits
        self._log = get_logger()

    async def open(
        self, caller: Caller, conversation_id: ConversationId, *, messages: Sequence[tuple[str, TurnInput]],
        answer: OpenTurn, replaced: TurnReplacement | None = None, idempotency_key: IdempotencyKey | None = None,
    ) -> Exchange:  # fmt: skip
        """Open messages, each with its pointer in the request, and the answer to them.

        An answer that replaces another (`replaced`) has no messages. Raises as `append` and `Streams.open` do, and
        Busy `resource_busy` while an exchange with the same idempotency key is running.
        """
        caller.require(Scope.WRITE)
        self._appender.require_quota(caller)
        now = datetime.now(UTC)
        max_messages = self._limits.max_turns_per_append - 1
        if len(messages) > max_messages:
            detail = f"At most {max_messages} messages are stored with one answer; append the others before."
            raise Invalid("invalid_request", detail, fields=[FieldError("/messages", "too many of them are new")])
        drafts = [
            replace(make_draft(turn, limits=self._limits, now=now, root=root), id=new_uuid()) for root, turn in messages
        ]
        key_id = None if idempotency_key is None else self._idempotency.key_id(caller, idempotency_key)
        writer = f"exchange:{key_id or new_uuid()}"
        async with self._database.transaction(caller.tenant_id) as tx:
            head = await lock_conversation(caller, tx, conversation_id)
            if idempotency_key is not None:
                await self._opener.require_no_active_writer(caller, tx, writer=writer)
                # an earlier exchange with this key that is not running any more may have been committed
                await self._idempotency.find(caller, tx, idempotency_key, read=self._idempotency.refuse_repeat)
            await check_answers(
                caller, tx, conversation_id, [PreparedTurn(draft, b"", b"", 0, None) for draft in drafts]
            )
            rows = await self._opener.open_complete(caller, tx, head, drafts, writer=writer)
            supersedes = None if replaced is None else replaced.turn_id
            opening = Opening(turn=answer.model_copy(update={"supersedes": supersedes}), writer=writer)
            row = (await self._opener.open(caller, tx, conversation_id, opening, bound=None)).value
        buffers = [self._make_buffer(caller, turn_row, writer) for turn_row in (*rows, row)]
        return Exchange(
            conversation_id=conversation_id,
            answer_id=TurnId(row.id),
            epoch=buffers[-1].epoch,
            messages=drafts,
            created_at=row.created_at,
            buffers=buffers,
            replaced=replaced,
            idempotency_key=idempotency_key,
        )

    async def commit(self, caller: Caller, exchange: Exchange, *, answer: TurnInput) -> list[Turn]:
        """Store the messages and the answer, with the content of `answer`, and return the stored turns.

        Raises as `append` does, and Conflict `already_superseded`, `stream_fenced`, `turn_aborted`,
        `conversation_advanced`: nothing is stored then.
        """
        now = datetime.now(UTC)
        replaced = exchange.replaced
        said = make_draft(
            answer.model_copy(update={"id": exchange.answer_id}),
            limits=self._limits,
            now=now,
            supersedes=None if replaced is None else replaced.turn_id,
            root="/answer",
        )
        drafts = [replace(draft, created_at=exchange.created_at) for draft in (*exchange.messages, said)]
        async with AsyncExitStack() as stack:
            # taken first: from here on the exchange cannot be aborted
            for buffer in exchange.buffers:
                await stack.enter_async_context(buffer.end_lock)
            items = await self._appender.prepare_turns(caller, drafts)
            for buffer in exchange.buffers:
                await buffer.wait_for_write()
            rows = await self._finalizer.commit_all(
                caller, exchange.buffers, items=items, replaced=replaced, idempotency_key=exchange.idempotency_key
            )
            for buffer in exchange.buffers:
                self._flusher.drop(buffer, None)
        return [turn_view(row) for row in rows]

    async def abort(self, caller: Caller, exchange: Exchange, *, reason: str) -> None:
        """Abort all turns, with the answer's text so far.

        Raises no AppError: expired leases end the remaining turns.
        """
        for buffer in exchange.buffers:
            try:
                async with buffer.end_lock:
                    await buffer.wait_for_write()
                    await self._finalizer.abort(caller, buffer, reason=reason)
                    self._flusher.drop(buffer, None)
            except Conflict as error:
                self._flusher.drop(buffer, error)
            except AppError as error:
                self._flusher.drop(buffer, error)
                self._log.warning("exchange.abort_failed", code=error.code)

    def renew(self, exchange: Exchange, *, now: float) -> None:
        """Mark the exchange as active, so that its leases are renewed."""
        for buffer in exchange.buffers:
            buffer.active_at = now


def open_answer_turn(model: str | None) -> OpenTurn:
    """Return the open turn of an answer, before its text."""
    return OpenTurn(role=Role.ASSISTANT, model=None if model is None else model[:256] or None, adapter="openai")
