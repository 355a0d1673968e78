"""The size of a request for a summary: how many turns it shows, and how long the answer may be. Pure.

Compaction and its dry run use the same numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.context.compaction.cut import at_boundary, within_tokens
from app.core.ids import TenantId
from app.formats.schemas import CanonicalTurn
from app.providers.schemas import ChatModel
from app.providers.window import input_tokens, output_tokens

MAX_TOKENS: Final = 16_000
"""Maximum tokens of the turns in one request, in a window of any size."""
TURN_TOKENS: Final = 12
"""Of the line before each turn: date, actor and role."""

_MAX_WORDS: Final = 400
_TOKENS_PER_WORD: Final = 2
_LEAST_OUTPUT: Final = 200


@dataclass(frozen=True, slots=True)
class RequestSize:
    """The limits of the requests to a model. `window` and `output` are tokens."""

    window: int
    output: int

    @property
    def words(self) -> int:
        """Return the most words that a summary is asked for, so that the answer is not cut off."""
        return min(_MAX_WORDS, self.output // _TOKENS_PER_WORD)

    def turns(self, turns: Sequence[CanonicalTurn], *, before_tokens: int) -> int:
        """Return how many of the oldest turns one request shows after earlier summaries, at least one unit of them."""
        most = input_tokens(self.window, output=self.output, most=MAX_TOKENS + before_tokens) - before_tokens
        return within_tokens(turns, max_tokens=most, per_turn=TURN_TOKENS)

    def output_for(self, tokens: int) -> int:
        """Return the maximum tokens of the answer to a text of so many tokens: a summary is shorter than it."""
        return min(self.output, _LEAST_OUTPUT + tokens)


def request_size(chat: ChatModel, model: str | None, *, tenant_id: TenantId, max_output_tokens: int) -> RequestSize:
    """Return the limits of a tenant's requests to a model, by its window."""
    window = chat.window(tenant_id, model)
    return RequestSize(window, output_tokens(window, most=max_output_tokens))


def half(turns: Sequence[CanonicalTurn]) -> int:
    """Return about half of the number of turns, at a boundary of units; 0 if they cannot be divided."""
    return at_boundary(turns, len(turns) // 2)
