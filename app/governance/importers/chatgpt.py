"""ChatGPT's data export: `conversations.json`, a list of conversations, each with a tree of messages.

Source: the file that "Export data" of ChatGPT makes. OpenAI publishes no schema; the members are those described at
https://help.openai.com/en/articles/7260999 (how to export) and in public field references of `conversations.json`:
`mapping` (node id to `{id, message, parent, children}`), `current_node`, and messages with `author {role, name}`,
`content {content_type, parts}`, `create_time` in seconds, `recipient`, `metadata {model_slug}`.

- The branch that leads to `current_node` becomes the conversation.
- A single message beside one of that branch, with the same role and nothing after it, is an earlier revision of it: an
  edit, or an answer that was generated again. It is stored as superseded.
- Every other branch becomes a conversation of its own, from its first message that differs; `metadata.chatgpt` has
  `branch_of` and `branch_after`. A tree beside that of `current_node` becomes one, too, without `branch_after`. So
  nothing is stored twice, and nothing is lost.
- A message to a tool (`recipient`) is a call, and the message of the tool after it is its result.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from app.formats.schemas import JsonObject, Role
from app.governance.importers.building import TurnBuilder, call, conversation
from app.governance.importers.json_cursor import JsonCursor

SYSTEM: Final = "chatgpt"
_ROLES: Final = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM, "tool": Role.TOOL}
_TO_ALL: Final = frozenset({"all", "user", ""})
_TEXT_MEMBERS: Final = ("text", "result", "content")


@dataclass(frozen=True, slots=True)
class _ChatNode:
    name: str
    place: JsonCursor
    parent: str | None
    children: list[str]

    @property
    def message(self) -> JsonCursor | None:
        return self.place.get("message")

    @property
    def role(self) -> str | None:
        return None if self.message is None else self.message.need("author").need("role").text()


@dataclass(frozen=True, slots=True)
class _ChatBranch:
    nodes: list[_ChatNode]
    external_id: str
    source_metadata: JsonObject = field(default_factory=dict[str, JsonValue])


def records(document: JsonCursor) -> Iterator[JsonObject]:
    """Yield the records of all conversations of a `conversations.json`."""
    for place in document.items():
        yield from _conversation(place)


def _conversation(place: JsonCursor) -> Iterator[JsonObject]:
    name = place.need("conversation_id", "id").name()
    nodes = _nodes(place.need("mapping"))
    about = {
        key: place.object().get(key)
        for key in ("create_time", "update_time", "default_model_slug", "gizmo_id", "is_archived", "is_starred")
        if place.object().get(key) is not None
    }
    revisions: dict[str, list[_ChatNode]] = {}
    branches: deque[_ChatBranch] = deque([_ChatBranch(_path_to(place, nodes), name, about)])
    seen: set[str] = set()
    while branches:
        branch = branches.popleft()
        seen.update(node.name for node in branch.nodes)
        branches += _others(name, nodes, branch, revisions, seen)
        title = place.text_of("title")
        yield conversation(branch.external_id, title=title, metadata={SYSTEM: branch.source_metadata})
        yield from _turns(place, branch.nodes, revisions)
        if not branches:
            branches += _other_trees(place, name, nodes, seen)


def _other_trees(place: JsonCursor, name: str, nodes: Mapping[str, _ChatNode], seen: set[str]) -> Iterator[_ChatBranch]:
    """Yield the trees that no branch has reached. Raises an error of the document if some nodes are in no tree."""
    unseen = [node for node in nodes.values() if node.name not in seen]
    roots = [node for node in unseen if node.parent is None]
    if unseen and not roots:
        raise place.error("the parents of its messages form a circle")
    for root in roots:
        yield _ChatBranch(_descend(nodes, root), f"{name}#{root.name}", {"branch_of": name})


def _nodes(mapping: JsonCursor) -> Mapping[str, _ChatNode]:
    nodes: dict[str, _ChatNode] = {}
    for name, place in mapping.members():
        parent = place.get("parent")
        children = [child.name() for child in place.list_of("children")]
        nodes[name] = _ChatNode(name, place, None if parent is None else parent.name(), children)
    for node in nodes.values():
        if node.parent is not None and node.parent not in nodes:
            raise node.place.error("its parent is not in the mapping")
        for child in node.children:
            if child not in nodes or nodes[child].parent != node.name:
                raise node.place.error("one of its children is not in the mapping, or has another parent")
    for node in nodes.values():
        if node.parent is not None and node.name not in nodes[node.parent].children:
            nodes[node.parent].children.append(node.name)
    return nodes


def _path_to(place: JsonCursor, nodes: Mapping[str, _ChatNode]) -> list[_ChatNode]:
    """Return the nodes from the root to the current node; without one, to the last node of the mapping's first root."""
    current = place.get("current_node")
    if current is None:
        roots = [node for node in nodes.values() if node.parent is None]
        return _descend(nodes, roots[0]) if roots else []
    node = nodes.get(current.name())
    if node is None:
        raise current.error("the node is not in the mapping")
    path: list[_ChatNode] = []
    while node is not None:
        path.append(node)
        if len(path) > len(nodes):
            raise place.error("the parents of its messages form a circle")
        node = None if node.parent is None else nodes[node.parent]
    return path[::-1]


