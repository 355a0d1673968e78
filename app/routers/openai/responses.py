"""OpenAI's Responses over REST, as used by the official client's `client.responses`."""

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Annotated, Final, TypeAlias

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response

from app.agents.generation.openai_conversations import Items
from app.agents.generation.responses.schemas import (
    REPEATED_EXTRAS,
    CreateResponse,
    DeletedResponse,
    OpenAIResponse,
)
from app.agents.generation.responses.service import FollowedResponse, ResponseOptions
from app.core.errors import AppError, FieldError, InvalidFields
from app.core.paging import Order
from app.formats.schemas import JsonObject
from app.providers.upstream import DONE
from app.routers.http.dependencies import AgentWriter, Reader, Services, Writer
from app.routers.http.idempotency import IdempotencyHeader, mark_replay
from app.routers.http.problems import OPENAI_ROOT, openai_error_of, openai_status_of, problem_responses
from app.routers.http.routing.strict_route import OpenAIRoute
from app.routers.live.server_state import server_state
from app.routers.live.sse import EventStream, event_content, kept_alive
from app.routers.openai.chat_completions import (
    NameHeader,
    ProjectHeader,
    RetryHeader,
    is_repeated,
    json_response,
    name_conversation,
    named_conversation,
    refuse_misspelt_header,
    while_connected,
)
from app.routers.openai.conversations import After, Include, Limit

_STORED: Final = frozenset({*CreateResponse.model_fields, *REPEATED_EXTRAS})


class ResponseRoute(OpenAIRoute):
    """A route whose body goes to the model, except what is stored. Its `input` is checked when it is read."""

    produced_members = frozenset({"input"})

    def passes(self, member: str) -> bool:
        """Return whether the member is only passed on."""
        return member not in _STORED


router = APIRouter(prefix=f"{OPENAI_ROOT}/responses", tags=["openai"], route_class=ResponseRoute)

_DATA: Final = {
    "description": "The `data` of one event, as JSON: `response.created`, `response.in_progress`, then the events of"
    " the output items, then `response.completed`, `response.incomplete` or `response.failed`. `event` is its `type`."
    " `[DONE]`, which is no JSON, is the last one.",
    "properties": {"type": {"type": "string"}, "sequence_number": {"type": "integer"}},
    "required": ["type", "sequence_number"],
}
_ABSENT_CALLS: Final = ("compact", "input_tokens")
"""Calls of OpenAI that do not exist here. Without them their paths would be those of responses with such ids."""
_METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_READING: Final = (400, 401, 403, 404, 429, 503)
_WRITING: Final = (*_READING, 408, 409, 413, 415)
_EVENTS: Final = {200: {"model": OpenAIResponse, "content": event_content(_DATA)}}

ResponseId: TypeAlias = Annotated[str, Path(max_length=64, description="`resp_` and the id of the answer's turn.")]


async def _no_such_call(_request: Request) -> Response:
    raise HTTPException(404)


for _name in _ABSENT_CALLS:
    router.add_route(f"{router.prefix}/{_name}", _no_such_call, methods=_METHODS, include_in_schema=False)


@router.post("", response_model=OpenAIResponse, responses=_EVENTS | problem_responses(*_WRITING, 422, 500, 502))
async def create_response(
    body: CreateResponse,
    caller: AgentWriter,
    services: Services,
    request: Request,
    idempotency_key: IdempotencyHeader,
    conversation: NameHeader = None,
    project: ProjectHeader = None,
    retry_count: RetryHeader = None,
) -> Response:
    """Create a response in OpenAI's format, with `stream` as events.

    Input and output are stored as turns of `conversation`, of the conversation of `previous_response_id`, or of a new
    one; with `store: false` nothing is stored. The model is sent a context built from the conversation within
    `token_budget`. A client that sends its whole history names the conversation in `X-Conversation-Id`; then only new
    messages are stored, as for chat completions.
    """
    refuse_misspelt_header(request)
    options = ResponseOptions(
        name=None if conversation is None else named_conversation(conversation, project, owner=None),
        project=project,
        is_retry=is_repeated(retry_count),
        idempotency_key=None if idempotency_key is None else idempotency_key.for_agent(caller.agent),
    )
    if not body.stream:
        created = await while_connected(request, services.responses.create(caller, body, options))
        response = json_response(created.response)
        mark_replay(response, is_replay=created.is_replay)
        name_conversation(response, created.conversation_id)
        return response
    stack = AsyncExitStack()
    answer = await while_connected(
        request, stack.enter_async_context(services.responses.streaming(caller, body, options))
    )
    stream = _stream(services, answer.events, stack)
    name_conversation(stream, answer.conversation_id)
    mark_replay(stream, is_replay=answer.is_replay)
    return stream


