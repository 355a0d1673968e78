"""Server-sent events: the changes of one conversation, and of a project's list of conversations."""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from typing import Annotated, Final, get_args

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from app.container import Container
from app.conversations.live.service import (
    LAST_SEQ,
    ConversationDeletedFrame,
    ConversationUpdatedFrame,
    Frame,
    ListSubscription,
    RelistFrame,
    StartPosition,
    Subscription,
    require_reader,
)
from app.conversations.schemas.frames import (
    ErrorFrame,
    PresenceFrame,
    RereadFrame,
    SnapshotFrame,
    SummaryCreatedFrame,
    TurnAbortedFrame,
    TurnCommittedFrame,
    TurnDeltaFrame,
    TurnErasedFrame,
    TurnOpenedFrame,
    TurnSupersededFrame,
)
from app.core.errors import AppError, FieldError, InvalidFields, NotFound
from app.core.ids import ConversationId
from app.core.telemetry import get_logger
from app.memory.schemas import FactRecordedFrame
from app.routers.http.dependencies import (
    ConversationPath,
    ConversationReader,
    QueryCounter,
    QueryText,
    Reader,
    Services,
    get_token,
)
from app.routers.http.problems import problem_responses
from app.routers.http.routing.strict_route import StrictJsonRoute
from app.routers.live import connection_limits
from app.routers.live.connection_limits import Connections, log_closed, log_connected, recheck
from app.routers.live.frames import error_frame
from app.routers.live.server_state import server_state
from app.tenancy.schemas import Caller, token_expired
from app.tenancy.schemas import Scope as KeyScope

EVENTS_MEDIA_TYPE: Final = "text/event-stream"
_RETRY_MS: Final = 1000
_COMMENT: Final = b": keep-alive\n\n"
"""A comment line: event readers ignore it, and proxies see activity."""

TurnEvent = (
    SnapshotFrame
    | TurnOpenedFrame
    | TurnDeltaFrame
    | TurnCommittedFrame
    | TurnAbortedFrame
    | TurnSupersededFrame
    | TurnErasedFrame
    | SummaryCreatedFrame
    | FactRecordedFrame
    | PresenceFrame
    | RereadFrame
    | ErrorFrame
)
ListEvent = ConversationUpdatedFrame | ConversationDeletedFrame | RelistFrame | ErrorFrame


def event_content(data: Mapping[str, object]) -> dict[str, object]:
    """Declare a response of events in OpenAPI, with the schema of the `data` of each event."""
    # "type" replaces the "string" that FastAPI declares for a body that is not JSON
    return {EVENTS_MEDIA_TYPE: {"schema": {"type": "object", **data}}}


def type_of(model: type[BaseModel]) -> str:
    """Return the `type` of all frames of a model."""
    return str(get_args(model.model_fields["type"].annotation)[0])


def _responses(*models: type[BaseModel]) -> dict[int | str, dict[str, object]]:
    places = {type_of(model): f"#/components/schemas/{model.__name__}" for model in models}
    content = event_content(
        {
            "description": "The `data` of one event, as JSON. `event` is its `type`. `id` is opaque: send the last"
            " one back as `Last-Event-ID`.",
            "oneOf": [{"$ref": place} for place in places.values()],
            "discriminator": {"propertyName": "type", "mapping": places},
        }
    )
    return {200: {"description": "Events, for as long as the connection lasts.", "content": content}}


