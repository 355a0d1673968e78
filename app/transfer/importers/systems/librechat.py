"""LibreChat: the JSON export of a conversation, or a list of them.

Source: https://github.com/danny-avila/LibreChat, its export dialog and its importer: `conversationId`, `endpoint`,
`title`, `exportAt`, `branches`, `recursive`, `options`, and `messages` (or `messagesTree`): a list, or a tree with
`children`. A message has `messageId`, `parentMessageId`, `isCreatedByUser`, `sender`, `text` or `content` (parts
`text`, `think`, `tool_call`, `image_file`, …), `model`, `createdAt`, `files`, `attachments`, `error`.

- `message_tree` says what becomes of branches.
- `think` parts are stored, and shown to no model. A `tool_call` part is a call and its result.
- The file has no time of the conversation: that of its first message counts.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

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

SYSTEM: Final = "librechat"
_ROLES: Final = {"user": Role.USER, "human": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_KEPT: Final = ("endpoint", "exportAt", "options", "tags", "updatedAt")
_KEPT_OF_MESSAGES: Final = ("endpoint", "error", "unfinished", "finish_reason", "tokenCount", "feedback")
_HIDDEN: Final = frozenset({"think", "reasoning"})


def objects(document: JsonCursor) -> Iterator[ForeignObject]:
    """Yield the conversations of a document: one, or those of a list."""
    return chat_objects(document, _conversation, has=("messages", "messagesTree"), names=("conversationId",))


def _conversation(place: JsonCursor) -> Iterator[JsonObject]:
    name = place.need("conversationId", "id").name()
    about = without_null({key: place.object().get(key) or None for key in _KEPT})
    tree = MessageTree(_nodes(place.need("messages", "messagesTree")))
    options = place.get("options")
    model = None if options is None or not isinstance(options.value, dict) else options.name_of("model")
    for branch in tree.branches(name, current=None, source_metadata=about):
        yield conversation(
            branch.external_id,
            title=place.text_of("title"),
            metadata={SYSTEM: branch.source_metadata} if branch.source_metadata else None,
            created_at=place.time_of("createdAt") if branch.external_id == name else None,
        )
        read = partial(_turn, model=model)
        yield from branch_turns(
            TurnBuilder(SYSTEM), branch, tree, read, created_at=None, times=("createdAt", "updatedAt")
        )


def _nodes(messages: JsonCursor) -> Iterator[ChatNode]:
    """Yield the messages of a list and of the `children` in it, parents first."""
    pending: list[tuple[JsonCursor, str | None]] = [(place, None) for place in reversed(list(messages.items()))]
    has_parents = any("parentMessageId" in place.value for place, _ in pending if isinstance(place.value, dict))
    before: str | None = None
    count = 0
    while pending:
        place, above = pending.pop()
        name = place.name_of("messageId", "_id") or f"message-{count}"
        count += 1
        parent_name = place.name_of("parentMessageId")
        is_object = isinstance(place.value, dict)
        parent = (above or parent_name) if is_object and (has_parents or above) else before
        yield ChatNode(name, place, parent, _given_role(place))
        children = place.value.get("children") if isinstance(place.value, dict) else None
        if isinstance(children, list):
            inner = JsonCursor(children, f"{place.at}/children")
            pending += [(child, name) for child in reversed(list(inner.items()))]
        before = name


def _given_role(place: JsonCursor) -> str | None:
    members = place.value if isinstance(place.value, dict) else {}
    by_user = members.get("isCreatedByUser")
    if isinstance(by_user, bool):
        return "user" if by_user else "assistant"
    return place.name_of("role", "sender")


def _turn(builder: TurnBuilder, said: BranchMessage, *, model: str | None) -> Iterator[JsonObject]:
    node, place = said.node, said.node.place
    if node.role is None:
        place.need("isCreatedByUser")
    role, source_role = builder.role_of(node.role, _ROLES)
    members = {key: place.object().get(key) or None for key in _KEPT_OF_MESSAGES}
    files = [_file(file.object()) for member in ("files", "attachments") for file in place.list_of(member)]
    is_answer = role is Role.ASSISTANT
    message = MixedMessage(
        place,
        node.name,
        role,
        occurred_at=said.said_at,
        supersedes=said.supersedes,
        actor=place.name_of("sender") if is_answer else None,
        model=(place.name_of("model") or model) if is_answer else None,
        source_metadata={**members, "files": [*files] or None, **source_role},
        is_earlier=said.is_earlier,
    )
    yield from mixed_turns(builder, message, _pieces(place, node.name))


def _pieces(message: JsonCursor, name: str) -> Iterator[JsonObject | MadeCall | CallResult]:
    """Yield the parts, calls and results of a message, then its files."""
    content = message.object().get("content")
    parts = list(message.list_of("content")) if isinstance(content, list) else []
    for number, part in enumerate(parts):
        kind = part.name_of("type") or "part"
        if kind in _HIDDEN:
            yield item_part(SYSTEM, part.value)
        elif kind == "text":
            inner = part.object().get("text")
            text = JsonCursor(inner).name_of("value") if isinstance(inner, dict) else part.name_of("text")
            if text is not None:
                yield text_part(text)
        elif kind == "tool_call":
            tool_call = part.need("tool_call")
            function = tool_call.get("function") or tool_call
            call_id = tool_call.name_of("id") or f"{name}/call-{number}"
            arguments = function.object().get("args", function.object().get("arguments"))
            yield MadeCall(call(call_id, function.need("name").name()[:64], arguments))
            output = tool_call.object().get("output", function.object().get("output"))
            if output is not None:
                yield CallResult(call_id, output if isinstance(output, str) and output else "[empty]")
        elif part.object():
            yield {**part.object(), "type": kind}
    text = message.name_of("text") if not parts else None
    if text is not None:
        yield text_part(text)
    for file in message.list_of("files"):
        yield {"type": "file", **without_null({"filename": file.name_of("filename", "file_id")})}


def _file(file: JsonObject) -> JsonObject:
    names = ("file_id", "filename", "type", "bytes", "width", "height")
    return without_null({name: file.get(name) for name in names})
