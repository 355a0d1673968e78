"""The text so far of open turns, as the followers of a conversation hold it, and how much of it there is. Pure."""

from dataclasses import dataclass
from typing import Final

_MAX_IN_VAIN: Final = 8


@dataclass(slots=True)
class Meter:
    """How many bytes texts take together."""

    bytes: int = 0


class Text:
    """A growing text, kept in pieces: to append costs the same however long it is. A meter counts its bytes."""

    __slots__ = ("_meter", "_pieces", "length", "size")

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._pieces: list[str] = []
        self.length = 0
        self.size = 0

    def append(self, text: str) -> None:
        """Add text at the end."""
        if text:
            self._pieces.append(text)
            self._resize(self.length + len(text), self.size + size_of(text))

    def value(self) -> str:
        """All of it."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def cut(self, length: int) -> None:
        """Keep so many characters."""
        kept = self.value()[:length]
        self._pieces = [kept] if kept else []
        self._resize(len(kept), size_of(kept))

    def _resize(self, length: int, size: int) -> None:
        self._meter.bytes += size - self.size
        self.length, self.size = length, size


@dataclass(slots=True)
class Part:
    """One part of an open turn.

    Through `confirmed` the text was seen in the rows, and stays. Rows have to show it through `unsure` before
    it is taken for what was written; `expected` is how much there is at least, by what was heard.
    """

    text: Text
    confirmed: int = 0
    expected: int = 0
    unsure: int = 0
    in_vain: int = 0
    seen: int = -1

    def is_open(self) -> bool:
        """Whether text is missing, or not confirmed."""
        return self.unsure > 0 or self.expected > self.text.length

    def unconfirmed_size(self) -> int:
        """How many bytes of the text were not seen in the rows."""
        return 0 if self.confirmed == self.text.length else size_of(self.text.value()[self.confirmed :])

    def looked(self) -> bool:
        """Note that the rows were looked at; true when too many looks changed nothing.

        What was heard was then of a writer that had been fenced off, and will never be a row.
        """
        self.in_vain = self.in_vain + 1 if self.is_open() and self.seen == self.text.length else 0
        self.seen = self.text.length
        if self.in_vain < _MAX_IN_VAIN:
            return False
        self.expected = self.unsure = self.in_vain = 0
        return True


def size_of(text: str) -> int:
    """How many bytes a text has in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def same_length(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginnings."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
