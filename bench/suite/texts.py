"""Messages and questions, the same for the same seed: English words drawn by Zipf's law.

The words are those of the embedding model's vocabulary, which lists them by frequency, so posting lists and tokens per
word are as in real text. What the sentences say is random: nothing here measures the quality of search.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Final, cast

from turnkeep_minilm import FOLDER, TOKENIZER_FILE

_VOCABULARY: Final = 16_000
_QUESTION_WORDS: Final = (5, 9)
_MESSAGE_WORDS: Final = (8, 44)


@dataclass(frozen=True, slots=True)
class Message:
    """One message to append."""

    role: str
    content: str


class TextSource:
    """Endless messages and questions."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311 - repeatable, not secret
        self._words = _read_words()
        self._weights = list(accumulate(1 / (rank + 2.7) for rank in range(len(self._words))))

    def messages(self) -> Iterator[Message]:
        """Messages of 8 to 44 words, 26 on average, by a user and an assistant in turn."""
        while True:
            for role in ("user", "assistant"):
                yield Message(role, f"{self._draw(*_MESSAGE_WORDS).capitalize()}.")

    def questions(self) -> Iterator[str]:
        """Questions of 5 to 9 words, none given twice in practice."""
        while True:
            yield f"{self._draw(*_QUESTION_WORDS).capitalize()}?"

    def _draw(self, fewest: int, most: int) -> str:
        words = self._random.choices(self._words, cum_weights=self._weights, k=self._random.randint(fewest, most))
        return " ".join(words)


def _read_words() -> list[str]:
    tokenizer = cast("dict[str, dict[str, dict[str, int]]]", json.loads((FOLDER / TOKENIZER_FILE).read_text()))
    by_frequency = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    words = [word for word, _ in by_frequency if word.isascii() and word.isalpha() and len(word) > 1]
    return words[:_VOCABULARY]
