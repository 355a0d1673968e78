"""Derived titles: titles of conversations that have no title from a caller.

A derived title is the first words of the first question, from the time that the question is stored. If a chat model is
configured, a job then writes a title from the first question and its answer (`app/context/titles.py`). A derived title
is stored next to the caller's title, which has priority. It lists the turns that it was derived from. When one of them
is superseded or erased, the title is deleted in the same transaction, and derived again from the remaining turns.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final
from uuid import UUID

from app.conversations.drafts import Draft
from app.conversations.events import EventPublisher
from app.conversations.find import get_conversation, lock_conversation
from app.conversations.previews import first_words
from app.conversations.schemas.conversations import content_text
from app.conversations.schemas.titles import DerivedTitle, FirstExchange, TitleSource
from app.conversations.stores import title_store, turn_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.stores.title_store import MessageText
from app.conversations.views import json_column
from app.core.database.transactions import Database, Transaction
from app.core.ids import ConversationId
from app.core.jobs import JobQueue, NewJob
from app.core.outbox import EventType
from app.formats.schemas import Kind
from app.tenancy.schemas import Caller

TITLE_JOB: Final = "conversation.title"
"""Job kind: the chat model writes a title for a conversation; the subject is its id."""

TITLE_CHARACTERS: Final = 60


def title_job(conversation_id: UUID) -> NewJob:
    """Return the job that lets the model write a title for a conversation; at most one is queued at a time."""
    return NewJob(TITLE_JOB, subject_ids=[conversation_id], dedupe_key=str(conversation_id))


def _from_question(turn_id: UUID, text: str) -> DerivedTitle:
    return DerivedTitle(first_words(text, max_characters=TITLE_CHARACTERS), TitleSource.QUESTION, [turn_id])


def _has_text(draft: Draft, kind: Kind) -> bool:
    return draft.kind is kind and bool(content_text(draft.fields["content"]).strip())


async def title_of_new(
    caller: Caller, tx: Transaction, head: ConversationRow, rows: Sequence[TurnRow], drafts: Sequence[Draft]
) -> DerivedTitle | None:
    """Return the title for a conversation without one, derived from just inserted turns; None if it gets none."""
    if head.title is not None or head.derived_title is not None:
        return None
    asked = [row for row, draft in zip(rows, drafts, strict=True) if _has_text(draft, Kind.USER_MESSAGE)]
    if not asked:
        return None
    if head.turn_count == 0:
        return _from_question(asked[0].id, content_text(json_column(asked[0].content, None)))
    return await find_title(caller, tx, head)


async def find_title(caller: Caller, tx: Transaction, head: ConversationRow) -> DerivedTitle | None:
    """Return a title from the first words of the first live question; None without one."""
    question = await _first_question(caller, tx, head)
    return None if question is None else _from_question(question.id, question.text)


async def _first_question(caller: Caller, tx: Transaction, head: ConversationRow) -> MessageText | None:
    return await title_store.find_message(
        tx, caller.tenant_id, ConversationId(head.id), kind=Kind.USER_MESSAGE.value, after=head.erased_position
    )


class DerivedTitles:
    """Derived titles, kept consistent with their turns in the transactions that change the turns."""

    def __init__(self, jobs: JobQueue, *, model: str | None) -> None:
        """`model`: the chat model that a job asks for titles; None if none is configured."""
        self._jobs = jobs
        self._model = model

    def due(self, head: ConversationRow, drafts: Sequence[Draft], title: DerivedTitle | None) -> list[NewJob]:
        """Return the job that is due after appending these turns: when the first question gets its first answer."""
        has_question = title is not None or head.derived_title is not None
        if self._model is None or head.title is not None or not has_question:
            return []
        if head.derived_title_source == TitleSource.MODEL or head.derived_title_model == self._model:
            return []
        return [title_job(head.id)] if any(_has_text(draft, Kind.AGENT_MESSAGE) for draft in drafts) else []

    async def renew(self, caller: Caller, tx: Transaction, head: ConversationRow) -> None:
        """Derive the title of a conversation again. The caller has locked its head."""
        title = await find_title(caller, tx, head)
        if title is None:
            return
        await title_store.set_title(
            tx,
            caller.tenant_id,
            ConversationId(head.id),
            title=title.text,
            source=title.source,
            turn_ids=title.turn_ids,
            model=None,
        )
        if self._model is not None:
            await self._jobs.enqueue(tx, caller.tenant_id, [title_job(head.id)])

    async def renew_from(
        self, caller: Caller, tx: Transaction, head: ConversationRow, *, turn_id: UUID, kind: str
    ) -> None:
        """Derive the title again if a turn that was stored between others is the first question now."""
        if head.title is None and kind == Kind.USER_MESSAGE.value:
            first = await _first_question(caller, tx, head)
            if first is not None and first.id == turn_id:
                await self.renew(caller, tx, head)

    async def invalidate(
        self,
        caller: Caller,
        tx: Transaction,
        head: ConversationRow,
        *,
        removed_ids: Collection[UUID],
        sources: Collection[TitleSource] = tuple(TitleSource),
    ) -> None:
        """Delete a title that was derived from removed turns, and derive it again. The caller has locked the head."""
        conversation_id = ConversationId(head.id)
        if removed_ids and await title_store.clear_title(
            tx, caller.tenant_id, conversation_id, turn_ids=removed_ids, sources=[source.value for source in sources]
        ):
            await self.renew(caller, tx, head)


class Titles:
    """Reads the exchange for a model that writes a title, and stores the title as a derived write."""

    def __init__(self, database: Database, *, publisher: EventPublisher) -> None:
        self._database = database
        self._publisher = publisher

    async def exchange(self, caller: Caller, conversation_id: ConversationId) -> FirstExchange | None:
        """Return the exchange for a title; None if the conversation has a title or no answer yet.

        Raises NotFound.
        """
        async with self._database.transaction(caller.tenant_id, read_only=True, repeatable_read=True) as tx:
            head = await get_conversation(caller, tx, conversation_id)
            if _is_titled(head):
                return None
            question = await _first_question(caller, tx, head)
            if question is None:
                return None
            answer = await title_store.find_message(
                tx, caller.tenant_id, conversation_id, kind=Kind.AGENT_MESSAGE.value, after=question.position
            )
        if answer is None:
            return None
        sources = {message.id: message.content_hash for message in (question, answer)}
        return FirstExchange(question.text, answer.text, sources)

    async def store(
        self, caller: Caller, conversation_id: ConversationId, *, title: str, model: str, sources: Mapping[UUID, bytes]
    ) -> bool:
        """Store a title that a model wrote, and return whether it was stored.

        It is not stored if the conversation has a title or a source has changed. Raises NotFound.
        """
        async with self._database.transaction(caller.tenant_id) as tx:
            head = await self._unchanged(caller, tx, conversation_id, sources)
            if head is None:
                return False
            await title_store.set_title(
                tx,
                caller.tenant_id,
                conversation_id,
                title=title,
                source=TitleSource.MODEL,
                turn_ids=list(sources),
                model=model,
            )
            self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=head.rev)
            self._publisher.record_conversation(tx, caller.tenant_id, EventType.CONVERSATION_UPDATED, conversation_id)
        return True

    async def decline(
        self, caller: Caller, conversation_id: ConversationId, *, model: str, sources: Mapping[UUID, bytes]
    ) -> None:
        """Record that a model gives no title for this exchange, so that it is not asked again. Raises NotFound."""
        async with self._database.transaction(caller.tenant_id) as tx:
            head = await self._unchanged(caller, tx, conversation_id, sources)
            if head is not None:
                await title_store.set_title(
                    tx,
                    caller.tenant_id,
                    conversation_id,
                    title=head.derived_title,
                    source=head.derived_title_source,
                    turn_ids=head.derived_title_turn_ids,
                    model=model,
                )

    async def _unchanged(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, sources: Mapping[UUID, bytes]
    ) -> ConversationRow | None:
        """Return the locked conversation, or None if it has a title or a source has changed."""
        await lock_conversation(caller, tx, conversation_id)
        # Read under the lock: the locking statement may return the row as it was before it waited.
        head = await get_conversation(caller, tx, conversation_id)
        if _is_titled(head):
            return None
        return head if await turn_store.lock_turns(tx, caller.tenant_id, list(sources)) == sources else None


def _is_titled(head: ConversationRow) -> bool:
    return head.title is not None or head.derived_title_source == TitleSource.MODEL
