"""A typed interface to PyStemmer, which has no types."""

import importlib
from typing import Protocol, cast


class Stemmer(Protocol):
    """A stateful stemmer: not thread-safe."""

    def stemWord(self, word: str, /) -> str:  # noqa: N802 - name of the library
        """Return the stem of a word."""
        ...

    def stemWords(self, words: list[str], /) -> list[str]:  # noqa: N802 - name of the library
        """Return the stems of words, in their order."""
        ...


class _Module(Protocol):
    def Stemmer(self, algorithm: str) -> Stemmer: ...  # noqa: N802 - name of the library


def new_stemmer(algorithm: str) -> Stemmer:
    """Return a new stemmer of a Snowball algorithm, such as `english`."""
    return cast("_Module", cast("object", importlib.import_module("Stemmer"))).Stemmer(algorithm)
