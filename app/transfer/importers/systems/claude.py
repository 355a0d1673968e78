"""Claude.ai's data export: `conversations.json`, a list of conversations with their messages.

Source: the archive that "Export data" of Claude.ai makes. Anthropic publishes no schema; the members are those of
public descriptions of the file: `uuid`, `name`, `summary`, `created_at`, `updated_at`, `account {uuid}` and
`chat_messages` with `uuid`, `sender` (human or assistant), `text`, `content` (blocks `text`, `thinking`, `tool_use`,
`tool_result`), `created_at`, `attachments` (`file_name`, `extracted_content`), `files` (`file_name`, `file_uuid`), and
`parent_message_uuid` in newer files. `users.json`, `projects.json` and `memories.json` beside it have no conversations.

- The text of an attachment is a part of its message. Thinking is stored, and shown to no model.
- Messages that name their parents are a tree: `message_tree` says what becomes of branches.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from pydantic import JsonValue

from app.formats.schemas import JsonObject, Role
from app.transfer.importers.building import (
    CallResult,
    ForeignObject,
    MadeCall,
    MixedMessage,
    TurnBuilder,
    call,
    conversation,
    item_part,
    mixed_turns,
    text_part,
    without_null,
)
from app.transfer.importers.chats import BranchMessage, branch_turns, chat_objects
from app.transfer.importers.json_cursor import JsonCursor
from app.transfer.importers.message_tree import ChatNode, MessageTree

SYSTEM: Final = "claude"
_ROLES: Final = {"human": Role.USER, "user": Role.USER, "assistant": Role.ASSISTANT}
_KEPT: Final = ("summary", "updated_at", "account", "project", "model", "settings", "is_starred")
_KEPT_OF_MESSAGES: Final = ("updated_at", "truncated", "stop_reason")


def objects(document: JsonCursor) -> Iterator[ForeignObject]:
    """Yield the conversations of a `conversations.json`: a list, or one of them."""
    return chat_objects(document, _conversation, has=("chat_messages",), names=("uuid", "id"))


def _conversation(place: JsonCursor) -> Iterator[JsonObject]:
    name = place.need("uuid", "id").name()
    created_at = place.time_of("created_at")
    about = without_null({key: place.object().get(key) or None for key in _KEPT})
    messages = list(place.need("chat_messages").items())
    has_parents = any(message.name_of("parent_message_uuid") is not None for message in messages)
    tree = MessageTree(_nodes(messages, has_parents=has_parents))
    current = place.name_of("current_leaf_message_uuid")
    for branch in tree.branches(name, current=current, source_metadata=about):
        yield conversation(
            branch.external_id,
            title=place.text_of("name"),
            metadata={SYSTEM: branch.source_metadata} if branch.source_metadata else None,
            created_at=created_at if branch.external_id == name else None,
        )
        read = partial(_turn, model=place.name_of("model"))
        yield from branch_turns(TurnBuilder(SYSTEM), branch, tree, read, created_at=created_at, times=("created_at",))


def _nodes(messages: list[JsonCursor], *, has_parents: bool) -> Iterator[ChatNode]:
    before: str | None = None
    for number, message in enumerate(messages):
        name = message.name_of("uuid", "id") or f"message-{number}"
        parent = message.name_of("parent_message_uuid") if has_parents and isinstance(message.value, dict) else before
        yield ChatNode(name, message, parent, message.name_of("sender", "role"))
        before = name


def _turn(builder: TurnBuilder, said: BranchMessage, *, model: str | None) -> Iterator[JsonObject]:
    place = said.node.place
    role, source_role = builder.role_of(place.need("sender", "role").text(), _ROLES)
    members = {key: place.object().get(key) or None for key in _KEPT_OF_MESSAGES}
    files = [_without_text(file.object()) for member in ("attachments", "files") for file in place.list_of(member)]
    message = MixedMessage(
        place,
        said.node.name,
        role,
        occurred_at=said.said_at,
        supersedes=said.supersedes,
        model=(place.name_of("model") or model) if role is Role.ASSISTANT else None,
        source_metadata={**members, "files": [*files] or None, **source_role},
        is_earlier=said.is_earlier,
    )
    yield from mixed_turns(builder, message, _pieces(place, said.node.name))


def _pieces(message: JsonCursor, name: str) -> Iterator[JsonObject | MadeCall | CallResult]:
    """Yield the parts, calls and results of a message: its blocks, then its attachments."""
    blocks = list(message.list_of("content")) if isinstance(message.object().get("content"), list) else []
    text = message.name_of("text")
    if text is not None and not blocks:
        yield text_part(text)
    open_calls: list[str] = []
    for number, block in enumerate(blocks):
        yield from _of_block(block, f"{name}/call-{number}", open_calls)
    for attached in message.list_of("attachments"):
        text = attached.text_of("extracted_content")
        if text is not None:
            yield text_part(text, title=attached.text_of("file_name"))
    for number, file in enumerate(message.list_of("files")):
        title = file.text_of("file_name") or f"file-{number}"
        yield {"type": "file", "filename": title, **without_null({"file_uuid": file.text_of("file_uuid")})}


def _of_block(block: JsonCursor, number_id: str, open_calls: list[str]) -> Iterator[JsonObject | MadeCall | CallResult]:
    """Yield the part, call or result of a block. A result without the id of its call answers the first open one."""
    match block.name_of("type"):
        case "text":
            text = block.text_of("text")
            if text is not None:
                yield text_part(text)
        case "tool_use":
            call_id = block.name_of("id") or number_id
            open_calls.append(call_id)
            yield MadeCall(call(call_id, block.need("name").name()[:64], block.object().get("input")))
        case "tool_result":
            call_id = block.name_of("tool_use_id") or (open_calls[0] if open_calls else number_id)
            if call_id in open_calls:
                open_calls.remove(call_id)
            yield CallResult(call_id, _result(block))
        case _:
            if block.object():
                yield item_part(SYSTEM, block.value)


def _result(block: JsonCursor) -> JsonValue:
    content = block.object().get("content")
    if isinstance(content, str):
        return content or "[empty]"
    parts: list[JsonValue] = []
    for part in block.list_of("content"):
        text = part.name_of("text")
        parts.append(text_part(text) if text is not None else {"type": "part", **part.object()})
    texts = [str(part["text"]) for part in parts if isinstance(part, dict) and part.keys() == {"type", "text"}]
    return "\n".join(texts) or "[empty]" if len(texts) == len(parts) else parts


def _without_text(file: JsonObject) -> JsonObject:
    return {name: value for name, value in file.items() if name != "extracted_content"}
