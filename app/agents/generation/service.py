"""Answers of a chat model in a conversation: build a context, call the model, store new messages and answer together.

`preparation` finds the new messages and opens the exchange; this module calls the model, relays its answer, and handles
incomplete answers. Invariants: the model is never called inside a transaction. New messages and answer get their seq
together when the answer is complete, or all are aborted. A committed answer was streamed completely, unless the request
says that an answer whose client disconnects is kept. Without a
conversation nothing is stored, and request and answer pass unchanged.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypeVar

from app.agents.generation.answer import (
    PartialAnswer,
    answer_turn,
    offered_tools,
    read_completion,
    read_piece,
    with_streamed_calls,
)
from app.agents.generation.call_deltas import Delta
from app.agents.generation.partial import partial_turn
from app.agents.generation.preparation import Preparation, PreparationServices, PreparedRequest
from app.agents.generation.renewal import renewed
from app.agents.generation.schemas import GenerationRequest, GenerationResult
from app.context.service import ContextBuilder
from app.conversations.schemas.conversations import Turn, TurnInput
from app.conversations.schemas.frames import MAX_CHUNK_BYTES, Chunk
from app.conversations.service import Conversations, Exchange, Exchanges, Sessions, Streams
from app.core.errors import AppError, Conflict, TooLarge
from app.core.ids import ConversationId, TenantId, TurnId, format_id, parse_id
from app.formats.schemas import JsonObject
from app.governance.service import Governance
from app.providers.schemas import DONE, InvalidAnswer, LimitName, Refused, UpstreamRefusal
from app.providers.service import Streamed, Upstream, require_model
from app.settings import Settings
from app.tenancy.schemas import Caller, Scope
from app.transfer.service import Forker

Result = TypeVar("Result")

_COMPLETIONS: Final = "/chat/completions"
_MAX_BYTES_PER_CHARACTER: Final = 4
"""UTF-8 maximum; limits the characters of a chunk to its bytes."""
CANCELLED: Final = "cancelled"
"""The reason of an abort by another request."""
_LIVE_PARTS: Final = ("content", "tool_calls/")
"""The parts of an answer that subscribers of a conversation see."""


class AnswerTooLarge(Refused):
    """An answer that is too large for a turn."""


class Generation:
    """Public API of generated answers."""

    def __init__(
        self,
        *,
        conversations: Conversations,
        streams: Streams,
        exchanges: Exchanges,
        sessions: Sessions,
        contexts: ContextBuilder,
        governance: Governance,
        forker: Forker,
        upstream: Upstream | None,
        settings: Settings,
    ) -> None:
        self._conversations = conversations
        self._streams = streams
        self._exchanges = exchanges
        self._upstream = upstream
        self._settings = settings
        self._pending: set[asyncio.Task[object]] = set()
        self._running: dict[tuple[TenantId, TurnId], AnswerStream] = {}
        self._preparation = PreparationServices(
            conversations=conversations,
            exchanges=exchanges,
            sessions=sessions,
            contexts=contexts,
            governance=governance,
            forker=forker,
            settings=settings,
            run_shielded=self._run_shielded,
            upstream=upstream,
        )

    async def close(self) -> None:
        """Wait for pending aborts and commits, and close the connections to the endpoint."""
        await asyncio.gather(*self._pending, return_exceptions=True)
        if self._upstream is not None:
            await self._upstream.close()

    async def get(self, caller: Caller, path: str) -> JsonObject:
        """Return the endpoint's response to a GET, such as its list of models."""
        caller.require(Scope.READ)
        return await require_model(self._upstream).get(path)

    async def post(self, caller: Caller, path: str, body: JsonObject) -> JsonObject:
        """Forward a request to the endpoint and return its answer, without a conversation."""
        caller.require(Scope.WRITE)
        upstream = require_model(self._upstream)
        return await upstream.post(caller.tenant_id, path, {"model": upstream.model, **body})

    @property
    def limit_name(self) -> LimitName:
        """Return the name under which the endpoint knows the limit of an answer's tokens."""
        return require_model(self._upstream).limit_name

    async def cancel(self, caller: Caller, conversation_id: ConversationId, turn_ids: Sequence[TurnId]) -> None:
        """Abort the open turns of an exchange, the answer last, with the text so far.

        In another process the model is stopped when it says more.
        """
        caller.require(Scope.WRITE)
        running = self._running.get((caller.tenant_id, turn_ids[-1]))
        if running is not None:
            await running.cancel()
        await self._exchanges.cancel(caller, conversation_id, turn_ids=turn_ids, reason=CANCELLED)

    async def complete(self, caller: Caller, request: GenerationRequest) -> GenerationResult:
        """Answer in one response. Raises the errors of contexts, appends and the endpoint; then nothing is stored."""
        _require_scopes(caller, request)
        before = await self._find_replay(caller, request)
        if before is not None:
            return before
        upstream = require_model(self._upstream)
        body_with_model = {"model": upstream.model, **request.body}
        if request.is_passed_on:
            return GenerationResult(await self.post(caller, _COMPLETIONS, body_with_model), None, [])
        async with AsyncExitStack() as cleanup:
            preparation = Preparation(self._preparation, caller, request, body_with_model)
            prepared = await preparation.prepare(cleanup)
            try:
                async with self._renewed(prepared.exchange):
                    try:
                        completion = await upstream.post(caller.tenant_id, _COMPLETIONS, prepared.body)
                    except UpstreamRefusal as refusal:
                        prepared = await preparation.shortened(prepared, refusal)
                        completion = await upstream.post(caller.tenant_id, _COMPLETIONS, prepared.body)
                offered = offered_tools(prepared.body, allowed=request.allowed_tools)
                completion, answer = read_completion(completion, offered=offered, allowed=request.allowed_tools)
                turns = await self._commit_whole(caller, prepared, answer)
            except BaseException as error:
                await self._end_early(caller, prepared, error)
                raise
            return GenerationResult(completion, prepared.conversation_id, turns, prepared.gap)

    @asynccontextmanager
    async def streaming(
        self, caller: Caller, request: GenerationRequest
    ) -> AsyncGenerator["AnswerStream | StoredAnswer"]:
        """Answer in events. An answer that is incomplete at the end of the block is aborted or kept (`on_disconnect`).

        Raises as `complete`.
        """
        _require_scopes(caller, request)
        before = await self._find_replay(caller, request)
        if before is not None:
            yield StoredAnswer(before)
            return
        upstream = require_model(self._upstream)
        body = {"model": upstream.model, **request.body}
        preparation, prepared, stream = None, None, None
        async with AsyncExitStack() as cleanup:
            if not request.is_passed_on:
                preparation = Preparation(self._preparation, caller, request, body)
                prepared = await preparation.prepare(cleanup)
                body = prepared.body
            try:
                async with AsyncExitStack() as stack:
                    if prepared is not None:
                        await stack.enter_async_context(self._renewed(prepared.exchange))
                    try:
                        streamed = await _open_stream(upstream, stack, caller, body)
                    except UpstreamRefusal as refusal:
                        if preparation is None or prepared is None:
                            raise
                        prepared = await preparation.shortened(prepared, refusal)
                        streamed = await _open_stream(upstream, stack, caller, prepared.body)
                    cleanup.pop_all()  # the client learns of the conversation from here on
                    stream = AnswerStream(self, caller, prepared, streamed, request)
                    yield stream
            except BaseException as error:
                if prepared is not None:
                    await self._end_early(caller, prepared, error, stream)
                raise
            if prepared is not None and not stream.is_committed:
                await self._end_early(caller, prepared, None, stream)

    # before the answer

    async def _find_replay(self, caller: Caller, request: GenerationRequest) -> GenerationResult | None:
        """Return the stored answer of the same request, by its idempotency key."""
        result = await self._conversations.find_result(caller, idempotency_key=request.idempotency_key)
        if result is None:
            return None
        stored = result.value
        return GenerationResult({}, ConversationId(parse_id(stored.conversation_id)), stored.turns, is_replay=True)

    # around the answer

    def _renewed(self, exchange: Exchange | None) -> AbstractAsyncContextManager[None]:
        return renewed(self._exchanges, exchange, lease_s=self._settings.streams.stream_lease_s)

    async def publish(self, caller: Caller, exchange: Exchange, delta: Delta, offset: int) -> int:
        """Publish text of the answer to subscribers of the conversation; return the offset after it."""
        # endpoints may send all of an answer at once
        length = MAX_CHUNK_BYTES // _MAX_BYTES_PER_CHARACTER
        for piece in (delta.text[at : at + length] for at in range(0, len(delta.text), length)):
            try:
                await self._streams.chunk(
                    caller,
                    exchange.conversation_id,
                    turn_id=exchange.answer_id,
                    chunk=Chunk.model_construct(None, offset=offset, delta=piece, part=delta.part),
                    epoch=exchange.epoch,
                    wait=False,
                    is_local=True,
                )
            except TooLarge:
                raise self._too_large(exchange) from None
            offset += len(piece)
        return offset

    async def _commit_whole(self, caller: Caller, prepared: PreparedRequest, answer: PartialAnswer) -> list[Turn]:
        """Store an answer that was not streamed; if it is too large, the aborted turn gets its beginning."""
        try:
            return await self.commit(caller, prepared, answer)
        except AnswerTooLarge:
            if prepared.exchange is not None:
                with suppress(AppError):
                    await self.publish(caller, prepared.exchange, Delta("content", answer.text), 0)
            raise

    async def commit(self, caller: Caller, prepared: PreparedRequest, answer: PartialAnswer) -> list[Turn]:
        """Store the answer with its messages. Raises InvalidAnswer for an answer that is none, stored or not."""
        said = answer_turn(answer, prepared.body)
        if prepared.exchange is None:
            return []
        try:
            # the answer is complete: a client that disconnects now does not stop the commit
            return await self._run_shielded(self._exchanges.commit(caller, prepared.exchange, answer=said))
        except TooLarge:  # the other turns were accepted before the model was called
            raise self._too_large(prepared.exchange) from None

    def _too_large(self, exchange: Exchange) -> AnswerTooLarge:
        return AnswerTooLarge(
            "answer_too_large",
            f"The chat model's answer is larger than the {self._settings.limits.max_text_bytes} bytes of a turn; it was"
            " not committed. Limit the answer with `max_tokens`, and request the rest in another request.",
            extra={
                "conversation_id": format_id(exchange.conversation_id),
                "turn_id": format_id(exchange.answer_id),
            },
        )

    async def _end_early(
        self,
        caller: Caller,
        prepared: PreparedRequest,
        error: BaseException | None,
        stream: "AnswerStream | None" = None,
    ) -> None:
        """Abort the exchange of an answer that is not complete; or keep it, if its client disconnected and wants so."""
        is_cancelled = error is None or isinstance(error, asyncio.CancelledError | GeneratorExit)
        is_disconnect = is_cancelled and (stream is None or not stream.has_failed)
        if is_disconnect and prepared.exchange is not None and prepared.on_disconnect == "keep":
            answer = None if stream is None else partial_turn(stream.answer, prepared.body)
            with suppress(asyncio.CancelledError, AppError):
                await self._run_shielded(self._exchanges.keep(caller, prepared.exchange, answer=answer))
        reason = error.code if isinstance(error, AppError) else "client_gone" if is_disconnect else "internal_error"
        await self.abort(caller, prepared.exchange, reason=reason)

    async def abort(self, caller: Caller, exchange: Exchange | None, *, reason: str) -> None:
        """Abort an exchange with the text so far; None if nothing is stored. Does nothing if it has ended."""
        if exchange is not None:
            with suppress(asyncio.CancelledError):
                await self._run_shielded(self._exchanges.abort(caller, exchange, reason=reason))

    @contextmanager
    def running(self, caller: Caller, stream: "AnswerStream") -> Generator[None]:
        """Keep a stored answer in reach of `cancel` while it is generated."""
        if stream.answer_id is None:
            yield
            return
        key = (caller.tenant_id, stream.answer_id)
        self._running[key] = stream
        try:
            yield
        finally:
            del self._running[key]

    async def _run_shielded(self, work: Coroutine[object, object, Result]) -> Result:
        """Run work to its end, also if the caller is cancelled."""
        task = asyncio.create_task(work)
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        return await asyncio.shield(task)


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """One event of a streamed answer: its data for the client, its text, and all its additions to the answer."""

    data: str
    text: str = ""
    deltas: Sequence[Delta] = ()


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """A replayed answer, with the interface of `AnswerStream`."""

    result: GenerationResult

    async def events(self) -> AsyncGenerator[AnswerEvent]:
        """Yield one event with the text, if there is one, and the last event."""
        if self.result.text:
            yield AnswerEvent("", self.result.text)
        yield AnswerEvent(DONE)


