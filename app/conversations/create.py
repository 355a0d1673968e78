"""Create conversations, or return existing ones, in the caller's transaction."""

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.conversations.find import find_by_external_id, refuse_trashed, require_owner
from app.conversations.policies import (
    compaction_policy,
    default_compaction,
    default_facts,
    facts_policy,
    require_small,
)
from app.conversations.schemas.conversations import ConversationCreate
from app.conversations.stores import conversation_store
from app.conversations.stores.conversation_store import ConversationRow
from app.conversations.views import participants_column
from app.core.database.transactions import Transaction
from app.core.errors import Busy, Conflict, FieldError, NotFound
from app.core.ids import ConversationId, new_uuid
from app.settings import Settings
from app.tenancy.schemas import Caller, RequestResult


async def get_or_create(
    caller: Caller, tx: Transaction, body: ConversationCreate, settings: Settings
) -> RequestResult[ConversationRow]:
    """Create a conversation, or return the one with this id or external id, whose owner the caller then checks.

    Of two concurrent calls, the second waits for the first. Raises Invalid, Conflict `conversation_conflict`,
    `conversation_trashed`, Busy; Forbidden `key_restricted` for a project or owner outside of the caller's restriction,
    and NotFound if the conversation exists outside of it.
    """
    require_small(body.metadata, maximum=settings.limits.max_metadata_bytes)
    owner = caller.owner_of_new(body.project, body.owner)
    defaults = settings.conversations
    conversation_id = ConversationId(body.id or new_uuid())
    columns = {name: getattr(body, name) for name in ConversationCreate.model_fields} | {
        "id": conversation_id,
        "owner": owner,
        "participants": participants_column(item for item in body.participants if item.role is None),
        "tools": participants_column(item for item in body.participants if item.role is not None),
        "retention": body.retention.value,
        "compaction": compaction_policy(body.compaction, default_compaction(defaults)),
        "facts": facts_policy(body.facts, default_facts(defaults)),
        "ttl_s": defaults.default_ttl_s if body.ttl_s is None else body.ttl_s,
    }
    created = await conversation_store.insert_conversation(tx, caller.tenant_id, columns)
    if created:
        record(
            tx,
            caller,
            Action.CONVERSATION_CREATE,
            ObjectKind.CONVERSATION,
            conversation_id,
            counts={"conversations": 1},
        )
    row = await _find(caller, tx, body, conversation_id if created or body.id is not None else None)
    project = body.project if "project" in body.model_fields_set else row.project
    if (body.id or row.id, body.external_id or row.external_id, project) != (row.id, row.external_id, row.project):
        raise Conflict(
            "conversation_conflict",
            "A conversation exists that has this id or external_id, but not all as given.",
            fields=[FieldError("/id", "belongs to a conversation of another external_id or project")],
        )
    return RequestResult(row, is_new=created)


def require_same_people(row: ConversationRow, body: ConversationCreate, *, owner_pointer: str) -> None:
    """Raise Conflict `conversation_owned` for an existing conversation of other people than a request names.

    That is another owner, or a participant that it does not have. The authors of turns have become participants since
    the creation, so a request may name fewer. Any participant passes for a conversation without participants.
    """
    require_owner(row.owner, body.owner, pointer=owner_pointer)
    actors = {str(item["actor"]) for item in (*row.participants, *row.tools)}
    strangers = [number for number, item in enumerate(body.participants) if item.actor not in actors]
    if actors and strangers:
        raise Conflict(
            "conversation_owned",
            "The conversation has other participants. Use another external_id or id, leave the participants out to use"
            " this conversation, or add them to it with PATCH.",
            fields=[FieldError(f"/participants/{number}", "no participant of it") for number in strangers],
        )


async def _find(
    caller: Caller, tx: Transaction, body: ConversationCreate, conversation_id: ConversationId | None
) -> ConversationRow:
    """Return the conversation of an id, else of the external id. Raises NotFound, Conflict, Busy."""
    row = None
    if conversation_id is not None:
        row = await conversation_store.find_conversation(tx, caller.tenant_id, conversation_id)
        if row is not None and not caller.reaches(row.project, row.owner):
            raise NotFound("not_found", "There is no such conversation.")
    if row is None and body.external_id is not None:
        row = await find_by_external_id(caller, tx, body.project, body.external_id)
    if row is None:
        await refuse_trashed(caller, tx, conversation_id=body.id, project=body.project, external_id=body.external_id)
        raise Busy("resource_busy", "This conversation is being deleted right now; send it again.", retry_after_s=1)
    return row
