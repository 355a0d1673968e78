"""Invariants of the data of one conversation. Pure: rows in, faults out.

Turns are fed in the order of their seq, a page at a time, so that a conversation of any length needs little memory. A
fault names ids and numbers, never content.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from app.conversations.hash_chain import GENESIS
from app.conversations.schemas.conversations import plain_text
from app.conversations.schemas.fields import ERASED_COLUMNS
from app.conversations.schemas.participants import MAX_PARTICIPANTS
from app.conversations.turns.hashes import content_holds, next_hash
from app.conversations.views import turn_view
from app.diagnostics.schemas import Fault
from app.diagnostics.store import CheckedTurn, HeadRow
from app.formats.schemas import JsonObject, Kind, Role

_UNSEARCHED = frozenset({Kind.SYSTEM_INSTRUCTION.value, Kind.COMPACTION.value})


@dataclass(frozen=True, slots=True)
class _IndexedTurn:
    """A live turn and the position of its index entry; None without a live entry."""

    turn_id: UUID
    entry_position: int | None


class ConversationCheck:
    """Checks one conversation: `feed` its turns, then `end`.

    A turn without vectors in the searched space is no fault: a job creates them, and the checks of the environment
    count them.
    """

    def __init__(self, head: HeadRow, *, erased_position: int = 0) -> None:
        """`erased_position`: the last position that retention has erased."""
        self._head = head
        self._erased_position = erased_position
        self._chain: bytes | None = head.chain_start or GENESIS
        self._seq = 0
        self._rev = 0
        self._count = 0
        self._tokens = 0
        self._places: dict[int, _IndexedTurn] = {}
        self._speakers: set[str] = set()

    def _fault(self, code: str, detail: str, turn_id: UUID | None = None) -> Fault:
        return Fault(code, detail, self._head.tenant_id, self._head.id, turn_id)

    def feed(self, turns: Sequence[CheckedTurn]) -> Iterator[Fault]:
        """Check the next turns, in the order of seq."""
        for turn in turns:
            yield from self._place(turn)
            yield from self._hashes(turn)
            yield from self.unplaced(turn)
            self._rev = max(self._rev, turn.row.rev)
            if turn.is_live:
                self._count += 1
                self._tokens += turn.row.content_tokens
                if turn.row.role != Role.TOOL.value and not turn.is_erased:
                    self._speakers.add(turn.row.actor)

    def unplaced(self, turn: CheckedTurn) -> Iterator[Fault]:
        """Check the invariants of a turn that need no seq."""
        if not turn.time_finite:
            yield self._fault("time_not_finite", "occurred_at is an infinity, which is no time", turn.row.id)
        if turn.row.superseded_by is not None and not turn.successor:
            yield self._fault("successor_missing", "superseded_by names no turn of the conversation", turn.row.id)
        if turn.is_erased:
            yield from self._remains(turn)
        wanted = (
            turn.is_live
            and not turn.is_erased
            and turn.row.kind not in _UNSEARCHED
            and bool(plain_text(turn_view(turn.row)).strip())
        )
        if not wanted:
            if turn.entry_live:
                yield self._fault("entry_unwanted", "the index finds a turn that must not be found", turn.row.id)
            return
        if not turn.entry_live:
            yield self._fault("entry_missing", "the index has no live entry for a live turn", turn.row.id)
            return
        if not turn.copies_equal:
            yield self._fault("entry_differs", "the entry's copies of the filters are not the turn's", turn.row.id)
        if turn.entry_due != (turn.row.index_state == "pending"):
            yield self._fault(
                "index_state_differs", f"index_state is {turn.row.index_state}, the entry says otherwise", turn.row.id
            )
        if turn.vectors_torn:
            yield self._fault("vectors_torn", "in some space the turn has the vectors of some pieces only", turn.row.id)

    def _remains(self, turn: CheckedTurn) -> Iterator[Fault]:
        row = turn.row
        # retention may leave the salt of turns that a truncation has superseded since
        may_prove = (turn.row.position or 0) <= self._erased_position or turn.row.superseded_by is not None
        has_salt = turn.row.salt is not None and not (may_prove and turn.row.status == "committed")
        if has_salt or any(getattr(row, column) is not None for column in ERASED_COLUMNS):
            yield self._fault("erased_remains", "an erased turn still has content or its salt", turn.row.id)
        if turn.entry or turn.has_vectors:
            yield self._fault("erased_remains", "an erased turn is still in the index", turn.row.id)

    def _place(self, turn: CheckedTurn) -> Iterator[Fault]:
        seq = turn.row.seq or 0
        if seq != self._seq + 1:
            yield self._fault("seq_gap", f"seq {seq} follows {self._seq}", turn.row.id)
            self._chain = None  # a missing turn cannot be hashed; the chain is checked again after it
        self._seq = seq
        if turn.is_live:
            if (turn.row.position or 0) <= self._erased_position and not turn.is_erased:
                yield self._fault(
                    "erased_remains", f"retention has erased through {self._erased_position}", turn.row.id
                )
            if turn.row.position in self._places:
                yield self._fault("position_taken", f"another live turn has position {turn.row.position}", turn.row.id)
            self._places[turn.row.position or 0] = _IndexedTurn(
                turn.row.id, turn.entry_position if turn.entry_live else None
            )

    def _hashes(self, turn: CheckedTurn) -> Iterator[Fault]:
        if turn.row.content_hash is None or turn.row.chain_hash is None:
            yield self._fault("hash_missing", f"seq {turn.row.seq} has no hash", turn.row.id)
            return
        if not turn.is_erased:
            if turn.row.salt is None:
                yield self._fault("salt_missing", f"seq {turn.row.seq} has no salt and is not erased", turn.row.id)
            elif turn.time_finite and not content_holds(turn.row):
                yield self._fault(
                    "content_changed", f"seq {turn.row.seq} is not what its hash was made of", turn.row.id
                )
        if self._chain is not None and next_hash(self._chain, turn.row) != turn.row.chain_hash:
            yield self._fault("chain_broken", f"the hash chain is broken at seq {turn.row.seq}", turn.row.id)
        self._chain = turn.row.chain_hash

    def end(self) -> Iterator[Fault]:
        """Check the head against all turns."""
        head = self._head
        if not head.head:
            yield self._fault("head_missing", "the conversation has no head")
            return
        for name, stated, computed in (
            ("last_seq", head.last_seq, self._seq),
            ("turn_count", head.turn_count, self._count),
            ("token_count", head.token_count, self._tokens),
        ):
            if stated != computed:
                yield self._fault("counter_wrong", f"{name} is {stated}, the turns make {computed}")
        if head.rev < self._rev:
            yield self._fault("counter_wrong", f"rev is {head.rev}, a turn has {self._rev}")
        if self._chain is not None and head.chain_hash != self._chain:
            yield self._fault("head_hash_wrong", "the head's chain_hash is not that of the last turn")
        if head.turn_count == self._count:  # if turns are missing, all later positions differ
            yield from self._misplaced()
        yield from self._silent_speakers()

    def _misplaced(self) -> Iterator[Fault]:
        """Yield the first entry whose position differs from the number of live turns up to its own."""
        for number, (_, place) in enumerate(sorted(self._places.items()), start=1):
            if place.entry_position not in {None, number}:
                yield self._fault(
                    "entry_differs",
                    f"the entry's position is {place.entry_position}, the turn is live turn {number}",
                    place.turn_id,
                )
                return

    def _silent_speakers(self) -> Iterator[Fault]:
        # a caller may have changed the list since
        if not self._head.untouched:
            return
        speakers, tools = _actors(self._head.participants), _actors(self._head.tools)
        missing = self._speakers - speakers
        if missing and (len(speakers | tools) < MAX_PARTICIPANTS or missing & tools):
            yield self._fault("participant_missing", f"{len(missing)} who spoke are not among the participants")


def _actors(participants: str) -> set[str]:
    return {str(item["actor"]) for item in cast("list[JsonObject]", json.loads(participants))}
