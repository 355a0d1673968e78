"""Derived titles: what a conversation is called when its callers gave it no title.

The first words of the first question, from the moment that it is stored. Where a chat model is configured, a job then
writes a title from the first question and its answer (`app/context/titles.py`). A derived title is kept beside the
caller's, which always wins. It names the turns that it was derived from: when one of them is superseded or erased, the
title goes in the same transaction, and is derived anew from what is left.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final
from uuid import UUID

from app.conversations.drafts import Draft
from app.conversations.events import EventPublisher
from app.conversations.find import get_conversation, lock_conversation
from app.conversations.previews import first_words
from app.conversations.schemas.conversations import content_text
from app.conversations.schemas.titles import DerivedTitle, Exchange, TitleSource
from app.conversations.stores import title_store, turn_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.stores.title_store import MessageText
from app.conversations.views import json_column
from app.core.database.transactions import Database, Transaction
from app.core.ids import ConversationId
from app.core.jobs import JobQueue, NewJob
from app.formats.schemas import Kind
from app.tenancy.schemas import Caller

TITLE_JOB: Final = "conversation.title"
"""Let the chat model give a conversation a title; the subject is its id."""

TITLE_CHARACTERS: Final = 60


def title_job(conversation_id: UUID) -> NewJob:
    """The job that lets the model give a conversation a title; one waits at a time."""
    return NewJob(TITLE_JOB, subject_ids=[conversation_id], dedupe_key=str(conversation_id))


def _from_question(turn_id: UUID, text: str) -> DerivedTitle:
    return DerivedTitle(first_words(text, max_characters=TITLE_CHARACTERS), TitleSource.QUESTION, [turn_id])


def _has_text(draft: Draft, kind: Kind) -> bool:
    return draft.kind is kind and bool(content_text(json_column(draft.content, None)).strip())


async def title_of_new(
    caller: Caller, tx: Transaction, head: ConversationRow, rows: Sequence[TurnRow], drafts: Sequence[Draft]
) -> DerivedTitle | None:
    """The title that a conversation without any gets from turns that were just inserted; None where it gets none."""
    if head.title is not None or head.derived_title is not None:
        return None
    asked = [row for row, draft in zip(rows, drafts, strict=True) if _has_text(draft, Kind.USER_MESSAGE)]
    if not asked:
        return None
    if head.turn_count == 0:
        return _from_question(asked[0].id, content_text(json_column(asked[0].content, None)))
    return await find_title(caller, tx, head)


async def find_title(caller: Caller, tx: Transaction, head: ConversationRow) -> DerivedTitle | None:
    """The title of the first words of the first question that is live."""
    found = await _first_question(caller, tx, head)
    return None if found is None else _from_question(found.id, found.text)


async def _first_question(caller: Caller, tx: Transaction, head: ConversationRow) -> MessageText | None:
    return await title_store.find_message(
        tx, caller.tenant_id, ConversationId(head.id), kind=Kind.USER_MESSAGE.value, after=head.erased_position
    )


class DerivedTitles:
    """Keeps derived titles true to their turns, in the transactions that change the turns."""

    def __init__(self, jobs: JobQueue, *, model: str | None) -> None:
        """`model`: the chat model that a job asks for titles; None where there is none."""
        self._jobs = jobs
        self._model = model

    def due(self, head: ConversationRow, drafts: Sequence[Draft], title: DerivedTitle | None) -> list[NewJob]:
        """The job that is due when these turns have been appended: the first answer to a first question is there."""
        has_question = title is not None or head.derived_title is not None
        if self._model is None or head.title is not None or not has_question:
            return []
        if head.derived_title_source == TitleSource.MODEL or head.derived_title_model == self._model:
            return []
        return [title_job(head.id)] if any(_has_text(draft, Kind.AGENT_MESSAGE) for draft in drafts) else []

    async def renew(self, caller: Caller, tx: Transaction, head: ConversationRow) -> None:
        """Derive the title of a conversation anew, behind its locked head."""
        title = await find_title(caller, tx, head)
        if title is None:
            return
        await title_store.set_title(
            tx, caller.tenant_id, ConversationId(head.id), title=title.text, source=title.source,
            turn_ids=title.turn_ids, model=None,
        )  # fmt: skip
        if self._model is not None:
            await self._jobs.enqueue(tx, caller.tenant_id, [title_job(head.id)])

    async def invalidate(
        self,
        caller: Caller,
        tx: Transaction,
        head: ConversationRow,
        *,
        gone: Collection[UUID],
        sources: Collection[TitleSource] = tuple(TitleSource),
    ) -> None:
        """Take away a title that was derived from turns that are gone, and derive it anew, behind the locked head."""
        conversation_id = ConversationId(head.id)
        if gone and await title_store.clear_title(
            tx, caller.tenant_id, conversation_id, turn_ids=gone, sources=[source.value for source in sources]
        ):
            await self.renew(caller, tx, head)


class Titles:
    """What a model needs to write a title, and the derived write that stores it."""

    def __init__(self, database: Database, *, publisher: EventPublisher) -> None:
        self._database = database
        self._publisher = publisher

    async def exchange(self, caller: Caller, conversation_id: ConversationId) -> Exchange | None:
        """The exchange to write a title from; None where the conversation has a title, or has no answer yet.

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
        sources = {one.id: one.content_hash for one in (question, answer)}
        return Exchange(question.text, answer.text, sources)

    async def store(
        self, caller: Caller, conversation_id: ConversationId, *, title: str, model: str, sources: Mapping[UUID, bytes]
    ) -> bool:
        """Store a title that a model wrote, unless there is one or a source has changed; says whether it was stored.

        Raises NotFound.
        """
        async with self._database.transaction(caller.tenant_id) as tx:
            head = await self._unchanged(caller, tx, conversation_id, sources)
            if head is None:
                return False
            await title_store.set_title(
                tx, caller.tenant_id, conversation_id, title=title, source=TitleSource.MODEL, turn_ids=list(sources),
                model=model,
            )  # fmt: skip
            self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=head.rev)
        return True

    async def decline(
        self, caller: Caller, conversation_id: ConversationId, *, model: str, sources: Mapping[UUID, bytes]
    ) -> None:
        """Note that a model gives no title to this exchange, so that it is not asked again. Raises NotFound."""
        async with self._database.transaction(caller.tenant_id) as tx:
            head = await self._unchanged(caller, tx, conversation_id, sources)
            if head is not None:
                await title_store.set_title(
                    tx, caller.tenant_id, conversation_id, title=head.derived_title,
                    source=head.derived_title_source, turn_ids=head.derived_title_turn_ids, model=model,
                )  # fmt: skip

    async def _unchanged(
        self, caller: Caller, tx: Transaction, conversation_id: ConversationId, sources: Mapping[UUID, bytes]
    ) -> ConversationRow | None:
        """The conversation, locked, if it has no title yet and the sources are what they were."""
        await lock_conversation(caller, tx, conversation_id)
        # read behind the lock: the lock's own statement may give the row as it was before it waited
        head = await get_conversation(caller, tx, conversation_id)
        if _is_titled(head):
            return None
        return head if await turn_store.lock_turns(tx, caller.tenant_id, list(sources)) == sources else None


def _is_titled(head: ConversationRow) -> bool:
    return head.title is not None or head.derived_title_source == TitleSource.MODEL
