"""What happens before the model is called: find the new messages, build the context, open the exchange.

Hides which conversation a request continues: a named one, a new one, that of the response before it, or a fork of it.
Invariant: a conversation that was created for one request alone is deleted if the request fails before its answer.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias, cast
from uuid import UUID

from pydantic import JsonValue

from app.agents.generation.align import Alignment, StoredMessage, align, stored_messages
from app.agents.generation.messages import RequestMessages, read_chat
from app.agents.generation.partial import is_incomplete
from app.agents.generation.schemas import ConversationName, GenerationRequest, OnDisconnect
from app.context.schemas import Context, Gap
from app.context.service import ContextBuilder
from app.conversations.schemas.conversations import ConversationCreate, ForkRequest, Turn, TurnInput
from app.conversations.schemas.history import HistoryQuery
from app.conversations.schemas.responses import ContinuedResponse, ResponseRequest
from app.conversations.service import Conversations, Exchange, Exchanges, Sessions, TurnReplacement, open_answer_turn
from app.core.errors import AppError, Conflict, FieldError, Invalid, NotFound
from app.core.ids import ConversationId, TenantId, TurnId, parse_id
from app.formats.schemas import JsonObject, Kind, Role
from app.governance.service import Governance
from app.providers.pieces import estimated_tokens
from app.providers.window import output_tokens
from app.settings import Settings
from app.tenancy.schemas import Caller

_EXTRA_TURNS: Final = 50
_MAX_ALIGNED_TURNS: Final = 2000
_THREAD_MESSAGES: Final = 500

RunShielded: TypeAlias = Callable[[Coroutine[object, object, None]], Awaitable[object]]
"""Runs work to its end, also if the caller is cancelled."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """The request to the endpoint, the gap of its context, and the exchange for the answer; None stores nothing.

    `on_disconnect`: what happens to the exchange if the client disconnects.
    """

    conversation_id: ConversationId | None
    body: JsonObject
    gap: Gap | None
    exchange: Exchange | None
    on_disconnect: OnDisconnect = "abort"


@dataclass(slots=True)
class _Target:
    """The conversation of a request. `is_private`: this request created it, and no caller knows it yet.

    `is_repeated`: an earlier request with the same idempotency key created it, and its messages may have been kept.
    `last_seq`: the last turn that this request has stored or copied there.
    """

    conversation_id: ConversationId
    is_private: bool = False
    is_repeated: bool = False
    owns_conversation: bool = False
    follows: int | None = None
    last_seq: int = 0


class Preparer:
    """Prepares requests for the chat model."""

    def __init__(
        self,
        *,
        conversations: Conversations,
        exchanges: Exchanges,
        sessions: Sessions,
        contexts: ContextBuilder,
        governance: Governance,
        settings: Settings,
        run_shielded: RunShielded,
        window: Callable[[TenantId, str | None], int],
    ) -> None:
        """`window` returns the tokens that a model reads and writes for a tenant in one call; None: the default."""
        self._conversations = conversations
        self._exchanges = exchanges
        self._sessions = sessions
        self._contexts = contexts
        self._governance = governance
        self._settings = settings
        self._run_shielded = run_shielded
        self._window = window

    async def prepare(
        self, caller: Caller, request: GenerationRequest, body: JsonObject, cleanup: AsyncExitStack
    ) -> PreparedRequest:
        """Return the prepared request. `cleanup`: on an error, undoes what was created for this request alone."""
        given = request.given
        if given is None:
            target = await self._named(caller, request, cleanup)
            return await self._opened(caller, request, body, read_chat(body.get("messages")), target)
        if given.response is None:
            return await self._unstored(caller, request, body, given.messages)
        if given.previous is None:
            target = await self._named(caller, request, cleanup)
            return await self._opened(caller, request, body, given.messages, target)
        return await self._continued(caller, request, body, given.previous, cleanup)

    # the conversation

    async def _named(self, caller: Caller, request: GenerationRequest, cleanup: AsyncExitStack) -> _Target:
        """Return the conversation that a request names, or a new one.

        A conversation that was created for this request alone is deleted if `cleanup` fails.
        """
        name, key = cast("ConversationName", request.conversation), request.idempotency_key
        if name.conversation_id is not None:
            await self._require_owner(caller, request, name.conversation_id)
            return _Target(name.conversation_id)
        create = ConversationCreate(external_id=name.external_id, project=name.project or "default", owner=name.owner)
        is_private = name.external_id is None
        if key is not None and is_private:
            create = create.model_copy(update={"id": key.derive_id(caller)})
        created = await self._conversations.create(caller, body=create, owner_pointer=name.owner_pointer)
        conversation_id = ConversationId(parse_id(created.value.id))
        is_repeated = is_private and not created.is_new and request.on_disconnect == "keep"
        target = _Target(conversation_id, is_private=is_private, is_repeated=is_repeated, owns_conversation=is_private)
        if key is None and is_private:
            cleanup.push_async_exit(partial(self._delete_private, caller, target))
        return target

    async def _continued(
        self, caller: Caller, request: GenerationRequest, body: JsonObject, previous: ContinuedResponse,
        cleanup: AsyncExitStack,
    ) -> PreparedRequest:  # fmt: skip
        """Continue from a response: in its conversation if it is the last one there, else in a fork.

        A conversation that a caller has named is always forked: only requests that name it write into it.
        """
        messages = _given_messages(request)
        await self._require_owner(caller, request, previous.conversation_id)
        if previous.owns_conversation:
            same = _Target(previous.conversation_id, owns_conversation=True, follows=previous.position)
            try:
                return await self._opened(caller, request, body, messages, same)
            except Conflict as error:
                if error.code != "conversation_advanced":
                    raise
        fork = await self._fork(caller, request, previous, cleanup)
        return await self._opened(caller, request, body, messages, fork)

    async def _fork(
        self, caller: Caller, request: GenerationRequest, previous: ContinuedResponse, cleanup: AsyncExitStack
    ) -> _Target:
        key = request.idempotency_key
        live = await self._conversations.history(
            caller, previous.conversation_id, query=HistoryQuery("asc", after=previous.position - 1, limit=1)
        )
        if not live.data or live.data[0].position != previous.position:
            raise Conflict("already_superseded", "The answer of the previous response has been superseded.")
        fork = ForkRequest(through=parse_id(live.data[0].id))
        if key is not None:
            fork = fork.model_copy(update={"id": key.derive_id(caller)})
        made = await self._conversations.fork(caller, previous.conversation_id, body=fork, idempotency_key=None)
        conversation_id = ConversationId(parse_id(made.value.id))
        target = _Target(conversation_id, is_private=True, owns_conversation=True, last_seq=made.value.last_seq)
        if key is None:
            cleanup.push_async_exit(partial(self._delete_private, caller, target))
        return target

    async def _delete_private(
        self, caller: Caller, target: _Target, _kind: object, error: BaseException | None, _at: object
    ) -> None:
        # the aborted turn of a too large answer has readable text
        if error is not None and not (isinstance(error, AppError) and error.code == "answer_too_large"):
            with suppress(AppError, asyncio.CancelledError):
                work = self._governance.delete_unused(caller, target.conversation_id, through=target.last_seq)
                await self._run_shielded(work)

    # its turns

    async def _opened(
        self, caller: Caller, request: GenerationRequest, body: JsonObject, messages: RequestMessages, target: _Target
    ) -> PreparedRequest:
        """Build the context and open the exchange of the new messages and the answer."""
        found, stored = await self._align(caller, target, messages, request)
        start = messages.with_their_calls(messages.new_from(found.new_from), stored)
        regenerated = None if found.regenerate_from is None else stored[found.regenerate_from]
        new, earlier = messages.to_store(start), list[TurnId]()
        if target.is_private:
            new, earlier = await self._store_first(caller, target, new)
        context = await self._contexts.build(
            caller,
            target.conversation_id,
            request=request.context.request(token_budget=self._budget(caller, request, body), system=messages.system),
            upcoming=messages.canonical(start + len(earlier)),
            before=None if regenerated is None else regenerated.position,
        )
        _require_shown(request, context)
        model = body.get("model")
        exchange = await self._exchanges.open(
            caller,
            target.conversation_id,
            messages=new,
            answer=open_answer_turn(model if isinstance(model, str) else None),
            replaced=None if regenerated is None else _replaced(regenerated, stored),
            idempotency_key=request.idempotency_key,
            response=_response(request, target, earlier),
        )
        return PreparedRequest(
            target.conversation_id, _with_messages(body, context), context.gap, exchange, request.on_disconnect
        )

    async def _unstored(
        self, caller: Caller, request: GenerationRequest, body: JsonObject, messages: RequestMessages
    ) -> PreparedRequest:
        """Build the context of a request of which nothing is stored, after the turns of its conversation, if any."""
        given, name = request.given, request.conversation
        previous = None if given is None else given.previous
        wanted = request.context.request(token_budget=self._budget(caller, request, body), system=messages.system)
        if previous is not None:
            conversation_id = previous.conversation_id
        else:
            conversation_id = None if name is None else name.conversation_id or await self._find(caller, name)
        if conversation_id is None:
            owner, project = (None, None) if name is None else (name.owner, name.project)
            context = await self._contexts.first(
                caller, request=wanted, upcoming=messages.canonical(0), project=project or "default", owner=owner
            )
        else:
            await self._require_owner(caller, request, conversation_id)
            context = await self._contexts.build(
                caller,
                conversation_id,
                request=wanted,
                upcoming=messages.canonical(0),
                before=None if previous is None else previous.position + 1,
            )
        _require_shown(request, context)
        return PreparedRequest(None, _with_messages(body, context), context.gap, None)

    async def _require_owner(self, caller: Caller, request: GenerationRequest, conversation_id: ConversationId) -> None:
        """Raise Conflict `conversation_owned` if the request names another owner than that of the conversation."""
        if (name := request.conversation) is not None:
            await self._sessions.require_owner(caller, conversation_id, owner=name.owner, pointer=name.owner_pointer)

    async def _find(self, caller: Caller, name: ConversationName) -> ConversationId | None:
        """Return the conversation with an external id, if there is one."""
        if name.external_id is None:
            return None
        try:
            return await self._conversations.id_of(
                caller, project=name.project or "default", external_id=name.external_id
            )
        except NotFound:
            return None

    async def _store_first(
        self, caller: Caller, target: _Target, new: Sequence[tuple[str, TurnInput]]
    ) -> tuple[Sequence[tuple[str, TurnInput]], list[TurnId]]:
        """Store those messages of a private conversation that do not fit into one exchange. Return the rest.

        Their ids follow from their places, so that a repeated request stores them once.
        """
        at_once = self._settings.limits.max_turns_per_append
        newest = max((at for at, (_, turn) in enumerate(new) if turn.role is not Role.TOOL), default=-1)
        ids: list[TurnId] = []
        while len(new) >= at_once:
            batch = [
                turn.model_copy(update={"id": _id_at(target.conversation_id, len(ids) + number)})
                for number, (_, turn) in enumerate(new[: at_once - 1])
            ]
            batch_ids = [TurnId(cast("UUID", turn.id)) for turn in batch]
            # as in an exchange, only the results at the end of a request need their calls
            of_history = batch_ids[: max(0, newest + 1 - len(ids))]
            stored = await self._conversations.append(
                caller, target.conversation_id, turns=batch, of_history=of_history
            )
            target.last_seq = stored.value.seq
            ids += batch_ids
            new = new[len(batch) :]
        return new, ids

    async def _align(
        self, caller: Caller, target: _Target, messages: RequestMessages, request: GenerationRequest
    ) -> tuple[Alignment, list[Turn]]:
        if (target.is_private and not target.is_repeated) or (request.given is not None and request.given.is_all_new):
            return Alignment(0), []
        sent = [message for _, message in messages.compared]
        query = HistoryQuery(limit=min(len(sent) + _EXTRA_TURNS, _MAX_ALIGNED_TURNS))
        page = await self._conversations.history(caller, target.conversation_id, query=query)
        turns = [turn for turn in page.data if turn.kind is not Kind.COMPACTION]
        stored = stored_messages(turns, [turn.erased_at is not None for turn in turns], by_item=messages.by_item)
        is_retry = request.is_retry or target.is_repeated
        work = partial(_aligned, sent, stored, turns, is_retry=is_retry, has_earlier=page.has_more)
        return (await asyncio.to_thread(work) if len(sent) > _THREAD_MESSAGES else work()), turns

    def _budget(self, caller: Caller, request: GenerationRequest, body: JsonObject) -> int:
        """Return the requested budget, else the model's context window minus the longest answer and the tools."""
        if request.token_budget is not None:
            return request.token_budget
        model = body.get("model")
        window = self._window(caller.tenant_id, model if isinstance(model, str) else None)
        default = output_tokens(window, most=self._settings.chat.llm_max_output_tokens)
        limits = (body.get("max_completion_tokens"), body.get("max_tokens"), default)
        answer = next(limit for limit in limits if isinstance(limit, int) and limit > 0)
        shown = [body[name] for name in ("tools", "functions", "response_format") if body.get(name)]
        described = estimated_tokens(json.dumps(shown, ensure_ascii=False)) if shown else 0
        return max(1, window - answer - described)


