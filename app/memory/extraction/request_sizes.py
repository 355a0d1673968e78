"""How many turns one request of extraction shows, and how long its answer may be. Pure.

Both follow the window of the chat model and the longest answer that is configured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from app.conversations.schemas.sources import TextTurn, Unread
from app.providers.window import input_tokens, output_tokens

_MAX_TURNS: Final = 40
_MIN_TURNS: Final = 4
_MAX_TOKENS: Final = 6_000
_MAX_TOKENS_OF_A_TURN: Final = 1_500
# a fact in JSON has about 70 tokens, and about every second turn of a person states one
_ANSWER_TOKENS_OF_A_TURN: Final = 40
# a single turn may state many
_LEAST_ANSWER_TOKENS: Final = 200
_MOST_ANSWER_TOKENS_OF_A_TURN: Final = 100
_MAX_CHARACTERS: Final = 5_000
_CHARACTERS_OF_A_TOKEN: Final = 2


class ExtractionRequest(NamedTuple):
    """The tokens of the turns of one request, about, and of its answer at most."""

    tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one request: the number of turns, their tokens, and the tokens of the answer."""

    turns: int
    tokens: int
    answer_tokens: int

    @property
    def characters(self) -> int:
        """Return the number of characters that a request shows of one turn at most."""
        return min(_MAX_CHARACTERS, self.tokens * _CHARACTERS_OF_A_TOKEN)

    def max_answer_tokens(self, turns: int) -> int:
        """Return the maximum of the answer about so many turns."""
        return min(self.answer_tokens, _LEAST_ANSWER_TOKENS + _MOST_ANSWER_TOKENS_OF_A_TURN * turns)

    def size_of(self, turns: Sequence[TextTurn]) -> ExtractionRequest:
        """Return the size of the request that shows these turns."""
        return ExtractionRequest(sum(map(_tokens, turns)), self.max_answer_tokens(len(turns)))

    def first_of(self, unread: Unread) -> Unread:
        """Return the first turns of a page, as many as one request shows."""
        tokens = 0
        for count, turn in enumerate(unread.turns):
            tokens += _tokens(turn)
            if count and (tokens > self.tokens or count == self.turns):
                return first_turns(unread, count)
        return unread


def request_limits(window: int, *, max_output_tokens: int) -> RequestLimits:
    """Return the limits of a model with this window, whose answers have at most so many tokens."""
    answer_tokens = output_tokens(window, most=max_output_tokens)
    return RequestLimits(
        turns=max(_MIN_TURNS, min(_MAX_TURNS, answer_tokens // _ANSWER_TOKENS_OF_A_TURN)),
        tokens=input_tokens(window, output=answer_tokens, most=_MAX_TOKENS),
        answer_tokens=answer_tokens,
    )


def first_turns(unread: Unread, count: int) -> Unread:
    """Return the first turns of a page, of which there are more."""
    return replace(unread, turns=unread.turns[:count], reach=unread.turns[count].seq - 1)


def _tokens(turn: TextTurn) -> int:
    return min(turn.turn.content_tokens, _MAX_TOKENS_OF_A_TURN)
