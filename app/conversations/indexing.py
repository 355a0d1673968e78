"""What the index gets after the append: late vectors and resolved dates.

Each is a derived write: it carries the content hashes of the turns it read, and when it writes, it holds those turns
and leaves out every one that is gone, superseded, erased or changed since. The head is locked before the turns, as
everywhere, so it never waits for somebody who waits for it.
"""

from collections.abc import Sequence
from uuid import UUID

from app.conversations import store, turn_store
from app.conversations.drafts import plain_text
from app.conversations.schemas import turn_text
from app.conversations.store import TurnRow
from app.conversations.views import turn_view
from app.core.db import Database, Transaction
from app.core.ids import ConversationId
from app.index.schemas import Document
from app.index.service import SearchIndex
from app.tenancy.schemas import Caller

# at a time: so many long turns are some hundred vectors
_TURNS = 16


class Indexing:
    """The derived writes of the index on turns. Each may be run again: what is done already is left alone."""

    def __init__(self, database: Database, *, index: SearchIndex) -> None:
        self._database = database
        self._index = index

    async def make_vectors(self, caller: Caller, *, turn_ids: Sequence[UUID]) -> None:
        """Make the vectors that turns wait for. Raises as the embedder does; what was made before that is kept."""
        waiting = [row for row in await self._read(caller, turn_ids) if row.index_state == "pending"]
        for start in range(0, len(waiting), _TURNS):
            rows = waiting[start : start + _TURNS]
            made = await self._index.embed_late([plain_text(turn_view(row)) for row in rows])
            vectors = {row.id: own for row, own in zip(rows, made, strict=True)}
            async with self._database.transaction(caller.tenant_id) as tx:
                same = await self._hold_unchanged(caller, tx, rows)
                await self._index.write_late(
                    caller, tx, vectors={turn_id: own for turn_id, own in vectors.items() if turn_id in same}
                )
                await turn_store.mark_indexed(tx, caller.tenant_id, list(same))

    async def resolve_dates(self, caller: Caller, *, turn_ids: Sequence[UUID]) -> None:
        """Resolve what relative dates in turns mean, and make them found by it."""
        rows = await self._read(caller, turn_ids)
        # the text that a hit shows, since the places of the phrases are told in it
        documents = {row.id: Document(turn_text(turn_view(row)), row.actor, row.occurred_at) for row in rows}
        dated = await self._index.resolve_dates(documents)
        if dated:
            of_interest = {entry.entry_id for entry in dated}
            async with self._database.transaction(caller.tenant_id) as tx:
                same = await self._hold_unchanged(caller, tx, [row for row in rows if row.id in of_interest])
                await self._index.write_dates(caller, tx, entries=[entry for entry in dated if entry.entry_id in same])

    async def _read(self, caller: Caller, turn_ids: Sequence[UUID]) -> list[TurnRow]:
        async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
            found = await store.find_turns(tx, caller.tenant_id, turn_ids)
        rows = [found[turn_id] for turn_id in turn_ids if turn_id in found]
        return [
            row for row in rows if row.status == "committed" and row.superseded_by is None and row.erased_at is None
        ]

    async def _hold_unchanged(self, caller: Caller, tx: Transaction, rows: Sequence[TurnRow]) -> set[UUID]:
        """Hold these turns until the transaction ends; gives those that are live and say what they said."""
        for conversation_id in sorted({row.conversation_id for row in rows}):
            await store.lock_conversation(tx, caller.tenant_id, ConversationId(conversation_id))
        hashes = await turn_store.hold_turns(tx, caller.tenant_id, [row.id for row in rows])
        return {row.id for row in rows if row.content_hash is not None and hashes.get(row.id) == row.content_hash}
