"""Verifies a conversation's hash chain in batches, up to its first break.

Each batch is a transaction of its own, so that a long verification blocks no other transaction. Turns appended
meanwhile are not read, turns erased meanwhile count as erased. Raises NotFound if the conversation is deleted
meanwhile.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.conversations.find import get_conversation
from app.conversations.hash_chain import GENESIS
from app.conversations.schemas.conversations import ChainBreak, Verification
from app.conversations.stores import conversation_store, turn_list_store
from app.conversations.stores.conversation_store import ConversationRow, TurnRow
from app.conversations.turns.hashes import content_holds, next_hash
from app.core.database.transactions import Database
from app.core.errors import NotFound
from app.core.ids import ConversationId, format_id
from app.tenancy.schemas import Caller

_BATCH = 500
_BATCH_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class _VerifyProgress:
    """The progress of a verification: the last seq and chain hash, the counts so far, and the break if there is one."""

    seq: int
    chain: bytes
    content: int = 0
    erased: int = 0
    broken: ChainBreak | None = None


async def verify(database: Database, caller: Caller, conversation_id: ConversationId) -> Verification:
    """Verify the chain from its start to the current head."""
    async with database.transaction(caller.tenant_id, read_only=True) as tx:
        head = await get_conversation(caller, tx, conversation_id)
    walk = _VerifyProgress(seq=0, chain=head.chain_start or GENESIS)
    while walk.broken is None and walk.seq < head.last_seq:
        async with database.transaction(caller.tenant_id, read_only=True) as tx:
            turns = await turn_list_store.list_by_seq(
                tx,
                caller.tenant_id,
                conversation_id,
                after=walk.seq,
                through=head.last_seq,
                limit=_BATCH,
                max_bytes=_BATCH_BYTES,
            )
            # read after the turns: a conversation is hidden before its turns are deleted
            if await conversation_store.find_conversation(tx, caller.tenant_id, conversation_id) is None:
                raise NotFound("not_found", "There is no such conversation.")
        walk = await asyncio.to_thread(_follow, walk, turns.rows, head.last_seq)
    if walk.broken is None and walk.chain != head.chain_hash:
        walk = _broken(walk, "head", walk.seq)
    return _verification(head, walk)


def _follow(walk: _VerifyProgress, rows: Sequence[TurnRow], last_seq: int) -> _VerifyProgress:
    for row in rows:
        if row.seq != walk.seq + 1:
            return _broken(walk, "missing", walk.seq + 1)
        seq = walk.seq + 1
        is_erased = row.erased_at is not None
        if not is_erased and not content_holds(row):
            return _broken(walk, "content_hash", seq, row)
        chain = next_hash(walk.chain, row)
        if chain != row.chain_hash:
            return _broken(walk, "chain_hash", seq, row)
        walk = _VerifyProgress(seq, chain, walk.content + (not is_erased), walk.erased + is_erased)
    if not rows and walk.seq < last_seq:
        return _broken(walk, "missing", walk.seq + 1)
    return walk


def _broken(
    walk: _VerifyProgress,
    what: Literal["content_hash", "chain_hash", "missing", "head"],
    seq: int,
    row: TurnRow | None = None,
) -> _VerifyProgress:
    return replace(walk, broken=ChainBreak(turn_id=None if row is None else format_id(row.id), seq=seq, what=what))


def _verification(head: ConversationRow, walk: _VerifyProgress) -> Verification:
    return Verification(
        conversation_id=format_id(head.id),
        valid=walk.broken is None,
        turns=walk.content + walk.erased,
        verified_content=walk.content,
        erased=walk.erased,
        head_hash=head.chain_hash.hex(),
        first_break=walk.broken,
    )
