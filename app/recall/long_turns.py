"""The passages of turns that are too long to show whole.

A part: the cosines of the pieces are read in the transaction of the service, and the passages are found outside of it,
in threads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

from app.conversations.schemas.conversations import Turn, plain_text, turn_text
from app.core.database.transactions import Transaction
from app.core.ids import parse_id
from app.core.threads import map_in_threads
from app.formats.schemas import CanonicalTurn, TurnLike
from app.formats.service import text_of
from app.formats.turns import as_stored
from app.index.service import PreparedQuery, TextPieces
from app.recall.passages import Passage, cost_of, find_passages, locate_pieces, token_cost
from app.settings.memory import IndexSettings
from app.tenancy.schemas import Caller

Cosines: TypeAlias = Mapping[UUID, Sequence[float]]
INLINE_CHARACTERS: Final = 4_000
"""Longer texts than this together are divided in a thread."""


@dataclass(frozen=True, slots=True)
class LongTurn:
    """A turn that is shown by its passages. `text` is its plain text, `turn` what was embedded of it.

    `max_cost` is that of its longest passage, as `passages` measures texts.
    """

    turn_id: UUID
    text: str
    turn: TurnLike
    max_cost: float


@dataclass(frozen=True, slots=True)
class TurnPassages:
    """The best passages of a turn's plain text, the best first; never empty."""

    text: str
    passages: Sequence[Passage]

    @property
    def best_text(self) -> str:
        """Return the text of the best passage."""
        return self.text[self.passages[0].start : self.passages[0].end]


class LongTurns:
    """Finds the passages of long turns for a query."""

    def __init__(self, pieces: TextPieces, settings: IndexSettings) -> None:
        self._pieces = pieces
        self._settings = settings

    def is_large(self, turn: Turn) -> bool:
        """Return whether a turn has more tokens than a passage, those of its calls included."""
        return turn.content_tokens > self._settings.passage_tokens

    def of_turns(self, turns: Mapping[UUID, Turn]) -> list[LongTurn]:
        """Return those of some turns that are shown by their passages."""
        long_turns = [
            self._long_turn(turn_id, turn_text(turn), turn, turn.content_tokens, self._settings.passage_tokens)
            for turn_id, turn in turns.items()
            if self.is_large(turn)
        ]
        return [turn for turn in long_turns if turn is not None]

    def of_canonical(self, turns: Sequence[CanonicalTurn], *, max_tokens: int | None = None) -> list[LongTurn]:
        """Return those of some turns of a context that are shown by their passages.

        `max_tokens`: those of a passage, if it is shorter than the setting says.
        """
        passage_tokens = min(self._settings.passage_tokens, max_tokens or self._settings.passage_tokens)
        long_turns = [
            self._long_turn(parse_id(turn.id), text_of(turn), as_stored(turn), turn.content_tokens, passage_tokens)
            for turn in turns
            if turn.content_tokens > passage_tokens
        ]
        return [turn for turn in long_turns if turn is not None]

    def _long_turn(self, turn_id: UUID, text: str, turn: TurnLike, tokens: int, passage_tokens: int) -> LongTurn | None:
        max_cost = passage_tokens * token_cost(plain_text(turn), tokens)
        return LongTurn(turn_id, text, turn, max_cost) if cost_of(text) > max_cost else None

    async def read_cosines(
        self, caller: Caller, tx: Transaction, *, turns: Sequence[LongTurn], query: PreparedQuery
    ) -> Cosines:
        """Return the cosines of the turns' pieces and a query: one statement, or none without a long turn."""
        return await self._pieces.cosines(caller, tx, turn_ids=[turn.turn_id for turn in turns], query=query)

    async def find(
        self, turns: Sequence[LongTurn], *, cosines: Cosines, query: PreparedQuery
    ) -> dict[UUID, TurnPassages]:
        """Return the passages of turns for a query, by turn."""
        find = partial(self._find, cosines=cosines, query=query)
        passages = await map_in_threads(find, turns, size=_length, inline=INLINE_CHARACTERS)
        return {turn.turn_id: TurnPassages(turn.text, best) for turn, best in zip(turns, passages, strict=True)}

    def _find(self, turn: LongTurn, *, cosines: Cosines, query: PreparedQuery) -> list[Passage]:
        of_pieces = cosines.get(turn.turn_id, ())
        pieces = self._pieces.split(plain_text(turn.turn), space_id=query.space_id) if of_pieces else ()
        located = locate_pieces(turn.text, pieces, of_pieces)
        return find_passages(turn.text, query, max_cost=turn.max_cost, pieces=located)


def _length(turn: LongTurn) -> int:
    return len(turn.text)
