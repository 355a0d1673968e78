"""The WebSocket endpoint of a conversation: accept, authenticate, and close.

A browser sees neither status nor body of a refused upgrade. So a connection is accepted first, and then closed with a
code that gives the reason (`docs/live.md`).
"""

import asyncio
from contextlib import suppress
from typing import Final, cast

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect

from app.container import Container
from app.conversations.schemas.frames import AckFrame, AuthFrame
from app.core.errors import AppError, Invalid, NotFound, RateLimited
from app.core.ids import ConversationId, parse_id
from app.core.telemetry import error_stack, error_type, get_logger
from app.routers.http.routing.strict_route import unknown_parameters
from app.routers.live.connection import (
    FAILED,
    MALFORMED,
    NOT_TEXT,
    TIMED_OUT,
    TOO_LARGE,
    UNAUTHENTICATED,
    Closing,
    LiveSocket,
    closing_of,
)
from app.routers.live.connection_limits import (
    AUTH_TIMEOUT_S,
    CREDENTIALS_IN_QUERY,
    Connections,
    log_closed,
    log_connected,
)
from app.routers.live.frames import asked, error_frame, read_message
from app.routers.live.outbox import GONE, send_text
from app.routers.live.server_state import server_state
from app.tenancy.schemas import Caller

SUBPROTOCOL: Final = "turnkeep.v1"
_BEARER: Final = "bearer."
_MAX_REASON_BYTES: Final = 120
_FIRST_FRAME_BYTES: Final = 8 * 2**10
"""The sender is not authenticated, so nothing larger is parsed.

The server has received up to `live_frame_bytes` of it.
"""

router = APIRouter(include_in_schema=False)


class _ClosedError(Exception):
    """Raised if a connection has to end before it began."""

    def __init__(self, closing: Closing) -> None:
        super().__init__(closing.reason)
        self.closing = closing


@router.websocket("/v1/conversations/{conversation_id}/live")
async def live(websocket: WebSocket, conversation_id: str) -> None:
    """Publish to a conversation and follow it."""
    offered = cast("list[str]", websocket.scope.get("subprotocols", []))
    await websocket.accept(subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else None)
    started = asyncio.get_running_loop().time()
    caller: Caller | None = None
    socket: LiveSocket | None = None
    parsed: ConversationId | None = None
    try:
        state = server_state(websocket.app)
        connections, container = state.connections, state.container
        parsed = _conversation_id(conversation_id)
        caller, token = await _authenticate(websocket, container, connections, offered)
        _refuse_query(websocket)
        with connections.entered("websocket", caller) as slot:
            await container.subscriptions.require_access(caller, parsed)
            log_connected("websocket", caller, parsed)
            socket = LiveSocket(
                websocket,
                container,
                connections,
                slot,
                conversation_id=parsed,
                caller=caller,
                token=token,
                members=state.frame_members,
                bytes_in_flight=state.bytes_in_flight,
            )
            closing = await socket.run()
    except _ClosedError as closed:
        closing = closed.closing
    except AppError as error:
        closing = closing_of(error)
        if isinstance(error, RateLimited | Invalid):
            await _explain(websocket, error)
    except (WebSocketDisconnect, OSError):
        closing = Closing(GONE, "gone", by_client=True)
    except Exception as error:  # noqa: BLE001 - the server would log it with its message
        get_logger().error("live.failed", error_type=error_type(error), stack=error_stack(error))
        closing = Closing(FAILED, "internal_error")
    await _close(websocket, closing)
    log_closed(
        "websocket",
        caller,
        parsed,
        status=closing.code,
        count=0 if socket is None else socket.frames_received,
        duration_ms=round((asyncio.get_running_loop().time() - started) * 1000, 1),
    )


async def _close(websocket: WebSocket, closing: Closing) -> None:
    if closing.by_client:
        return
    try:
        await websocket.close(closing.code, closing.reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore"))
    except (WebSocketDisconnect, RuntimeError, OSError):
        return  # the client disconnected meanwhile


async def _explain(websocket: WebSocket, error: AppError) -> None:
    with suppress(WebSocketDisconnect, OSError):
        await send_text(websocket, error_frame(error).model_dump_json())


def _conversation_id(text: str) -> ConversationId:
    try:
        return ConversationId(parse_id(text))
    except ValueError:
        raise NotFound("not_found", "There is no such conversation.") from None


async def _authenticate(
    websocket: WebSocket, container: Container, connections: Connections, offered: list[str]
) -> tuple[Caller, str | None]:
    """Return the caller and its token, from a header, a subprotocol or a first frame."""
    if any(name.lower() in CREDENTIALS_IN_QUERY for name in websocket.query_params):
        raise _ClosedError(
            Closing(UNAUTHENTICATED, "a key never goes into the URL: send a header, a subprotocol or `auth`")
        )
    token = _token(websocket, offered)
    if token is None:
        with connections.arriving():
            return await _authenticate_by_frame(websocket, container)
    return await container.tenancy.authenticate(token, address=_address(websocket)), token


def _address(websocket: WebSocket) -> str | None:
    return None if websocket.client is None else websocket.client.host


def _refuse_query(websocket: WebSocket) -> None:
    names = list(websocket.query_params.keys())
    if names:
        raise unknown_parameters(names, (), among=names)


def _token(websocket: WebSocket, offered: list[str]) -> str | None:
    scheme, _, token = websocket.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    by_header = websocket.headers.get("x-api-key")
    by_protocol = next((name.removeprefix(_BEARER) for name in offered if name.startswith(_BEARER)), None)
    return by_header or by_protocol


async def _authenticate_by_frame(websocket: WebSocket, container: Container) -> tuple[Caller, str]:
    settings = container.settings
    frame_id: str | None = None
    try:
        async with asyncio.timeout(AUTH_TIMEOUT_S):
            message = await websocket.receive()
    except TimeoutError:
        raise _ClosedError(Closing(TIMED_OUT, "no key came in time: send `auth` first")) from None
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(int(message.get("code") or GONE))
    text = message.get("text")
    if not isinstance(text, str):
        raise _ClosedError(Closing(NOT_TEXT, "frames are JSON in text messages"))
    data = text.encode()
    if len(data) > _FIRST_FRAME_BYTES:
        raise _ClosedError(Closing(TOO_LARGE, "the first frame is `auth`, of 8 KiB at most"))
    try:
        read, frame_id = await read_message(data, max_depth=settings.requests.max_json_depth)
        frame = asked(read)
        if not isinstance(frame, AuthFrame):
            raise _ClosedError(Closing(MALFORMED, "the first frame is `auth`, unless a header carries the key"))
        caller = await container.tenancy.authenticate(frame.token, address=_address(websocket))
    except AppError as error:
        members = server_state(websocket.app).frame_members
        await send_text(websocket, error_frame(error, frame_id=frame_id, members=members).model_dump_json())
        raise
    await send_text(websocket, AckFrame(type="ack", id=frame.id).model_dump_json(exclude_unset=True))
    return caller, frame.token
