"""Zep: threads with their messages, and the edges of a graph as facts.

Sources: https://help.getzep.com/v4/threads and https://help.getzep.com/sdk-reference/thread/message/get (messages:
`uuid`, `role`, `name`, `content`, `created_at`, `metadata`; in older versions `role_type`, and `role` for the name),
and https://help.getzep.com/sdk-reference/graph/edge/get-edge (edges: `uuid`, `name`, `fact`, `source_node_uuid`,
`target_node_uuid`, their names, `valid_at`, `invalid_at`, `created_at`). Zep has no export file, so the document is
made of these answers: `{"user_id": …, "threads": [{…, "messages": […]}], "nodes": […], "edges": […]}`.

An edge becomes a fact: its nodes are subject and object, its name is the predicate. Its sentence (`fact`) is not kept,
because a fact of Turnkeep is made of these three.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from app.formats.schemas import JsonObject, Role
from app.transfer.importers.building import ForeignObject, TurnBuilder, conversation, without_null
from app.transfer.importers.json_cursor import JsonCursor

SYSTEM: Final = "zep"
_ROLES: Final = {
    "user": Role.USER,
    "norole": Role.USER,
    "assistant": Role.ASSISTANT,
    "system": Role.SYSTEM,
    "tool": Role.TOOL,
    "function": Role.TOOL,
}


def objects(document: JsonCursor) -> Iterator[ForeignObject]:
    """Yield all threads, then the facts of all edges."""
    if isinstance(document.value, list):
        document = JsonCursor({"threads": document.value})
    owner = document.name_of("user_id")
    for place in document.objects_of("threads", "sessions"):
        name = place.name_of("thread_id", "session_id", "uuid")
        yield ForeignObject("conversation", place, partial(_thread, place, owner), name)
    names = {
        uuid: name
        for node in document.objects_of("nodes")
        if (uuid := node.name_of("uuid")) is not None and (name := node.name_of("name")) is not None
    }
    for place in document.objects_of("edges", "facts"):
        yield ForeignObject("fact", place, partial(_fact, place, names, owner), place.name_of("uuid"))


def _thread(place: JsonCursor, owner: str | None) -> Iterator[JsonObject]:
    builder = TurnBuilder(SYSTEM)
    about = without_null({"created_at": place.object().get("created_at"), "metadata": place.object().get("metadata")})
    name = place.need("thread_id", "session_id", "uuid").name()
    yield conversation(
        name,
        owner=place.text_of("user_id") or owner,
        metadata={SYSTEM: about} if about else None,
        created_at=place.time_of("created_at"),
    )
    yield from builder.read_all(place.list_of("messages"), partial(_message, builder))


def _message(builder: TurnBuilder, message: JsonCursor, number: int) -> Iterator[JsonObject]:
    typed = message.get("role_type")
    role_name = (typed or message.need("role")).text()
    role, source_role = builder.role_of(role_name, _ROLES)
    record = builder.turn(
        message,
        message.text_of("uuid") or f"message-{number}",
        role,
        message.need("content").text(),
        actor=message.text_of("name") or (message.text_of("role") if typed is not None else None),
        occurred_at=message.time_of("reference_time", "created_at"),
        source_metadata={
            "role": role_name if role_name == "norole" else None,
            "metadata": message.object().get("metadata"),
            **source_role,
        },
    )
    if record is not None:
        yield record


def _fact(place: JsonCursor, names: Mapping[str, str], owner: str | None) -> Iterator[JsonObject]:
    def node(side: str) -> str:
        name = place.text_of(f"{side}_node_name")
        if name is not None:
            return name
        identity = place.need(f"{side}_node_uuid")
        if identity.name() not in names:
            raise identity.error("the name of this node is neither in the edge nor in the nodes")
        return names[identity.name()]

    yield without_null(
        {
            "type": "fact",
            "owner": place.text_of("user_id") or owner,
            "subject": node("source"),
            "predicate": place.need("name").text(),
            "object": node("target"),
            "valid_from": place.need_time_of("valid_at", "created_at"),
            "valid_to": place.need_time_of("invalid_at", "expired_at"),
        }
    )
