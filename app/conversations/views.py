"""Convert rows to the schemas of the API. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final, Literal, TypeVar, cast
from uuid import UUID

from pydantic import JsonValue

from app.conversations.previews import PREVIEW_CHARACTERS, first_words
from app.conversations.schemas.conversations import Conversation, ListedConversation, MessagePreview, Turn
from app.conversations.schemas.fields import CONVERSATION, ERASED_COLUMNS
from app.conversations.schemas.participants import Participant, ParticipantOut
from app.conversations.schemas.summaries import Summary, SummaryLine
from app.conversations.schemas.titles import TitleSource
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.stores.list_store import ListedRow, MessageRow
from app.conversations.stores.summary_store import SummaryRow
from app.core.database.transactions import field_names
from app.core.entity_fields import Form
from app.core.ids import format_id
from app.core.paging import SortKey
from app.formats.schemas import CanonicalTurn, JsonObject, Kind, Role
from app.formats.turns import parse_tool_call, parse_tool_result
from app.tenancy.schemas import Caller, Scope

Value = TypeVar("Value")

# looking up a member takes an eighth of the time of calling its class, and contexts read hundreds of turns
_ROLES: Final = {role.value: role for role in Role}
_KINDS: Final = {kind.value: kind for kind in Kind}
_CONVERSATION_MEMBERS: Final = tuple(Conversation.model_fields.keys() & set(field_names(ConversationRow)))
_SUMMARY_MEMBERS: Final = tuple(Summary.model_fields.keys() & set(field_names(SummaryRow)))
# an import stores the members of a participant that its file has
_UNNAMED: Final[JsonObject] = {"name": None, "aliases": []}
_NO_CONTENT: Final[Mapping[str, object]] = {
    field.column: {} if field.column == "metadata" else [] if field.form is Form.JSONB else None
    for field in CONVERSATION
    if field.is_content and field.column != "external_id"
}


def _id(value: UUID | None) -> str | None:
    return None if value is None else format_id(value)


def json_column(text: str | None, default: Value) -> Value:
    """Return the parsed value of a JSON column, or the default if it is null."""
    if text is None:
        return default
    if "\\" not in text and text[:1] == text[-1:] == '"':  # a string without escapes, as most contents are
        return cast("Value", text[1:-1])
    return cast("Value", json.loads(text))


def _objects(text: str | None) -> list[JsonObject]:
    return [] if text is None else cast("list[JsonObject]", json.loads(text))


def _object(text: str | None) -> JsonObject:
    return {} if text is None or text == "{}" else cast("JsonObject", json.loads(text))


def _title_source(row: ConversationRow) -> Literal["caller", "model", "question"] | None:
    if row.title is not None:
        return "caller"
    return None if row.derived_title_source is None else TitleSource(row.derived_title_source).value


def _participants(row: ConversationRow) -> list[ParticipantOut]:
    """Return the speakers, then the tools. An actor that is both is a speaker."""
    speakers = [ParticipantOut.model_validate(_UNNAMED | item) for item in row.participants]
    actors = {participant.actor for participant in speakers}
    tools = [ParticipantOut.model_validate(_UNNAMED | item | {"role": "tool"}) for item in row.tools]
    return [*speakers, *(participant for participant in tools if participant.actor not in actors)]


def conversation_view(row: ConversationRow) -> Conversation:
    """Return a conversation as an API schema."""
    expires_at = None if row.ttl_s is None else row.updated_at + timedelta(seconds=row.ttl_s)
    if row.trashed_at is not None:
        expires_at = row.purge_at
    members = {name: getattr(row, name) for name in _CONVERSATION_MEMBERS} | {
        "id": format_id(row.id),
        "title": row.derived_title if row.title is None else row.title,
        "title_source": _title_source(row),
        "participants": _participants(row),
        "expires_at": expires_at,
        "summarized_through": _id(row.summarized_through),
        "forked_from": _id(row.forked_from),
        "head_hash": row.chain_hash.hex(),
    }
    return Conversation.model_validate(members)


def conversation_view_for(caller: Caller, row: ConversationRow, *, external_id: str | None = None) -> Conversation:
    """Return a conversation as this caller may see it: without content if its API key may not read.

    Such a key sees ids, policies, counters, times and the hash; `external_id` is the one that its request named.
    """
    if Scope.READ in caller.scopes:
        return conversation_view(row)
    return conversation_view(replace(row, **_NO_CONTENT, external_id=external_id))


def listed_view(row: ListedRow) -> ListedConversation:
    """Return a conversation as an item of a list, for callers that may read."""
    return ListedConversation(
        **dict(conversation_view(row.conversation)),
        first_message=_preview(row.first_message),
        last_message=_preview(row.last_message),
    )


def _preview(row: MessageRow | None) -> MessagePreview | None:
    if row is None:
        return None
    return MessagePreview(
        turn_id=format_id(row.turn_id),
        role=Role(row.role),
        actor=row.actor,
        text=first_words(row.text, max_characters=PREVIEW_CHARACTERS),
        occurred_at=row.occurred_at,
    )


def turn_view(row: TurnRow, *, content: JsonValue | None = None, conversation_id: str | None = None) -> Turn:
    """Return a turn as an API schema.

    `content`: the value of `row.content`, if it is parsed already; `conversation_id`: the id in its public form.
    """
    members = row._asdict()
    members |= {
        "id": format_id(row.id),
        "conversation_id": conversation_id or format_id(row.conversation_id),
        "kind": _KINDS[row.kind],
        "role": _ROLES[row.role],
        "content": json_column(row.content, None) if content is None else content,
        "tool_calls": _objects(row.tool_calls),
        "tool_results": _objects(row.tool_results),
        "usage": json_column(row.usage, None),
        "superseded_by": _id(row.superseded_by),
        "supersedes": _id(row.supersedes),
        "origin_turn_id": _id(row.origin_turn_id),
        "metadata": _object(row.metadata),
        "content_hash": None if row.content_hash is None else row.content_hash.hex(),
        "chain_hash": None if row.chain_hash is None else row.chain_hash.hex(),
    }
    return Turn.model_validate(members)


def turn_view_for(caller: Caller, row: TurnRow, *, content: JsonValue | None = None) -> Turn:
    """Return a turn as this caller may see it: without content if its API key may not read.

    The remaining fields are those of a tombstone, with the role in place of the actor.
    """
    if Scope.READ in caller.scopes:
        return turn_view(row, content=content)
    return turn_view(row._replace(**dict.fromkeys(ERASED_COLUMNS), actor=row.role))


def canonical_turn(row: TurnRow) -> CanonicalTurn:
    """Return a live turn in canonical form, for context assembly and message formats."""
    calls = _objects(row.tool_calls)
    results = _objects(row.tool_results)
    return CanonicalTurn(
        id=format_id(row.id),
        position=row.position or 0,
        role=_ROLES[row.role],
        kind=_KINDS[row.kind],
        actor=row.actor,
        content=cast("str | Sequence[JsonObject] | None", json_column(row.content, None)),
        tool_calls=[parse_tool_call(call, row.adapter) for call in calls] if calls else [],
        tool_call_id=row.tool_call_id,
        tool_results=[parse_tool_result(result, row.adapter) for result in results] if results else [],
        occurred_at=row.occurred_at,
        content_tokens=row.content_tokens,
        metadata=_object(row.metadata),
        adapter=row.adapter,
    )


def summary_text(row: SummaryRow) -> str:
    """Return the text of a summary; for highlights, their lines."""
    return "\n".join(line.text for line in row.lines) if row.lines else row.text or ""


def summary_view(row: SummaryRow) -> Summary:
    """Return a summary as an API schema."""
    members = {name: getattr(row, name) for name in _SUMMARY_MEMBERS} | {
        "id": format_id(row.id),
        "conversation_id": format_id(row.conversation_id),
        "valid": row.replaced_by is None,
        "replaced_by": _id(row.replaced_by),
        "text": summary_text(row),
        "lines": [SummaryLine(turn_id=format_id(line.turn_id), text=line.text) for line in row.lines],
    }
    return Summary.model_validate(members)


def summary_view_for(caller: Caller, row: SummaryRow) -> Summary:
    """Return a summary as this caller may see it: its range without its text if its API key may not read."""
    if Scope.READ in caller.scopes:
        return summary_view(row)
    return summary_view(replace(row, actors=[], text=None, abstract=None, lines=[], doubtful=[]))


def participants_column(participants: Iterable[Participant]) -> list[JsonObject]:
    """Return participants as they are stored, each actor once. The column, not the item, decides which are tools."""
    by_actor = {item.actor: item.model_dump(exclude={"role"}) for item in participants}
    return list(by_actor.values())


def activity_key(row: ListedRow) -> SortKey:
    """Return the sort key of a conversation in lists by latest activity."""
    return [row.conversation.active_at.isoformat(), str(row.conversation.id)]
