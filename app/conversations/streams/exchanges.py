"""Exchanges: messages and the answer to them, opened pending together and committed in one step, or given up together.

What always holds: the messages are rows from the first moment, whole; the answer is an open turn like any other, whose
text is followed and flushed as it streams; all of them get their seq in one commit, in order, and no commit has only
some of them. A process that dies leaves streams behind whose leases end, each of which is aborted then.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from app.conversations.drafts import Draft, DraftLimits, make_draft
from app.conversations.find import lock_conversation
from app.conversations.schemas.conversations import Turn, TurnInput
from app.conversations.schemas.frames import Opening, OpenTurn
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.streams.buffer import OpenTurnBuffer
from app.conversations.streams.commit import Ender, Replaced
from app.conversations.streams.flush import Flusher
from app.conversations.streams.open import Opener
from app.conversations.turns.append import Appender, check_answers
from app.conversations.turns.placement import Incoming
from app.conversations.views import turn_view
from app.core.database.transactions import Database
from app.core.errors import AppError, Conflict, FieldError, Invalid
from app.core.ids import ConversationId, TurnId, new_uuid
from app.core.telemetry import get_logger
from app.formats.schemas import Role
from app.tenancy.schemas import Caller, IdempotencyKey, Scope
from app.tenancy.service import Tenancy

Hold = Callable[[Caller, TurnRow, str], OpenTurnBuffer]


@dataclass(frozen=True, slots=True)
class Exchange:
    """What was opened: the messages as they will be stored, and the answer's turn, which is written by its id."""

    conversation_id: ConversationId
    answer_id: TurnId
    epoch: int
    messages: Sequence[Draft]
    created_at: datetime
    helds: Sequence[OpenTurnBuffer]
    replaced: Replaced | None
    repeat: IdempotencyKey | None


class Exchanges:
    """Opens, commits and aborts exchanges; of keys, never of conversation tokens."""

    def __init__(
        self,
        database: Database,
        *,
        tenancy: Tenancy,
        appender: Appender,
        opener: Opener,
        ender: Ender,
        flusher: Flusher,
        hold: Hold,
        limits: DraftLimits,
    ) -> None:
        self._database = database
        self._tenancy = tenancy
        self._appender = appender
        self._opener = opener
        self._ender = ender
        self._flusher = flusher
        self._hold = hold
        self._limits = limits
        self._log = get_logger()

    async def open(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        messages: Sequence[tuple[str, TurnInput]],
        answer: OpenTurn,
        replaced: Replaced | None = None,
        repeat: IdempotencyKey | None = None,
    ) -> Exchange:
        """Open messages, each with the pointer to it in its request, and the answer to them.

        An answer that takes the place of another (`replaced`) comes alone. Raises as `append` and `Streams.open` do,
        before anything is asked of a model; Busy `resource_busy` while one is under way with the same key (`repeat`).
        """
        caller.require(Scope.WRITE)
        now = datetime.now(UTC)
        if len(messages) >= self._limits.max_turns:
            detail = (
                f"At most {self._limits.max_turns - 1} messages are stored with one answer; append the others before."
            )
            raise Invalid("invalid_request", detail, fields=[FieldError("/messages", "too many of them are new")])
        drafts = [
            replace(make_draft(turn, limits=self._limits, now=now, root=root), id=new_uuid()) for root, turn in messages
        ]
        writer = f"exchange:{new_uuid() if repeat is None else self._tenancy.key_id(caller, repeat)}"
        async with self._database.transaction(caller.tenant_id) as tx:
            head = await lock_conversation(caller, tx, conversation_id)
            if repeat is not None:
                await self._opener.require_alone(caller, tx, writer=writer)
                # whoever is not at it any more has answered or failed by now
                await self._appender.require_unanswered(caller, tx, repeat)
            await check_answers(caller, tx, conversation_id, [Incoming(draft, b"", b"", 0, None) for draft in drafts])
            rows = await self._opener.open_whole(caller, tx, head, drafts, writer=writer)
            supersedes = None if replaced is None else replaced.turn_id
            opening = Opening(turn=answer.model_copy(update={"supersedes": supersedes}), writer=writer)
            row, _ = await self._opener.open(caller, tx, conversation_id, opening, bound=None)
        helds = [self._hold(caller, one, writer) for one in (*rows, row)]
        return Exchange(
            conversation_id=conversation_id,
            answer_id=TurnId(row.id),
            epoch=helds[-1].epoch,
            messages=drafts,
            created_at=row.created_at,
            helds=helds,
            replaced=replaced,
            repeat=repeat,
        )

    async def commit(self, caller: Caller, exchange: Exchange, *, answer: TurnInput) -> list[Turn]:
        """Store the messages and the answer, which says what `answer` says. Gives them as they are stored.

        Raises as `append` does, and Conflict `already_superseded`, `stream_fenced`, `turn_aborted`,
        `conversation_advanced`: then nothing is stored.
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
            # at once: who gives it up from here on comes too late
            for held in exchange.helds:
                await stack.enter_async_context(held.ending)
            items = await self._appender.work_out(caller, drafts)
            for held in exchange.helds:
                if held.flush is not None:
                    await asyncio.shield(held.flush)
            rows = await self._ender.commit_all(
                caller, exchange.helds, items=items, replaced=replaced, repeat=exchange.repeat
            )
            for held in exchange.helds:
                self._flusher.drop(held, None)
        return [turn_view(row) for row in rows]

    async def abort(self, caller: Caller, exchange: Exchange, *, reason: str) -> None:
        """Give all of it up, with what there is of the answer. Never fails: what is left ends by its lease."""
        for held in exchange.helds:
            try:
                async with held.ending:
                    if held.flush is not None:
                        await asyncio.shield(held.flush)
                    await self._ender.abort(caller, held, reason=reason)
                    self._flusher.drop(held, None)
            except Conflict as error:
                self._flusher.drop(held, error)
            except AppError as error:
                self._flusher.drop(held, error)
                self._log.warning("exchange.abort_failed", code=error.code)

    def renew(self, exchange: Exchange, *, now: float) -> None:
        """Note that the exchange goes on."""
        for held in exchange.helds:
            held.heard = now


def answering(model: str | None) -> OpenTurn:
    """The answer's turn before anything is said."""
    return OpenTurn(role=Role.ASSISTANT, model=None if model is None else model[:256] or None, adapter="openai")
