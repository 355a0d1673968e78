"""Public API of responses: create, read, follow, cancel and delete them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from app.agents.generation.answer import PartialAnswer, answer_turn
from app.agents.generation.known_items import unstored_items
from app.agents.generation.messages import RequestMessages, read_items, require_number
from app.agents.generation.openai_conversations import item_page
from app.agents.generation.openai_items import item_place, items
from app.agents.generation.preparation import find_conversation
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
    response_turn,
    response_view,
    state_of,
)
from app.agents.generation.schemas import (
    CONVERSATION_PREFIX,
    ContextOptions,
    ConversationName,
    GenerationRequest,
    Items,
    ResponseInput,
)
from app.agents.generation.service import AnswerStream, Generation
from app.conversations.live.service import ConversationSubscriptions, StartPosition
from app.conversations.schemas.conversations import Turn, TurnInput
from app.conversations.schemas.responses import ContinuedResponse, StoredResponse
from app.conversations.service import Conversations, ResponseService
from app.core.errors import AppError, Conflict, FieldError, InvalidFields, NotFound
from app.core.ids import ConversationId, TurnId, format_id, new_uuid, parse_id
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

    def head(
        self,
        model: str | None,
        *,
        turn_id: str | None = None,
        created_at: datetime | None = None,
        conversation_id: ConversationId | None = None,
    ) -> ResponseHead:
        """Return the head of the response; without a turn, that of one of which nothing is stored."""
        return ResponseHead(
            turn_id=turn_id or format_id(new_uuid()),
            created_at=created_at or datetime.now(UTC),
            repeated=self.repeated,
            model=model or "",
            previous_turn_id=None if self.previous is None else self.previous.turn_id,
            conversation_id=conversation_id,
        )

    def stored_head(self, answer: Turn) -> ResponseHead:
        """Return the head of the response whose answer is stored."""
        conversation_id = ConversationId(parse_id(answer.conversation_id))
        return self.head(answer.model, turn_id=answer.id, created_at=answer.created_at, conversation_id=conversation_id)


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
        if done.turns:
            answer = done.turns[-1]
            view = response_view(plan.stored_head(answer), state_of(answer))
            return CreatedResponse(view, done.conversation_id, done.is_replay)
        completed = PartialAnswer.of(done.completion)
        said = answer_turn(completed, plan.request.body)
        head = plan.head(said.model)
        return CreatedResponse(response_view(head, _unstored_state(completed, said, head)), None, is_replay=False)

    @asynccontextmanager
    async def streaming(
        self, caller: Caller, body: CreateResponse, options: ResponseOptions
    ) -> AsyncGenerator["ResponseStream"]:
        """Answer in events. An answer that is incomplete at the end of the block is aborted or kept.

        Raises as `create`.
        """
        before = await self._find_replay(caller, options)
        if before is not None:
            yield ResponseStream(before.conversation_id, _ended(head_of(before), before.answer), is_replay=True)
            return
        plan = await self._plan(caller, body, options)
        async with self._generation.streaming(caller, plan.request) as stream:
            result = stream.result
            if isinstance(stream, AnswerStream):
                events = _generated(plan, stream)
            else:  # another request with the same idempotency key has stored it meanwhile
                events = _ended(plan.stored_head(result.turns[-1]), result.turns[-1])
            yield ResponseStream(result.conversation_id, events, is_replay=result.is_replay)

    async def get(self, caller: Caller, response_id: str) -> JsonObject:
        """Return a stored response."""
        stored = await self._responses.get(caller, response_turn(response_id))
        return response_view(head_of(stored), state_of(stored.answer))

    async def follow(self, caller: Caller, response_id: str, *, starting_after: int | None) -> FollowedResponse:
        """Return the events of a response after a number: those so far, and those to come if it is in progress."""
        stored = await self._responses.get(caller, response_turn(response_id))
        subscription = None
        if stored.answer.status == "pending":
            since = StartPosition(after_rev=stored.answer.rev)
            subscription = await self._subscriptions.subscribe(caller, stored.conversation_id, since=since)
        return FollowedResponse(self._responses, caller, stored, subscription, after=starting_after)

    async def cancel(self, caller: Caller, response_id: str) -> JsonObject:
        """Abort a response that is in progress, with its text so far, and return it; a cancelled one is returned.

        Raises Conflict `response_ended` for any other.
        """
        turn_id = response_turn(response_id)
        stored = await self._responses.get(caller, turn_id)
        if stored.answer.status == "pending":
            await self._generation.cancel(caller, stored.conversation_id, [*stored.input_turn_ids, turn_id])
            stored = await self._responses.get(caller, turn_id)
        state = state_of(stored.answer)
        if state.status != "cancelled":
            raise Conflict("response_ended", "The response has ended, so it cannot be cancelled.")
        return response_view(head_of(stored), state)

    async def delete(self, caller: Caller, response_id: str) -> str:
        """Delete a response (`Governance.delete_response`), and return its id."""
        turn_id = response_turn(response_id)
        await self._governance.delete_response(caller, turn_id)
        return f"{RESPONSE_PREFIX}{format_id(turn_id)}"

    async def input_items(
        self, caller: Caller, response_id: str, *, after: str | None, order: Order, limit: int
    ) -> Items:
        """Return a page of the items that were stored with the answer, and come before it."""
        stored = await self._responses.get(caller, response_turn(response_id))
        ids: Sequence[TurnId] = stored.input_turn_ids if order == "asc" else stored.input_turn_ids[::-1]
        page: list[JsonObject] = []
        if after is not None:
            place = item_place(after)
            if place.turn_id not in ids:
                raise NotFound("not_found", "There is no such item in the input of this response.")
            ids = ids[ids.index(place.turn_id) :]
        while ids and len(page) <= limit:
            turns = await self._responses.turns(caller, stored, ids[: limit + 1])
            if not turns:
                break
            for turn in turns:
                page += items(turn) if order == "asc" else items(turn)[::-1]
            if after is not None:
                item_ids = [item["id"] for item in page]
                page = page[item_ids.index(after) + 1 :] if after in item_ids else page
                after = None
            ids = ids[ids.index(TurnId(parse_id(turns[-1].id))) + 1 :]
        return item_page(page[:limit], has_more=len(page) > limit)

    # the request

    async def _find_replay(self, caller: Caller, options: ResponseOptions) -> StoredResponse | None:
        """Return the stored response of the same request, by its idempotency key: before anything else is looked at."""
        caller.require(Scope.WRITE)
        caller.require(Scope.READ)  # the answer may contain what is stored
        result = await self._conversations.find_result(caller, idempotency_key=options.idempotency_key)
        if result is None:
            return None
        return await self._responses.get(caller, TurnId(parse_id(result.value.turns[-1].id)))

    async def _plan(self, caller: Caller, body: CreateResponse, options: ResponseOptions) -> _Plan:
        """Read a request. Raises Forbidden, Invalid, NotFound."""
        name = conversation_name(body)
        chat = chat_body(body, limit_name=self._generation.limit_name)
        sent = input_items(body)
        require_number(len(sent), "/input")
        previous: ContinuedResponse | None = None
        if body.previous_response_id is not None:
            previous = await self._previous(caller, body.previous_response_id)
        is_stored = body.store is not False
        if options.idempotency_key is not None and not is_stored:
            fields = [FieldError("/Idempotency-Key", "not with `store: false`: there is no answer to repeat", "header")]
            raise InvalidFields(fields)
        aligns = name is None and previous is None and options.name is not None
        conversation = _conversation(name, options, owner=body.user, aligns=aligns)
        if previous is None:
            within, through = await find_conversation(self._conversations, caller, conversation), None
        else:
            within, through = previous.conversation_id, previous.position
        if within is not None and not aligns:
            sent = await unstored_items(self._conversations, self._responses, caller, sent, within, through=through)
        messages = await self._messages(caller, sent, within, keeps_system=not aligns)
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
            response_input=ResponseInput(
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

    async def _messages(
        self,
        caller: Caller,
        sent: Sequence[tuple[str, JsonObject]],
        within: ConversationId | None,
        *,
        keeps_system: bool,
    ) -> RequestMessages:
        """Return the messages of the input; references are replaced by the items that they name.

        A reference to an item of the conversation itself is left out: the model is shown the conversation.
        """
        references = [at for at, item in sent if is_reference(item)]
        if not references:
            return read_items(sent, keeps_system=keeps_system)
        if len(references) > _MAX_REFERENCES:
            fields = [FieldError(references[_MAX_REFERENCES], f"more than {_MAX_REFERENCES} references")]
            raise InvalidFields(fields)
        places = {at: item_place(str(item.get("id"))) for at, item in sent if is_reference(item)}
        turns = await self._responses.referenced(caller, [place.turn_id for place in places.values()])
        named: list[tuple[str, JsonObject]] = []
        for at, item in sent:
            place = places.get(at)
            if place is None:
                named.append((at, item))
                continue
            turn = turns.get(place.turn_id)
            turn_items = [] if turn is None else items(turn)
            if turn is None or place.number >= len(turn_items):
                fields = [FieldError(f"{at}/id", "no stored item has this id")]
                raise NotFound("not_found", "There is no such item.", fields=fields)
            if within is None or parse_id(turn.conversation_id) != within:
                named.append(
                    (f"{at}/id", {name: value for name, value in turn_items[place.number].items() if name != "id"})
                )
        return read_items(named, keeps_system=keeps_system)


@dataclass(frozen=True, slots=True)
class ResponseStream:
    """A streamed response. The last event comes after the commit; a failure is an event too."""

    conversation_id: ConversationId | None
    events: AsyncGenerator[JsonObject]
    is_replay: bool


async def _generated(plan: _Plan, stream: AnswerStream) -> AsyncGenerator[JsonObject]:
    """Yield the events of an answer while it is generated."""
    turn_id = None if stream.answer_id is None else format_id(stream.answer_id)
    conversation_id = stream.result.conversation_id
    head = plan.head(stream.model, turn_id=turn_id, created_at=stream.created_at, conversation_id=conversation_id)
    events = ResponseEvents(head)
    for event in events.begin():
        yield event
    try:
        async for added in stream.events():
            for event in events.add(added.deltas):
                yield event
    except AppError as error:
        await stream.fail(error)
        for event in events.end(failed_state(error, events.output())):
            yield event
        return
    turns = stream.result.turns
    said = turns[-1] if turns else stream.said()
    state = state_of(said) if isinstance(said, Turn) else _unstored_state(stream.answer, said, head)
    for event in events.end(state, model=said.model):
        yield event


async def _ended(head: ResponseHead, answer: Turn) -> AsyncGenerator[JsonObject]:
    for event in stored_events(head, answer):
        yield event


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


def _unstored_state(answer: PartialAnswer, said: TurnInput, head: ResponseHead) -> ResponseState:
    return ended_state(said, head.turn_id, finish_reason=answer.finish_reason, completed_at=datetime.now(UTC))
