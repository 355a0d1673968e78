"""What goes between the processes of an installation: messages in numbered envelopes, and what the numbers say. Pure.

An envelope is `{"o": origin, "n": number of its first message, "m": [messages]}`, and `"l": true` in it says that its
sender knows of messages that nobody got. What always holds: the messages of an origin are numbered without a gap, so
whoever has heard of an origin sees from the next envelope, even an empty one, that something was lost in between.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from app.core.bus.messages import Message

MAX_ORIGINS = 1024
FORGET_AFTER_S = 86_400.0
_MAX_ORIGIN_LENGTH = 64
_HEAD_BYTES = 128  # an origin, a number and the punctuation; more than it can be


@dataclass(frozen=True, slots=True)
class Envelope:
    """Messages of one origin. `first` is the number of the first of them, or of the next where there is none."""

    origin: str
    first: int
    messages: Sequence[Message]
    lost: bool


def encode(message: Message) -> bytes:
    """A message as compact JSON in UTF-8."""
    try:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair: it has no UTF-8, but JSON has an escape for it
        return json.dumps(message, separators=(",", ":")).encode()


def head_of(origin: str) -> str:
    """How every envelope of an origin begins."""
    return f'{{"o":"{origin}",'


def pack(origin: str, first: int, messages: Iterable[bytes], *, limit: int, lost: bool) -> list[bytes]:
    """Put encoded messages into envelopes of at most `limit` bytes each; without messages, into one that is empty.

    A message that is alone in its envelope may exceed the limit: what is too large is not let in here.
    """
    return [
        b'%b"n":%d%b,"m":[%b]}'
        % (
            head_of(origin).encode(),
            first + start,
            b',"l":true' if lost and not start else b"",
            b",".join(group),
        )
        for start, group in _groups(messages, limit - _HEAD_BYTES)
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
    """Read an envelope; None for whatever else somebody sent."""
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
    return Envelope(origin, first, cast("list[Message]", items), lost=fields.get("l") is True)


class Origins:
    """The number that each origin's next message will have. Those longest not heard of are forgotten."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def clear(self) -> None:
        """Know nobody: the first envelope of each sets where its numbers stand."""
        self._known.clear()

    def note(self, envelope: Envelope, *, now_s: float) -> tuple[bool, Sequence[Message]]:
        """Say whether something is missing before an envelope, and which of its messages are new."""
        following = envelope.first + len(envelope.messages)
        expected, _ = self._known.get(envelope.origin, (envelope.first, 0.0))
        self._known[envelope.origin] = (max(expected, following), now_s)
        self._known.move_to_end(envelope.origin)
        while len(self._known) > MAX_ORIGINS or next(iter(self._known.values()))[1] < now_s - FORGET_AFTER_S:
            self._known.popitem(last=False)
        repeated = max(0, expected - envelope.first)
        return envelope.lost or envelope.first > expected, envelope.messages[repeated:]
