"""The hashes of stored turns, and the chain that they extend. Pure.

One chain writer: appends, forks, imports and verifications all continue the chain here.
"""

from dataclasses import dataclass

from pydantic import JsonValue

from app.conversations.hash_chain import GENESIS, canonical_form, chain_hash, content_hash, new_salt
from app.conversations.schemas.fields import HASHED
from app.conversations.stores.conversation_store import TurnRow
from app.core.entity_fields import record_of
from app.core.times import format_time


def hashed_fields(row: TurnRow) -> dict[str, JsonValue]:
    """Return the fields of a stored turn that its content hash covers."""
    fields = record_of(HASHED, row._asdict())
    if row.occurred_at != row.created_at:
        fields["occurred_at"] = format_time(row.occurred_at)
    return fields


def content_holds(row: TurnRow) -> bool:
    """Return whether the content hash of a stored turn is that of its fields."""
    return row.salt is not None and content_hash(row.salt, canonical_form(hashed_fields(row))) == row.content_hash


def next_hash(previous: bytes, row: TurnRow) -> bytes:
    """Return the chain hash of a turn that follows a chain hash."""
    return chain_hash(
        previous,
        turn_id=row.id,
        seq=row.seq or 0,
        role=row.role,
        kind=row.kind,
        created_at=row.created_at,
        content=row.content_hash or b"",
    )


@dataclass(slots=True)
class TurnChain:
    """The end of the chain of a conversation: its last seq and chain hash."""

    hash: bytes = GENESIS
    seq: int = 0

    def append(self, row: TurnRow) -> TurnRow:
        """Return a row as the next turn, with a seq, a new salt and new hashes. A tombstone keeps salt and hash."""
        self.seq += 1
        row = row._replace(seq=self.seq)
        if row.erased_at is None:
            salt = new_salt()
            row = row._replace(salt=salt, content_hash=content_hash(salt, canonical_form(hashed_fields(row))))
        self.hash = next_hash(self.hash, row)
        return row._replace(chain_hash=self.hash)

    def follow(self, row: TurnRow) -> bool:
        """Go on to a stored turn; return whether it is the next one and has the hashes that its fields give."""
        self.seq += 1
        self.hash = next_hash(self.hash, row)
        is_kept = row.erased_at is None and row.content_hash is not None
        return row.seq == self.seq and self.hash == row.chain_hash and (not is_kept or content_holds(row))
