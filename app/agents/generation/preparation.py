"""What happens before the model is called: find the new messages, build the context, open the exchange.

Hides which conversation a request continues: a named one, a new one, that of the response before it, or a fork of it.
Invariant: a conversation that was created for one request alone is deleted if the request fails before its answer.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, cast
from uuid import UUID

from pydantic import JsonValue

from app.agents.generation.align import Alignment, StoredMessage, align, stored_messages
from app.agents.generation.messages import read_chat
from app.agents.generation.partial import is_incomplete
from app.agents.generation.schemas import ConversationName, GenerationRequest, OnDisconnect
from app.context.schemas import Context, ContextRequest, Gap
from app.context.service import ContextBuilder
from app.conversations.schemas.conversations import ConversationCreate, ForkRequest, Turn, TurnInput
from app.conversations.schemas.history import HistoryQuery
from app.conversations.schemas.responses import ContinuedResponse, ResponseRequest
from app.conversations.service import Conversations, Exchange, Exchanges, Sessions, TurnReplacement, open_answer_turn
from app.core.errors import AppError, Conflict, FieldError, Invalid, NotFound
from app.core.ids import ConversationId, TurnId, parse_id
from app.formats.schemas import CanonicalTurn, JsonObject, Kind, Role
from app.governance.service import Governance
from app.providers.schemas import UpstreamRefusal
from app.providers.service import Upstream, estimated_tokens, output_tokens, require_model
from app.settings import Settings
from app.tenancy.schemas import Caller
from app.transfer.service import Forker

_EXTRA_TURNS: Final = 50
_MAX_ALIGNED_TURNS: Final = 2000
_THREAD_MESSAGES: Final = 500


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """The request to the endpoint, its context, and the exchange for the answer; None stores nothing.

    `on_disconnect`: what happens to the exchange if the client disconnects. `again` builds the context again.
    """

    conversation_id: ConversationId | None
    body: JsonObject
    context: Context
    exchange: Exchange | None
    again: Callable[[], Awaitable[Context]]
    on_disconnect: OnDisconnect = "abort"

    @property
    def gap(self) -> Gap | None:
        """Return the gap of the context."""
        return self.context.gap


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


@dataclass(frozen=True, slots=True)
class PreparationServices:
    """What the preparation of requests needs. `run_shielded` runs work to its end, also if the caller is cancelled."""

    conversations: Conversations
    exchanges: Exchanges
    sessions: Sessions
    contexts: ContextBuilder
    governance: Governance
    forker: Forker
    settings: Settings
    run_shielded: Callable[[Coroutine[object, object, None]], Awaitable[object]]
    upstream: Upstream | None


class Preparation:
    """The preparation of one request."""

    def __init__(
        self, services: PreparationServices, caller: Caller, request: GenerationRequest, body: JsonObject
    ) -> None:
        self._services = services
        self._conversations = services.conversations
        self._caller = caller
        self._request = request
        self._body = body
        self._key = request.idempotency_key
        self._messages = (
            read_chat(body.get("messages")) if request.response_input is None else request.response_input.messages
        )

    async def prepare(self, cleanup: AsyncExitStack) -> PreparedRequest:
        """Return the prepared request. `cleanup`: on an error, undoes what was created for this request alone."""
        sent = self._request.response_input
        if sent is not None and sent.response is None:
            return await self._unstored(sent.previous)
        if sent is not None and sent.previous is not None:
            return await self._continued(sent.previous, cleanup)
        return await self._opened(await self._named(cleanup))

    # the conversation

    async def _named(self, cleanup: AsyncExitStack) -> _Target:
        """Return the conversation that the request names, or a new one.

        A conversation that was created for this request alone is deleted if `cleanup` fails.
        """
        name = cast("ConversationName", self._request.conversation)
        if name.conversation_id is not None:
            await self._require_owner(name.conversation_id)
            return _Target(name.conversation_id)
        create = ConversationCreate(external_id=name.external_id, project=name.project or "default", owner=name.owner)
        is_private = name.external_id is None
        if self._key is not None and is_private:
            create = create.model_copy(update={"id": self._key.derive_id(self._caller)})
        created = await self._conversations.create(self._caller, body=create, owner_pointer=name.owner_pointer)
        conversation_id = ConversationId(parse_id(created.value.id))
        is_repeated = is_private and not created.is_new and self._request.on_disconnect == "keep"
        target = _Target(conversation_id, is_private=is_private, is_repeated=is_repeated, owns_conversation=is_private)
        if is_private:
            self._delete_on_error(target, cleanup)
        return target

    async def _continued(self, previous: ContinuedResponse, cleanup: AsyncExitStack) -> PreparedRequest:
        """Continue from a response: in its conversation if it is the last one there, else in a fork.

        A conversation that a caller has named is always forked: only requests that name it write into it.
        """
        await self._require_owner(previous.conversation_id)
        if previous.owns_conversation:
            same = _Target(previous.conversation_id, owns_conversation=True, follows=previous.position)
            try:
                return await self._opened(same)
            except Conflict as error:
                if error.code != "conversation_advanced":
                    raise
        return await self._opened(await self._fork(previous, cleanup))

    async def _fork(self, previous: ContinuedResponse, cleanup: AsyncExitStack) -> _Target:
        query = HistoryQuery("asc", after=previous.position - 1, limit=1)
        live = await self._conversations.history(self._caller, previous.conversation_id, query=query)
        if not live.data or live.data[0].position != previous.position:
            raise Conflict("already_superseded", "The answer of the previous response has been superseded.")
        fork = ForkRequest(through=parse_id(live.data[0].id))
        if self._key is not None:
            fork = fork.model_copy(update={"id": self._key.derive_id(self._caller)})
        forked = await self._services.forker.fork(
            self._caller, previous.conversation_id, body=fork, idempotency_key=None
        )
        conversation_id = ConversationId(parse_id(forked.value.id))
        target = _Target(conversation_id, is_private=True, owns_conversation=True, last_seq=forked.value.last_seq)
        self._delete_on_error(target, cleanup)
        return target

    def _delete_on_error(self, target: _Target, cleanup: AsyncExitStack) -> None:
        """Delete a private conversation if `cleanup` fails; with an idempotency key, a repeated request uses it."""

        async def delete(_kind: object, error: BaseException | None, _at: object) -> None:
            # the aborted turn of a too large answer has readable text
            if error is not None and not (isinstance(error, AppError) and error.code == "answer_too_large"):
                with suppress(AppError, asyncio.CancelledError):
                    work = self._services.governance.delete_unused(
                        self._caller, target.conversation_id, through=target.last_seq
                    )
                    await self._services.run_shielded(work)

        if self._key is None:
            cleanup.push_async_exit(delete)

    # its turns

    async def _opened(self, target: _Target) -> PreparedRequest:
        """Build the context and open the exchange of the new messages and the answer."""
        messages = self._messages
        aligned, stored = await self._align(target)
        start = messages.with_their_calls(messages.new_from(aligned.new_from), stored)
        regenerated = None if aligned.regenerate_from is None else stored[aligned.regenerate_from]
        new, earlier = messages.to_store(start), list[TurnId]()
        if target.is_private:
            new, earlier = await self._store_first(target, new)
        upcoming = messages.canonical(start + len(earlier))
        before = None if regenerated is None else regenerated.position
        context = await self._context(target.conversation_id, upcoming, before)
        exchange = await self._services.exchanges.open(
            self._caller,
            target.conversation_id,
            messages=new,
            answer=open_answer_turn(_model_of(self._body)),
            replaced=None if regenerated is None else _replaced(regenerated, stored),
            idempotency_key=self._key,
            response=self._response(target, earlier),
        )
        return PreparedRequest(
            target.conversation_id,
            _with_messages(self._body, context),
            context,
            exchange,
            again=partial(self._context, target.conversation_id, upcoming, before),
            on_disconnect=self._request.on_disconnect,
        )

    async def _context(
        self, conversation_id: ConversationId, upcoming: Sequence[CanonicalTurn], before: int | None
    ) -> Context:
        context = await self._services.contexts.build(
            self._caller, conversation_id, request=self._wanted(), upcoming=upcoming, before=before
        )
        self._require_shown(context)
        return context

    async def shortened(self, prepared: PreparedRequest, refusal: UpstreamRefusal) -> PreparedRequest:
        """Return the request with a shorter context, after a refusal from which the model's window was learnt.

        Raises the refusal if it has another reason, if the context would be no shorter, or if the caller chose its
        budget.
        """
        is_too_long = refusal.code == "model_context_exceeded" and self._request.token_budget is None
        if not is_too_long or self._budget() >= prepared.context.usage.budget:
            raise refusal
        context = await prepared.again()
        return replace(prepared, body=_with_messages(self._body, context), context=context)

    async def _unstored(self, previous: ContinuedResponse | None) -> PreparedRequest:
        """Build the context of a request of which nothing is stored, after the turns of its conversation, if any."""
        name, upcoming = self._request.conversation, self._messages.canonical(0)
        if previous is not None:
            conversation_id = previous.conversation_id
        else:
            conversation_id = None if name is None else await find_conversation(self._conversations, self._caller, name)
        if conversation_id is None:
            owner, project = (None, None) if name is None else (name.owner, name.project)
            again = partial(self._first_context, upcoming, project=project or "default", owner=owner)
        else:
            await self._require_owner(conversation_id)
            before = None if previous is None else previous.position + 1
            again = partial(self._context, conversation_id, upcoming, before)
        context = await again()
        return PreparedRequest(None, _with_messages(self._body, context), context, None, again=again)

    async def _first_context(self, upcoming: Sequence[CanonicalTurn], *, project: str, owner: str | None) -> Context:
        return await self._services.contexts.first(
            self._caller, request=self._wanted(), upcoming=upcoming, project=project, owner=owner
        )

    async def _require_owner(self, conversation_id: ConversationId) -> None:
        """Raise Conflict `conversation_owned` if the request names another owner than that of the conversation."""
        if (name := self._request.conversation) is not None:
            await self._services.sessions.require_owner(
                self._caller, conversation_id, owner=name.owner, pointer=name.owner_pointer
            )

    async def _store_first(self, target: _Target, new: Sequence[TurnInput]) -> tuple[Sequence[TurnInput], list[TurnId]]:
        """Store those messages of a private conversation that do not fit into one exchange. Return the rest.

        Their ids follow from their places, so that a repeated request stores them once.
        """
        at_once = self._services.settings.limits.max_turns_per_append
        newest = max((at for at, turn in enumerate(new) if turn.role is not Role.TOOL), default=-1)
        ids: list[TurnId] = []
        while len(new) >= at_once:
            batch = [
                turn.model_copy(update={"id": _id_at(target.conversation_id, len(ids) + number)})
                for number, turn in enumerate(new[: at_once - 1])
            ]
            batch_ids = [TurnId(cast("UUID", turn.id)) for turn in batch]
            # as in an exchange, only the results at the end of a request need their calls
            of_history = batch_ids[: max(0, newest + 1 - len(ids))]
            stored = await self._conversations.append(
                self._caller, target.conversation_id, turns=batch, of_history=of_history
            )
            target.last_seq = stored.value.seq
            ids += batch_ids
            new = new[len(batch) :]
        return new, ids

    async def _align(self, target: _Target) -> tuple[Alignment, list[Turn]]:
        is_all_new = self._request.response_input is not None and self._request.response_input.is_all_new
        if is_all_new or (target.is_private and not target.is_repeated):
            return Alignment(0), []
        sent = [message for _, message in self._messages.compared]
        query = HistoryQuery(limit=min(len(sent) + _EXTRA_TURNS, _MAX_ALIGNED_TURNS))
        page = await self._conversations.history(self._caller, target.conversation_id, query=query)
        turns = [turn for turn in page.data if turn.kind is not Kind.COMPACTION]
        erased = [turn.erased_at is not None for turn in turns]
        stored = stored_messages(turns, erased, by_item=self._messages.by_item)
        is_retry = self._request.is_retry or target.is_repeated
        work = partial(_aligned, sent, stored, turns, is_retry=is_retry, has_earlier=page.has_more)
        return (await asyncio.to_thread(work) if len(sent) > _THREAD_MESSAGES else work()), turns

    def _wanted(self) -> ContextRequest:
        sent = self._request.response_input
        wanted = self._request.context.request(
            token_budget=self._budget(),
            system=self._messages.system,
            messages_pointer="/messages" if sent is None else "/input",
        )
        if sent is not None and not sent.truncates:
            return wanted.model_copy(update={"shorten": False})
        return wanted

    def _budget(self) -> int:
        """Return the requested budget, else the model's context window minus the longest answer and the tools."""
        if self._request.token_budget is not None:
            return self._request.token_budget
        body = self._body
        window = require_model(self._services.upstream).window(self._caller.tenant_id, _model_of(body))
        default = output_tokens(window, max_tokens=self._services.settings.chat.llm_max_output_tokens)
        limits = (body.get("max_completion_tokens"), body.get("max_tokens"), default)
        answer = next(limit for limit in limits if isinstance(limit, int) and limit > 0)
        shown = [body[name] for name in ("tools", "functions", "response_format") if body.get(name)]
        described = estimated_tokens(json.dumps(shown, ensure_ascii=False)) if shown else 0
        return max(1, window - answer - described)

    def _require_shown(self, context: Context) -> None:
        """Raise Invalid if turns are left out, and the request does not allow it."""
        sent = self._request.response_input
        if sent is not None and not sent.truncates and context.gap is not None:
            fields = [FieldError("/truncation", "with `auto` older turns are left out")]
            detail = f"The conversation does not fit into the token budget: {context.gap.turns} turns are left out."
            raise Invalid("budget_too_small", detail, fields=fields)

    def _response(self, target: _Target, earlier: Sequence[TurnId]) -> ResponseRequest | None:
        sent = self._request.response_input
        if sent is None or sent.response is None:
            return None
        return ResponseRequest(
            members=sent.response,
            previous_turn_id=None if sent.previous is None else sent.previous.turn_id,
            owns_conversation=target.owns_conversation,
            follows=target.follows,
            stored_input_ids=earlier,
        )


