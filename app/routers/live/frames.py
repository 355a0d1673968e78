"""Frames of a WebSocket: parse client messages, and convert errors to error frames.

Invariants: an error never repeats anything that the client sent, except the frame's own `id`. A large frame is parsed
in a thread, so that the event loop is not blocked.
"""

import asyncio
from typing import Final, cast

from pydantic import JsonValue, TypeAdapter, ValidationError

from app.conversations.schemas.append import PRODUCED_MEMBERS
from app.conversations.schemas.frames import ClientFrame, ErrorFrame
from app.core.errors import AppError, InvalidFields, Malformed
from app.core.validation.invalid import cut_fields, fields_of, property_names, public_detail
from app.core.validation.json_text import parse_json
from app.formats.parse.validation import MEMBER_NAMES

_ADAPTER: Final[TypeAdapter[ClientFrame]] = TypeAdapter(ClientFrame)
_MAX_FIELDS: Final = 50
_MAX_ID: Final = 128
INLINE_BYTES: Final = 16 * 2**10
"""Larger frames are parsed in a thread: at this size, a frame of small values takes 2 ms (0.2 s per megabyte)."""


def frame_members() -> frozenset[str]:
    """Return the names of all members of client frames."""
    return MEMBER_NAMES.union(property_names(cast("JsonValue", _ADAPTER.json_schema())))


def takes_thread(data: bytes) -> bool:
    """Return whether a message is parsed in a thread."""
    return len(data) > INLINE_BYTES


async def read_message(data: bytes, *, max_depth: int) -> tuple[ClientFrame | AppError, str | None]:
    """Return a message's frame or its error, and the frame's `id` if it has a valid one."""
    if not takes_thread(data):
        return _parse(data, max_depth)
    return await asyncio.to_thread(_parse, data, max_depth)


def asked(read: ClientFrame | AppError) -> ClientFrame:
    """Return the frame that was read, or raise its error."""
    if isinstance(read, AppError):
        raise read
    return read


def _parse(data: bytes, max_depth: int) -> tuple[ClientFrame | AppError, str | None]:
    frame_id: str | None = None
    parsed: JsonValue = None
    try:
        parsed = parse_json(data, max_depth=max_depth, produced=PRODUCED_MEMBERS.__contains__)
        if not isinstance(parsed, dict):
            raise Malformed("malformed_json", "A frame is a JSON object.")
        sent_id = parsed.get("id")
        frame_id = sent_id if isinstance(sent_id, str) and 0 < len(sent_id) <= _MAX_ID else None
        return _ADAPTER.validate_python(parsed), frame_id
    except ValidationError as error:
        return InvalidFields(fields_of(error, parsed)), frame_id
    except AppError as error:
        return error, frame_id


def error_frame(
    error: AppError, *, frame_id: str | None = None, turn_id: str | None = None, members: frozenset[str] = frozenset()
) -> ErrorFrame:
    """Convert an error to a frame. Pointers stop before the first member that is not in `members`."""
    expected = error.extra.get("expected_offset")
    fields = cut_fields(error.fields[:_MAX_FIELDS], members)
    more = {name: value for name, value in error.extra.items() if name not in ErrorFrame.model_fields}
    if error.retry_after_s is not None:
        more["retry_after_s"] = error.retry_after_s
    return ErrorFrame(
        type="error",
        id=frame_id,
        code=error.code,
        detail=public_detail(error, fields),
        retryable=error.retryable,
        turn_id=turn_id,
        expected_offset=expected if isinstance(expected, int) else None,
        errors=[{"pointer": field.pointer, "in": field.place, "detail": field.detail} for field in fields],
        **more,  # pyright: ignore[reportArgumentType]
    )
