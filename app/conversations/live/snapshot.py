"""What a subscriber is shown first: turns from where it goes on, a page at a time.

Hides the ways to go on. What always holds: pages may be of different moments, and whatever changed between two of them
is in a later one; the last page is of the moment after which changes are told.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.conversations.live.projection import LAST_SEQ, ConversationProjection, Frame, Position, snapshot_parts
from app.conversations.stores import conversation_store, stream_store, turn_store
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.views import turn_view
from app.core.database.transactions import Transaction
from app.core.errors import Invalid
from app.core.ids import ConversationId, TenantId

PAGE: Final = 200
PAGE_BYTES: Final = 2**20
_NEWEST_BYTES: Final = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Since:
    """Where a subscriber goes on: after a rev, or after a seq, or (rev, seq); nothing: the newest turns."""

    after_seq: int | None = None
    after_rev: int | None = None
    position: Position | None = None

    def __post_init__(self) -> None:
        if self.after_seq is not None and self.after_rev is not None:
            raise Invalid("invalid_request", "Give after_seq or after_rev, not both.")


class Snapshot:
    """The snapshot of one subscriber: read it until it `is_whole`."""

    def __init__(
        self, tenant_id: TenantId, conversation_id: ConversationId, since: Since, *, newest_turns: int
    ) -> None:
        self.is_whole = False
        self._tenant_id = tenant_id
        self._conversation_id = conversation_id
        self._newest_turns = newest_turns
        self._after_seq = since.after_seq
        self._position = since.position
        if since.position is None and since.after_rev is not None:
            self._position = (since.after_rev, LAST_SEQ)
        # where the conversation stood at the first page of a walk by seq
        self._began: tuple[int, int] | None = None

    async def read(self, tx: Transaction, channel: ConversationProjection) -> list[Frame]:
        """The next page, of the moment that `channel` has just been brought to."""
        positions: list[Position | None]
        if self._after_seq is not None:
            rows, more = await self._by_seq(tx, channel, self._after_seq)
            positions = [None] * len(rows)
        elif self._position is not None:
            rows, more = await self._by_rev(tx, self._position)
            positions = [(row.rev, row.seq or 0) for row in rows]
        else:
            rows, more = await self._newest(tx), False
            positions = [None] * len(rows)
        parts = snapshot_parts([turn_view(row) for row in rows], max_bytes=PAGE_BYTES)
        frames: list[Frame] = []
        taken = 0
        for part in parts if more else parts[:-1]:
            taken += len(part)
            if part:
                frames.append(channel.part_of_snapshot(part, position=positions[taken - 1]))
        if not more:
            frames.append(channel.last_snapshot(parts[-1]))
            self.is_whole = True
        return frames

    async def _by_seq(
        self, tx: Transaction, channel: ConversationProjection, after: int
    ) -> tuple[Sequence[TurnRow], bool]:
        """Turns by seq, as far as there were any at the first page; then all that has changed since, by rev."""
        self._began = self._began or (channel.seq, channel.rev)
        through, rev = self._began
        rows = await turn_store.walk(
            tx, self._tenant_id, self._conversation_id, after=after, through=through, limit=PAGE,
            max_bytes=PAGE_BYTES,
        )  # fmt: skip
        if rows and (rows[-1].seq or 0) < through:
            self._after_seq = rows[-1].seq
            return rows, True
        if rev < channel.rev:
            # what was sent may have been superseded or erased meanwhile
            self._after_seq, self._position = None, (rev, LAST_SEQ)
            return rows, True
        return rows, False

    async def _by_rev(self, tx: Transaction, after: Position) -> tuple[Sequence[TurnRow], bool]:
        """Turns by where they changed last: one that changes again comes again, further on."""
        changed = await stream_store.list_changed(
            tx, self._tenant_id, self._conversation_id, after=after, limit=PAGE, max_bytes=PAGE_BYTES
        )
        if changed.cut:
            self._position = (changed.rows[-1].rev, changed.rows[-1].seq or 0)
        return changed.rows, changed.cut

    async def _newest(self, tx: Transaction) -> Sequence[TurnRow]:
        """The newest live turns by position, read at one moment."""
        newest = await conversation_store.list_turns(
            tx, self._tenant_id, self._conversation_id, newest_first=True, after=None, before=None, actors=None,
            limit=self._newest_turns, max_bytes=_NEWEST_BYTES,
        )  # fmt: skip
        return list(reversed(newest.rows))
