"""Snapshots: the first frames of a subscription, with the turns after its start position, in pages.

Invariants: pages may come from different database snapshots, and a change between two pages is in a later page. The
last page comes from the database snapshot after which the subscriber gets live changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.conversations.live.projection import LAST_SEQ, ConversationProjection, Frame, Position, split_turns
from app.conversations.stores import turn_list_store
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.views import turn_view
from app.core.database.transactions import Transaction
from app.core.errors import Invalid
from app.core.ids import ConversationId, TenantId

PAGE_TURNS: Final = 200
PAGE_BYTES: Final = 2**20
_NEWEST_BYTES: Final = 8 * 2**20


@dataclass(frozen=True, slots=True)
class StartPosition:
    """The start of a subscription: after a rev, after a seq, or after (rev, seq); the newest turns by default."""

    after_seq: int | None = None
    after_rev: int | None = None
    position: Position | None = None

    def __post_init__(self) -> None:
        if self.after_seq is not None and self.after_rev is not None:
            raise Invalid("invalid_request", "Give after_seq or after_rev, not both.")


class SnapshotReader:
    """Reads the snapshot of one subscriber, page by page, until it `is_complete`."""

    def __init__(
        self, tenant_id: TenantId, conversation_id: ConversationId, since: StartPosition, *, newest_turns: int
    ) -> None:
        self.is_complete = False
        self._tenant_id = tenant_id
        self._conversation_id = conversation_id
        self._newest_turns = newest_turns
        self._after_seq = since.after_seq
        self._position = since.position
        if since.position is None and since.after_rev is not None:
            self._position = (since.after_rev, LAST_SEQ)
        # The seq and rev of the conversation when the first page by seq was read.
        self._first_page_state: tuple[int, int] | None = None

    async def read(self, tx: Transaction, projection: ConversationProjection) -> list[Frame]:
        """Return the next page, in the transaction that has just updated `projection`."""
        positions: list[Position | None]
        if self._after_seq is not None:
            rows, more = await self._read_by_seq(tx, projection, self._after_seq)
            positions = [None] * len(rows)
        elif self._position is not None:
            rows, more = await self._read_by_rev(tx, self._position)
            positions = [(row.rev, row.seq or 0) for row in rows]
        else:
            rows, more = await self._read_newest(tx), False
            positions = [None] * len(rows)
        parts = split_turns([turn_view(row) for row in rows], max_bytes=PAGE_BYTES)
        frames: list[Frame] = []
        turn_count = 0
        for part in parts if more else parts[:-1]:
            turn_count += len(part)
            if part:
                frames.append(projection.snapshot_page(part, position=positions[turn_count - 1]))
        if not more:
            frames.append(projection.last_snapshot_page(parts[-1]))
            self.is_complete = True
        return frames

    async def _read_by_seq(
        self, tx: Transaction, projection: ConversationProjection, after: int
    ) -> tuple[Sequence[TurnRow], bool]:
        """Read turns by seq up to the last one at the first page; then by rev those that changed since."""
        self._first_page_state = self._first_page_state or (projection.seq, projection.rev)
        through, rev = self._first_page_state
        turns = await turn_list_store.list_by_seq(
            tx,
            self._tenant_id,
            self._conversation_id,
            after=after,
            through=through,
            limit=PAGE_TURNS,
            max_bytes=PAGE_BYTES,
        )
        rows = turns.rows
        if rows and (rows[-1].seq or 0) < through:
            self._after_seq = rows[-1].seq
            return rows, True
        if rev < projection.rev:
            # turns of earlier pages may have been superseded or erased meanwhile
            self._after_seq, self._position = None, (rev, LAST_SEQ)
            return rows, True
        return rows, False

    async def _read_by_rev(self, tx: Transaction, after: Position) -> tuple[Sequence[TurnRow], bool]:
        """Read turns by their last change; a turn that changes again is read again later."""
        changed = await turn_list_store.list_changed(
            tx, self._tenant_id, self._conversation_id, after=after, limit=PAGE_TURNS, max_bytes=PAGE_BYTES
        )
        if changed.cut:
            self._position = (changed.rows[-1].rev, changed.rows[-1].seq or 0)
        return changed.rows, changed.cut

    async def _read_newest(self, tx: Transaction) -> Sequence[TurnRow]:
        """Read the newest live turns by position, in one query."""
        newest = await turn_list_store.list_turns(
            tx,
            self._tenant_id,
            self._conversation_id,
            newest_first=True,
            limit=self._newest_turns,
            max_bytes=_NEWEST_BYTES,
        )
        return list(reversed(newest.rows))
