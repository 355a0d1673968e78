"""What the exports of chat interfaces share: where their conversations are, and how a branch of messages is read.

A message may have revisions, and its text, calls and results follow each other in one object.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from app.formats.schemas import JsonObject
from app.transfer.importers.building import ForeignObject, TurnBuilder
from app.transfer.importers.json_cursor import JsonCursor
from app.transfer.importers.message_tree import ChatBranch, ChatNode, MessageTree


@dataclass(frozen=True, slots=True)
class BranchMessage:
    """A message of a branch.

    `said_at`: its time, or that of the message before it. `supersedes`: the revision that it replaces. `is_earlier`:
    a later revision replaces it.
    """

    node: ChatNode
    said_at: str | None
    supersedes: str | None
    is_earlier: bool


ReadMessage: TypeAlias = Callable[[TurnBuilder, BranchMessage], Iterator[JsonObject]]


def chat_objects(
    document: JsonCursor,
    read: Callable[[JsonCursor], Iterator[JsonObject]],
    *,
    has: Sequence[str],
    under: str = "conversations",
    names: Sequence[str],
) -> Iterator[ForeignObject]:
    """Yield the conversations of a document: a list, one in the member `under`, or an object with a member of `has`.

    `names`: the members that may hold the name of a conversation.
    """
    if not isinstance(document.value, dict):
        places = list(document.items())
    elif document.get(*has) is not None:
        places = [document]
    else:
        places = list(document.need(under).items())
    for place in places:
        yield ForeignObject("conversation", place, partial(read, place), place.name_of(*names))


def branch_turns(
    builder: TurnBuilder,
    branch: ChatBranch,
    tree: MessageTree,
    read: ReadMessage,
    *,
    created_at: str | None,
    times: Sequence[str],
) -> Iterator[JsonObject]:
    """Yield the turns of a branch, the revisions of a message before it. `times`: the members with a message's time."""
    last_time = created_at
    for node in branch.nodes:
        older: str | None = None
        for version in tree.versions(node):
            if isinstance(version.place.value, dict):
                last_time = version.place.time_of(*times) or last_time
            message = BranchMessage(version, last_time, older, is_earlier=version is not node)
            for record in builder.read_one(version.place, partial(read, builder, message)):
                yield record
                if record["type"] == "turn":
                    older = version.name