class EventStream(Response):
    """A response that sends events until there are no more or the client disconnects, and then closes `stack`."""

    media_type = EVENTS_MEDIA_TYPE

    def __init__(self, events: AsyncGenerator[bytes], stack: AsyncExitStack) -> None:
        self._events = events
        self._stack = stack
        self.status_code = 200
        self.background = None
        # Makes proxies pass each event on without buffering
        self.init_headers({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until one side ends the stream."""
        del scope
        async with self._stack, aclosing(self._events):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._send_until_disconnect(receive, send)

    async def _send_until_disconnect(self, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send))
        disconnecting = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, disconnecting):
                task.cancel()
            await asyncio.gather(sending, disconnecting, return_exceptions=True)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send_all(self, send: Send) -> None:
        async for data in self._events:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def kept_alive(events: AsyncGenerator[bytes], *, every_s: float) -> AsyncGenerator[bytes]:
    """Yield the events, and a comment after `every_s` seconds without one, because proxies cut silent connections."""
    async with aclosing(events):
        while True:
            coming = asyncio.create_task(_next(events))
            try:
                while not (await asyncio.wait({coming}, timeout=every_s))[0]:
                    yield _COMMENT
            finally:
                # Cancel the pending read if the reader leaves; cancelling a finished task has no effect
                coming.cancel()
                await asyncio.wait({coming})
            data = coming.result()
            if data is None:
                return
            yield data


async def _next(events: AsyncGenerator[bytes]) -> bytes | None:
    return await anext(events, None)


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True, slots=True)
class Following:
    """Token of an event stream, which is rechecked, with the services and the counter of its connection."""

    token: str | None
    services: Container
    request: Request

    @property
    def connections(self) -> Connections:
        """Return the live connections of this process."""
        return server_state(self.request.app).connections


async def _following(
    token: Annotated[str | None, Depends(get_token)], services: Services, request: Request
) -> Following:
    return Following(token, services, request)


Follows = Annotated[Following, Depends(_following)]
LastEvent = Annotated[
    str | None,
    Header(alias="Last-Event-ID", max_length=128, description="The id of the last event; wins over the query."),
]

router = APIRouter(prefix="/v1", tags=["live"], route_class=StrictJsonRoute)


@router.get(
    "/conversations/{conversation_id}/events",
    status_code=200,
    response_class=EventStream,
    response_model=TurnEvent,
    responses=_responses(*TurnEvent.__args__) | problem_responses(429),
)
async def follow_conversation(
    conversation_id: ConversationPath,
    caller: ConversationReader,
    follows: Follows,
    last_event_id: LastEvent = None,
    after_rev: Annotated[QueryCounter, Query(description="Begin with what changed after this rev.")] = None,
    after_seq: Annotated[QueryCounter, Query(description="Begin with the turns after this seq.")] = None,
) -> Response:
    """Follow a conversation: a snapshot, then every change, and text as it is written.

    After `reread` the stream ends: connect again with `Last-Event-ID`. Read it with fetch, since keys go in headers.
    """
    since = _since(last_event_id) if last_event_id else StartPosition(after_seq, after_rev)
    services = follows.services

    async def open_source(stack: AsyncExitStack) -> Source:
        subscription = await services.subscriptions.subscribe(caller, conversation_id, since=since)
        stack.callback(subscription.close)

        async def batch() -> bytes | None:
            frames = await subscription.next_frames()
            return b"".join(_event(frame) for frame in frames) or None

        return Source(batch, lambda: subscription.is_live, lambda: _closing_event(subscription))

    return await _stream(follows, caller, open_source, conversation_id)


@router.get(
    "/events",
    status_code=200,
    response_class=EventStream,
    response_model=ListEvent,
    responses=_responses(*ListEvent.__args__) | problem_responses(429),
)
async def follow_conversations(
    caller: Reader, follows: Follows, last_event_id: LastEvent = None, project: QueryText | None = None
) -> Response:
    """Follow a project's list of conversations, or all of them: which were created, changed or deleted.

    A conversation gets at most one event per second. With `Last-Event-ID` it goes on after that event, or says `reread`
    where it cannot: read the list again then; the stream goes on.
    """

    async def open_source(stack: AsyncExitStack) -> Source:
        watch: ListSubscription = follows.services.list_subscriptions.subscribe(
            caller, project=project, last_event_id=last_event_id
        )
        stack.callback(watch.close)

        async def batch() -> bytes | None:
            events = await watch.next_events()
            return b"".join(_lines(event.type, event.text, event.id) for event in events) or None

        return Source(batch, lambda: True, lambda: b"")

    return await _stream(follows, caller, open_source, None)


@dataclass(frozen=True, slots=True)
class Source:
    """Source of events: `batch` (None: no more), whether waiting for it may be interrupted, and the last event."""

    batch: Callable[[], Awaitable[bytes | None]]
    is_live: Callable[[], bool]
    farewell: Callable[[], bytes]


async def _stream(
    follows: Following,
    caller: Caller,
    open_source: Callable[[AsyncExitStack], Awaitable[Source]],
    conversation_id: ConversationId | None,
) -> Response:
    """Open the source, so that its errors become problem responses, and return a response with its events."""
    async with AsyncExitStack() as opening:
        opening.enter_context(follows.connections.entered("events", caller))
        source = await open_source(opening)
        stack = opening.pop_all()
    log_connected("events", caller, conversation_id)
    tally = _StreamTally(asyncio.get_running_loop().time())
    stack.callback(tally.log, caller, conversation_id)
    return EventStream(_events(follows, caller, source, tally, conversation_id), stack)


@dataclass(slots=True)
class _StreamTally:
    """Start time of a stream, and its number of batches."""

    started: float
    count: int = 0

    def log(self, caller: Caller, conversation_id: ConversationId | None) -> None:
        """Log the end of the stream."""
        duration_ms = round((asyncio.get_running_loop().time() - self.started) * 1000, 1)
        log_closed("events", caller, conversation_id, count=self.count, duration_ms=duration_ms)


async def _events(
    follows: Following, caller: Caller, source: Source, tally: _StreamTally, conversation_id: ConversationId | None
) -> AsyncGenerator[bytes]:
    try:
        yield b"retry: %d\n\n" % _RETRY_MS
        async for data in _with_heartbeats(follows, caller, source, conversation_id):
            tally.count += 1
            follows.connections.sent("events", data.count(b"\ndata: "))
            yield data
    except AppError as error:
        yield _error(error)


async def _with_heartbeats(
    follows: Following, caller: Caller, source: Source, conversation_id: ConversationId | None
) -> AsyncGenerator[bytes]:
    heartbeat_s, loop = follows.services.settings.live.live_heartbeat_s, asyncio.get_running_loop()
    beat_at, recheck_at = loop.time() + heartbeat_s, loop.time() + connection_limits.RECHECK_S
    expires_at = math.inf if caller.bound is None else loop.time() + caller.bound.left_s()
    while True:
        data: bytes | None = b""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(beat_at, recheck_at, expires_at) if source.is_live() else None):
                data = await source.batch()
        if loop.time() >= expires_at:
            raise token_expired()
        if data is None:
            if farewell := source.farewell():
                yield farewell
            return
        now = loop.time()
        if now >= recheck_at:
            recheck_at = now + connection_limits.RECHECK_S
            await _require_still(follows.services, follows.token, conversation_id)
            if loop.time() >= expires_at:
                raise token_expired()
        if data or now >= beat_at:
            beat_at = now + heartbeat_s
            yield data or _COMMENT


async def _require_still(services: Container, token: str | None, conversation_id: ConversationId | None) -> None:
    caller: Caller | None = await recheck(services, token)
    if caller is None:
        return
    if conversation_id is None:
        caller.require(KeyScope.READ)
    else:
        require_reader(caller, conversation_id)


def _closing_event(subscription: Subscription) -> bytes:
    if subscription.end_reason == "deleted":
        return _error(NotFound("not_found", "This conversation has been deleted."))
    return b""


def _error(error: AppError) -> bytes:
    get_logger().debug("live.refused", code=error.code)
    return _lines("error", error_frame(error).model_dump_json(), None)


def _event(frame: Frame) -> bytes:
    event_id = None
    if frame.position is not None:
        rev, seq = frame.position
        event_id = str(rev) if seq == LAST_SEQ else f"{rev}.{seq}"
    return _lines(frame.type, frame.text, event_id)


def _lines(kind: str, text: str, event_id: str | None) -> bytes:
    # JSON text contains no line ends
    named = "" if event_id is None else f"id: {event_id}\n"
    return f"event: {kind}\n{named}data: {text}\n\n".encode()


def _since(last_event_id: str) -> StartPosition:
    rev, _, seq = last_event_id.partition(".")
    if not (rev.isascii() and rev.isdecimal() and (seq == "" or (seq.isascii() and seq.isdecimal()))):
        problem = FieldError("/Last-Event-ID", "not the id of an event of this stream", "header")
        raise InvalidFields([problem])
    position = (int(rev[:18]), int(seq[:18]) if seq else LAST_SEQ)
    return StartPosition(position=position)
