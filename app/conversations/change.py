"""Changes the title and the other fields of a conversation that callers set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.conversations.derived_titles import DerivedTitles
from app.conversations.events import EventPublisher
from app.conversations.find import get_conversation, lock_conversation, owned_by_another
from app.conversations.policies import (
    compaction_policy,
    facts_again_job,
    facts_job,
    facts_policy,
    merge_patch,
    require_small,
)
from app.conversations.schemas.conversations import Conversation, ConversationUpdate, Facts, Retention
from app.conversations.schemas.participants import Participant
from app.conversations.schemas.titles import TitleSource
from app.conversations.stores import conversation_store, turn_store
from app.conversations.stores.conversation_store import CHANGEABLE, ConversationRow
from app.conversations.summaries.invalidation import compact_job, is_due, retain_job
from app.conversations.views import conversation_view_for, participants_column
from app.core.database.transactions import Database, Transaction
from app.core.errors import Conflict, FieldError
from app.core.ids import ConversationId
from app.core.jobs import JobQueue
from app.core.outbox import EventType
from app.formats.schemas import JsonObject
from app.settings.conversations import LimitSettings
from app.tenancy.schemas import Caller


class Owned(Protocol):
    """Data derived from conversations that has their owner, such as facts and index entries."""

    async def set_owner(
        self, caller: Caller, tx: Transaction, *, conversation_id: ConversationId, owner: str
    ) -> object:
        """Write the owner of a conversation to the data that is derived from it."""
        ...


@dataclass(frozen=True, slots=True)
class ChangeConditions:
    """Conditions of a change. `tags`: the accepted revs of the conversation; None accepts any rev."""

    max_metadata_bytes: int
    replaces_metadata: bool = False
    tags: frozenset[str] | None = None


class ConversationChange(NamedTuple):
    """A changed conversation, and whether the change gave it an owner."""

    row: ConversationRow
    has_new_owner: bool


class ConversationUpdates:
    """Changes fields of conversations, for callers."""

    def __init__(
        self,
        database: Database,
        *,
        settings: LimitSettings,
        publisher: EventPublisher,
        jobs: JobQueue,
        titles: DerivedTitles,
        owned: Sequence[Owned],
    ) -> None:
        """`owned`: data to which a new owner is written, in the order of its locks."""
        self._database = database
        self._settings = settings
        self._publisher = publisher
        self._jobs = jobs
        self._titles = titles
        self._owned = owned

    async def update(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        *,
        body: ConversationUpdate,
        tags: frozenset[str] | None = None,
        replaces_metadata: bool = False,
    ) -> Conversation:
        """Change the given fields and keep all others. Metadata is merged, unless `replaces_metadata`.

        A new owner also becomes the owner of the conversation's facts and index entries. `tags`: the accepted revs of
        the conversation. Raises NotFound; Conflict `revision_changed`, `conversation_owned`; Invalid.
        """
        conditions = ChangeConditions(self._settings.max_metadata_bytes, replaces_metadata, tags)
        async with self._database.transaction(caller.tenant_id) as tx:
            row, has_new_owner = await change_conversation(
                caller, tx, conversation_id, body, jobs=self._jobs, titles=self._titles, conditions=conditions
            )
            self._publisher.publish_changed(tx, caller.tenant_id, conversation_id, rev=row.rev)
            self._publisher.record_conversation(tx, caller.tenant_id, EventType.CONVERSATION_UPDATED, row.id)
            if has_new_owner and body.owner is not None:
                for derived in self._owned:
                    await derived.set_owner(caller, tx, conversation_id=conversation_id, owner=body.owner)
            record(tx, caller, Action.CONVERSATION_UPDATE, ObjectKind.CONVERSATION, conversation_id)
        return conversation_view_for(caller, row)


async def change_conversation(
    caller: Caller,
    tx: Transaction,
    conversation_id: ConversationId,
    body: ConversationUpdate,
    *,
    jobs: JobQueue,
    titles: DerivedTitles,
    conditions: ChangeConditions,
) -> ConversationChange:
    """Change the given fields and keep all others.

    Enqueues a job that erases the turns that the new retention does not keep. Clearing the title derives a new one.
    Raises Conflict `revision_changed`, or `conversation_owned` if it has another owner; Invalid for too much metadata.
    """
    named_fields = body.model_fields_set
    await lock_conversation(caller, tx, conversation_id)
    # Read the row under the lock, so that no concurrent change is lost.
    row = await get_conversation(caller, tx, conversation_id)
    _require_revision(row, conditions)
    owner = _owner(row, body)
    retention = body.retention.value if "retention" in named_fields else row.retention
    facts = facts_policy(body.facts, row.facts)
    participants, tools = row.participants, row.tools
    if "participants" in named_fields:
        participants, tools = await _participants(caller, tx, row, body.participants)
    columns = {name: getattr(body if name in named_fields else row, name) for name in CHANGEABLE} | {
        "owner": owner,
        "participants": participants,
        "tools": tools,
        "metadata": _metadata(row, body, conditions) if "metadata" in named_fields else row.metadata,
        "retention": retention,
        "compaction": compaction_policy(body.compaction, row.compaction),
        "facts": facts,
    }
    await conversation_store.update_conversation(tx, caller.tenant_id, conversation_id, columns)
    if not Facts.model_validate(row.facts).enabled and Facts.model_validate(facts).enabled:
        due = [facts_job(conversation_id)] if row.facts_seq < row.last_seq else []
        due += [facts_again_job(conversation_id, delay_s=0)] if row.facts_rules_from is not None else []
        await jobs.enqueue(tx, caller.tenant_id, due)
    if "title" in named_fields and body.title is None and row.derived_title_source != TitleSource.MODEL:
        await titles.renew(caller, tx, row)
    if retention not in {row.retention, Retention.FULL.value}:
        await jobs.enqueue(tx, caller.tenant_id, [retain_job(conversation_id)])
    changed = await get_conversation(caller, tx, conversation_id)
    if changed.compaction != row.compaction and is_due(changed, turns=changed.turn_count, tokens=changed.token_count):
        await jobs.enqueue(tx, caller.tenant_id, [compact_job(conversation_id)])
    return ConversationChange(changed, owner != row.owner)


def _require_revision(row: ConversationRow, conditions: ChangeConditions) -> None:
    if conditions.tags is not None and str(row.rev) not in conditions.tags:
        raise Conflict(
            "revision_changed",
            "The rev of the conversation differs from If-Match. Read it again.",
            fields=[FieldError("/If-Match", "not the rev of the conversation", "header")],
            extra={"rev": row.rev},
        )


def _metadata(row: ConversationRow, body: ConversationUpdate, conditions: ChangeConditions) -> JsonObject:
    metadata = body.metadata if conditions.replaces_metadata else merge_patch(row.metadata, body.metadata)
    require_small(metadata, maximum=conditions.max_metadata_bytes)
    return metadata


def _owner(row: ConversationRow, body: ConversationUpdate) -> str | None:
    """Return the owner after a change. The owner of a conversation is set once."""
    if "owner" not in body.model_fields_set or body.owner == row.owner:
        return row.owner
    if row.owner is not None:
        raise owned_by_another("/owner")
    return body.owner


async def _participants(
    caller: Caller, tx: Transaction, row: ConversationRow, given: Sequence[Participant]
) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return the speakers and the tools: the given participants, and earlier participants that wrote turns.

    A list cannot remove an author. The turns of an author decide whether it is a speaker; for others `role` decides.
    """
    named = {participant.actor: participant for participant in given}
    left_out = {actor: item for item in (*row.tools, *row.participants) if (actor := str(item["actor"])) not in named}
    spoke = await turn_store.list_authors(tx, caller.tenant_id, ConversationId(row.id), [*named, *left_out])
    authors = [Participant.model_validate(item) for actor, item in left_out.items() if actor in spoke]
    speakers, tools = list[Participant](), list[Participant]()
    for participant in (*named.values(), *authors):
        (speakers if spoke.get(participant.actor, participant.role is None) else tools).append(participant)
    return participants_column(speakers), participants_column(tools)
