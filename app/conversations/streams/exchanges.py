"""Exchanges: messages and their answer, opened together, and committed or aborted together.

Invariants: the messages are stored completely as pending rows from the start. The answer is an open turn, whose text is
flushed and sent to subscribers while it streams. One commit gives all of them their seq in order. The open turns of a
process that died are aborted when their leases expire.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from app.conversations.drafts import Draft, make_draft, make_drafts
from app.conversations.find import lock_conversation
from app.conversations.responses import store as response_store
from app.conversations.responses.service import require_last
from app.conversations.schemas.conversations import Turn, TurnInput
from app.conversations.schemas.frames import Opening, OpenTurn
from app.conversations.schemas.responses import ResponseRequest
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.streams.abort import TurnAborter
from app.conversations.streams.buffer import OpenTurnBuffer
from app.conversations.streams.commit import TurnFinalizer, TurnReplacement
from app.conversations.streams.flush import Flusher
from app.conversations.streams.open import TurnOpener
from app.conversations.turns.placement import PreparedTurn
from app.conversations.turns.turn_writer import TurnWriter, check_answers, results_of_history
from app.conversations.views import turn_view
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError, Conflict, FieldError, Invalid
from app.core.ids import ConversationId, TurnId, new_uuid
from app.core.telemetry import get_logger
from app.formats.parse.sent_messages import errors_in_messages
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
        writer: TurnWriter,
        opener: TurnOpener,
        aborter: TurnAborter,
        finalizer: TurnFinalizer,
        flusher: Flusher,
        make_buffer: BufferFactory,
        limits: LimitSettings,
    ) -> None:
        self._database = database
        self._idempotency = tenancy.idempotency
        self._quotas = tenancy.quotas
        self._writer = writer
        self._aborter = aborter
        self._opener = opener
        self._finalizer = finalizer
        self._flusher = flusher
        self._make_buffer = make_buffer
        self._limits = limits
        self._log = get_logger()

    async def open(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        messages: Sequence[TurnInput],
        answer: OpenTurn,
        replaced: TurnReplacement | None = None,
        idempotency_key: IdempotencyKey | None = None,
        response: ResponseRequest | None = None,
    ) -> Exchange:
        """Open messages and the answer to them.

        An answer that replaces another (`replaced`) has no messages. With `response` the answer is also stored as a
        response. Raises as `append` and `Streams.open` do; Busy `resource_busy` while an exchange with the same
        idempotency key is running; Conflict `conversation_advanced` if the conversation does not end where the response
        follows.
        """
        caller.require(Scope.WRITE)
        self._writer.require_quota(caller)
        sent = [turn.sent for turn in messages]
        with errors_in_messages(sent):
            drafts = [replace(draft, id=new_uuid()) for draft in self._drafts(messages)]
        key_id = None if idempotency_key is None else self._idempotency.key_id(caller, idempotency_key)
        writer = f"exchange:{key_id or new_uuid()}"
        async with self._database.transaction(caller.tenant_id) as tx:
            head = await lock_conversation(caller, tx, conversation_id)
            if idempotency_key is not None:
                await self._opener.require_no_active_writer(caller, tx, writer=writer)
                # an earlier exchange with this key that is not running any more may have been committed
                await self._idempotency.find(caller, tx, idempotency_key, read=self._idempotency.refuse_repeat)
            if response is not None:
                await require_last(caller, tx, conversation_id, response, lease_s=self._opener.lease_s)
            with errors_in_messages(sent):
                await self._check_answers(caller, tx, conversation_id, drafts)
            rows = await self._opener.open_complete(caller, tx, head, drafts, writer=writer)
            supersedes = None if replaced is None else replaced.turn_id
            opening = Opening(turn=answer.model_copy(update={"supersedes": supersedes}), writer=writer)
            opened = await self._opener.open(caller, tx, conversation_id, opening, bound=None, beside=len(rows))
            row = opened.value
            if response is not None:
                await self._insert_response(caller, tx, row, response, drafts)
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

    def _drafts(self, messages: Sequence[TurnInput]) -> list[Draft]:
        max_messages = self._limits.max_turns_per_append - 1
        if len(messages) > max_messages:
            detail = f"At most {max_messages} messages are stored with one answer; append the others before."
            raise Invalid("invalid_request", detail, fields=[FieldError("/turns", "too many of them are new")])
        return make_drafts(messages, limits=self._limits, now=datetime.now(UTC))

    async def _check_answers(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, drafts: Sequence[Draft]
    ) -> None:
        """Check tool results as an append does."""
        prepared = [PreparedTurn(draft, b"", b"", 0, None) for draft in drafts]
        await check_answers(caller, tx, conversation_id, prepared, of_history=results_of_history(drafts))

    async def _insert_response(
        self, caller: Caller, tx: Transaction, row: TurnRow, response: ResponseRequest, drafts: Sequence[Draft]
    ) -> None:
        stored = response_store.response_row(
            row.id,
            ConversationId(row.conversation_id),
            response,
            input_turn_ids=[*response.stored_input_ids, *(draft.id for draft in drafts if draft.id is not None)],
            created_at=row.created_at,
        )
        await response_store.insert(tx, caller.tenant_id, stored)
        self._quotas.count(tx, caller.tenant_id, turns=0, size=len(stored.request.encode()))

    async def commit(self, caller: Caller, exchange: Exchange, *, answer: TurnInput) -> list[Turn]:
        """Store the messages and the answer, with the content of `answer`, and return the stored turns.

        Raises as `append` does, and Conflict `already_superseded`, `stream_fenced`, `turn_aborted`,
        `conversation_advanced`: nothing is stored then.
        """
        replaced = exchange.replaced
        said = make_draft(
            answer.model_copy(update={"id": exchange.answer_id}),
            limits=self._limits,
            now=datetime.now(UTC),
            supersedes=None if replaced is None else replaced.turn_id,
            root="/answer",
        )
        return [turn_view(row) for row in await self._commit(caller, exchange, [*exchange.messages, said])]

    async def _commit(self, caller: Caller, exchange: Exchange, turns: Sequence[Draft]) -> list[TurnRow]:
        """Store the first turns of an exchange, in the order of their opening."""
        buffers = exchange.buffers[: len(turns)]
        drafts = [replace(draft, created_at=exchange.created_at) for draft in turns]
        async with AsyncExitStack() as stack:
            # taken first: from here on the exchange cannot be aborted
            for buffer in buffers:
                await stack.enter_async_context(buffer.end_lock)
            items = await self._writer.prepare_turns(caller, drafts)
            for buffer in buffers:
                await buffer.wait_for_write()
            rows = await self._finalizer.commit_all(
                caller, buffers, items=items, replaced=exchange.replaced, idempotency_key=exchange.idempotency_key
            )
            for buffer in buffers:
                self._flusher.drop(buffer, None)
        return rows

    async def keep(self, caller: Caller, exchange: Exchange, *, answer: TurnInput | None) -> None:
        """Store the messages and the answer so far; with None the messages alone. `abort` ends the turns that remain.

        The idempotency key gets no result: a repeated request is answered again. Raises as `commit`.
        """
        if answer is not None:
            await self.commit(caller, replace(exchange, idempotency_key=None), answer=answer)
        elif exchange.messages:
            await self._commit(caller, replace(exchange, idempotency_key=None), exchange.messages)

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

    async def cancel(
        self, caller: Caller, conversation_id: ConversationId, *, turn_ids: Sequence[TurnId], reason: str
    ) -> None:
        """Abort those of the turns that are open, in any process, with their durable text. Raises NotFound."""
        caller.require(Scope.WRITE)
        async with self._database.transaction(caller.tenant_id) as tx:
            await lock_conversation(caller, tx, conversation_id)
            await self._aborter.abort_these(caller, tx, conversation_id, turn_ids, reason=reason)

    def renew(self, exchange: Exchange, *, now: float) -> None:
        """Mark the exchange as active, so that its leases are renewed."""
        for buffer in exchange.buffers:
            buffer.active_at = now


def open_answer_turn(model: str | None) -> OpenTurn:
    """Return the open turn of an answer, before its text."""
    return OpenTurn(role=Role.ASSISTANT, model=None if model is None else model[:256] or None, adapter="openai")
