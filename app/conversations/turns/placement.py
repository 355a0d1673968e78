"""Computes the place of drafts in a conversation: ids, seq, session, hashes, index entries. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from app.conversations.drafts import Draft
from app.conversations.hash_chain import content_hash
from app.conversations.schemas.participants import MAX_PARTICIPANTS
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.turns.hashes import next_hash
from app.core.ids import ConversationId, new_uuid
from app.formats.schemas import JsonObject, Kind, Role
from app.index.schemas import EntryKind, IndexEntry, PreparedEntries


@dataclass(frozen=True, slots=True)
class PreparedTurn:
    """A draft with the values that were computed for it outside the transaction.

    `content_hash` covers the salt, and the time that the caller gave.
    """

    draft: Draft
    salt: bytes
    content_hash: bytes
    tokens: int
    prepared: PreparedEntries | None


@dataclass(frozen=True, slots=True)
class PlacedTurns:
    """Rows and index entries to insert, and the counters of the head after them."""

    rows: Sequence[TurnRow]
    entries: Sequence[IndexEntry]
    last_seq: int
    rev: int
    turn_count: int
    token_count: int
    chain: bytes
    session: int
    last_occurred_at: datetime
    at: datetime


def is_searchable(draft: Draft) -> bool:
    """Return whether recall may find a turn: it has text, and is no system instruction or compaction marker."""
    return bool(draft.text.strip()) and draft.kind not in {Kind.SYSTEM_INSTRUCTION, Kind.COMPACTION}


def place(head: ConversationRow, prepared: Sequence[PreparedTurn], *, session_gap_s: int) -> PlacedTurns:
    """Place the prepared turns (at least one) after a locked `head`, all at its time `now` and with one rev."""
    # the clock may have been read before the lock was taken: times must not decrease with seq
    head = replace(head, now=max(head.now, head.updated_at))
    now, seq, chain = head.now, head.last_seq, head.chain_hash
    session, last_at, tokens = head.session, head.last_occurred_at, head.token_count
    rev = head.rev + 1
    gap = timedelta(seconds=session_gap_s)
    rows: list[TurnRow] = []
    entries: list[IndexEntry] = []
    for item in prepared:
        seq += 1
        row = _row(head, item, turn_id=item.draft.id or new_uuid(), seq=seq, rev=rev, chain=chain)
        chain = row.chain_hash or b""
        if last_at is None or abs(row.occurred_at - last_at) > gap:
            session += 1
        last_at = row.occurred_at
        tokens += item.tokens
        rows.append(row)
        if item.prepared is not None:
            # the index counts live turns, so that its positions have no gaps
            entries.append(turn_entry(head, row, item.prepared, (head.turn_count + len(rows), session)))
    return PlacedTurns(
        rows=rows,
        entries=entries,
        last_seq=seq,
        rev=rev,
        turn_count=head.turn_count + len(rows),
        token_count=tokens,
        chain=chain,
        session=session,
        last_occurred_at=last_at or now,
        at=now,
    )


@dataclass(frozen=True, slots=True)
class RevisionPlacement:
    """The place of a revision or of a turn with a reserved position, and what it superseded.

    `index_position` and `session` are those of its index entry. `is_last`: no live turn follows it.
    """

    position: int
    index_position: int
    session: int
    is_last: bool
    superseded_turns: int
    superseded_tokens: int


def place_revision(head: ConversationRow, item: PreparedTurn, *, turn_id: UUID, spot: RevisionPlacement) -> PlacedTurns:
    """Place one turn as a revision, or between other turns, at `spot`, under a locked `head`."""
    head = replace(head, now=max(head.now, head.updated_at))
    now, seq, rev = head.now, head.last_seq + 1, head.rev + 1
    row = _row(head, item, turn_id=turn_id, seq=seq, rev=rev, chain=head.chain_hash)._replace(position=spot.position)
    entries: list[IndexEntry] = []
    if item.prepared is not None:
        entries.append(turn_entry(head, row, item.prepared, (spot.index_position, spot.session)))
    last_at = row.occurred_at if spot.is_last else head.last_occurred_at
    return PlacedTurns(
        rows=[row],
        entries=entries,
        last_seq=seq,
        rev=rev,
        turn_count=head.turn_count - spot.superseded_turns + 1,
        token_count=head.token_count - spot.superseded_tokens + item.tokens,
        chain=row.chain_hash or b"",
        # the next append continues after the newest live turn
        session=spot.session if spot.is_last else head.session,
        last_occurred_at=last_at or now,
        at=now,
    )


def _hash(item: PreparedTurn, created_at: datetime) -> bytes:
    # the prepared hash includes the given time; in the rare case that it equals `created_at`, it must not
    if item.draft.occurred_at == created_at:
        return content_hash(item.salt, item.draft.form(with_time=False))
    return item.content_hash


def _row(head: ConversationRow, item: PreparedTurn, *, turn_id: UUID, seq: int, rev: int, chain: bytes) -> TurnRow:
    """Return the row of a committed turn that follows the chain hash `chain`."""
    draft = item.draft
    created_at = draft.created_at or head.now
    row = TurnRow(
        id=turn_id,
        conversation_id=head.id,
        seq=seq,
        position=seq + head.reserved_positions,
        rev=rev,
        kind=draft.kind.value,
        actor=draft.actor,
        role=draft.role.value,
        content_tokens=item.tokens,
        status="committed",
        supersedes=draft.supersedes,
        occurred_at=draft.occurred_at or created_at,
        created_at=created_at,
        committed_at=head.now,
        salt=item.salt,
        content_hash=_hash(item, created_at),
        index_state="none" if item.prepared is None else "pending" if item.prepared.vectors_due else "indexed",
    )
    return row._replace(**draft.columns, chain_hash=next_hash(chain, row))


def turn_entry(head: ConversationRow, row: TurnRow, prepared: PreparedEntries, place: tuple[int, int]) -> IndexEntry:
    """Return the index entry of a turn. `place`: its position among the live turns, and its session."""
    position, session = place
    return IndexEntry(
        source_id=row.id,
        kind=EntryKind.TURN,
        conversation_id=ConversationId(head.id),
        project=head.project,
        owner=head.owner,
        actor=row.actor,
        role=row.role,
        position=position,
        session=session,
        occurred_at=row.occurred_at,
        metadata=row.metadata or "{}",
        prepared=prepared,
    )


def new_participants(head: ConversationRow, rows: Sequence[TurnRow]) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return the speakers and the tools that these turns add to the participants, as they are stored.

    An actor that speaks and acts as a tool is a speaker.
    """
    speakers, tools = ({str(item["actor"]): item for item in items} for items in (head.participants, head.tools))
    listed = speakers | tools
    room = max(0, MAX_PARTICIPANTS - len(listed))
    fresh = [actor for actor in dict.fromkeys(row.actor for row in rows) if actor not in listed][:room]
    spoke = dict.fromkeys(row.actor for row in rows if row.role != Role.TOOL.value)
    return (
        [_participant(actor, tools) for actor in spoke if actor not in speakers and (actor in tools or actor in fresh)],
        [_participant(actor, tools) for actor in fresh if actor not in spoke],
    )


def _participant(actor: str, by_actor: Mapping[str, JsonObject]) -> JsonObject:
    return by_actor.get(actor, {"actor": actor, "name": None, "aliases": []})