async def find_conversation(
    conversations: Conversations, caller: Caller, name: ConversationName
) -> ConversationId | None:
    """Return the conversation that a request names; None if it does not exist yet."""
    if name.conversation_id is not None or name.external_id is None:
        return name.conversation_id
    with suppress(NotFound):
        return await conversations.id_of(caller, project=name.project or "default", external_id=name.external_id)
    return None


def _aligned(
    sent: Sequence[JsonObject],
    stored: Sequence[StoredMessage],
    turns: Sequence[Turn],
    *,
    is_retry: bool,
    has_earlier: bool,
) -> Alignment:
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


def _model_of(body: JsonObject) -> str | None:
    model = body.get("model")
    return model if isinstance(model, str) else None


def _with_messages(body: JsonObject, context: Context) -> JsonObject:
    return {**body, "messages": cast("JsonValue", context.messages)}


def _id_at(conversation_id: ConversationId, number: int) -> UUID:
    digest = hashlib.sha256(conversation_id.bytes + number.to_bytes(8, "big")).digest()
    return UUID(bytes=digest[:16], version=4)


def _replaced(regenerated: Turn, stored: Sequence[Turn]) -> TurnReplacement:
    """Return the range that a regenerated answer replaces: one turn, or it and all turns after it."""
    is_last = regenerated is stored[-1]
    seqs = [turn.seq or 0 for turn in stored]
    return TurnReplacement(TurnId(parse_id(regenerated.id)), None if is_last else max(seqs))
