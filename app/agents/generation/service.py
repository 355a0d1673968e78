"""Answers of a chat model in a conversation: build a context, call the model, store new messages and answer together.

Hides which messages are new (`align`), what the model is sent in place of the client's own history, and the handling of
incomplete answers. Invariants: the model is never called inside a transaction. New messages and answer get their seq
together when the answer is complete, or all are aborted. A committed answer was streamed completely. Without a
conversation nothing is stored, and request and answer pass unchanged.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from pydantic import JsonValue

from app.agents.generation.align import Alignment, align, stored_messages
from app.agents.generation.answer import (
    Delta,
    PartialAnswer,
    answer_text,
    answer_turn,
    pieces_of,
    read_piece,
    turn_of,
    without_empty_members,
)
from app.agents.generation.renewal import renewed
from app.agents.generation.schemas import MAX_MESSAGES, ConversationName, GenerationRequest, GenerationResult
from app.context.schemas import Gap
from app.context.service import ContextBuilder
from app.conversations.schemas.conversations import ConversationCreate, Turn, content_text
from app.conversations.schemas.frames import Chunk
from app.conversations.schemas.history import HistoryQuery
from app.conversations.service import Conversations
from app.conversations.streams.commit import TurnReplacement
from app.conversations.streams.exchanges import Exchange, Exchanges, open_answer_turn
from app.core.errors import AppError, FieldError, Invalid, TooLarge
from app.core.ids import ConversationId, TurnId, format_id, parse_id
from app.formats import service as formats
from app.formats.schemas import Format, JsonObject, Kind, Role
from app.governance.service import Governance
from app.providers.endpoint import InvalidAnswer, Refused
from app.providers.pieces import estimated_tokens
from app.providers.upstream import DONE, Streamed, Upstream, UpstreamRefusal, configured
from app.settings import Settings
from app.tenancy.schemas import Caller, Scope

_COMPLETIONS: Final = "/chat/completions"
_EXTRA_TURNS: Final = 50
_MAX_ALIGNED_TURNS: Final = 2000
_THREAD_MESSAGES: Final = 500
_MAX_BYTES_PER_CHARACTER: Final = 4
"""UTF-8 maximum; limits the characters of a chunk to its bytes."""


class AnswerTooLarge(Refused):
    """An answer that is too large for a turn."""


@dataclass(frozen=True, slots=True)
class _PreparedRequest:
    """The request to the endpoint, the gap of its context, and the exchange for the answer."""

    conversation_id: ConversationId
    body: JsonObject
    gap: Gap | None
    exchange: Exchange


class Generation:
    """Public API of generated answers."""

    def __init__(
        self,
        *,
        conversations: Conversations,
        contexts: ContextBuilder,
        governance: Governance,
        upstream: Upstream | None,
        settings: Settings,
    ) -> None:
        self._conversations = conversations
        self._contexts = contexts
        self._governance = governance
        self._upstream = upstream
        self._settings = settings
        self._pending: set[asyncio.Task[object]] = set()

    @property
    def _exchanges(self) -> Exchanges:
        return self._conversations.streams.exchanges

    async def close(self) -> None:
        """Wait for pending aborts and commits, and close the connections to the endpoint."""
        await asyncio.gather(*self._pending, return_exceptions=True)
        if self._upstream is not None:
            await self._upstream.close()

    async def get(self, caller: Caller, path: str) -> JsonObject:
        """Return the endpoint's response to a GET, such as its list of models."""
        caller.require(Scope.READ)
        return await configured(self._upstream).get(path)

    async def post(self, caller: Caller, path: str, body: JsonObject) -> JsonObject:
        """Forward a request to the endpoint and return its answer, without a conversation."""
        caller.require(Scope.WRITE)
        upstream = configured(self._upstream)
        return await upstream.post(caller.tenant_id, path, {"model": upstream.model, **body})

    async def complete(self, caller: Caller, request: GenerationRequest) -> GenerationResult:
        """Answer in one response. Raises the errors of contexts, appends and the endpoint; then nothing is stored."""
        _require_scopes(caller, request)
        before = await self._find_replay(caller, request)
        if before is not None:
            return before
        upstream = configured(self._upstream)
        body_with_model = {"model": upstream.model, **request.body}
        if request.conversation is None:
            return GenerationResult(await self.post(caller, _COMPLETIONS, body_with_model), None, [])
        async with AsyncExitStack() as cleanup:
            prepared = await self._prepare(caller, request, body_with_model, cleanup)
            try:
                async with self._renewed(prepared.exchange):
                    completion = await upstream.post(caller.tenant_id, _COMPLETIONS, prepared.body)
                turns = await self._commit_whole(caller, prepared, PartialAnswer.of(completion))
            except BaseException as error:
                await self._abort(caller, prepared.exchange, error)
                raise
            return GenerationResult(completion, prepared.conversation_id, turns, prepared.gap)

    @asynccontextmanager
    async def streaming(
        self, caller: Caller, request: GenerationRequest
    ) -> AsyncGenerator["AnswerStream | StoredAnswer"]:
        """Answer in events. An answer that is incomplete at the end of the block is aborted. Raises as `complete`."""
        _require_scopes(caller, request)
        before = await self._find_replay(caller, request)
        if before is not None:
            yield StoredAnswer(before)
            return
        upstream = configured(self._upstream)
        body = {"model": upstream.model, **request.body}
        prepared = None
        async with AsyncExitStack() as cleanup:
            if request.conversation is not None:
                prepared = await self._prepare(caller, request, body, cleanup)
                body = prepared.body
            try:
                async with AsyncExitStack() as stack:
                    if prepared is not None:
                        await stack.enter_async_context(self._renewed(prepared.exchange))
                    streamed = await _open_stream(upstream, stack, caller, body)
                    cleanup.pop_all()  # the client learns of the conversation from here on
                    stream = AnswerStream(self, caller, prepared, streamed, shows_usage=_wants_usage(request.body))
                    yield stream
            except BaseException as error:
                if prepared is not None:
                    await self._abort(caller, prepared.exchange, error)
                raise
            if prepared is not None and not stream.is_committed:
                await self._abort(caller, prepared.exchange, None)

    # before the answer

    async def _find_replay(self, caller: Caller, request: GenerationRequest) -> GenerationResult | None:
        """Return the stored answer of the same request, by its idempotency key."""
        found = await self._conversations.find_result(caller, idempotency_key=request.idempotency_key)
        if found is None:
            return None
        stored = found.value
        return GenerationResult({}, ConversationId(parse_id(stored.conversation_id)), stored.turns, is_replay=True)

    async def _prepare(
        self, caller: Caller, request: GenerationRequest, body: JsonObject, cleanup: AsyncExitStack
    ) -> _PreparedRequest:
        given = body.get("messages")
        cleaned = (
            [without_empty_members(one) if isinstance(one, dict) else one for one in given]
            if isinstance(given, list)
            else given
        )
        if isinstance(cleaned, list) and len(cleaned) > MAX_MESSAGES:
            fields = [FieldError("/messages", "too many")]
            raise Invalid("invalid_request", f"A request may have at most {MAX_MESSAGES} messages.", fields=fields)
        parsed = formats.parse(Format.OPENAI, cleaned)
        messages = cast("list[JsonObject]", cleaned)
        spoken = [at for at, turn in enumerate(parsed) if turn.role is not Role.SYSTEM]
        system = "\n\n".join(content_text(turn.content) for turn in parsed if turn.role is Role.SYSTEM)
        conversation_id = await self._conversation(caller, request, cleanup)
        found, stored = await self._align(caller, conversation_id, [messages[at] for at in spoken], request)
        new = spoken[found.new_from :]
        regenerated = None if found.regenerate_from is None else stored[found.regenerate_from]
        budget = request.token_budget or self._default_budget(body)
        context = await self._contexts.build(
            caller,
            conversation_id,
            request=request.context.request(token_budget=budget, system=system or None),
            upcoming=[formats.to_canonical(parsed[at], turn_id=f"new-{at}") for at in new],
            before=None if regenerated is None else regenerated.position,
        )
        model = body.get("model")
        exchange = await self._exchanges.open(
            caller,
            conversation_id,
            messages=[(f"/messages/{at}", turn_of(parsed[at])) for at in new],
            answer=open_answer_turn(model if isinstance(model, str) else None),
            replaced=None if regenerated is None else _replaced(regenerated, stored),
            idempotency_key=request.idempotency_key,
        )
        sent: JsonObject = {**body, "messages": cast("JsonValue", context.messages)}
        return _PreparedRequest(conversation_id, sent, context.gap, exchange)

    async def _conversation(
        self, caller: Caller, request: GenerationRequest, cleanup: AsyncExitStack
    ) -> ConversationId:
        """Return the conversation's id. A conversation created for this request alone is deleted if `cleanup` fails."""
        name, key = cast("ConversationName", request.conversation), request.idempotency_key
        if name.conversation_id is not None:
            return name.conversation_id
        create = ConversationCreate(external_id=name.external_id, project=name.project or "default", owner=name.owner)
        if key is not None and name.external_id is None:
            create = create.model_copy(update={"id": key.derive_id(caller)})
        created = await self._conversations.create(caller, body=create)
        conversation_id = ConversationId(parse_id(created.value.id))
        if key is None and name.external_id is None:
            cleanup.push_async_exit(partial(self._delete_created_conversation, caller, conversation_id))
        return conversation_id

    async def _delete_created_conversation(
        self, caller: Caller, conversation_id: ConversationId, _kind: object, error: BaseException | None, _at: object
    ) -> None:
        # the aborted turn of a too large answer has readable text
        if error is not None and not isinstance(error, AnswerTooLarge):
            with suppress(AppError, asyncio.CancelledError):
                await self._run_shielded(self._governance.delete_unused(caller, conversation_id))

    async def _align(
        self,
        caller: Caller,
        conversation_id: ConversationId,
        messages: Sequence[JsonObject],
        request: GenerationRequest,
    ) -> tuple[Alignment, list[Turn]]:
        query = HistoryQuery(limit=min(len(messages) + _EXTRA_TURNS, _MAX_ALIGNED_TURNS))
        page = await self._conversations.history(caller, conversation_id, query=query)
        turns = [turn for turn in page.data if turn.kind is not Kind.COMPACTION]
        stored = stored_messages(turns, [turn.erased_at is not None for turn in turns])
        found = partial(align, messages, stored, is_retry=request.is_retry, has_earlier=page.has_more)
        return (await asyncio.to_thread(found) if len(messages) > _THREAD_MESSAGES else found()), turns

    def _default_budget(self, body: JsonObject) -> int:
        """Return the model's context window minus the longest answer and the tool descriptions, in tokens."""
        limits = (body.get("max_completion_tokens"), body.get("max_tokens"), self._settings.chat.llm_max_output_tokens)
        answer = next(limit for limit in limits if isinstance(limit, int) and limit > 0)
        shown = [body[name] for name in ("tools", "functions", "response_format") if body.get(name)]
        described = estimated_tokens(json.dumps(shown, ensure_ascii=False)) if shown else 0
        return max(1, self._settings.chat.llm_context_tokens - answer - described)

    # around the answer

    def _renewed(self, exchange: Exchange) -> AbstractAsyncContextManager[None]:
        return renewed(self._exchanges, exchange, lease_s=self._settings.streams.stream_lease_s)

    async def publish(self, caller: Caller, prepared: _PreparedRequest, delta: Delta, offset: int) -> int:
        """Publish text of the answer to subscribers of the conversation; return the offset after it."""
        exchange = prepared.exchange
        for piece in pieces_of(delta.text, max(1, self._settings.streams.max_chunk_bytes // _MAX_BYTES_PER_CHARACTER)):
            try:
                await self._conversations.streams.chunk(
                    caller,
                    prepared.conversation_id,
                    turn_id=exchange.answer_id,
                    chunk=Chunk.model_construct(None, offset=offset, delta=piece, part=delta.part),
                    epoch=exchange.epoch,
                    wait=False,
                )
            except TooLarge:
                raise self._too_large(prepared) from None
            offset += len(piece)
        return offset

    async def _commit_whole(self, caller: Caller, prepared: _PreparedRequest, answer: PartialAnswer) -> list[Turn]:
        """Store an answer that was not streamed; if it is too large, the aborted turn gets its beginning."""
        try:
            return await self._commit(caller, prepared, answer)
        except AnswerTooLarge:
            with suppress(AppError):
                await self.publish(caller, prepared, Delta("content", answer.text), 0)
            raise

    async def _commit(self, caller: Caller, prepared: _PreparedRequest, answer: PartialAnswer) -> list[Turn]:
        said = answer_turn(answer, prepared.body)
        try:
            # the answer is complete: a client that disconnects now does not stop the commit
            return await self._run_shielded(self._exchanges.commit(caller, prepared.exchange, answer=said))
        except TooLarge:  # the other turns were accepted before the model was called
            raise self._too_large(prepared) from None

    def _too_large(self, prepared: _PreparedRequest) -> AnswerTooLarge:
        return AnswerTooLarge(
            "answer_too_large",
            f"The chat model's answer is larger than the {self._settings.limits.max_text_bytes} bytes of a turn; it was"
            " not committed. Limit the answer with `max_tokens`, and request the rest in another request.",
            extra={
                "conversation_id": format_id(prepared.conversation_id),
                "turn_id": format_id(prepared.exchange.answer_id),
            },
        )

    async def _abort(self, caller: Caller, exchange: Exchange, error: BaseException | None) -> None:
        reason = (
            error.code if isinstance(error, AppError) else "client_gone" if _is_disconnect(error) else "internal_error"
        )
        with suppress(asyncio.CancelledError):
            await self._run_shielded(self._exchanges.abort(caller, exchange, reason=reason))

    async def _run_shielded(
        self, work: "Coroutine[object, object, list[Turn]] | Coroutine[object, object, None]"
    ) -> list[Turn]:
        task: asyncio.Task[object] = asyncio.create_task(cast("Coroutine[object, object, object]", work))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        return cast("list[Turn]", await asyncio.shield(task))


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """One event of a streamed answer: its data for the client, and its text."""

    data: str
    text: str = ""


class StoredAnswer:
    """A replayed answer, with the interface of `AnswerStream`."""

    is_replay: Final = True

    def __init__(self, answered: GenerationResult) -> None:
        self.conversation_id = answered.conversation_id
        self.turns = answered.turns
        self.gap = answered.gap

    async def events(self) -> AsyncGenerator[AnswerEvent]:
        """Yield one event with the text, if there is one, and the last event."""
        text = answer_text(self.turns)
        if text:
            yield AnswerEvent("", text)
        yield AnswerEvent(DONE)


class AnswerStream:
    """A streamed answer."""

    is_replay: Final = False

    def __init__(
        self,
        generation: Generation,
        caller: Caller,
        prepared: _PreparedRequest | None,
        streamed: Streamed,
        *,
        shows_usage: bool,
    ) -> None:
        self.answer = PartialAnswer()
        self.turns: list[Turn] = []
        self.is_committed = False
        self.conversation_id = None if prepared is None else prepared.conversation_id
        self.gap = None if prepared is None else prepared.gap
        self._generation = generation
        self._caller = caller
        self._prepared = prepared
        self._streamed = streamed
        self._shows_usage = shows_usage
        self._lengths: dict[str, int] = {}

    async def events(self) -> AsyncGenerator[AnswerEvent]:
        """Yield the events; `[DONE]` comes after the commit. Raises if the answer is incomplete."""
        try:
            async for event in self._pieces():
                yield event
        except AppError as error:
            if self._prepared is not None:
                await self._generation._abort(self._caller, self._prepared.exchange, error)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            raise

    async def _pieces(self) -> AsyncGenerator[AnswerEvent]:
        is_done = False
        async for data in self._streamed.events:
            if data.strip() == DONE:
                is_done = True
                break
            piece = read_piece(data)
            deltas = self.answer.add(piece)
            self._streamed.record_usage(self.answer.usage, said=sum(len(delta.text) for delta in deltas))
            for delta in deltas:
                await self._publish_delta(delta)
            shown = self._shown(piece, data)
            if shown is not None:
                yield AnswerEvent(shown, "".join(delta.text for delta in deltas if delta.part == "content"))
        if self.answer.finish_reason is None and (self._prepared is not None or not is_done):
            raise InvalidAnswer("model_unavailable", "The chat model's answer was cut off.")
        self._streamed.is_whole()
        if self._prepared is not None:
            self.turns = await self._generation._commit(self._caller, self._prepared, self.answer)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            self.is_committed = True
        yield AnswerEvent(DONE)

    async def _publish_delta(self, delta: Delta) -> None:
        if self._prepared is None:
            return
        offset = self._lengths.get(delta.part, 0)
        self._lengths[delta.part] = await self._generation.publish(self._caller, self._prepared, delta, offset)

    def _shown(self, piece: JsonObject, data: str) -> str | None:
        """Return an event unchanged; without the usage if only we asked for it."""
        if self._shows_usage or "usage" not in piece:
            return data
        if not piece.get("choices"):
            return None
        return json.dumps({name: value for name, value in piece.items() if name != "usage"}, ensure_ascii=False)


def _require_scopes(caller: Caller, request: GenerationRequest) -> None:
    caller.require(Scope.WRITE)
    if request.conversation is not None:
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


def _wants_usage(body: JsonObject) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def _replaced(regenerated: Turn, stored: Sequence[Turn]) -> TurnReplacement:
    """Return the range that a regenerated answer replaces: one turn, or it and all turns after it."""
    is_last = regenerated is stored[-1]
    seqs = [turn.seq or 0 for turn in stored]
    return TurnReplacement(TurnId(parse_id(regenerated.id)), None if is_last else max(seqs))


def _is_disconnect(error: BaseException | None) -> bool:
    return error is None or isinstance(error, asyncio.CancelledError | GeneratorExit)
