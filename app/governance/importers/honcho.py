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
from typing import Final

from app.formats.schemas import JsonObject, Role
from app.governance.importers.building import TurnBuilder, conversation, memory, without_null
from app.governance.importers.json_cursor import JsonCursor

SYSTEM: Final = "honcho"
_ASSISTANTS: Final = frozenset({"assistant", "agent", "ai", "bot"})


def records(document: JsonCursor) -> Iterator[JsonObject]:
    """Yield the records of all sessions, then the memories of all conclusions."""
    assistants = {place.need("id", "name").name() for place in document.list_of("peers") if _is_assistant(place)}
    for place in document.list_of("sessions"):
        yield from _session(place, assistants)
    names: set[str] = set()
    for place in document.list_of("conclusions", "observations"):
        name = place.need("id").name()
        if name in names:
            raise place.error("its id is that of an earlier conclusion")
        names.add(name)
        about: JsonObject = {"session_id": place.object().get("session_id")}
        yield memory(
            name,
            place.need("content").name(),
            agent_id=place.need("observer_id", "observer").name(),
            owner=place.need("observed_id", "observed").name(),
            metadata={SYSTEM: without_null(about)},
            created_at=place.time_of("created_at"),
        )


def _is_assistant(peer: JsonCursor) -> bool:
    configuration, metadata = peer.get("configuration"), peer.get("metadata")
    is_unobserved = configuration is not None and configuration.object().get("observe_me") is False
    role = None if metadata is None else metadata.object().get("role")
    return is_unobserved or (isinstance(role, str) and role.lower() in _ASSISTANTS)


def _session(place: JsonCursor, assistants: set[str]) -> Iterator[JsonObject]:
    messages = list(place.list_of("messages"))
    people = dict.fromkeys(message.need("peer_id", "peer_name").name() for message in messages)
    owners = [peer for peer in people if peer not in assistants]
    about = without_null(
        {key: place.object().get(key) or None for key in ("metadata", "configuration", "created_at", "workspace_id")}
    )
    yield conversation(
        place.need("id", "name").name(),
        owner=owners[0] if len(owners) == 1 else None,
        participants=[{"actor": peer} for peer in people],
        metadata={SYSTEM: about} if about else None,
    )
    builder = TurnBuilder(SYSTEM)
    for number, message in enumerate(messages):
        peer = message.need("peer_id", "peer_name").name()
        identity = message.get("id", "public_id")
        found = builder.turn(
            message,
            f"message-{number}" if identity is None else identity.name(),
            Role.ASSISTANT if peer in assistants else Role.USER,
            message.need("content").text(),
            actor=peer,
            occurred_at=message.time_of("created_at"),
            source_metadata={"metadata": message.object().get("metadata") or None},
        )
        if found is not None:
            yield found