def _descend(nodes: Mapping[str, _ChatNode], node: _ChatNode) -> list[_ChatNode]:
    """Return the newest branch below a node, with the node."""
    path = [node]
    while path[-1].children:
        path.append(nodes[path[-1].children[-1]])
        if len(path) > len(nodes):
            raise node.place.error("the children of this message form a circle")
    return path


def _others(
    name: str,
    nodes: Mapping[str, _ChatNode],
    branch: _ChatBranch,
    revisions: dict[str, list[_ChatNode]],
    seen: set[str],
) -> Iterator[_ChatBranch]:
    """Yield the branches that leave this one; single messages go to `revisions` of the message beside them."""
    on_path = [node.name for node in branch.nodes]
    beside = dict(zip(on_path, [*on_path[1:], None], strict=True))
    for node in branch.nodes:
        chosen = beside[node.name]
        for child in node.children:
            if child in seen:
                continue
            other = nodes[child]
            if chosen is not None and not other.children and other.role == nodes[chosen].role:
                seen.add(child)
                revisions.setdefault(chosen, []).append(other)
                continue
            path = _descend(nodes, other)
            source_metadata: JsonObject = {"branch_of": name, "branch_after": node.name}
            yield _ChatBranch(path, f"{name}#{child}", source_metadata)


def _turns(
    place: JsonCursor, nodes: Sequence[_ChatNode], revisions: Mapping[str, list[_ChatNode]]
) -> Iterator[JsonObject]:
    builder = TurnBuilder(SYSTEM)
    last_time = place.time_of("create_time")
    open_call: str | None = None
    for node in nodes:
        older: str | None = None
        for revision in (*revisions.get(node.name, ()), node):
            if revision.message is None:
                continue
            last_time = revision.message.time_of("create_time") or last_time
            found = _turn(builder, revision, revision.message, last_time, open_call, older)
            if found is not None:
                yield found
                older = revision.name
                if revision is node:
                    open_call = node.name if found.get("tool_calls") else None


def _turn(
    builder: TurnBuilder,
    node: _ChatNode,
    message: JsonCursor,
    said_at: str | None,
    open_call: str | None,
    older: str | None,
) -> JsonObject | None:
    author = message.need("author")
    role = _ROLES.get(author.need("role").text())
    if role is None:
        raise author.need("role").error("a role that ChatGPT does not have")
    content = _content(message.get("content"))
    recipient = message.text_of("recipient") or ""
    is_call = role is Role.ASSISTANT and recipient not in _TO_ALL and isinstance(content, str) and bool(content)
    meta = message.get("metadata")
    source_metadata: JsonObject = {
        "status": message.object().get("status"),
        "channel": message.object().get("channel"),
        "recipient": None if recipient in _TO_ALL else recipient,
        "is_hidden": True if message.object().get("weight") == 0 else None,
        "metadata": (meta.object() or None) if meta is not None else None,
    }
    return builder.turn(
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
        kind = part.get("content_type")
        rest = {name: value for name, value in part.items() if name != "content_type"}
        return {"type": kind if isinstance(kind, str) else "part", **rest}
    return {"type": "text", "text": part if isinstance(part, str) else str(part)}
