"""The tree of messages of one chat, as interfaces store it: edits and repeated answers are branches. Pure.

- The branch that leads to the current message becomes the conversation.
- A single message beside one of that branch, with the same role and nothing after it, is an earlier revision of it: an
  edit, or an answer that was generated again. It is stored as superseded.
- Every other branch becomes a conversation of its own, from its first message that differs; its metadata has
  `branch_of` and `branch_after`. A tree beside that of the current message becomes one, too, without `branch_after`. So
  nothing is stored twice, and nothing is lost.

A message whose parent is not there follows the one that lists it as a child; without one, it is a root. A circle of
parents is cut at its first message. A current message that is not there is the newest one. So every node is in one
branch, for every file.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pydantic import JsonValue

from app.formats.schemas import JsonObject
from app.transfer.importers.json_cursor import JsonCursor


@dataclass(frozen=True, slots=True)
class ChatNode:
    """A message of a tree, and the names of its parent and of the children that it lists."""

    name: str
    place: JsonCursor
    parent: str | None
    role: str | None
    listed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ChatBranch:
    """The messages of one branch, oldest first, with the external id and the metadata of its conversation."""

    nodes: list[ChatNode]
    external_id: str
    source_metadata: JsonObject = field(default_factory=dict[str, JsonValue])


class MessageTree:
    """The messages of one chat."""

    def __init__(self, nodes: Iterable[ChatNode]) -> None:
        self._nodes: dict[str, ChatNode] = {}
        for node in nodes:
            self._nodes.setdefault(node.name, node)
        listers = {child: name for name, node in self._nodes.items() for child in node.listed if child != name}
        self._parents = {
            name: node.parent if node.parent in self._nodes and node.parent != name else listers.get(name)
            for name, node in self._nodes.items()
        }
        self._children = self._ordered_children()
        self._cut_circles()
        self._revisions: dict[str, list[ChatNode]] = {}

    @property
    def nodes(self) -> Mapping[str, ChatNode]:
        """Return the messages by name."""
        return self._nodes

    def versions(self, node: ChatNode) -> list[ChatNode]:
        """Return the earlier revisions of a message of a branch that was yielded, and the message."""
        return [*self._revisions.get(node.name, ()), node]

    def branches(self, name: str, *, current: str | None, source_metadata: JsonObject) -> Iterator[ChatBranch]:
        """Yield the branches of the chat `name`, that of the current message first. Take them one after another."""
        pending: deque[ChatBranch] = deque([ChatBranch(self._path_to(current), name, source_metadata)])
        seen: set[str] = set()
        while pending:
            branch = pending.popleft()
            seen.update(node.name for node in branch.nodes)
            pending += self._others(name, branch, seen)
            yield branch
            if not pending:
                roots = [node for node in self._roots() if node not in seen]
                pending += [
                    ChatBranch(self._descend(root), f"{name}#{root}", {"branch_of": name}) for root in roots[:1]
                ]

    def _ordered_children(self) -> dict[str, list[str]]:
        children: dict[str, list[str]] = {name: [] for name in self._nodes}
        for name, node in self._nodes.items():
            children[name] += dict.fromkeys(child for child in node.listed if self._parents.get(child) == name)
        listed = {name: set(names) for name, names in children.items()}
        for name, parent in self._parents.items():
            if parent is not None and name not in listed[parent]:
                children[parent].append(name)
        return children

    def _roots(self) -> Iterator[str]:
        return (name for name, parent in self._parents.items() if parent is None)

    def _cut_circles(self) -> None:
        reached: set[str] = set()
        starts = list(self._roots())
        candidates = iter(self._nodes)
        while True:
            while starts:
                name = starts.pop()
                reached.add(name)
                starts += self._children[name]
            unreached = next((name for name in candidates if name not in reached), None)
            if unreached is None:
                return
            parent = self._parents[unreached]
            if parent is not None:
                self._children[parent].remove(unreached)
            self._parents[unreached] = None
            starts.append(unreached)

    def _path_to(self, current: str | None) -> list[ChatNode]:
        """Return the messages from the root to the current one; without one, to the newest of the first tree."""
        if current not in self._nodes:
            root = next(self._roots(), None)
            return [] if root is None else self._descend(root)
        path: list[ChatNode] = []
        name: str | None = current
        while name is not None:
            path.append(self._nodes[name])
            name = self._parents[name]
        return path[::-1]

    def _descend(self, name: str) -> list[ChatNode]:
        """Return the newest branch below a message, with the message."""
        path = [name]
        while self._children[path[-1]]:
            path.append(self._children[path[-1]][-1])
        return [self._nodes[step] for step in path]

    def _others(self, name: str, branch: ChatBranch, seen: set[str]) -> Iterator[ChatBranch]:
        """Yield the branches that leave this one; a single message is a revision of the message beside it."""
        on_path = [node.name for node in branch.nodes]
        beside: dict[str, str | None] = {**dict(pairwise(on_path)), **dict.fromkeys(on_path[-1:])}
        for node in branch.nodes:
            chosen = beside[node.name]
            for child in self._children[node.name]:
                if child in seen:
                    continue
                other = self._nodes[child]
                if chosen is not None and not self._children[child] and other.role == self._nodes[chosen].role:
                    seen.add(child)
                    self._revisions.setdefault(chosen, []).append(other)
                    continue
                path = self._descend(child)
                yield ChatBranch(path, f"{name}#{child}", {"branch_of": name, "branch_after": node.name})