def _aligned(
    sent: Sequence[JsonObject], stored: Sequence[StoredMessage], turns: Sequence[Turn], *, is_retry: bool,
    has_earlier: bool,
) -> Alignment:  # fmt: skip
    """Find the new messages. The client may have dropped an incomplete last answer, and send its history without it.

    If the question of that answer is the last message, it is answered again. If others follow it, these are new.
    """
    alignment = align(sent, stored, is_retry=is_retry, has_earlier=has_earlier)
    newest = len(turns) - 1
    if alignment != Alignment(0) or not turns or not is_incomplete(turns[newest]):
        return alignment
    before = [message for message in stored if message.turn != newest]
    if not before:
        return alignment
    alignment = align(sent, before, is_retry=False, has_earlier=has_earlier)
    if alignment == Alignment(len(sent)):
        return Alignment(len(sent), regenerate_from=newest)
    return alignment if alignment.regenerate_from is None else Alignment(0)


def _given_messages(request: GenerationRequest) -> RequestMessages:
    if request.given is None:
        raise TypeError("the messages of a continued response are given")
    return request.given.messages


def _with_messages(body: JsonObject, context: Context) -> JsonObject:
    return {**body, "messages": cast("JsonValue", context.messages)}


def _require_shown(request: GenerationRequest, context: Context) -> None:
    """Raise Invalid if turns are left out, and the request does not allow it."""
    if request.given is not None and not request.given.truncates and context.gap is not None:
        fields = [FieldError("/truncation", "with `auto` older turns are left out")]
        detail = f"The conversation does not fit into the token budget: {context.gap.turns} turns are left out."
        raise Invalid("budget_too_small", detail, fields=fields)


def _response(request: GenerationRequest, target: _Target, earlier: Sequence[TurnId]) -> ResponseRequest | None:
    if request.given is None or request.given.response is None:
        return None
    previous = request.given.previous
    return ResponseRequest(
        members=request.given.response,
        previous_turn_id=None if previous is None else previous.turn_id,
        owns_conversation=target.owns_conversation,
        follows=target.follows,
        stored_input_ids=earlier,
    )


def _id_at(conversation_id: ConversationId, number: int) -> UUID:
    digest = hashlib.sha256(conversation_id.bytes + number.to_bytes(8, "big")).digest()
    return UUID(bytes=digest[:16], version=4)


def _replaced(regenerated: Turn, stored: Sequence[Turn]) -> TurnReplacement:
    """Return the range that a regenerated answer replaces: one turn, or it and all turns after it."""
    is_last = regenerated is stored[-1]
    seqs = [turn.seq or 0 for turn in stored]
    return TurnReplacement(TurnId(parse_id(regenerated.id)), None if is_last else max(seqs))
