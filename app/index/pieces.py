"""The pieces of long texts that were embedded, compared with a query one by one."""

from collections.abc import Sequence
from uuid import UUID

from app.core.database.transactions import Transaction
from app.index.analyser.query_words import PreparedQuery
from app.index.schemas import EntryKind
from app.index.spaces.runtime import EmbeddingSpaceRegistry
from app.index.write import store
from app.index.write.batch_analyser import MAX_VECTORS_PER_ENTRY
from app.tenancy.schemas import Caller


class TextPieces:
    """Reads the vectors of a text's pieces, and divides a text into these pieces again."""

    def __init__(self, spaces: EmbeddingSpaceRegistry) -> None:
        self._spaces = spaces

    async def cosines(
        self, caller: Caller, tx: Transaction, *, turn_ids: Sequence[UUID], query: PreparedQuery
    ) -> dict[UUID, list[float]]:
        """Return the cosine of each piece of turns and a query, by turn, in the order of the pieces.

        One statement, or none for a query without a vector. Turns without vectors are left out.
        """
        if query.vector is None or not turn_ids:
            return {}
        space_id = self._spaces.current.space.id if query.space_id is None else query.space_id
        return await store.compare_pieces(
            tx, caller.tenant_id, EntryKind.TURN, turn_ids, space_id=space_id, vector=query.vector
        )

    def split(self, text: str, *, space_id: int | None) -> Sequence[str]:
        """Return the pieces of a text that are embedded, in order. Blocking."""
        runtime = self._spaces.current if space_id is None else self._spaces.runtimes.get(space_id)
        if runtime is None or runtime.embedder is None:
            return ()
        return runtime.embedder.split(text, max_pieces=MAX_VECTORS_PER_ENTRY)
