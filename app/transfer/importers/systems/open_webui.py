"""Open WebUI: the file of "Export chats", a list of chats, each with a tree of messages.

Source: https://github.com/open-webui/open-webui, the table of chats and the history that its pages store: `id`,
`user_id`, `title`, `chat`, `created_at`, `updated_at`, `archived`, `pinned`, `meta`; `chat` has `models`, `params`, and
`history` with `currentId` and `messages` by id: `{id, parentId, childrenIds, role, content, model, timestamp, files,
output, sources, usage}`. Old files have `chat.messages`, a list. A message's `output` has items of the
Responses API.

- The user's id is the owner, since the export of an administrator has the chats of all users.
- `message_tree` says what becomes of branches.
- Reasoning is stored, and shown to no model; calls and results in `output` become turns. Without `output`,
  `<details>` in the text, in which Open WebUI writes both, are stored beside the text.
"""

import re
from collections.abc import Iterator
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

SYSTEM: Final = "open_webui"
_ROLES: Final = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_KEPT: Final = ("updated_at", "archived", "pinned", "folder_id", "meta", "share_id")
_KEPT_OF_CHATS: Final = ("models", "params", "tags", "system")
_KEPT_OF_MESSAGES: Final = ("modelName", "models", "sources", "citations", "error", "annotation", "usage", "info")
_DETAILS: Final = re.compile(r"<(/?)details\b([^<>]*)>\s*", re.IGNORECASE)
_FOLDED: Final = re.compile(r"\btype=[\"']?(?:reasoning|tool_calls|code_interpreter)\b", re.IGNORECASE)


def objects(document: JsonCursor) -> Iterator[ForeignObject]:
    """Yield the chats of an export: a list, or one of them."""
    return chat_objects(document, _conversation, has=("chat", "history"), under="chats", names=("id",))


def _conversation(place: JsonCursor) -> Iterator[JsonObject]:
    chat = place.get("chat") or place
    name = (place.get("id") or chat.need("id")).name()
    about = without_null(
        {
            **{key: place.object().get(key) or None for key in _KEPT},
            **{key: chat.object().get(key) or None for key in _KEPT_OF_CHATS},
        }
    )
    created_at = place.time_of("created_at") or chat.time_of("timestamp")
    history = chat.get("history")
    tree = MessageTree(_nodes(history.need("messages") if history is not None else chat.need("messages")))
    current = None if history is None else history.name_of("currentId")
    for branch in tree.branches(name, current=current, source_metadata=about):
        yield conversation(
            branch.external_id,
            title=place.text_of("title") or chat.text_of("title"),
            owner=place.text_of("user_id"),
            metadata={SYSTEM: branch.source_metadata} if branch.source_metadata else None,
            created_at=created_at if branch.external_id == name else None,
        )
        yield from branch_turns(TurnBuilder(SYSTEM), branch, tree, _turn, created_at=created_at, times=("timestamp",))


def _nodes(messages: JsonCursor) -> Iterator[ChatNode]:
    before: str | None = None
    is_list = isinstance(messages.value, list)
    named = enumerate(messages.items()) if is_list else messages.members()
    for key, message in named:
        name = (message.name_of("id") or f"message-{key}") if is_list else str(key)
        value: JsonObject = message.value if isinstance(message.value, dict) else {"parentId": before}
        parent = before if is_list and "parentId" not in value else JsonCursor(value).name_of("parentId")
        children = value.get("childrenIds")
        listed = [child for child in children if isinstance(child, str)] if isinstance(children, list) else []
        yield ChatNode(name, message, parent, message.name_of("role"), listed)
        before = name


def _turn(builder: TurnBuilder, said: BranchMessage) -> Iterator[JsonObject]:
    place = said.node.place
    role, source_role = builder.role_of(place.need("role").text(), _ROLES)
    members = {key: place.object().get(key) or None for key in _KEPT_OF_MESSAGES}
    files = [_named_file(file.object()) for file in place.list_of("files")]
    message = MixedMessage(
        place,
        said.node.name,
        role,
        occurred_at=said.said_at,
        supersedes=said.supersedes,
        model=place.name_of("model") if role is Role.ASSISTANT else None,
        source_metadata={**members, "files": [*files] or None, **source_role},
        is_earlier=said.is_earlier,
    )
    output = list(place.list_of("output")) if isinstance(place.object().get("output"), list) else []
    yield from mixed_turns(builder, message, _of_output(place, output) if output else _of_text(place))


def _of_text(message: JsonCursor) -> Iterator[JsonObject | MadeCall | CallResult]:
    """Yield the parts of a message without items: its hidden details, its text, its files."""
    content = message.get("content")
    if content is not None and isinstance(content.value, list):
        for part in content.items():
            yield {"type": "part", **part.object()}
    elif content is not None:
        text = content.text()
        hidden, rest = _without_details(text)
        if hidden:
            yield item_part(SYSTEM, {"type": "details", "text": "".join(hidden)})
        if rest:
            yield text_part(rest)
    for file in message.list_of("files"):
        title = file.name_of("name") or JsonCursor(file.object().get("file")).name_of("filename", "id")
        kind = file.name_of("type") or "file"
        yield {"type": kind, **without_null({"filename": title or file.name_of("id")})}


def _without_details(text: str) -> tuple[list[str], str]:
    """Return the details of a text that the interface folds, and the rest. Details that do not end take all of it."""
    hidden: list[str] = []
    shown: list[str] = []
    start = end = depth = 0
    for tag in _DETAILS.finditer(text):
        if depth:
            depth += -1 if tag[1] else 1
            if not depth:
                hidden.append(text[start : tag.end()])
                end = tag.end()
        elif not tag[1] and _FOLDED.search(tag[2]):
            shown.append(text[end : tag.start()])
            start, end, depth = tag.start(), len(text), 1
    if depth:
        hidden.append(text[start:])
    return hidden, "".join([*shown, text[end:]]).strip() if hidden else text


def _of_output(message: JsonCursor, items: list[JsonCursor]) -> Iterator[JsonObject | MadeCall | CallResult]:
    """Yield the parts, calls and results of a message with items of the Responses API."""
    has_text = False
    for number, item in enumerate(items):
        kind = item.name_of("type")
        if kind == "message":
            for part in item.list_of("content"):
                text = part.text_of("text")
                if text is not None:
                    has_text = True
                    yield text_part(text)
        elif kind == "function_call":
            call_id = item.name_of("call_id", "id") or f"call-{number}"
            yield MadeCall(call(call_id, item.need("name").name()[:64], item.object().get("arguments")))
        elif kind == "function_call_output":
            yield CallResult(item.name_of("call_id", "id") or f"call-{number}", _result(item))
        else:
            yield item_part(SYSTEM, item.value)
    if not has_text:
        yield from _of_text(message)


def _result(item: JsonCursor) -> str:
    output = item.object().get("output")
    if isinstance(output, list):
        output = "\n".join(text for part in item.list_of("output") if (text := part.name_of("text")) is not None)
    return str(output or "[empty]")


def _named_file(file: JsonObject) -> JsonObject:
    """Return what identifies a file: not its content, which may be a data URL."""
    inner = file.get("file")
    about = inner if isinstance(inner, dict) else {}
    url = file.get("url")
    is_link = isinstance(url, str) and not url.startswith("data:")
    return without_null(
        {
            "type": file.get("type"),
            "id": file.get("id") or about.get("id"),
            "name": file.get("name") or about.get("filename"),
            "url": url if is_link else None,
        }
    )
