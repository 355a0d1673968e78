"""ChatGPT's data export: `conversations.json`, a list of conversations, each with a tree of messages.

Source: the file that "Export data" of ChatGPT makes. OpenAI publishes no schema; the members are those described at
https://help.openai.com/en/articles/7260999 (how to export) and in public field references of `conversations.json`:
`mapping` (node id to `{id, message, parent, children}`), `current_node`, and messages with `author {role, name}`,
`content {content_type, parts}`, `create_time` in seconds, `recipient`, `metadata {model_slug}`.

`message_tree` says what becomes of branches.

- A message to a tool (`recipient`) is a call, and the message of the tool after it is its result.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from pydantic import JsonValue

from app.formats.schemas import JsonObject, Role
from app.transfer.importers.building import (
    ForeignObject,
    TurnBuilder,
    call,
    conversation,
    item_part,
    text_part,
    without_null,
)
from app.transfer.importers.json_cursor import JsonCursor
from app.transfer.importers.message_tree import ChatBranch, ChatNode, MessageTree

SYSTEM: Final = "chatgpt"
_ROLES: Final = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM, "tool": Role.TOOL}
_TO_ALL: Final = frozenset({"all", "user", ""})
_TEXT_MEMBERS: Final = ("text", "result", "content")
_HIDDEN_CONTENTS: Final = frozenset({"thoughts", "reasoning_recap", "user_editable_context", "model_editable_context"})
_KEPT: Final = ("create_time", "update_time", "default_model_slug", "gizmo_id", "is_archived", "is_starred")


def objects(document: JsonCursor) -> Iterator[ForeignObject]:
    """Yield the conversations of a `conversations.json`: a list, or one of them."""
    if isinstance(document.value, dict):
        places = [document] if document.get("mapping") is not None else list(document.need("conversations").items())
    else:
        places = list(document.items())
    for place in places:
        name = place.name_of("conversation_id", "id")
        yield ForeignObject("conversation", place, partial(_conversation, place), name)


def _conversation(place: JsonCursor) -> Iterator[JsonObject]:
    name = place.need("conversation_id", "id").name()
    tree = MessageTree(_nodes(place.need("mapping")))
    about = without_null({key: place.object().get(key) for key in _KEPT})
    created_at = place.time_of("create_time")
    current = place.name_of("current_node")
    for branch in tree.branches(name, current=current, source_metadata=about):
        yield conversation(
            branch.external_id,
            title=place.text_of("title"),
            metadata={SYSTEM: branch.source_metadata},
            created_at=created_at if branch.external_id == name else None,
        )
        yield from _turns(branch, tree, created_at)


def _nodes(mapping: JsonCursor) -> Iterator[ChatNode]:
    before: str | None = None
    for name, place in mapping.members():
        members: JsonObject = place.value if isinstance(place.value, dict) else {"parent": before}
        children = members.get("children")
        listed = [child for child in children if isinstance(child, str)] if isinstance(children, list) else []
        yield ChatNode(name, place, JsonCursor(members).name_of("parent"), _role(place), listed)
        before = name


def _role(place: JsonCursor) -> str | None:
    """Return the role of a node's message, if it can be read."""
    message = place.value.get("message") if isinstance(place.value, dict) else None
    author = message.get("author") if isinstance(message, dict) else None
    return JsonCursor(author).name_of("role")


def _time(place: JsonCursor) -> str | None:
    message = place.value.get("message") if isinstance(place.value, dict) else None
    return JsonCursor(message).time_of("create_time") if isinstance(message, dict) else None


def _turns(branch: ChatBranch, tree: MessageTree, created_at: str | None) -> Iterator[JsonObject]:
    builder = TurnBuilder(SYSTEM)
    last_time = created_at
    open_call: str | None = None
    for node in branch.nodes:
        older: str | None = None
        versions = tree.versions(node)
        for revision in versions:
            last_time = _time(revision.place) or last_time
            read = partial(_turn, builder, revision, last_time, open_call, older)
            for record in builder.read_one(revision.place, read):
                yield record
                if record["type"] == "turn":
                    older = revision.name
                    if revision is node:
                        open_call = node.name if record.get("tool_calls") else None


def _turn(
    builder: TurnBuilder, node: ChatNode, said_at: str | None, open_call: str | None, older: str | None
) -> Iterator[JsonObject]:
    message = node.place.get("message")
    if message is None:
        return
    author = message.need("author")
    role_name = author.need("role").text()
    role, source_role = builder.role_of(role_name, _ROLES)
    content: JsonValue = _content(message.get("content"))
    recipient = message.text_of("recipient") or ""
    is_call = role is Role.ASSISTANT and recipient not in _TO_ALL and isinstance(content, str) and bool(content)
    meta = message.get("metadata")
    source_metadata: JsonObject = {
        "status": message.object().get("status"),
        "channel": message.object().get("channel"),
        "recipient": None if recipient in _TO_ALL else recipient,
        "metadata": (meta.object() or None) if meta is not None else None,
        **source_role,
    }
    if not is_call and content and _is_hidden(message, role, meta):
        hidden: list[JsonValue] = [item_part(SYSTEM, message.need("content").value)]
        content = hidden
        source_metadata["is_hidden"] = True
    record = builder.turn(
        message,
        node.name,
        role,
        None if is_call else content,
        actor=author.text_of("name"),
        occurred_at=said_at,
        model=None if meta is None else meta.text_of("model_slug"),
        calls=[call(node.name, recipient[:64], content)] if is_call else (),
        answers=open_call if role is Role.TOOL else None,
        supersedes=older,
        source_metadata=source_metadata,
    )
    if record is not None:
        yield record


def _is_hidden(message: JsonCursor, role: Role, meta: JsonCursor | None) -> bool:
    """Return whether ChatGPT hides a message: reasoning, settings of the user, its own instructions."""
    flags = {} if meta is None else meta.object()
    content = message.get("content")
    kind = None if content is None else content.name_of("content_type")
    return (
        role is Role.SYSTEM
        or kind in _HIDDEN_CONTENTS
        or message.object().get("weight") == 0
        or message.object().get("channel") == "analysis"
        or flags.get("is_visually_hidden_from_conversation") is True
    )


def _content(content: JsonCursor | None) -> JsonValue:
    """Return the text of a content; a list of typed parts if it has more than text."""
    if content is None:
        return None
    kind = content.text_of("content_type") or "text"
    if content.get("parts") is not None:
        parts = [part.value for part in content.need("parts").items() if part.value not in (None, "")]
        if all(isinstance(part, str) for part in parts):
            return "\n".join(str(part) for part in parts)
        return [_part(part) for part in parts]
    text = content.text_of(*_TEXT_MEMBERS) if kind in {"text", "code", "execution_output", "tether_quote"} else None
    if text is not None:
        return text
    members = {name: value for name, value in content.object().items() if name != "content_type"}
    return [{"type": kind, **members}] if any(members.values()) else None


def _part(part: JsonValue) -> JsonValue:
    if isinstance(part, dict):
        kind, said = part.get("content_type"), part.get("text")
        if kind == "audio_transcription" and isinstance(said, str):
            return text_part(said, audio={name: value for name, value in part.items() if name != "text"})
        rest = {name: value for name, value in part.items() if name != "content_type"}
        return {"type": kind if isinstance(kind, str) else "part", **rest}
    return {"type": "text", "text": part if isinstance(part, str) else str(part)}
