"""Frames of a WebSocket: from text to what was asked, and from an error to what is answered.

What always holds: an error never repeats what the client sent, but for the frame's own `id`; a large frame is read in a
thread, while everybody else is answered.
"""

import asyncio
from typing import Final, cast

from pydantic import JsonValue, TypeAdapter, ValidationError

from app.conversations.schemas.frames import ClientFrame, ErrorFrame
from app.core.errors import AppError, Invalid, Malformed
from app.core.validation.invalid import cut_fields, fields_of, property_names
from app.core.validation.json_text import parse_json
from app.formats.parse.validation import MEMBER_NAMES

_ADAPTER: Final[TypeAdapter[ClientFrame]] = TypeAdapter(ClientFrame)
_MAX_FIELDS: Final = 50
_MAX_ID: Final = 128
_INLINE_BYTES: Final = 16 * 2**10
"""A larger frame is read in a thread: one of small values takes 2 ms here, 0.2 s a megabyte."""


def frame_members() -> frozenset[str]:
    """The names of all members that clients' frames have."""
    return MEMBER_NAMES.union(property_names(cast("JsonValue", _ADAPTER.json_schema())))


async def read_message(data: bytes, *, max_depth: int) -> tuple[ClientFrame | AppError, str | None]:
    """What a message asks, or what is wrong with it; and the frame's `id`, where it has a fit one."""
    if len(data) <= _INLINE_BYTES:
        return _parse(data, max_depth)
    return await asyncio.to_thread(_parse, data, max_depth)


def asked(read: ClientFrame | AppError) -> ClientFrame:
    """The frame that was read. Raises what is wrong with it."""
    if isinstance(read, AppError):
        raise read
    return read


def _parse(data: bytes, max_depth: int) -> tuple[ClientFrame | AppError, str | None]:
    frame_id: str | None = None
    try:
        parsed, frame_id = parse_frame(data, max_depth=max_depth)
        return read_frame(parsed), frame_id
    except AppError as error:
        return error, frame_id


def parse_frame(data: bytes, *, max_depth: int) -> tuple[JsonValue, str | None]:
    """Read a frame's JSON, and its `id` where it has a fit one. Raises Malformed and Invalid, as for a body."""
    parsed = parse_json(data, max_depth=max_depth)
    if not isinstance(parsed, dict):
        raise Malformed("malformed_json", "A frame is a JSON object.")
    frame_id = parsed.get("id")
    return parsed, frame_id if isinstance(frame_id, str) and 0 < len(frame_id) <= _MAX_ID else None


def read_frame(parsed: JsonValue) -> ClientFrame:
    """What a frame asks. Raises Invalid, naming the members that are wrong."""
    try:
        return _ADAPTER.validate_python(parsed)
    except ValidationError as error:
        detail = "The frame breaks a rule; `errors` says which and where."
        raise Invalid("invalid_request", detail, fields=fields_of(error, parsed)) from None


def error_frame(
    error: AppError,
    *,
    frame_id: str | None = None,
    turn_id: str | None = None,
    known: frozenset[str] = frozenset(),
) -> ErrorFrame:
    """Put an error into a frame; pointers stop before the first member that is not among the `known` ones."""
    expected = error.extra.get("expected_offset")
    more = {name: value for name, value in error.extra.items() if name not in ErrorFrame.model_fields}
    return ErrorFrame(
        type="error",
        id=frame_id,
        code=error.code,
        detail=error.detail,
        retryable=error.retryable,
        turn_id=turn_id,
        expected_offset=expected if isinstance(expected, int) else None,
        errors=[
            {"pointer": field.pointer, "in": field.place, "detail": field.detail}
            for field in cut_fields(error.fields[:_MAX_FIELDS], known)
        ],
        **more,  # pyright: ignore[reportArgumentType]
    )
