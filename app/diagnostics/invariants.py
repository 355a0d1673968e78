"""Invariants of the data of one conversation. Pure: rows in, faults out.

Turns are fed in the order of their seq, a page at a time, so that a conversation of any length needs little memory. A
fault names ids and numbers, never content.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from pydantic import JsonValue

from app.conversations.drafts import plain_text
from app.conversations.hash_chain import GENESIS, canonical_form, chain_hash, content_hash
from app.conversations.schemas.conversations import TurnInput
from app.conversations.schemas.participants import MAX_PARTICIPANTS
from app.core.ids import format_id
from app.core.times import format_time
from app.diagnostics.schemas import Fault
from app.diagnostics.store import CheckedTurn, HeadRow
from app.formats.schemas import JsonObject, Kind, Role

_UNSEARCHED = frozenset({Kind.SYSTEM_INSTRUCTION.value, Kind.COMPACTION.value})


@dataclass(frozen=True, slots=True)
class _Place:
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
        self._places: dict[int, _Place] = {}
        self._speakers: set[str] = set()

    def _fault(self, code: str, detail: str, turn_id: UUID | None = None) -> Fault:
        return Fault(code, detail, self._head.tenant_id, self._head.id, turn_id)

    def feed(self, turns: Sequence[CheckedTurn]) -> Iterator[Fault]:
        """Check the next turns, in the order of seq."""
        for turn in turns:
            yield from self._place(turn)
            yield from self._hashes(turn)
            yield from self.unplaced(turn)
            self._rev = max(self._rev, turn.rev)
            if turn.live:
                self._count += 1
                self._tokens += turn.content_tokens
                if turn.role != Role.TOOL.value:
                    self._speakers.add(turn.actor)

    def unplaced(self, turn: CheckedTurn) -> Iterator[Fault]:
        """Check the invariants of a turn that need no seq."""
        if turn.occurred_at is None:
            yield self._fault("time_not_finite", "occurred_at is an infinity, which is no time", turn.id)
        if turn.superseded_by is not None and not turn.successor:
            yield self._fault("successor_missing", "superseded_by names no turn of the conversation", turn.id)
        if turn.erased:
            yield from self._remains(turn)
        wanted = turn.live and not turn.erased and turn.kind not in _UNSEARCHED and bool(_text(turn).strip())
        if not wanted:
            if turn.entry_live:
                yield self._fault("entry_unwanted", "the index finds a turn that must not be found", turn.id)
            return
        if not turn.entry_live:
            yield self._fault("entry_missing", "the index has no live entry for a live turn", turn.id)
            return
        if not turn.copies_equal:
            yield self._fault("entry_differs", "the entry's copies of the filters are not the turn's", turn.id)
        if turn.entry_due != (turn.index_state == "pending"):
            yield self._fault(
                "index_state_differs", f"index_state is {turn.index_state}, the entry says otherwise", turn.id
            )
        if turn.vectors_torn:
            yield self._fault("vectors_torn", "in some space the turn has the vectors of some pieces only", turn.id)

    def _remains(self, turn: CheckedTurn) -> Iterator[Fault]:
        said = (turn.content, turn.tool_calls, turn.tool_call_id, turn.tool_results, turn.usage, turn.metadata)
        # retention may leave the salt of turns that a truncation has superseded since
        may_prove = (turn.position or 0) <= self._erased_position or turn.superseded_by is not None
        has_salt = turn.salt is not None and not (may_prove and turn.status == "committed")
        if has_salt or any(part is not None for part in said):
            yield self._fault("erased_remains", "an erased turn still says something, or has its salt", turn.id)
        if turn.entry or turn.vectors:
            yield self._fault("erased_remains", "an erased turn is still in the index", turn.id)

    def _place(self, turn: CheckedTurn) -> Iterator[Fault]:
        seq = turn.seq or 0
        if seq != self._seq + 1:
            yield self._fault("seq_gap", f"seq {seq} follows {self._seq}", turn.id)
            self._chain = None  # a missing turn cannot be hashed; the chain is checked again after it
        self._seq = seq
        if turn.live:
            if (turn.position or 0) <= self._erased_position and not turn.erased:
                yield self._fault("erased_remains", f"retention has erased through {self._erased_position}", turn.id)
            if turn.position in self._places:
                yield self._fault("position_taken", f"another live turn stands at position {turn.position}", turn.id)
            self._places[turn.position or 0] = _Place(turn.id, turn.entry_position if turn.entry_live else None)

    def _hashes(self, turn: CheckedTurn) -> Iterator[Fault]:
        if turn.content_hash is None or turn.chain_hash is None:
            yield self._fault("hash_missing", f"seq {turn.seq} has no hash", turn.id)
            return
        if not turn.erased:
            if turn.salt is None:
                yield self._fault("salt_missing", f"seq {turn.seq} has no salt and is not erased", turn.id)
            elif turn.occurred_at is not None and content_hash(turn.salt, _form(turn)) != turn.content_hash:
                yield self._fault("content_changed", f"seq {turn.seq} is not what its hash was made of", turn.id)
        if self._chain is not None:
            expected = chain_hash(
                self._chain,
                turn_id=turn.id,
                seq=turn.seq or 0,
                role=turn.role,
                kind=turn.kind,
                created_at=turn.created_at,
                content=turn.content_hash,
            )
            if expected != turn.chain_hash:
                yield self._fault("chain_broken", f"the chain does not hold at seq {turn.seq}", turn.id)
        self._chain = turn.chain_hash

    def end(self) -> Iterator[Fault]:
        """Check the head against all turns."""
        head = self._head
        if not head.head:
            yield self._fault("head_missing", "the conversation has no head")
            return
        for name, stated, found in (
            ("last_seq", head.last_seq, self._seq),
            ("turn_count", head.turn_count, self._count),
            ("token_count", head.token_count, self._tokens),
        ):
            if stated != found:
                yield self._fault("counter_wrong", f"{name} is {stated}, the turns make {found}")
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


def _json(text: str | None) -> JsonValue:
    return None if text is None else cast("JsonValue", json.loads(text))


def _form(turn: CheckedTurn) -> bytes:
    """Return the canonical form of a row that the content hash is computed from: see `app.conversations.hash_chain`."""
    fields: dict[str, JsonValue] = {
        "role": turn.role,
        "kind": turn.kind,
        "actor": turn.actor,
        "content": _json(turn.content),
        "tool_calls": _json(turn.tool_calls),
        "tool_call_id": turn.tool_call_id,
        "tool_results": _json(turn.tool_results),
        "usage": _json(turn.usage),
        "model": turn.model,
        "adapter": turn.adapter,
        "supersedes": None if turn.supersedes is None else format_id(turn.supersedes),
        "metadata": _json(turn.metadata),
    }
    if turn.occurred_at is not None and turn.occurred_at != turn.created_at:
        fields["occurred_at"] = format_time(turn.occurred_at)
    return canonical_form(fields)


def _text(turn: CheckedTurn) -> str:
    return plain_text(
        TurnInput.model_construct(
            content=cast("str | list[JsonObject] | None", _json(turn.content)),
            tool_calls=cast("list[JsonObject]", _json(turn.tool_calls) or []),
            tool_results=cast("list[JsonObject]", _json(turn.tool_results) or []),
        )
    )
