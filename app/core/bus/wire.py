"""Numbered envelopes of bus messages, and the detection of gaps in their numbers. Pure.

An envelope is `{"o": origin, "n": number of its first message, "m": [messages]}`. `"l": true` in it means that its
sender has dropped messages. Invariant: the messages of an origin are numbered without gaps, so the next envelope of a
known origin, even an empty one, shows whether messages were lost.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from app.core.bus.messages import Message

MAX_ORIGINS = 1024
EVICT_AFTER_S = 86_400.0
_MAX_ORIGIN_LENGTH = 64
_PREFIX_BYTES = 128  # upper bound for an origin, a number and the punctuation


@dataclass(frozen=True, slots=True)
class Envelope:
    """Messages of one origin. `first` is the number of the first one, or the next number if there is none."""

    origin: str
    first: int
    messages: Sequence[Message]
    has_loss: bool


def encode(message: Message) -> bytes:
    """Encode a message as compact JSON in UTF-8."""
    try:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8 form, but JSON can escape it
        return json.dumps(message, separators=(",", ":")).encode()


def envelope_prefix(origin: str) -> str:
    """Return the prefix of every envelope of an origin."""
    return f'{{"o":"{origin}",'


def pack(origin: str, first: int, messages: Iterable[bytes], *, limit: int, has_loss: bool) -> list[bytes]:
    """Put encoded messages into envelopes of at most `limit` bytes each. Without messages, return one empty envelope.

    A single message may exceed the limit: the caller checks the size of messages.
    """
    return [
        b'%b"n":%d%b,"m":[%b]}'
        % (
            envelope_prefix(origin).encode(),
            first + start,
            b',"l":true' if has_loss and not start else b"",
            b",".join(group),
        )
        for start, group in _groups(messages, limit - _PREFIX_BYTES)
    ]


def _groups(messages: Iterable[bytes], limit: int) -> Iterator[tuple[int, list[bytes]]]:
    start, group, size = 0, list[bytes](), 0
    for data in messages:
        if group and size + len(data) > limit:
            yield start, group
            start, group, size = start + len(group), [], 0
        group.append(data)
        size += len(data) + 1
    yield start, group


def read_envelope(payload: str) -> Envelope | None:
    """Parse an envelope; None for any other payload."""
    try:
        read: object = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if not isinstance(read, dict):
        return None
    fields = cast("dict[str, object]", read)
    origin, first, messages = fields.get("o"), fields.get("n"), fields.get("m")
    if not isinstance(origin, str) or len(origin) > _MAX_ORIGIN_LENGTH or not isinstance(messages, list):
        return None
    items = cast("list[object]", messages)
    if type(first) is not int or first < 0 or not all(isinstance(item, dict) for item in items):
        return None
    return Envelope(origin, first, cast("list[Message]", items), has_loss=fields.get("l") is True)


class SequenceTracker:
    """The next message number of each origin. The origins that were silent the longest are evicted."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def clear(self) -> None:
        """Remove all origins: the first envelope of each sets its next number."""
        self._known.clear()

    def record(self, envelope: Envelope, *, now_s: float) -> tuple[bool, Sequence[Message]]:
        """Return whether messages are missing before an envelope, and its new messages."""
        next_number = envelope.first + len(envelope.messages)
        expected, _ = self._known.get(envelope.origin, (envelope.first, 0.0))
        self._known[envelope.origin] = (max(expected, next_number), now_s)
        self._known.move_to_end(envelope.origin)
        while len(self._known) > MAX_ORIGINS or next(iter(self._known.values()))[1] < now_s - EVICT_AFTER_S:
            self._known.popitem(last=False)
        repeated = max(0, expected - envelope.first)
        return envelope.has_loss or envelope.first > expected, envelope.messages[repeated:]
