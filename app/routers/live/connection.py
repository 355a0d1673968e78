"""One WebSocket connection to a conversation: executes client frames in order, and sends answers and subscribed frames.

Invariants: frames are answered in the order of arrival, each with an `ack`, a `pong` or an `error`. A client that sends
faster than it is served is not read for a while. The subscription drops a client that does not read, and the connection
is closed. Nothing that a client sends is repeated to it or written to the log.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, assert_never

from fastapi import WebSocket
from pydantic import BaseModel
from starlette.websockets import WebSocketDisconnect

from app.container import Container
from app.conversations.live.service import StartPosition, Subscription, require_reader, require_reader_or_writer
from app.conversations.schemas.frames import (
    AbortFrame,
    Aborting,
    AckFrame,
    AppendFrame,
    AuthFrame,
    Chunk,
    ChunkFrame,
    ClientFrame,
    CommitFrame,
    Ending,
    OpenedTurn,
    OpenFrame,
    Opening,
    PingFrame,
    PongFrame,
    ResumeFrame,
    Resuming,
    SubscribeFrame,
)
from app.core.errors import AppError, Forbidden, Invalid, Malformed, NotFound, RateLimited, Unauthenticated, Unavailable
from app.core.ids import ConversationId, TurnId, format_id, parse_id
from app.core.limits import TokenBucket
from app.core.telemetry import error_stack, error_type, get_logger
from app.routers.http.bytes_in_flight import BodyReservation, BytesInFlight
from app.routers.live import connection_limits
from app.routers.live.connection_limits import Connections, ConnectionSlot, recheck
from app.routers.live.epochs import Epochs
from app.routers.live.frames import asked, error_frame, read_message, takes_thread
from app.routers.live.outbox import GONE, Outbox, send_text
from app.tenancy.schemas import Caller, RateClass, Scope, token_expired

NOT_TEXT, TOO_LARGE, FAILED, RESTARTING, TRY_LATER = 1003, 1009, 1011, 1012, 1013
MALFORMED, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, TIMED_OUT, TOO_MANY = 4400, 4401, 4403, 4404, 4408, 4429
_LAST_FRAMES_S: Final = 1.0
_HAS_ENDED: Final = frozenset({"turn_committed", "turn_aborted"})
_CODE_OF_KIND: Final[dict[str, int]] = {
    Unauthenticated.kind: UNAUTHENTICATED,
    Forbidden.kind: FORBIDDEN,
    NotFound.kind: NOT_FOUND,
    RateLimited.kind: TOO_MANY,
    Unavailable.kind: TRY_LATER,
    Malformed.kind: MALFORMED,
    Invalid.kind: MALFORMED,
}


@dataclass(frozen=True, slots=True)
class Closing:
    """Close code and reason of the end of a connection.

    `by_client`: the client has disconnected, so no close is sent.
    """

    code: int
    reason: str
    by_client: bool = False


def closing_of(error: AppError) -> Closing:
    """Return the close code for an error that ends a connection."""
    return Closing(_CODE_OF_KIND.get(error.kind, FAILED), error.code)


class LiveSocket:
    """A connection, from the first frame after its authentication to its end."""

    def __init__(
        self,
        websocket: WebSocket,
        container: Container,
        connections: Connections,
        slot: ConnectionSlot,
        *,
        conversation_id: ConversationId,
        caller: Caller,
        token: str | None,
        members: frozenset[str],
        bytes_in_flight: BytesInFlight,
    ) -> None:
        self.frames_received = 0
        self._websocket = websocket
        self._container = container
        self._streams = container.streams
        self._connections = connections
        self._slot = slot
        self._settings = container.settings
        self._conversation_id = conversation_id
        self._caller = caller
        self._token = token
        self._members = members
        self._bytes_in_flight = bytes_in_flight
        self._epochs = Epochs(most=connection_limits.MAX_EPOCHS)
        self._outbox = Outbox(websocket, connections, max_bytes=connection_limits.ANSWER_BYTES)
        self._over: asyncio.Future[Closing] = asyncio.get_running_loop().create_future()
        self._subscription: Subscription | None = None
        self._pumping: asyncio.Task[None] | None = None
        self._bad_in_row = 0
        self._renewed_at = 0.0
        self._expiry: asyncio.TimerHandle | None = None

    async def run(self) -> Closing:
        """Serve the connection until one side ends it, and return how it ended. The caller sends the close frame."""
        self._set_expiry()
        works = (self._read, self._outbox.send_forever, self._recheck)
        tasks = [asyncio.create_task(self._guarded(work)) for work in works]
        try:
            closing = await self._over
        finally:
            if self._expiry is not None:
                self._expiry.cancel()
            self._streams.leave(self)
            self._unsubscribe()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not closing.by_client:
            with suppress(TimeoutError, WebSocketDisconnect, RuntimeError, OSError):
                await asyncio.wait_for(self._outbox.flush(), _LAST_FRAMES_S)
        return closing

    async def _guarded(self, work: Callable[[], Awaitable[None]], *, lasts: bool = True) -> None:
        """Run `work`, and end the connection if it fails.

        With `lasts`, also end it if `work` returns or is cancelled.
        """
        try:
            await work()
            if lasts:
                self._end(Closing(FAILED, "internal_error"))
        except (WebSocketDisconnect, OSError):
            self._end(Closing(GONE, "gone", by_client=True))
        except AppError as error:
            self._outbox.send_answer(error_frame(error, members=self._members))
            self._end(closing_of(error))
        except Exception as error:  # noqa: BLE001 - the peer must learn of any failure that it did not cause
            _log_failure(error)
            self._end(Closing(FAILED, "internal_error"))
        except asyncio.CancelledError as error:
            # The cancellation may come from an object that the task awaited
            if not self._over.done() and (lasts or asyncio.current_task() is self._pumping):
                _log_failure(error)
                self._end(Closing(FAILED, "internal_error"))
            raise

    def _end(self, closing: Closing) -> None:
        if not self._over.done():
            self._over.set_result(closing)

    # Sending

    def on_durable(self, turn_id: TurnId, part: str, offset: int) -> None:
        """Send how much of a turn that this connection writes is durable."""
        self._outbox.durable(turn_id, part, offset)

    def on_lost(self, turn_id: TurnId, error: AppError) -> None:
        """Send an error: another writer writes the turn now, or the turn has ended.

        Later frames with this epoch are refused.
        """
        self._remove_ended(turn_id, error)
        self._outbox.send_answer(error_frame(error, turn_id=format_id(turn_id), members=self._members))

    def _remove_ended(self, turn_id: TurnId, error: AppError) -> None:
        if error.code in _HAS_ENDED:
            self._epochs.end(turn_id)

    # Receiving

    async def _read(self) -> None:
        frames = TokenBucket(connection_limits.FRAMES_PER_S, connection_limits.FRAMES_PER_S)
        volume = TokenBucket(connection_limits.BYTES_PER_S, connection_limits.BYTES_PER_S)
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                self._end(Closing(int(message.get("code") or GONE), "gone", by_client=True))
                return
            text = message.get("text")
            if not isinstance(text, str):
                self._end(Closing(NOT_TEXT, "frames are JSON in text messages"))
                return
            self.frames_received += 1
            self._connections.received()
            data = text.encode()
            await frames.take_in_turn(1)
            await volume.take_in_turn(len(data))
            await self._answer(data)
            await self._outbox.wait_for_room()
            await asyncio.sleep(0)  # nothing else here waits for a frame that has arrived already

    async def _answer(self, data: bytes) -> None:
        """Execute a frame, or answer with its error."""
        frame_id: str | None = None
        turn_id: str | None = None
        reservation = BodyReservation(self._bytes_in_flight)
        self._renew()
        try:
            async with self._connections.parsing.hold(self._slot.tenant) if takes_thread(data) else nullcontext():
                read, frame_id = await read_message(data, max_depth=self._settings.requests.max_json_depth)
            frame = asked(read)
            if isinstance(frame, ChunkFrame | CommitFrame | AbortFrame | ResumeFrame):
                turn_id = format_id(frame.turn_id)
            self._bad_in_row = 0
            await self._take_rate(frame)
            if isinstance(frame, AppendFrame):
                await reservation.make(len(data), self._slot.tenant)
            takes_slot = not isinstance(frame, ChunkFrame | PingFrame | AuthFrame)
            async with self._container.tenancy.slots.hold(self._slot.tenant) if takes_slot else nullcontext():
                answer = await self._handle(frame)
        except AppError as error:
            self._outbox.send_answer(error_frame(error, frame_id=frame_id, turn_id=turn_id, members=self._members))
            if turn_id is not None:
                self._remove_ended(TurnId(parse_id(turn_id)), error)
            if isinstance(error, Malformed) or (turn_id is None and isinstance(error, Invalid)):
                self._count_bad()
            return
        except Exception as error:  # noqa: BLE001 - a failure in one frame does not end the connection
            _log_failure(error)
            broken = AppError("internal_error", "This is our fault; the log has the request id.")
            self._outbox.send_answer(error_frame(broken, frame_id=frame_id, turn_id=turn_id))
            return
        finally:
            reservation.release()
        if answer is not None:
            self._outbox.send_answer(answer)

    async def _take_rate(self, frame: ClientFrame) -> None:
        """Count a frame as the same call over HTTP. A chunk waits; others raise RateLimited `rate_limited`."""
        rates = self._container.tenancy.rates
        match frame:
            case ChunkFrame():
                if (delay_s := rates.delay_s(self._caller, RateClass.CHUNK)) > 0:
                    await asyncio.sleep(delay_s)
            case SubscribeFrame() | AuthFrame():
                rates.require(self._caller, RateClass.READ)
            case OpenFrame() | ResumeFrame() | CommitFrame() | AbortFrame() | AppendFrame():
                rates.require(self._caller, RateClass.WRITE)
            case PingFrame():
                return
            case _:
                assert_never(frame)

    def _count_bad(self) -> None:
        self._bad_in_row += 1
        if self._bad_in_row >= connection_limits.BAD_FRAMES:
            self._end(Closing(MALFORMED, "too many frames that cannot be read"))

    def _renew(self) -> None:
        now = asyncio.get_running_loop().time()
        # Frequent enough for any lease, without work for each of many frames
        if now - self._renewed_at > min(1.0, self._settings.streams.stream_lease_s / 10):
            self._renewed_at = now
            self._streams.renew(self._caller, self._conversation_id, epochs=self._epochs.own())

    async def _handle(self, frame: ClientFrame) -> BaseModel | None:  # noqa: PLR0911 - one for each kind of frame
        match frame:
            case ChunkFrame():
                return await self._chunk(frame)
            case PingFrame():
                return PongFrame(type="pong", id=frame.id)
            case AuthFrame():
                return await self._authenticate(frame)
            case SubscribeFrame():
                return await self._subscribe(frame)
            case OpenFrame() | ResumeFrame():
                return await self._begin(frame)
            case CommitFrame() | AbortFrame():
                return await self._finish(frame)
            case AppendFrame():
                return await self._append(frame)
            case _:
                assert_never(frame)

    async def _chunk(self, frame: ChunkFrame) -> AckFrame:
        turn_id = TurnId(frame.turn_id)
        taken = await self._streams.chunk(
            self._caller,
            self._conversation_id,
            turn_id=turn_id,
            chunk=Chunk.model_construct(offset=frame.offset, delta=frame.delta, part=frame.part),
            epoch=self._epochs.of(turn_id),
            wait=False,
            listener=self,
        )
        self._epochs.record_write(turn_id)
        return AckFrame(
            type="ack",
            id=frame.id,
            turn_id=taken.turn_id,
            part=taken.part,
            offset=taken.offset,
            durable_offset=taken.durable_offset,
        )

    async def _begin(self, frame: OpenFrame | ResumeFrame) -> AckFrame:
        opened: OpenedTurn
        if isinstance(frame, OpenFrame):
            opening = Opening(turn=frame.turn, writer=frame.writer, position=frame.position)
            result = await self._streams.open(self._caller, self._conversation_id, opening=opening, listener=self)
            opened = result.value
            turn_id = TurnId(parse_id(opened.turn.id))
        else:
            turn_id = TurnId(frame.turn_id)
            opened = await self._streams.resume(
                self._caller,
                self._conversation_id,
                turn_id=turn_id,
                resuming=Resuming(writer=frame.writer),
                listener=self,
            )
        self._epochs.begin(turn_id, opened.epoch)
        return AckFrame(
            type="ack",
            id=frame.id,
            turn_id=opened.turn.id,
            durable_offset=opened.durable_offset,
            epoch=opened.epoch,
            parts=opened.parts,
        )

    async def _finish(self, frame: CommitFrame | AbortFrame) -> AckFrame:
        turn_id = TurnId(frame.turn_id)
        epoch = self._epochs.of(turn_id)
        if isinstance(frame, CommitFrame):
            ending = Ending.model_construct(**{name: getattr(frame, name) for name in Ending.model_fields})
            turn = await self._streams.commit(
                self._caller, self._conversation_id, turn_id=turn_id, ending=ending, epoch=epoch
            )
        else:
            turn = await self._streams.abort(
                self._caller,
                self._conversation_id,
                turn_id=turn_id,
                aborting=Aborting(reason=frame.reason),
                epoch=epoch,
            )
        self._epochs.end(turn_id)
        self._outbox.stop_durable_frames(turn_id)  # the ack has the committed or aborted turn
        return AckFrame(type="ack", id=frame.id, turn_id=turn.id, turn=turn)

    async def _append(self, frame: AppendFrame) -> AckFrame:
        key = None
        if frame.idempotency_key is not None:
            written = await asyncio.to_thread(_written, frame)
            key = self._container.tenancy.idempotency.key_of(
                frame.idempotency_key, b"append", self._conversation_id.bytes, written
            )
        appended = await self._container.conversations.append(
            self._caller,
            self._conversation_id,
            turns=frame.turns,
            expected_seq=frame.expected_seq,
            vectors=frame.index,
            idempotency_key=key,
            is_import=frame.is_import,
            sanitised=frame.sanitised,
        )
        members = {name: value for name, value in appended.value if name != "conversation_id"}
        return AckFrame(type="ack", id=frame.id, **members)

    # Authentication

    async def _authenticate(self, frame: AuthFrame) -> AckFrame:
        """Authenticate with another key that reaches the conversation, before the current one expires."""
        address = None if self._websocket.client is None else self._websocket.client.host
        caller = await self._container.tenancy.authenticate(frame.token, address=address)
        before, now = (require_reader_or_writer(holder, self._conversation_id) for holder in (self._caller, caller))
        if before.tenant_id != now.tenant_id:
            raise Forbidden("forbidden", "This key belongs to another tenant; use a connection of its own.")
        if caller.restriction is not None:
            await self._container.subscriptions.require_access(caller, self._conversation_id)
        self._slot.move(caller)
        self._token = frame.token
        self._set_caller(caller)
        self._set_expiry()
        return AckFrame(type="ack", id=frame.id)

    def _set_caller(self, caller: Caller) -> None:
        """Replace the caller. Restrict epochs and subscription to what the new caller may do."""
        if not _may_write_as(self._caller, caller):
            self._epochs.change_caller()
        self._caller = caller
        self._require_read_scope()

    def _set_expiry(self) -> None:
        """End the connection when the token expires, even while frames are running or the database does not answer."""
        if self._expiry is not None:
            self._expiry.cancel()
        bound, loop = self._caller.bound, asyncio.get_running_loop()
        self._expiry = None if bound is None else loop.call_later(max(0.0, bound.left_s()), self._end_expired)

    def _end_expired(self) -> None:
        error = token_expired()
        self._outbox.send_answer(error_frame(error, members=self._members))
        self._end(closing_of(error))

    def _require_read_scope(self) -> None:
        """End the subscription if the current caller may not read. The connection stays open."""
        if self._pumping is None or self._pumping.done():
            return
        try:
            require_reader(self._caller, self._conversation_id)
        except Forbidden as error:
            self._unsubscribe()
            self._outbox.send_answer(error_frame(error, members=self._members))

    async def _recheck(self) -> None:
        while True:
            await asyncio.sleep(connection_limits.RECHECK_S)
            token = self._token
            try:
                caller = await recheck(self._container, token)
            except AppError:
                if token == self._token:
                    raise
                continue  # the connection has authenticated with another token
            if caller is not None and token == self._token:
                require_reader_or_writer(caller, self._conversation_id)
                self._set_caller(caller)

    # Subscription

    async def _subscribe(self, frame: SubscribeFrame) -> None:
        """Subscribe to the conversation from a position.

        A connection has one subscription, so the previous one ends.
        """
        self._unsubscribe()
        self._subscription = await self._container.subscriptions.subscribe(
            self._caller, self._conversation_id, since=StartPosition(frame.after_seq, frame.after_rev)
        )
        self._outbox.send_answer(AckFrame(type="ack", id=frame.id))
        self._pumping = asyncio.create_task(self._guarded(partial(self._pump, self._subscription), lasts=False))
        self._require_read_scope()  # the caller may have changed meanwhile

    def _unsubscribe(self) -> None:
        pumping, self._pumping = self._pumping, None
        if pumping is not None:
            pumping.cancel()
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    async def _pump(self, subscription: Subscription) -> None:
        await self._outbox.flush()
        try:
            while frames := await subscription.next_frames():
                for frame in frames:
                    await send_text(self._websocket, frame.text)
                self._connections.sent("websocket", len(frames))
        except AppError as error:
            if isinstance(error, NotFound):
                raise
            self._outbox.send_answer(error_frame(error))
        finally:
            subscription.close()
        match subscription.end_reason:
            case "deleted":
                raise NotFound("not_found", "This conversation has been deleted.")
            case "closing":
                self._end(Closing(RESTARTING, "the server is being stopped"))
            case _:
                pass


def _may_write_as(before: Caller, now: Caller) -> bool:
    """Return whether the caller `now` may write everything that the caller `before` could write."""
    if now.bound is None:
        return Scope.WRITE in now.scopes
    return before.bound is not None and replace(now.bound, expires_at=before.bound.expires_at) == before.bound


def _written(frame: AppendFrame) -> bytes:
    body = frame.model_dump(mode="json", include={"turns", "expected_seq", "index", "is_import"}, exclude_unset=True)
    return json.dumps(body, sort_keys=True).encode()


def _log_failure(error: BaseException) -> None:
    get_logger().error("live.failed", code="internal_error", error_type=error_type(error), stack=error_stack(error))
