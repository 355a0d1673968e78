"""Honcho: sessions with the messages of their peers, and conclusions about peers.

Source: https://docs.honcho.dev/v3/api-reference (messages: `id`, `content`, `peer_id`, `session_id`, `metadata`,
`created_at`; sessions: `id`, `metadata`, `created_at`; peers: `id`, `metadata`, `configuration`; conclusions: `id`,
`content`, `observer_id`, `observed_id`). Honcho has no export file, so the document is made of these answers:
`{"peers": […], "sessions": [{…, "messages": […]}], "conclusions": […]}`.

Honcho has no roles. A peer speaks as the assistant if its `configuration.observe_me` is false, as Honcho recommends for
agents, or if its `metadata.role` says so; every other peer is a user. A conclusion is a memory of the observer about
the observed peer.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from app.core.errors import Invalid
from app.formats.schemas import JsonObject, Role
from app.transfer.importers.building import ForeignObject, TurnBuilder, conversation, memory, without_null
from app.transfer.importers.json_cursor import JsonCursor

SYSTEM: Final = "honcho"
_ASSISTANTS: Final = frozenset({"assistant", "agent", "ai", "bot"})


def objects(document: JsonCursor) -> Iterator[ForeignObject]:
    """Yield all sessions, then the memories of all conclusions."""
    if isinstance(document.value, list):
        document = JsonCursor({"sessions": document.value})
    assistants = set(_assistants(document))
    for place in document.objects_of("sessions"):
        yield ForeignObject("conversation", place, partial(_session, place, assistants), place.name_of("id", "name"))
    for place in document.objects_of("conclusions", "observations"):
        yield ForeignObject("memory", place, partial(_conclusion, place), place.name_of("id"))


def _conclusion(place: JsonCursor) -> Iterator[JsonObject]:
    about: JsonObject = {"session_id": place.object().get("session_id")}
    yield memory(
        place.need("id").name(),
        place.need("content").name(),
        agent_id=place.need("observer_id", "observer").name(),
        owner=place.need("observed_id", "observed").name(),
        metadata={SYSTEM: without_null(about)},
        created_at=place.time_of("created_at"),
    )


def _assistants(document: JsonCursor) -> Iterator[str]:
    """Yield the peers that speak as the assistant. A peer that cannot be read does not."""
    for place in document.objects_of("peers"):
        try:
            name = place.need("id", "name").name()
            if _is_assistant(place):
                yield name
        except Invalid:
            continue


def _is_assistant(peer: JsonCursor) -> bool:
    configuration, metadata = peer.get("configuration"), peer.get("metadata")
    is_unobserved = configuration is not None and configuration.object().get("observe_me") is False
    role = None if metadata is None else metadata.object().get("role")
    return is_unobserved or (isinstance(role, str) and role.lower() in _ASSISTANTS)


def _session(place: JsonCursor, assistants: set[str]) -> Iterator[JsonObject]:
    messages = list(place.list_of("messages"))
    people = dict.fromkeys(
        peer for message_place in messages if (peer := message_place.name_of("peer_id", "peer_name")) is not None
    )
    owners = [peer for peer in people if peer not in assistants]
    about = without_null(
        {key: place.object().get(key) or None for key in ("metadata", "configuration", "created_at", "workspace_id")}
    )
    yield conversation(
        place.need("id", "name").name(),
        owner=owners[0] if len(owners) == 1 else None,
        participants=[{"actor": peer} for peer in people],
        metadata={SYSTEM: about} if about else None,
        created_at=place.time_of("created_at"),
    )
    builder = TurnBuilder(SYSTEM)

    def read(message: JsonCursor, number: int) -> Iterator[JsonObject]:
        peer = message.need("peer_id", "peer_name").name()
        record = builder.turn(
            message,
            message.name_of("id", "public_id") or f"message-{number}",
            Role.ASSISTANT if peer in assistants else Role.USER,
            message.need("content").text(),
            actor=peer,
            occurred_at=message.time_of("created_at"),
            source_metadata={"metadata": message.object().get("metadata") or None},
        )
        if record is not None:
            yield record

    yield from builder.read_all(messages, read)
