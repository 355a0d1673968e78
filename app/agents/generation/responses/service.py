"""Public API of responses: create, read, follow, cancel and delete them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from app.agents.generation.answer import PartialAnswer, answer_turn
from app.agents.generation.known_items import unstored_items
from app.agents.generation.messages import RequestMessages, read_items, require_number
from app.agents.generation.openai_conversations import Items, item_page
from app.agents.generation.openai_items import CONVERSATION_PREFIX, item_place, items
from app.agents.generation.responses.events import ResponseEvents, stored_events
from app.agents.generation.responses.following import FollowedResponse
from app.agents.generation.responses.request import (
    allowed_tools,
    chat_body,
    conversation_name,
    input_items,
    is_reference,
    repeated_members,
)
from app.agents.generation.responses.schemas import CreateResponse
from app.agents.generation.responses.view import (
    RESPONSE_PREFIX,
    ResponseHead,
    ResponseState,
    ended_state,
    failed_state,
    head_of,
    new_head,
    response_turn,
    response_view,
    state_of,
)
from app.agents.generation.schemas import ContextOptions, ConversationName, GenerationRequest, GivenMessages
from app.agents.generation.service import AnswerStream, Generation, GenerationResult, StoredAnswer
from app.conversations.live.service import ConversationSubscriptions, StartPosition
from app.conversations.schemas.conversations import Turn, TurnInput
from app.conversations.schemas.responses import ContinuedResponse, StoredResponse
from app.conversations.service import Conversations, ResponseService
from app.core.errors import AppError, Conflict, FieldError, InvalidFields, NotFound
from app.core.ids import ConversationId, TurnId, format_id, parse_id
from app.core.paging import Order
from app.formats.schemas import JsonObject
from app.governance.service import Governance
from app.tenancy.schemas import Caller, IdempotencyKey, Scope

_MAX_REFERENCES: Final = 500


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """What a request says besides its body.

    `name`: the conversation of a client that sends its whole history, as for chat completions.
    """

    name: ConversationName | None
    project: str | None
    is_retry: bool
    idempotency_key: IdempotencyKey | None


@dataclass(frozen=True, slots=True)
class CreatedResponse:
    """A response, and the conversation of its turns; None if nothing is stored."""

    response: JsonObject
    conversation_id: ConversationId | None
    is_replay: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """A request to the chat model, and what its response repeats."""

    request: GenerationRequest
    repeated: JsonObject
    previous: ContinuedResponse | None

    def head(self, answer: Turn, conversation_id: ConversationId) -> ResponseHead:
        """Return the head of the response whose answer is stored."""
        return ResponseHead(
            turn_id=answer.id,
            created_at=answer.created_at,
            repeated=self.repeated,
            model=answer.model or "",
            previous_turn_id=None if self.previous is None else self.previous.turn_id,
            conversation_id=conversation_id,
        )

    def growing_head(self, stream: AnswerStream) -> ResponseHead:
        """Return the head of a response whose answer is being generated."""
        previous = None if self.previous is None else self.previous.turn_id
        if stream.answer_id is None or stream.created_at is None:
            return new_head(self.repeated, model=stream.model, previous_turn_id=previous)
        return ResponseHead(
            turn_id=format_id(stream.answer_id),
            created_at=stream.created_at,
            repeated=self.repeated,
            model=stream.model,
            previous_turn_id=previous,
            conversation_id=stream.conversation_id,
        )


class Responses:
    """Responses in OpenAI's format."""

    def __init__(
        self,
        *,
        generation: Generation,
        conversations: Conversations,
        responses: ResponseService,
        governance: Governance,
        subscriptions: ConversationSubscriptions,
    ) -> None:
        self._generation = generation
        self._conversations = conversations
        self._responses = responses
        self._governance = governance
        self._subscriptions = subscriptions

    async def create(self, caller: Caller, body: CreateResponse, options: ResponseOptions) -> CreatedResponse:
        """Answer in one response. Raises as `Generation.complete`, and NotFound for an unknown previous response."""
        before = await self._find_replay(caller, options)
        if before is not None:
            view = response_view(head_of(before), state_of(before.answer))
            return CreatedResponse(view, before.conversation_id, is_replay=True)
        plan = await self._plan(caller, body, options)
        done = await self._generation.complete(caller, plan.request)
        if done.turns and done.conversation_id is not None:
            answer = done.turns[-1]
            view = response_view(plan.head(answer, done.conversation_id), state_of(answer))
            return CreatedResponse(view, done.conversation_id, done.is_replay)
        return CreatedResponse(_unstored(plan, done), None, is_replay=False)

    @asynccontextmanager
    async def streaming(
        self, caller: Caller, body: CreateResponse, options: ResponseOptions
    ) -> AsyncGenerator["ResponseStream"]:
        """Answer in events. An answer that is incomplete at the end of the block is aborted or kept.

        Raises as `create`.
        """
        before = await self._find_replay(caller, options)
        if before is not None:
            yield ResponseStream(before.conversation_id, _stored(before), is_replay=True)
            return
        plan = await self._plan(caller, body, options)
        async with self._generation.streaming(caller, plan.request) as stream:
            events = _generated(plan, stream) if isinstance(stream, AnswerStream) else _repeated(plan, stream)
            yield ResponseStream(stream.conversation_id, events, is_replay=stream.is_replay)

    async def get(self, caller: Caller, response_id: str) -> JsonObject:
        """Return a stored response."""
        found = await self._responses.get(caller, response_turn(response_id))
        return response_view(head_of(found), state_of(found.answer))

    async def follow(self, caller: Caller, response_id: str, *, starting_after: int | None) -> FollowedResponse:
        """Return the events of a response after a number: those so far, and those to come if it is in progress."""
        found = await self._responses.get(caller, response_turn(response_id))
        subscription = None
        if found.answer.status == "pending":
            since = StartPosition(after_rev=found.answer.rev)
            subscription = await self._subscriptions.subscribe(caller, found.conversation_id, since=since)
        return FollowedResponse(self._responses, caller, found, subscription, after=starting_after)

    async def cancel(self, caller: Caller, response_id: str) -> JsonObject:
        """Abort a response that is in progress, with its text so far, and return it; a cancelled one is returned.

        Raises Conflict `response_ended` for any other.
        """
        turn_id = response_turn(response_id)
        found = await self._responses.get(caller, turn_id)
        if found.answer.status == "pending":
            await self._generation.cancel(caller, found.conversation_id, [*found.input_turn_ids, turn_id])
            found = await self._responses.get(caller, turn_id)
        state = state_of(found.answer)
        if state.status != "cancelled":
            raise Conflict("response_ended", "The response has ended, so it cannot be cancelled.")
        return response_view(head_of(found), state)

    async def delete(self, caller: Caller, response_id: str) -> str:
        """Delete a response (`Governance.delete_response`), and return its id."""
        turn_id = response_turn(response_id)
        await self._governance.delete_response(caller, turn_id)
        return f"{RESPONSE_PREFIX}{format_id(turn_id)}"

    async def input_items(
        self, caller: Caller, response_id: str, *, after: str | None, order: Order, limit: int
    ) -> Items:
        """Return a page of the items that were stored with the answer, and come before it."""
        found = await self._responses.get(caller, response_turn(response_id))
        ids: Sequence[TurnId] = found.input_turn_ids if order == "asc" else found.input_turn_ids[::-1]
        page: list[JsonObject] = []
        if after is not None:
            place = item_place(after)
            if place.turn_id not in ids:
                raise NotFound("not_found", "There is no such item in the input of this response.")
            ids = ids[ids.index(place.turn_id) :]
        while ids and len(page) <= limit:
            turns = await self._responses.turns(caller, found, ids[: limit + 1])
            if not turns:
                break
            for turn in turns:
                page += items(turn) if order == "asc" else items(turn)[::-1]
            if after is not None:
                known = [item["id"] for item in page]
                page = page[known.index(after) + 1 :] if after in known else page
                after = None
            ids = ids[ids.index(TurnId(parse_id(turns[-1].id))) + 1 :]
        return item_page(page[:limit], has_more=len(page) > limit)

    # the request

    async def _find_replay(self, caller: Caller, options: ResponseOptions) -> StoredResponse | None:
        """Return the stored response of the same request, by its idempotency key: before anything else is looked at."""
        _require_scopes(caller)
        found = await self._conversations.find_result(caller, idempotency_key=options.idempotency_key)
        if found is None:
            return None
        return await self._responses.get(caller, TurnId(parse_id(found.value.turns[-1].id)))

    async def _plan(self, caller: Caller, body: CreateResponse, options: ResponseOptions) -> _Plan:
        """Read a request. Raises Forbidden, Invalid, NotFound."""
        name = conversation_name(body)
        chat = chat_body(body, limit_name=self._generation.limit_name)
        given = input_items(body)
        require_number(len(given), "/input")
        previous: ContinuedResponse | None = None
        if body.previous_response_id is not None:
            previous = await self._previous(caller, body.previous_response_id)
        is_stored = body.store is not False
        if options.idempotency_key is not None and not is_stored:
            fields = [FieldError("/Idempotency-Key", "not with `store: false`: there is no answer to repeat", "header")]
            raise InvalidFields(fields)
        aligns = name is None and previous is None and options.name is not None
        conversation = _conversation(name, options, owner=body.user, aligns=aligns)
        within = await self._within(caller, conversation) if previous is None else previous.conversation_id
        if within is not None and not aligns:
            through = None if previous is None else previous.position
            given = await unstored_items(self._conversations, self._responses, caller, given, within, through=through)
        messages = await self._messages(caller, given, within, keeps_system=not aligns)
        repeated = repeated_members(body)
        request = GenerationRequest(
            body=chat,
            conversation=conversation,
            context=body.context or ContextOptions(),
            token_budget=body.token_budget,
            is_retry=options.is_retry,
            idempotency_key=options.idempotency_key,
            on_disconnect=body.on_disconnect or "abort",
            allowed_tools=allowed_tools(body),
            given=GivenMessages(
                messages=messages.with_system(body.instructions),
                is_all_new=not aligns,
                previous=previous,
                response=repeated if is_stored else None,
                truncates=body.truncation != "disabled",
            ),
        )
        return _Plan(request, repeated, previous)

    async def _previous(self, caller: Caller, response_id: str) -> ContinuedResponse:
        try:
            return await self._responses.continued(caller, response_turn(response_id))
        except NotFound:
            fields = [FieldError("/previous_response_id", "no stored response has this id")]
            raise NotFound("not_found", "There is no such response.", fields=fields) from None

    async def _within(self, caller: Caller, name: ConversationName) -> ConversationId | None:
        """Return the conversation that a request names; None if it does not exist yet."""
        if name.conversation_id is not None or name.external_id is None:
            return name.conversation_id
        with suppress(NotFound):
            return await self._conversations.id_of(
                caller, project=name.project or "default", external_id=name.external_id
            )
        return None

    async def _messages(
        self, caller: Caller, given: Sequence[tuple[str, JsonObject]], within: ConversationId | None, *,
        keeps_system: bool,
    ) -> RequestMessages:  # fmt: skip
        """Return the messages of the input; references are replaced by the items that they name.

        A reference to an item of the conversation itself is left out: the model is shown the conversation.
        """
        references = [at for at, item in given if is_reference(item)]
        if not references:
            return read_items(given, keeps_system=keeps_system)
        if len(references) > _MAX_REFERENCES:
            fields = [FieldError(references[_MAX_REFERENCES], f"more than {_MAX_REFERENCES} references")]
            raise InvalidFields(fields)
        places = {at: item_place(str(item.get("id"))) for at, item in given if is_reference(item)}
        turns = await self._responses.referenced(caller, [place.turn_id for place in places.values()])
        named: list[tuple[str, JsonObject]] = []
        for at, item in given:
            place = places.get(at)
            if place is None:
                named.append((at, item))
                continue
            turn = turns.get(place.turn_id)
            found = [] if turn is None else items(turn)
            if turn is None or place.number >= len(found):
                fields = [FieldError(f"{at}/id", "no stored item has this id")]
                raise NotFound("not_found", "There is no such item.", fields=fields)
            if within is None or parse_id(turn.conversation_id) != within:
                named.append((at, {name: value for name, value in found[place.number].items() if name != "id"}))
        return read_items(named, keeps_system=keeps_system)


