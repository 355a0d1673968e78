"""The stemmer of PyStemmer, which comes without types, behind a typed name."""

import importlib
from typing import Protocol, cast


class Stemmer(Protocol):
    """Keeps state of its own: not for use by two threads at once."""

    def stemWords(self, words: list[str], /) -> list[str]:  # noqa: N802 - its name
        """Stem words, in their order."""
        ...


class _Module(Protocol):
    def Stemmer(self, algorithm: str) -> Stemmer: ...  # noqa: N802 - its name


def english_stemmer() -> Stemmer:
    """A fresh stemmer of the Snowball algorithm for English."""
    return cast("_Module", cast("object", importlib.import_module("Stemmer"))).Stemmer("english")
