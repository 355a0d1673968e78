"""Read the bytes of a document that another system wrote. A part that cannot be read costs that part only. Pure.

Encodings: UTF-8, UTF-16 and UTF-32, with or without a byte order mark; bytes that are not UTF-8 are read as
Windows-1252 unless other characters of the text are UTF-8. Several JSON values one after another (JSON lines) are one
list. A text whose value is a JSON document is that document. Of a list that is cut off or has an item that is not JSON,
all other items are read; `broken` names the rest by JSON pointers, and the value has null in its place.
"""

import codecs
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from pydantic import JsonValue

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
_ZEROS_OF_UTF_32: Final = {b"\0\0\0\1": "utf-32-be", b"\1\0\0\0": "utf-32-le"}
"""The first character of a text in UTF-32 without a mark: which of its bytes are not zero."""
_MULTIBYTE: Final = re.compile(rb"[\xc3-\xf4][\x80-\xbf]")
_SPACE: Final = re.compile(r"[\s\ufeff\x1e,]*")
_BLANK: Final = re.compile(r"\s*")
_TOKEN: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)
_WORD: Final = re.compile(r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|[^,\[\]{}"]*')
"""A text, or what is no JSON up to the next mark."""
_NAME: Final = re.compile(r'"(?:conversation_id|conversationId|thread_id|session_id|uuid|id)"\s*:\s*"([^"\\]{1,256})"')
_CUT_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_LINE: Final = re.compile(r"^\{.+\}[ \t]*,?[ \t]*\r?$", re.MULTILINE)
_LINE_START: Final = re.compile(r"^\{", re.MULTILINE)
_MIN_NAMES: Final = 3
_MIN_LINES: Final = 2
_CANDIDATE: Final = re.compile(r"[,\[\]\n]\s*(?=\{)")
"""What stands before an item of a list that is an object."""
_LIST_END: Final = re.compile(r'\]\s*,\s*(?="[^"\\]{1,64}"\s*:)')
"""The end of a list that is a member of an object, before the next member."""
_NOT_STORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT: Final = "\ufffd"
_MAX_INTEGER: Final = 2**53 - 1
_MAX_DIGITS: Final = 17
_MAX_SALVAGED_DEPTH: Final = 3
_MAX_TEXTS: Final = 3
_MAX_CANDIDATES: Final = 10_000
_LIKENESS: Final = 0.4
"""Two objects are items of one list if more than this share of their members is in both."""
_MAX_ENDS: Final = 50
"""Brackets that are examined to find the end of a list with a broken item, counted from the end of the document."""


@dataclass(frozen=True, slots=True)
class BrokenPart:
    """A part of a document that is not JSON. `name`: the id in it, if one was read."""

    detail: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ForeignDocument:
    """The value of a document, and its broken parts by their JSON pointers."""

    value: JsonValue
    broken: dict[str, BrokenPart] = field(default_factory=dict[str, BrokenPart])


def read_document(data: bytes) -> ForeignDocument:
    """Return the document in some bytes. Bytes without any JSON value are a broken part at the pointer ``."""
    document = _parsed(_closed_text(decode(data)))
    for _ in range(_MAX_TEXTS):
        inner = document.value.strip() if isinstance(document.value, str) else ""
        if not inner.startswith(("{", "[", '"')):
            break
        document = _parsed(_closed_text(inner))
    return document


def joined(documents: Sequence[ForeignDocument]) -> ForeignDocument:
    """Return the documents of an archive as one: the items of its lists in one list."""
    if len(documents) == 1:
        return documents[0]
    items: list[JsonValue] = []
    broken: dict[str, BrokenPart] = {}
    for document in documents:
        if isinstance(document.value, list):
            for pointer, part in document.broken.items():
                number, _, rest = pointer.removeprefix("/").partition("/")
                broken[f"/{int(number or 0) + len(items)}{'/' if rest else ''}{rest}"] = part
            items += document.value
        else:
            broken |= {f"/{len(items)}{pointer}": part for pointer, part in document.broken.items()}
            items.append(document.value)
    return ForeignDocument(items, broken)


def decode(data: bytes) -> str:
    """Return the text of some bytes. A byte that the encoding does not have becomes U+FFFD."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    # the first two characters of a JSON text are ASCII
    if (encoding := _ZEROS_OF_UTF_32.get(bytes(byte != 0 for byte in data[:4]))) is not None:
        return data.decode(encoding, "replace")
    if len(data) > 1 and 0 in data[:2] and data[:2] != b"\0\0":
        return data.decode("utf-16-be" if data[0] == 0 else "utf-16-le", "replace")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        is_cut_off = error.reason == "unexpected end of data"
    if is_cut_off or _MULTIBYTE.search(data):
        return data.decode(errors="replace")
    return data.decode("cp1252", "replace")


def _closed_text(text: str) -> str:
    """Return a JSON text whose end is missing with an end: a document in it may be readable up to there."""
    start = _after(_SPACE, text, 0)
    if text[start : start + 1] != '"' or _decode_at(text, start) is not None:
        return text
    text = _CUT_ESCAPE.sub("", text)
    read = _decode_at(f'{text}"', start)
    return text if read is None or read[1] <= len(text) else f'{text}"'


def storable(value: JsonValue) -> JsonValue:
    """Return a value that can be stored, without recursion.

    NUL and halves of surrogate pairs become U+FFFD, integers beyond ±(2^53 - 1) text, and other numbers that JSON does
    not have null. The file of another system cannot be corrected.
    """
    holder: list[JsonValue] = [value]
    pending: list[list[JsonValue] | dict[str, JsonValue]] = [holder]
    while pending:
        container = pending.pop()
        steps: list[tuple[int | str, JsonValue]]
        if isinstance(container, dict):
            for name in [name for name in container if _NOT_STORABLE.search(name)]:
                container[_NOT_STORABLE.sub(_REPLACEMENT, name)] = container.pop(name)
            steps = list(container.items())
        else:
            steps = list(enumerate(container))
        for step, member in steps:
            if isinstance(member, dict | list):
                pending.append(member)
            elif (changed := _scalar(member)) is not member:
                cast("dict[int | str, JsonValue]", container)[step] = changed
    return holder[0]


def _scalar(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return _NOT_STORABLE.sub(_REPLACEMENT, value) if _NOT_STORABLE.search(value) else value
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) <= _MAX_INTEGER else f"{value}"
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _integer(digits: str) -> int | str:
    # int() of thousands of digits is slow, or an error
    return digits if len(digits) > _MAX_DIGITS else int(digits)


def _constant(_name: str) -> None:
    """Read NaN and Infinity as null."""


_DECODER: Final = json.JSONDecoder(strict=False, parse_int=_integer, parse_constant=_constant)


def _decode_at(text: str, at: int) -> tuple[JsonValue, int] | None:
    """Return the JSON value at a place and the place after it; None if there is none, or it nests too deeply."""
    try:
        return cast("tuple[JsonValue, int]", _DECODER.raw_decode(text, at))
    except (ValueError, RecursionError):
        return None


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _parsed(text: str) -> ForeignDocument:
    """Return the value of a text: one value, or the list of several values."""
    start = _after(_SPACE, text, 0)
    first = _decode_at(text, start)
    if first is not None and _after(_SPACE, text, first[1]) == len(text):
        return ForeignDocument(first[0])
    salvage = _Salvage(text)
    if first is None and text[start : start + 1] in {"[", "{"} and not _is_lines(text, start):
        value, end = salvage.container(start, "", 0)
        if _after(_SPACE, text, end) >= len(text):
            return ForeignDocument(value, salvage.broken)
        lines = _Salvage(text)
        values = list(lines.values(start))
        if len(salvage.broken) < len(lines.broken):
            return ForeignDocument(value, salvage.broken)
        salvage = lines
    else:
        values = list(salvage.values(start))
    rest = 0 if first is None else _after(_SPACE, text, first[1])
    is_followed = first is not None and (text[rest : rest + 1] in {"{", "["} or "\n" in text[first[1] : rest])
    if first is not None and not is_followed and not any(isinstance(value, dict | list) for value in values[1:]):
        # one document, and a rest that is none
        return ForeignDocument(first[0], {"": BrokenPart("the text after the document is not JSON")})
    if not any(isinstance(value, dict | list) for value in values):
        return ForeignDocument(None, {"": BrokenPart("the file has no JSON document")})
    return ForeignDocument(values, salvage.broken)


def _is_lines(text: str, start: int) -> bool:
    """Return whether a text is JSON lines: one of its first lines is an object, and another one begins as one."""
    if text[start : start + 1] != "{" or len(_LINE_START.findall(text, 0, start + 2**20)) < _MIN_LINES:
        return False
    for match in _LINE.finditer(text, start, start + 2**20):
        read = _decode_at(text, _after(_BLANK, text, match.start()))
        if read is not None and read[1] <= match.end():
            return True
    return False


class _Salvage:
    """Reads what can be read of one text, and records the rest in `broken`."""

    def __init__(self, text: str) -> None:
        self.broken: dict[str, BrokenPart] = {}
        self._text = text

    def values(self, at: int) -> Iterator[JsonValue]:
        """Yield the values that follow each other from a place on; null for a line that is none."""
        number = 0
        while (at := _after(_SPACE, self._text, at)) < len(self._text):
            read = _decode_at(self._text, at)
            if read is not None:
                value, at = read
            else:
                line_end = self._text.find("\n", at)
                end = len(self._text) if line_end < 0 else line_end
                value = None
                self._add(f"/{number}", at, end)
                at = end
            yield value
            number += 1

    def container(self, at: int, pointer: str, depth: int) -> tuple[JsonValue, int]:
        """Return what can be read of a list or an object, and the place after it."""
        return self._list(at, pointer) if self._text[at] == "[" else self._object(at, pointer, depth)

    def _add(self, pointer: str, at: int, end: int) -> None:
        is_cut_off = end >= len(self._text.rstrip())
        detail = "the file ends inside of it" if is_cut_off else "it is not JSON, or nests too deeply"
        self.broken[pointer] = BrokenPart(detail, _name_in(self._text, at, end))

    def _list(self, at: int, pointer: str) -> tuple[JsonValue, int]:
        items: list[JsonValue] = []
        sample: frozenset[str] | None = None
        begin = at = at + 1
        limit: int | None = None
        is_item = False
        while True:
            at = _after(_SPACE, self._text, at)
            if at >= len(self._text) or at == limit:
                if at >= len(self._text) and not self.broken:
                    self._add(f"{pointer}/{len(items)}", at, at)
                return items, min(at + 1, len(self._text))
            if self._text[at] == "]" and self._is_end(at, pointer, limit, is_item=is_item):
                return items, at + 1
            read = self._item_at(at)
            if read is None:
                limit = self._end_of_list(begin, pointer) if limit is None else limit
                end = self._end_of_item(at, limit, sample)
                self._add(f"{pointer}/{len(items)}", at, end)
                items.append(None)
                at, is_item = end, False
                continue
            value, at = read
            items.append(value)
            is_item = isinstance(value, dict) and _is_like(value, sample)
            if isinstance(value, dict):
                sample = frozenset(value)

    def _is_end(self, at: int, pointer: str, limit: int | None, *, is_item: bool) -> bool:
        """Return whether a bracket ends the list: `is_item`, an item that is like the others stands before it."""
        following = _after(_BLANK, self._text, at + 1)
        if not pointer:
            return limit is None and following >= len(self._text)
        if limit is None:
            return self._text[following : following + 1] in {"}", ""} or bool(_LIST_END.match(self._text, at))
        is_last = limit >= len(self._text.rstrip()) - 2
        return is_last and is_item and bool(_LIST_END.match(self._text, at))

    def _item_at(self, at: int) -> tuple[JsonValue, int] | None:
        """Return the item at a place and the place after it.

        Beside faults, a list may lack its end, and a text its quote: then they reach into the next items.
        """
        read = _decode_at(self._text, at)
        if read is None or isinstance(read[0], dict):
            return read
        return read if not isinstance(read[0], list) and self._ends_item(read[1]) else None

    def _ends_item(self, at: int) -> bool:
        following = _after(_BLANK, self._text, at)
        return self._text[following : following + 1] in {",", "]", ""}

    def _end_of_list(self, begin: int, pointer: str) -> int:
        """Return the place of the bracket that ends a list with a broken item: what follows it can be read."""
        text = self._text.rstrip()
        if pointer:
            ends = list(_LIST_END.finditer(text, begin))[-_MAX_ENDS:]
            for is_end in (self._is_object_rest, self._has_brackets_of_rest):
                places = [match.start() for match in ends if is_end(match.end(), len(text))]
                if places:
                    return places[0]
        tail = re.compile(r"\]\s*(?:\}\s*)?\Z" if pointer else r"\]\s*\Z").search(text, max(begin, len(text) - 4096))
        return len(text) if tail is None else tail.start()

    def _is_object_rest(self, at: int, end: int) -> bool:
        read = _decode_at("{" + self._text[at:end], 0)
        return read is not None and read[1] == end - at + 1

    def _has_brackets_of_rest(self, at: int, end: int) -> bool:
        return _closing("{" + self._text[at:end], 0) == end - at + 1

    def _end_of_item(self, at: int, limit: int, sample: frozenset[str] | None) -> int:
        """Return the place after a broken item: before the next item that is like the others, or its last bracket."""
        candidates = list(self._candidates(at, limit))
        if sample is None and candidates:
            names = self._names_before_fault(at)
            alike = [read for read in candidates if names and len(names & read[1].keys()) * 2 > len(names)]
            if not alike and len(names) < _MIN_NAMES:
                alike = candidates
            sample = frozenset(max(alike, key=lambda read: read[2] - read[0])[1] if alike else names)
        start = next((start for start, value, _ in candidates if _is_like(value, sample)), limit)
        is_container = self._text[at : at + 1] in {"[", "{"}
        end = _closing(self._text, at) if is_container else max(at + 1, _after(_WORD, self._text, at))
        if end is None or end >= start:
            return start
        if not is_container:
            return end if self._ends_item(end) else start
        # between the two places: another item that cannot be read, or the rest of this one
        after_comma = _after(_SPACE, self._text, end)
        names = (
            self._names_before_fault(after_comma) if self._text[after_comma : after_comma + 1] == "{" else set[str]()
        )
        is_next = bool(names) and sample is not None and names <= sample
        return end if is_next or after_comma >= start else start

    def _candidates(self, at: int, limit: int) -> Iterator[tuple[int, dict[str, JsonValue], int]]:
        """Yield the objects behind a place that can be read and may be items, none inside of another."""
        for _ in range(_MAX_CANDIDATES):
            match = _CANDIDATE.search(self._text, at, limit)
            if match is None:
                return
            read = _decode_at(self._text, match.end())
            if read is None or not isinstance(read[0], dict) or read[1] > limit:
                at = match.end()
                continue
            yield match.end(), read[0], read[1]
            at = read[1]

    def _names_before_fault(self, at: int) -> set[str]:
        """Return the names of the members of a broken object that can be read."""
        names: set[str] = set()
        at += 1
        while (name := _decode_at(self._text, at := _after(_SPACE, self._text, at))) is not None:
            colon = _after(_BLANK, self._text, name[1])
            if not isinstance(name[0], str) or self._text[colon : colon + 1] != ":":
                break
            names.add(name[0])
            member = _decode_at(self._text, _after(_BLANK, self._text, colon + 1))
            if member is None:
                break
            at = member[1]
        return names

    def _object(self, at: int, pointer: str, depth: int) -> tuple[JsonValue, int]:
        members: dict[str, JsonValue] = {}
        at += 1
        while True:
            at = _after(_SPACE, self._text, at)
            if self._text[at : at + 1] == "}":
                return members, at + 1
            name = _decode_at(self._text, at) if self._text[at : at + 1] == '"' else None
            colon = None if name is None else _after(_BLANK, self._text, name[1])
            if name is None or colon is None or self._text[colon : colon + 1] != ":":
                end = len(self._text) if at >= len(self._text) else _closing(self._text, at) or len(self._text)
                self._add(pointer, at, end)
                return members, end
            at = _after(_BLANK, self._text, colon + 1)
            inner = f"{pointer}/{str(name[0]).replace('~', '~0').replace('/', '~1')}"
            read = _decode_at(self._text, at) if at < len(self._text) else None
            if read is None and self._text[at : at + 1] in {"[", "{"} and depth < _MAX_SALVAGED_DEPTH:
                read = self.container(at, inner, depth + 1)
            if read is None:
                end = _closing(self._text, at) or len(self._text)
                self._add(inner, at, end)
                read = None, end
            members[str(name[0])], at = read
            if at >= len(self._text):
                return members, at


def _is_like(value: dict[str, JsonValue], sample: frozenset[str] | None) -> bool:
    return sample is None or len(sample & value.keys()) > _LIKENESS * len(sample | value.keys())


def _closing(text: str, at: int) -> int | None:
    """Return the place after the bracket that closes the first one from a place on; None if brackets do not match."""
    opened: list[str] = []
    for match in _TOKEN.finditer(text, at):
        mark = match[0]
        if mark in "[{":
            opened.append("]" if mark == "[" else "}")
        elif mark in "]}":
            if not opened or opened.pop() != mark:
                return None
            if not opened:
                return match.end()
    return None


def _name_in(text: str, at: int, end: int) -> str | None:
    """Return the id of a broken part, if it stands before what the part contains."""
    head = text[at : min(end, at + 4096)]
    inner = min((place for mark in "[{" if (place := head.find(mark, 1)) > 0), default=len(head))
    match = _NAME.search(head, 0, inner)
    return None if match is None else match[1]