class AnswerStream:
    """A streamed answer. `result` has the stored turns when it is complete."""

    def __init__(
        self,
        generation: Generation,
        caller: Caller,
        prepared: PreparedRequest | None,
        streamed: Streamed,
        request: GenerationRequest,
    ) -> None:
        allowed = request.allowed_tools
        offered = frozenset[str]() if prepared is None else offered_tools(prepared.body, allowed=allowed)
        self.answer = PartialAnswer(allowed_tools=allowed, offered_tools=offered)
        self.result = GenerationResult({}, None, [])
        if prepared is not None:
            self.result = GenerationResult({}, prepared.conversation_id, [], prepared.gap)
        self.is_committed = False
        self.has_failed = False
        self._exchange = None if prepared is None else prepared.exchange
        self._generation = generation
        self._caller = caller
        self._prepared = prepared
        self._streamed = streamed
        options = request.body.get("stream_options")
        self._shows_usage = isinstance(options, dict) and bool(options.get("include_usage"))
        self._lengths: dict[str, int] = {}
        self._is_cancelled = False
        self._reading: asyncio.Timeout | None = None

    @property
    def answer_id(self) -> TurnId | None:
        """The turn of the answer; None if it is not stored."""
        return None if self._exchange is None else self._exchange.answer_id

    @property
    def created_at(self) -> datetime | None:
        """When the turn of the answer was opened; None if it is not stored."""
        return None if self._exchange is None else self._exchange.created_at

    @property
    def model(self) -> str:
        """The requested model."""
        return "" if self._prepared is None else str(self._prepared.body.get("model"))

    def said(self) -> TurnInput:
        """Return the whole answer as a turn. Raises InvalidAnswer if it is none."""
        return answer_turn(self.answer, {} if self._prepared is None else self._prepared.body)

    async def events(self) -> AsyncGenerator[AnswerEvent]:
        """Yield the events; `[DONE]` comes after the commit. Raises if the answer is incomplete."""
        try:
            with self._generation.running(self._caller, self):
                async for event in self._pieces():
                    yield event
        except AppError as error:
            await self.fail(error)
            raise

    async def fail(self, error: AppError) -> None:
        """Abort the answer, which its reader cannot use."""
        self.has_failed = True
        await self._generation.abort(self._caller, self._exchange, reason=error.code)

    async def cancel(self) -> None:
        """Stop reading the model's answer, and abort it."""
        self._is_cancelled = self.has_failed = True
        if self._reading is not None:
            self._reading.reschedule(asyncio.get_running_loop().time())
        await self._generation.abort(self._caller, self._exchange, reason=CANCELLED)

    async def _data(self) -> AsyncGenerator[str]:
        """Yield the data of the endpoint's events, until the answer is cancelled."""
        events = aiter(self._streamed.events)
        while not self._is_cancelled:
            try:
                async with asyncio.timeout(None) as self._reading:
                    data = await anext(events, None)
            except TimeoutError:
                break
            finally:
                self._reading = None
            if data is None:
                return
            yield data
        raise Conflict("turn_aborted", "The answer was cancelled by another request.")

    async def _pieces(self) -> AsyncGenerator[AnswerEvent]:
        is_done = False
        async for data in self._data():
            if data.strip() == DONE:
                is_done = True
                break
            shown, deltas = self._read(data)
            for delta in deltas:
                await self._publish_delta(delta)
            if self._prepared is None:
                self.answer.drop_texts()  # nothing is stored, so only the event is passed on
            if shown is not None:
                yield AnswerEvent(shown, "".join(delta.text for delta in deltas if delta.part == "content"), deltas)
        if self.answer.finish_reason is None and (self._prepared is not None or not is_done):
            raise InvalidAnswer("model_unavailable", "The chat model's answer was cut off.")
        self._streamed.is_whole()
        if self._prepared is not None:
            turns = await self._generation.commit(self._caller, self._prepared, self.answer)
            self.result = replace(self.result, turns=turns)
            self.is_committed = True
        yield AnswerEvent(DONE)

    def _read(self, data: str) -> tuple[str | None, list[Delta]]:
        """Add the data of an event to the answer; return the data to send, and what it adds to the answer."""
        piece = read_piece(data)
        had_ended = self.answer.finish_reason is not None
        deltas = self.answer.add(piece)
        self._streamed.record_usage(self.answer.usage, said=sum(len(delta.text) for delta in deltas))
        if not had_ended and (calls := self.answer.read_text_calls()):
            piece, added = with_streamed_calls(piece, calls)
            return self._shown(piece, json.dumps(piece, ensure_ascii=False)), [*deltas, *self.answer.add(added)]
        return self._shown(piece, data), deltas

    async def _publish_delta(self, delta: Delta) -> None:
        if self._exchange is None or not delta.part.startswith(_LIVE_PARTS):
            return
        offset = self._lengths.get(delta.part, 0)
        self._lengths[delta.part] = await self._generation.publish(self._caller, self._exchange, delta, offset)

    def _shown(self, piece: JsonObject, data: str) -> str | None:
        """Return an event unchanged; without the usage if only we asked for it."""
        if self._shows_usage or "usage" not in piece:
            return data
        if not piece.get("choices"):
            return None
        return json.dumps({name: value for name, value in piece.items() if name != "usage"}, ensure_ascii=False)


def _require_scopes(caller: Caller, request: GenerationRequest) -> None:
    caller.require(Scope.WRITE)
    if not request.is_passed_on:
        # the answer reveals stored content
        caller.require(Scope.READ)


async def _open_stream(upstream: Upstream, stack: AsyncExitStack, caller: Caller, body: JsonObject) -> Streamed:
    """Open a streamed answer, with usage if the endpoint supports it."""
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    streamed: JsonObject = {**body, "stream": True, "stream_options": {**options, "include_usage": True}}
    try:
        return await stack.enter_async_context(upstream.streaming(caller.tenant_id, _COMPLETIONS, streamed))
    except UpstreamRefusal as refusal:
        if "stream_options" in body or "stream_options" not in json.dumps(refusal.error):
            raise
    return await stack.enter_async_context(upstream.streaming(caller.tenant_id, _COMPLETIONS, {**body, "stream": True}))
