"""Text buffers of open turns, as the subscribers of a conversation know them, with a byte count. Pure."""

from dataclasses import dataclass
from typing import Final

_MAX_UNCHANGED_READS: Final = 8


@dataclass(slots=True)
class ByteCounter:
    """The total size of several texts in bytes."""

    bytes: int = 0


class TextBuffer:
    """A growing text in pieces, with appends in constant time; its bytes are added to a shared counter."""

    __slots__ = ("_counter", "_pieces", "byte_size", "length")

    def __init__(self, counter: ByteCounter) -> None:
        self._counter = counter
        self._pieces: list[str] = []
        self.length = 0
        self.byte_size = 0

    def append(self, text: str) -> None:
        """Append text."""
        if text:
            self._pieces.append(text)
            self._set_size(self.length + len(text), self.byte_size + utf8_length(text))

    def value(self) -> str:
        """Return the whole text."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def truncate(self, length: int) -> None:
        """Keep the first `length` characters."""
        remaining = self.value()[:length]
        self._pieces = [remaining] if remaining else []
        self._set_size(len(remaining), utf8_length(remaining))

    def _set_size(self, length: int, byte_size: int) -> None:
        self._counter.bytes += byte_size - self.byte_size
        self.length, self.byte_size = length, byte_size


@dataclass(slots=True)
class OpenPart:
    """One part of an open turn.

    The first `confirmed_length` characters were read from the rows, and are final. Text up to `uncertain_until` counts
    as written only after the rows confirm it. `expected_length` is the minimal length according to bus events.
    """

    text: TextBuffer
    confirmed_length: int = 0
    expected_length: int = 0
    uncertain_until: int = 0
    unchanged_reads: int = 0
    read_length: int = -1

    def is_incomplete(self) -> bool:
        """Return whether text is missing or unconfirmed."""
        return self.uncertain_until > 0 or self.expected_length > self.text.length

    def unconfirmed_size(self) -> int:
        """Return the size in bytes of the text that the rows have not confirmed."""
        return (
            0 if self.confirmed_length == self.text.length else utf8_length(self.text.value()[self.confirmed_length :])
        )

    def record_read(self) -> bool:
        """Record a read of the rows, and return whether there were too many reads without a change.

        The expected text then came from a fenced writer and is never stored.
        """
        is_unchanged = self.is_incomplete() and self.read_length == self.text.length
        self.unchanged_reads = self.unchanged_reads + 1 if is_unchanged else 0
        self.read_length = self.text.length
        if self.unchanged_reads < _MAX_UNCHANGED_READS:
            return False
        self.expected_length = self.uncertain_until = self.unchanged_reads = 0
        return True


def utf8_length(text: str) -> int:
    """Return the size of a text in UTF-8, in bytes."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def common_prefix_length(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts, in characters."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