@dataclass(frozen=True, slots=True)
class ResponseStream:
    """A streamed response. The last event comes after the commit; a failure is an event too."""

    conversation_id: ConversationId | None
    events: AsyncGenerator[JsonObject]
    is_replay: bool


async def _generated(plan: _Plan, stream: AnswerStream) -> AsyncGenerator[JsonObject]:
    """Yield the events of an answer while it is generated."""
    head = plan.growing_head(stream)
    events = ResponseEvents(head)
    for event in events.begin():
        yield event
    try:
        async for added in stream.events():
            for event in events.add(added.deltas):
                yield event
    except AppError as error:
        await stream.fail(error)
        for event in events.fail(failed_state(error, events.output())):
            yield event
        return
    said = stream.turns[-1] if stream.turns else stream.said()
    state = state_of(said) if isinstance(said, Turn) else _unstored_state(stream.answer, said, head.turn_id)
    for event in events.end(state, model=said.model or ""):
        yield event


async def _stored(found: StoredResponse) -> AsyncGenerator[JsonObject]:
    for event in stored_events(head_of(found), found.answer):
        yield event


async def _repeated(plan: _Plan, stream: StoredAnswer) -> AsyncGenerator[JsonObject]:
    """Yield the events of an answer that another request with the same idempotency key has stored meanwhile."""
    answer = stream.turns[-1]
    for event in stored_events(plan.head(answer, ConversationId(parse_id(answer.conversation_id))), answer):
        yield event


