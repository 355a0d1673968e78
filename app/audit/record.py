"""Records entries in the transaction that they describe.

An entry is inserted in the message of the commit, with literal values, so it takes no round trip. A literal is a UUID,
a number, a hash in hexadecimal, or the name of a member of an enum: no text of a caller can reach it.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final
from uuid import UUID

from app.audit import store
from app.audit.request_context import current_request
from app.audit.schemas import Action, Actor, ActorKind, Command, Entry, ObjectKind
from app.core.database.transactions import Transaction
from app.core.ids import NO_KEY_ID, format_id, new_unordered_uuid, parse_id

NO_COUNTS: Final[Mapping[str, int]] = MappingProxyType({})


def record(
    tx: Transaction,
    actor: Actor,
    action: Action,
    kind: ObjectKind | None = None,
    object_id: UUID | int | None = None,
    *,
    conversation_id: UUID | None = None,
    seqs: tuple[int, int] | None = None,
    head_hash: bytes | None = None,
    counts: Mapping[str, int] = NO_COUNTS,
) -> None:
    """Record an action, in the transaction that does it: both are stored, or neither.

    `seqs`: the first and the last of the turns that were stored; `head_hash`: the chain hash of the conversation after
    them. `counts`: rows by plain names.
    """
    if kind is ObjectKind.CONVERSATION and isinstance(object_id, UUID):
        conversation_id = object_id
    key_id = actor.key_id
    first, last_seq = seqs or ("null", "null")
    values = (
        _id(actor.key_tenant_id),
        _id(new_unordered_uuid()),
        "null" if key_id == NO_KEY_ID else _id(key_id),
        f"'{actor_kind(actor)}'",
        f"'{action}'",
        "null" if kind is None else f"'{kind}'",
        _object_literal(object_id),
        _id(conversation_id),
        str(first),
        str(last_seq),
        "null" if head_hash is None else f"'\\x{head_hash.hex()}'",
        _counts_literal(counts),
        _id(current_request()),
    )
    tx.at_commit.append(store.insert_literals(values))


def entry_of_read(
    actor: Actor,
    action: Action,
    *,
    kind: ObjectKind | None,
    object_id: UUID | int | str | None,
    conversation_id: UUID | None,
    counts: Mapping[str, int],
) -> Entry:
    """Return the entry of a request that changed nothing, at the time of this process."""
    return Entry(
        tenant_id=actor.key_tenant_id,
        id=new_unordered_uuid(),
        recorded_at=datetime.now(UTC),
        key_id=None if actor.key_id == NO_KEY_ID else actor.key_id,
        actor=actor_kind(actor),
        action=action,
        object_kind=kind,
        object_id=object_id if isinstance(object_id, str) else object_text(object_id),
        conversation_id=conversation_id,
        first_seq=None,
        last_seq=None,
        head_hash=None,
        counts=dict(counts),
        request_id=current_request(),
    )


def actor_kind(actor: Actor) -> ActorKind:
    """Return who acts."""
    if isinstance(actor, Command):
        return ActorKind.COMMAND
    if actor.key_id == NO_KEY_ID:
        return ActorKind.JOB
    if actor.is_person:
        return ActorKind.PERSON
    return ActorKind.TOKEN if actor.via_token else ActorKind.KEY


def object_text(object_id: UUID | int | None) -> str | None:
    """Return the public form of an object's id: a ULID or a number."""
    return format_id(object_id) if isinstance(object_id, UUID) else None if object_id is None else str(object_id)


def object_id_of(text: str) -> str:
    """Return the id of an object as entries have it: for a UUID the ULID, other text as it is."""
    try:
        return format_id(parse_id(text))
    except ValueError:
        return text


def single(ids: Sequence[UUID]) -> UUID | None:
    """Return the id of the only object, or None for several."""
    return ids[0] if len(ids) == 1 else None


def _id(value: UUID | None) -> str:
    return "null" if value is None else f"'{value}'"


def _object_literal(object_id: UUID | int | None) -> str:
    # a number that is not an int would be text of unknown origin
    return (
        "null"
        if object_id is None
        else f"'{object_text(object_id if isinstance(object_id, UUID) else int(object_id))}'"
    )


def _counts_literal(counts: Mapping[str, int]) -> str:
    if not counts:
        return "'{}'"
    return "'{" + ", ".join(f'"{name}": {int(count)}' for name, count in counts.items()) + "}'"