@router.get("/{response_id}", response_model=OpenAIResponse, responses=_EVENTS | problem_responses(*_READING))
async def get_response(
    response_id: ResponseId,
    caller: Reader,
    services: Services,
    request: Request,
    stream: Annotated[bool | None, Query(description="Whether the events of the response are sent.")] = None,
    starting_after: Annotated[
        int | None, Query(ge=0, le=2**53 - 1, description="Only events after this number; with `stream`.")
    ] = None,
    include: Include = None,
) -> Response:
    """Read one response. With `stream` its events so far are sent, and those to come while it is in progress."""
    del include
    if not stream:
        if starting_after is not None:
            problem = FieldError("/starting_after", "only with `stream`", "query")
            raise InvalidFields([problem])
        return json_response(await services.responses.get(caller, response_id))
    connections = server_state(request.app).connections
    async with AsyncExitStack() as opening:
        opening.enter_context(connections.entered("events", caller))
        followed = await services.responses.follow(caller, response_id, starting_after=starting_after)
        opening.callback(followed.close)
        stack = opening.pop_all()
    return _stream(services, _followed(followed), stack)


@router.delete("/{response_id}", responses=problem_responses(*_READING))
async def delete_response(response_id: ResponseId, caller: Writer, services: Services) -> DeletedResponse:
    """Delete a response; in a conversation that was created for responses, its input and output are erased too."""
    deleted = await services.responses.delete(caller, response_id)
    return DeletedResponse(id=deleted, object="response", deleted=True)


@router.post("/{response_id}/cancel", response_model=OpenAIResponse, responses=problem_responses(*_READING, 409))
async def cancel_response(response_id: ResponseId, caller: Writer, services: Services) -> Response:
    """Abort a response that is in progress; its text so far is kept in an aborted turn."""
    return json_response(await services.responses.cancel(caller, response_id))


@router.get("/{response_id}/input_items", responses=problem_responses(*_READING))
async def list_response_input_items(
    response_id: ResponseId,
    caller: Reader,
    services: Services,
    after: After = None,
    order: Order = "desc",
    limit: Limit = 20,
    include: Include = None,
) -> Items:
    """List the items that were stored as the input of a response."""
    del include
    return await services.responses.input_items(caller, response_id, after=after, order=order, limit=limit)


def _stream(services: Services, events: AsyncGenerator[JsonObject], stack: AsyncExitStack) -> EventStream:
    return EventStream(kept_alive(_lines(events), every_s=services.settings.live.live_heartbeat_s), stack)


async def _followed(followed: FollowedResponse) -> AsyncGenerator[JsonObject]:
    """Yield the events; a failure to read them is an event too."""
    try:
        async with aclosing(followed.events()) as events:
            async for event in events:
                yield event
    except AppError as error:
        shown = openai_error_of(error, status=openai_status_of(error), fields=error.fields)
        yield {**shown, "type": "error", "sequence_number": followed.last + 1}


async def _lines(events: AsyncGenerator[JsonObject]) -> AsyncGenerator[bytes]:
    """Yield the lines of the events. The last one is that of Open Responses; OpenAI's clients stop at it too."""
    async with aclosing(events):
        async for event in events:
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
    yield f"data: {DONE}\n\n".encode()
