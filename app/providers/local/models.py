"""What the embedder needs to know of a model that runs in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol
from unicodedata import name

from app.providers.schemas import EmbeddingSpaceName, Vectors

_FIRST_CHARACTERS: Final = 200


class LocalModel(Protocol):
    """A loaded model: one text in, one unit vector out. Blocking, safe to share between threads."""

    def embed_one(self, text: str, *, return_memory: bool = False) -> Vectors:
        """Return the vector of a text, of shape (dimensions,). `return_memory`: keep no working memory afterwards."""
        ...

    def split(self, text: str, *, max_pieces: int | None) -> list[str]:
        """Split text into pieces that the model reads completely: at most the first `max_pieces`."""
        ...


@dataclass(frozen=True, slots=True)
class LocalModelKind:
    """A model that can be loaded: its embedding space, the function that loads it, and the bytes of a short text.

    `load` raises Unavailable if the files of the model are missing or damaged. Text of up to `short_text_bytes` is one
    piece, so it is not given to the model to split. `scripts` are those in which the model has words, as the names of
    their letters in Unicode begin.
    """

    space: EmbeddingSpaceName
    load: Callable[[], LocalModel]
    short_text_bytes: int
    scripts: frozenset[str]

    def reads(self, text: str) -> bool:
        """Return whether at least half of the letters at the start of a text are of the model's scripts."""
        if text.isascii():
            return True
        letters = [name(letter, "") for letter in text[:_FIRST_CHARACTERS] if letter.isalpha()]
        return 2 * sum(letter.split(" ", 1)[0] in self.scripts for letter in letters) >= len(letters)
