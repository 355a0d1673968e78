"""What the index gets after the append: late vectors and resolved dates.

Each is a derived write: it carries the content hashes of the turns it read, and when it writes, it holds those turns
and leaves out every one that is gone, superseded, erased or changed since. The head is locked before the turns, as
everywhere, so it never waits for somebody who waits for it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from uuid import UUID

from app.conversations import store, turn_store
from app.conversations.drafts import plain_text
from app.conversations.schemas import turn_text
from app.conversations.store import TurnRow
from app.conversations.views import turn_view
from app.core.db import Database, FloatVector, Transaction
from app.core.errors import AppError
from app.core.ids import ConversationId
from app.core.telemetry import get_logger
from app.index.schemas import Document
from app.index.service import LateVectors, SearchIndex
from app.tenancy.schemas import Caller

# at a time: so many long turns are a thousand vectors, so many short ones one request
_TURNS = 32
# at a time, of text: a turn may have a whole request of it
_BYTES = 8 * 2**20
# of a job that fills: it ends, and another goes on, when it has made so many or has looked so often
_MOST_FILLED = 400
_MOST_LOOKS = 40
# times as long as a step took: half of the time is the appends', from whom waiting for an endpoint takes nothing
_REST, _LONGEST_REST_S = 1.0, 0.5


class Indexing:
    """The derived writes of the index on turns. Each may be run again: what is done already is left alone."""

    def __init__(self, database: Database, *, index: SearchIndex) -> None:
        self._database = database
        self._index = index
        self._log = get_logger()

    async def make_vectors(self, caller: Caller, *, turn_ids: Sequence[UUID]) -> None:
        """Make the vectors that turns wait for. Raises as the embedder does; what was made before that is kept."""
        async for rows in self._read(caller, turn_ids):
            await self._make(caller, self._index.late, [row for row in rows if row.index_state == "pending"])

    async def fill(self, caller: Caller, *, after: UUID | None) -> None:
        """Make the vectors that live entries lack in the space searched, of whichever time and embedder they are.

        Makes some hundred, from the entry `after` on in the order of ids, and enqueues the job that makes the next.
        Raises as the embedder does; what was made before that is kept, and not made again.
        """
        late = self._index.late
        made = 0
        for _ in range(_MOST_LOOKS):
            async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
                step = await late.find_lacking(caller, tx, after=after)
            began = time.monotonic()
            async for rows in self._read(caller, step.entry_ids):
                made += await self._make(caller, late, rows)
                await asyncio.sleep(min(_REST * (time.monotonic() - began), _LONGEST_REST_S))
                began = time.monotonic()
            for make in self._index.makers:
                made += await make(caller, late, step.entry_ids)
            after = step.after
            if after is None or made >= _MOST_FILLED:
                break
        self._log.info("vectors.filled", tenant_id=caller.tenant_id, count=made)
        if after is not None:
            async with self._database.transaction(caller.tenant_id) as tx:
                await late.go_on(caller, tx, after=after)

    async def _make(self, caller: Caller, late: LateVectors, rows: Sequence[TurnRow]) -> int:
        """Make and store the vectors of these turns; says of how many. What has changed since is left out."""
        if not rows:
            return 0
        vectors = await self._embed(late, {row.id: plain_text(turn_view(row)) for row in rows})
        if not vectors:
            return 0
        async with self._database.transaction(caller.tenant_id) as tx:
            same = await self._hold_unchanged(caller, tx, [row for row in rows if row.id in vectors])
            await late.write(caller, tx, vectors={turn_id: vectors[turn_id] for turn_id in same})
            await turn_store.mark_indexed(tx, caller.tenant_id, list(same))
        return len(same)

    async def _embed(self, late: LateVectors, texts: Mapping[UUID, str]) -> dict[UUID, Sequence[FloatVector]]:
        """The vectors by turn. One text that the embedder will never take does not keep the others from theirs."""
        try:
            return dict(zip(texts, await late.embed(list(texts.values())), strict=True))
        except AppError as error:
            if len(texts) == 1 or not _may_be_the_text(error):
                raise
        made: dict[UUID, Sequence[FloatVector]] = {}
        refused: AppError | None = None
        for turn_id, text in texts.items():
            try:
                (made[turn_id],) = await late.embed([text])
            except AppError as error:
                if not _may_be_the_text(error):
                    raise
                refused = error
        if refused is not None:
            self._log.warning("embedder.refused_texts", code=refused.code, count=len(texts) - len(made))
            if not made:  # then it is not the texts
                raise refused
        return made

    async def resolve_dates(self, caller: Caller, *, turn_ids: Sequence[UUID]) -> None:
        """Resolve what relative dates in turns mean, and make them found by it."""
        async for rows in self._read(caller, turn_ids):
            await self._resolve(caller, rows)

    async def _resolve(self, caller: Caller, rows: Sequence[TurnRow]) -> None:
        # the text that a hit shows, since the places of the phrases are told in it
        documents = {row.id: Document(turn_text(turn_view(row)), row.actor, row.occurred_at) for row in rows}
        dated = await self._index.resolve_dates(documents)
        if dated:
            of_interest = {entry.entry_id for entry in dated}
            async with self._database.transaction(caller.tenant_id) as tx:
                same = await self._hold_unchanged(caller, tx, [row for row in rows if row.id in of_interest])
                await self._index.write_dates(caller, tx, entries=[entry for entry in dated if entry.entry_id in same])

    async def _read(self, caller: Caller, turn_ids: Sequence[UUID]) -> AsyncIterator[list[TurnRow]]:
        """Those of these turns that are live, in their order, so many at a time that no batch takes the memory."""
        left = list(turn_ids)
        while left:
            asked = left[:_TURNS]
            async with self._database.transaction(caller.tenant_id, read_only=True) as tx:
                found = await turn_store.find_ordered(tx, caller.tenant_id, asked, most_bytes=_BYTES)
            # after a cut, what comes behind the last that was read; what is gone is not asked for again
            left = left[asked.index(found.rows[-1].id) + 1 :] if found.cut else left[_TURNS:]
            yield [
                row
                for row in found.rows
                if row.status == "committed" and row.superseded_by is None and row.erased_at is None
            ]

    async def _hold_unchanged(self, caller: Caller, tx: Transaction, rows: Sequence[TurnRow]) -> set[UUID]:
        """Hold these turns until the transaction ends; gives those that are live and say what they said."""
        for conversation_id in sorted({row.conversation_id for row in rows}):
            await store.lock_conversation(tx, caller.tenant_id, ConversationId(conversation_id))
        hashes = await turn_store.hold_turns(tx, caller.tenant_id, [row.id for row in rows])
        return {row.id for row in rows if row.content_hash is not None and hashes.get(row.id) == row.content_hash}


def _may_be_the_text(error: AppError) -> bool:
    """Whether it may be what was sent that fails, and not the embedder."""
    return not error.retryable or error.code == "embedder_invalid"