def _require_scopes(caller: Caller) -> None:
    caller.require(Scope.WRITE)
    caller.require(Scope.READ)  # the answer may contain what is stored


def _conversation(name: str | None, options: ResponseOptions, *, owner: str | None, aligns: bool) -> ConversationName:
    """Return the conversation of a request: as its body names it, or else its header."""
    if aligns and options.name is not None:
        return replace(options.name, owner=owner)
    if name is None:
        return ConversationName(project=options.project, owner=owner, owner_pointer="/user")
    try:
        conversation_id = ConversationId(parse_id(name.removeprefix(CONVERSATION_PREFIX)))
    except ValueError:
        fields = [FieldError("/conversation", "no conversation has this id")]
        raise NotFound("not_found", "There is no such conversation.", fields=fields) from None
    return ConversationName(conversation_id=conversation_id, owner=owner, owner_pointer="/user")


def _unstored(plan: _Plan, done: GenerationResult) -> JsonObject:
    """Return a response of which nothing is stored."""
    answer = PartialAnswer.of(done.completion)
    said = answer_turn(answer, plan.request.body)
    head = new_head(
        plan.repeated, model=said.model or "", previous_turn_id=None if plan.previous is None else plan.previous.turn_id
    )
    return response_view(head, _unstored_state(answer, said, head.turn_id))


def _unstored_state(answer: PartialAnswer, said: TurnInput, turn_id: str) -> ResponseState:
    return ended_state(said, turn_id, finish_reason=answer.finish_reason, completed_at=datetime.now(UTC))
