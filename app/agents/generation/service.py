"""Answers of a chat model in a conversation: the context in, the new messages and the answer stored in one commit.

Hides which messages are new (`generation_align`), what the model is sent in place of the client's own history, and what
becomes of an answer that does not come to its end. What always holds: no model is asked inside a transaction; new
messages and answer get their seq together, once the answer is whole, or are all aborted; an answer that was committed
has been told whole. Without a conversation nothing is stored, and request and answer pass untouched.
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
    AnswerSoFar,
    Delta,
    answer_text,
    answer_turn,
    bare,
    pieces_of,
    read_piece,
    turn_of,
)
from app.agents.generation.renewal import renewed
from app.agents.generation.schemas import MAX_MESSAGES, Answered, Asked, ConversationName
from app.context.schemas import Gap
from app.context.service import ContextBuilder
from app.conversations.schemas.conversations import ConversationCreate, Turn, content_text
from app.conversations.schemas.frames import Chunk
from app.conversations.schemas.history import HistoryQuery
from app.conversations.service import Conversations
from app.conversations.streams.commit import Replaced
from app.conversations.streams.exchanges import Exchange, Exchanges, answering
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
_MORE_THAN_SENT: Final = 50
_MAX_STORED: Final = 2000
_THREAD_MESSAGES: Final = 500
_BYTES_A_CHARACTER: Final = 4
"""At most, in UTF-8: so many characters surely make no chunk that is too large."""


class AnswerTooLarge(Refused):
    """An answer that no turn can hold."""


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """Settings: the model's window and longest answer, in tokens, how long a turn stays open unheard of, its sizes."""

    context_tokens: int
    answer_tokens: int
    lease_s: float
    chunk_bytes: int
    text_bytes: int

    @classmethod
    def of(cls, settings: Settings) -> "GenerationOptions":
        """Take them out of the settings."""
        return cls(
            settings.llm_context_tokens,
            settings.llm_max_output_tokens,
            settings.stream_lease_s,
            settings.max_chunk_bytes,
            settings.max_text_bytes,
        )


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What the endpoint is sent, what of the conversation that leaves out, and where the answer goes."""

    conversation_id: ConversationId
    body: JsonObject
    gap: Gap | None
    exchange: Exchange


class Generation:
    """The door to generated answers."""

    def __init__(
        self,
        *,
        conversations: Conversations,
        contexts: ContextBuilder,
        governance: Governance,
        upstream: Upstream | None,
        options: GenerationOptions,
    ) -> None:
        self._conversations = conversations
        self._contexts = contexts
        self._governance = governance
        self._upstream = upstream
        self._options = options
        self._ending: set[asyncio.Task[object]] = set()

    @property
    def _exchanges(self) -> Exchanges:
        return self._conversations.streams.exchanges

    async def close(self) -> None:
        """Wait until what was given up is, and close the connections to the endpoint."""
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._upstream is not None:
            await self._upstream.close()

    async def look(self, caller: Caller, path: str) -> JsonObject:
        """What the endpoint has at a path, such as its models."""
        caller.require(Scope.READ)
        return await configured(self._upstream).look(path)

    async def ask(self, caller: Caller, path: str, body: JsonObject) -> JsonObject:
        """Pass a request on to the endpoint, and its answer back; in no conversation."""
        caller.require(Scope.WRITE)
        upstream = configured(self._upstream)
        return await upstream.ask(caller.tenant_id, path, {"model": upstream.model, **body})

    async def complete(self, caller: Caller, asked: Asked) -> Answered:
        """Answer in one piece. Raises what contexts, appends and the endpoint do: then nothing of it is committed."""
        _require_scopes(caller, asked)
        before = await self._answered_before(caller, asked)
        if before is not None:
            return before
        upstream = configured(self._upstream)
        asked_body = {"model": upstream.model, **asked.body}
        if asked.conversation is None:
            return Answered(await self.ask(caller, _COMPLETIONS, asked_body), None, [])
        async with AsyncExitStack() as begun:
            prepared = await self._prepare(caller, asked, asked_body, begun)
            try:
                async with self._renewed(prepared.exchange):
                    completion = await upstream.ask(caller.tenant_id, _COMPLETIONS, prepared.body)
                turns = await self._commit_whole(caller, prepared, AnswerSoFar.of(completion))
            except BaseException as error:
                await self._give_up(caller, prepared.exchange, error)
                raise
            return Answered(completion, prepared.conversation_id, turns, prepared.gap)

    @asynccontextmanager
    async def streaming(self, caller: Caller, asked: Asked) -> AsyncGenerator["Relay | Stored"]:
        """Answer in events. What is not whole at the end of the block is aborted. Raises as `complete`."""
        _require_scopes(caller, asked)
        before = await self._answered_before(caller, asked)
        if before is not None:
            yield Stored(before)
            return
        upstream = configured(self._upstream)
        body = {"model": upstream.model, **asked.body}
        prepared = None
        async with AsyncExitStack() as begun:
            if asked.conversation is not None:
                prepared = await self._prepare(caller, asked, body, begun)
                body = prepared.body
            try:
                async with AsyncExitStack() as stack:
                    if prepared is not None:
                        await stack.enter_async_context(self._renewed(prepared.exchange))
                    streamed = await _begun(upstream, stack, caller, body)
                    begun.pop_all()  # from here on the client is told of it
                    relay = Relay(self, caller, prepared, streamed, shows_usage=_wants_usage(asked.body))
                    yield relay
            except BaseException as error:
                if prepared is not None:
                    await self._give_up(caller, prepared.exchange, error)
                raise
            if prepared is not None and not relay.is_committed:
                await self._give_up(caller, prepared.exchange, None)

    # before the answer

    async def _answered_before(self, caller: Caller, asked: Asked) -> Answered | None:
        """What was stored for the very same request, if it carries the Idempotency-Key of one that was answered."""
        if asked.repeat is None:
            return None
        before = await self._conversations.replayed(caller, repeat=asked.repeat)
        if before is None:
            return None
        return Answered({}, ConversationId(parse_id(before.conversation_id)), before.turns, is_replay=True)

    async def _prepare(self, caller: Caller, asked: Asked, body: JsonObject, begun: AsyncExitStack) -> _Prepared:
        given = body.get("messages")
        cleaned = [bare(one) if isinstance(one, dict) else one for one in given] if isinstance(given, list) else given
        if isinstance(cleaned, list) and len(cleaned) > MAX_MESSAGES:
            fields = [FieldError("/messages", "too many")]
            raise Invalid("invalid_request", f"A request may have {MAX_MESSAGES} messages.", fields=fields)
        parsed = formats.parse(Format.OPENAI, cleaned)
        messages = cast("list[JsonObject]", cleaned)
        spoken = [at for at, turn in enumerate(parsed) if turn.role is not Role.SYSTEM]
        system = "\n\n".join(content_text(turn.content) for turn in parsed if turn.role is Role.SYSTEM)
        conversation_id = await self._conversation(caller, asked, begun)
        found, stored = await self._align(caller, conversation_id, [messages[at] for at in spoken], asked)
        new = spoken[found.new_from :]
        again = None if found.again_from is None else stored[found.again_from]
        budget = asked.token_budget or self._default_budget(body)
        context = await self._contexts.build(
            caller,
            conversation_id,
            request=asked.context.request(token_budget=budget, system=system or None),
            upcoming=[formats.canonical_of(parsed[at], turn_id=f"new-{at}") for at in new],
            before=None if again is None else again.position,
        )
        model = body.get("model")
        exchange = await self._exchanges.open(
            caller,
            conversation_id,
            messages=[(f"/messages/{at}", turn_of(parsed[at])) for at in new],
            answer=answering(model if isinstance(model, str) else None),
            replaced=None if again is None else _replaced(again, stored),
            repeat=asked.repeat,
        )
        sent: JsonObject = {**body, "messages": cast("JsonValue", context.messages)}
        return _Prepared(conversation_id, sent, context.gap, exchange)

    async def _conversation(self, caller: Caller, asked: Asked, begun: AsyncExitStack) -> ConversationId:
        """The conversation that is meant. One that is begun for this request alone goes again where `begun` fails."""
        name, repeat = cast("ConversationName", asked.conversation), asked.repeat
        if name.conversation_id is not None:
            return name.conversation_id
        create = ConversationCreate(external_id=name.external_id, project=name.project or "default", owner=name.owner)
        if repeat is not None and name.external_id is None:
            create = create.model_copy(update={"id": repeat.made_id(caller)})
        created, _, _ = await self._conversations.create(caller, body=create, repeat=None)
        conversation_id = ConversationId(parse_id(created.id))
        if repeat is None and name.external_id is None:
            begun.push_async_exit(partial(self._take_back, caller, conversation_id))
        return conversation_id

    async def _take_back(
        self, caller: Caller, conversation_id: ConversationId, _kind: object, error: BaseException | None, _at: object
    ) -> None:
        # of an answer that was too large there is something to read
        if error is not None and not isinstance(error, AnswerTooLarge):
            with suppress(AppError, asyncio.CancelledError):
                await self._through(self._governance.delete_unused(caller, conversation_id))

    async def _align(
        self, caller: Caller, conversation_id: ConversationId, messages: Sequence[JsonObject], asked: Asked
    ) -> tuple[Alignment, list[Turn]]:
        query = HistoryQuery(limit=min(len(messages) + _MORE_THAN_SENT, _MAX_STORED))
        page = await self._conversations.history(caller, conversation_id, query=query)
        turns = [turn for turn in page.data if turn.kind is not Kind.COMPACTION]
        stored = stored_messages(turns, [turn.erased_at is not None for turn in turns])
        found = partial(align, messages, stored, is_retry=asked.is_retry, is_cut=page.has_more)
        return (await asyncio.to_thread(found) if len(messages) > _THREAD_MESSAGES else found()), turns

    def _default_budget(self, body: JsonObject) -> int:
        """The model's window without the longest answer, and without the tools that are described to it."""
        limits = (body.get("max_completion_tokens"), body.get("max_tokens"), self._options.answer_tokens)
        answer = next(limit for limit in limits if isinstance(limit, int) and limit > 0)
        shown = [body[name] for name in ("tools", "functions", "response_format") if body.get(name)]
        described = estimated_tokens(json.dumps(shown, ensure_ascii=False)) if shown else 0
        return max(1, self._options.context_tokens - answer - described)

    # around the answer

    def _renewed(self, exchange: Exchange) -> AbstractAsyncContextManager[None]:
        return renewed(self._exchanges, exchange, lease_s=self._options.lease_s)

    async def publish(self, caller: Caller, prepared: _Prepared, delta: Delta, offset: int) -> int:
        """Tell followers of the conversation what the answer goes on with; gives where it goes on from."""
        exchange = prepared.exchange
        for piece in pieces_of(delta.text, max(1, self._options.chunk_bytes // _BYTES_A_CHARACTER)):
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

    async def _commit_whole(self, caller: Caller, prepared: _Prepared, answer: AnswerSoFar) -> list[Turn]:
        """Store an answer that came in one piece; of one that is too large the aborted turn has the beginning."""
        try:
            return await self._commit(caller, prepared, answer)
        except AnswerTooLarge:
            with suppress(AppError):
                await self.publish(caller, prepared, Delta("content", answer.text), 0)
            raise

    async def _commit(self, caller: Caller, prepared: _Prepared, answer: AnswerSoFar) -> list[Turn]:
        said = answer_turn(answer, prepared.body)
        try:
            # whole by now: who goes away meanwhile does not keep it from being stored
            return await self._through(self._exchanges.commit(caller, prepared.exchange, answer=said))
        except TooLarge:  # what else is stored was taken before the model was asked
            raise self._too_large(prepared) from None

    def _too_large(self, prepared: _Prepared) -> AnswerTooLarge:
        return AnswerTooLarge(
            "answer_too_large",
            f"The chat model's answer has more than the {self._options.text_bytes} bytes that a turn may have; it was"
            " not committed. Ask for less at once (`max_tokens`), and for the rest in a further request.",
            extra={
                "conversation_id": format_id(prepared.conversation_id),
                "turn_id": format_id(prepared.exchange.answer_id),
            },
        )

    async def _give_up(self, caller: Caller, exchange: Exchange, error: BaseException | None) -> None:
        reason = (
            error.code if isinstance(error, AppError) else "client_gone" if _is_leaving(error) else "internal_error"
        )
        with suppress(asyncio.CancelledError):
            await self._through(self._exchanges.abort(caller, exchange, reason=reason))

    async def _through(
        self, work: "Coroutine[object, object, list[Turn]] | Coroutine[object, object, None]"
    ) -> list[Turn]:
        task: asyncio.Task[object] = asyncio.create_task(cast("Coroutine[object, object, object]", work))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return cast("list[Turn]", await asyncio.shield(task))


@dataclass(frozen=True, slots=True)
class Event:
    """One event of an answer on its way: its data as the client is to see it, and the text that it adds."""

    data: str
    text: str = ""


class Stored:
    """An answer that was given before to the same request, as a relay that has it all at once."""

    is_replay: Final = True

    def __init__(self, answered: Answered) -> None:
        self.conversation_id = answered.conversation_id
        self.turns = answered.turns
        self.gap = answered.gap

    async def events(self) -> AsyncGenerator[Event]:
        """One event with the text, where the answer has one, and the last."""
        text = answer_text(self.turns)
        if text:
            yield Event("", text)
        yield Event(DONE)


class Relay:
    """An answer on its way, in events."""

    is_replay: Final = False

    def __init__(
        self,
        generation: Generation,
        caller: Caller,
        prepared: _Prepared | None,
        streamed: Streamed,
        *,
        shows_usage: bool,
    ) -> None:
        self.answer = AnswerSoFar()
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

    async def events(self) -> AsyncGenerator[Event]:
        """The events; `[DONE]` comes when all is stored. Raises where the answer ends before its end."""
        try:
            async for event in self._pieces():
                yield event
        except AppError as error:
            if self._prepared is not None:
                await self._generation._give_up(self._caller, self._prepared.exchange, error)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            raise

    async def _pieces(self) -> AsyncGenerator[Event]:
        is_done = False
        async for data in self._streamed.events:
            if data.strip() == DONE:
                is_done = True
                break
            piece = read_piece(data)
            deltas = self.answer.add(piece)
            self._streamed.note(self.answer.usage, said=sum(len(delta.text) for delta in deltas))
            for delta in deltas:
                await self._tell(delta)
            shown = self._shown(piece, data)
            if shown is not None:
                yield Event(shown, "".join(delta.text for delta in deltas if delta.part == "content"))
        if self.answer.finish_reason is None and (self._prepared is not None or not is_done):
            raise InvalidAnswer("model_unavailable", "The chat model's answer was cut off.")
        self._streamed.is_whole()
        if self._prepared is not None:
            self.turns = await self._generation._commit(self._caller, self._prepared, self.answer)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            self.is_committed = True
        yield Event(DONE)

    async def _tell(self, delta: Delta) -> None:
        if self._prepared is None:
            return
        offset = self._lengths.get(delta.part, 0)
        self._lengths[delta.part] = await self._generation.publish(self._caller, self._prepared, delta, offset)

    def _shown(self, piece: JsonObject, data: str) -> str | None:
        """An event as it came; without the usage where only we asked for it."""
        if self._shows_usage or "usage" not in piece:
            return data
        if not piece.get("choices"):
            return None
        return json.dumps({name: value for name, value in piece.items() if name != "usage"}, ensure_ascii=False)


def _require_scopes(caller: Caller, asked: Asked) -> None:
    caller.require(Scope.WRITE)
    if asked.conversation is not None:
        # the answer tells of what is stored
        caller.require(Scope.READ)


async def _begun(upstream: Upstream, stack: AsyncExitStack, caller: Caller, body: JsonObject) -> Streamed:
    """Begin a streamed answer, with its usage where the endpoint can tell it."""
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    told: JsonObject = {**body, "stream": True, "stream_options": {**options, "include_usage": True}}
    try:
        return await stack.enter_async_context(upstream.streaming(caller.tenant_id, _COMPLETIONS, told))
    except UpstreamRefusal as refusal:
        if "stream_options" in body or "stream_options" not in json.dumps(refusal.error):
            raise
    return await stack.enter_async_context(upstream.streaming(caller.tenant_id, _COMPLETIONS, {**body, "stream": True}))


def _wants_usage(body: JsonObject) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def _replaced(again: Turn, stored: Sequence[Turn]) -> Replaced:
    """What an answer given anew takes the place of: one turn, or one and all behind it."""
    is_last = again is stored[-1]
    seqs = [turn.seq or 0 for turn in stored]
    return Replaced(TurnId(parse_id(again.id)), None if is_last else max(seqs))


def _is_leaving(error: BaseException | None) -> bool:
    return error is None or isinstance(error, asyncio.CancelledError | GeneratorExit)
