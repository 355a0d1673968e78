"""OpenAI's API: chat completions with or without a conversation, embeddings, models."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Annotated, Final, TypeAlias, TypeVar

from fastapi import APIRouter, Body, Header, Path, Request, Response
from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect

from app.agents.generation.schemas import (
    CONVERSATION_PREFIX,
    ContextOptions,
    ConversationName,
    CreateChatCompletion,
    GenerationRequest,
    OnDisconnect,
    TokenBudget,
)
from app.agents.generation.service import AnswerEvent
from app.conversations.schemas.conversations import Name
from app.core.errors import AppError, FieldError, InvalidFields
from app.core.ids import ConversationId, format_id, parse_id
from app.core.validation.invalid import fields_of, unknown_field
from app.core.validation.misspelt import misspelt
from app.formats.schemas import JsonObject
from app.providers.schemas import UpstreamRefusal
from app.routers.http.dependencies import AgentWriter, Reader, Services, Writer
from app.routers.http.problems import OPENAI_ROOT, openai_error_of, openai_status_of, problem_responses
from app.routers.http.routing.strict_route import OpenAIRoute
from app.routers.live.sse import EventStream, event_content, kept_alive, wait_for_disconnect

CONVERSATION_HEADER: Final = "X-Conversation-Id"
STORED_HEADER: Final = "X-Turnkeep-Stored"
"""`false` on an answer of which nothing is stored."""
_NAME: Final = "conversation_id"
_MAX_NAME: Final = 512
_MODEL: Final = r"^[A-Za-z0-9_:@+-][A-Za-z0-9._:@+-]*(/[A-Za-z0-9_:@+-][A-Za-z0-9._:@+-]*)*$"
"""No part of a model's name starts with a dot: `..` would reach other paths of the endpoint, with our key."""
_OURS: Final = ("conversation_id", "token_budget", "context", "on_disconnect")
_FAILURES: Final = (400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 502, 503)
_READ_FAILURES: Final = (400, 401, 403, 404, 422, 429, 500, 502, 503)

_DATA: Final = {
    "description": "A `chat.completion.chunk` as OpenAI has it, or an object with `error`. `[DONE]`, which is no JSON,"
    " is the last one.",
}

Result = TypeVar("Result")

_READ_HERE: Final = frozenset({*_OURS, "model", "metadata", "user", "external_id", "project"})


class _CompletionRoute(OpenAIRoute):
    """A route whose body goes to the model. Messages are checked when they are read."""

    produced_members = frozenset({"messages"})

    def passes(self, member: str) -> bool:
        """Return whether this service does not read the member."""
        return member not in _READ_HERE


router = APIRouter(prefix=OPENAI_ROOT, tags=["openai"], route_class=_CompletionRoute)


class Passed(BaseModel):
    """The unchanged answer of the model's endpoint."""

    model_config = ConfigDict(extra="allow")


PassedBody: TypeAlias = Annotated[dict[str, JsonValue], Body(description="As OpenAI has it; all of it is passed on.")]
NameHeader: TypeAlias = Annotated[
    str | None,
    Header(
        alias=CONVERSATION_HEADER,
        min_length=1,
        max_length=_MAX_NAME,
        description="The conversation: its id (`conv_` before it or not), or any other text as its external_id.",
    ),
]
ProjectHeader: TypeAlias = Annotated[
    str | None,
    Header(alias="X-Project", min_length=1, max_length=128, description="The project of an external_id."),
]
RetryHeader: TypeAlias = Annotated[str | None, Header(alias="X-Stainless-Retry-Count", include_in_schema=False)]


@router.post(
    "/chat/completions",
    response_model=Passed,
    responses={200: {"model": Passed, "content": event_content(_DATA)}} | problem_responses(*_FAILURES),
)
async def create_chat_completion(
    body: CreateChatCompletion,
    caller: AgentWriter,
    services: Services,
    request: Request,
    conversation: NameHeader = None,
    project: ProjectHeader = None,
    retry_count: RetryHeader = None,
) -> Response:
    """Create a chat completion in OpenAI's format, with `stream` as events.

    With a conversation (`conversation_id` in the body or its `metadata`, or the header `X-Conversation-Id`) only new
    messages are stored, together with the answer, and the model is sent a context built from the conversation;
    `token_budget` and `context` configure it. `user` becomes the owner of a conversation that this request creates; 409
    `conversation_owned` if it exists with another owner. Without a conversation, request and answer pass unchanged.
    A name that is almost `conversation_id` is refused. `X-Turnkeep-Stored: false`: nothing is stored.
    """
    refuse_misspelt_header(request)
    generation_request = _generation_request(
        body.members, header=conversation, project=project, is_retry=is_repeated(retry_count)
    )
    if not body.stream:
        answered = await while_connected(request, services.generation.complete(caller, generation_request))
        response = json_response(answered.completion)
        name_conversation(response, answered.conversation_id)
        return response
    answering = services.generation.streaming(caller, generation_request)
    stream, answer = await open_stream(request, services, answering, lambda answer: _events(answer.events()))
    name_conversation(stream, answer.result.conversation_id)
    return stream


@router.post("/embeddings", response_model=Passed, responses=problem_responses(*_FAILURES))
async def create_embedding(body: PassedBody, caller: Writer, services: Services, request: Request) -> Response:
    """Create embeddings with the model's endpoint; request and answer pass unchanged."""
    return _passed(await while_connected(request, services.generation.post(caller, "/embeddings", body)))


@router.get("/models", response_model=Passed, responses=problem_responses(*_READ_FAILURES))
async def list_models(caller: Reader, services: Services) -> Response:
    """List the models of the endpoint, unchanged."""
    return _passed(await services.generation.get(caller, "/models"))


@router.get(
    "/models/{model:path}",
    response_model=Passed,
    responses=problem_responses(*_READ_FAILURES),
)
async def get_model(
    model: Annotated[str, Path(min_length=1, max_length=256, pattern=_MODEL)],
    caller: Reader,
    services: Services,
) -> Response:
    """Read one model of the endpoint, unchanged."""
    return _passed(await services.generation.get(caller, f"/models/{model}"))


def is_repeated(retry_count: str | None) -> bool:
    """Return whether OpenAI's client repeats a request."""
    return retry_count is not None and retry_count.isdecimal() and int(retry_count[:9]) > 0


def name_conversation(response: Response, conversation_id: ConversationId | None) -> None:
    """Set the header that names the conversation of an answer, or the one that says that nothing is stored."""
    if conversation_id is None:
        response.headers[STORED_HEADER] = "false"
    else:
        response.headers[CONVERSATION_HEADER] = format_id(conversation_id)


def refuse_misspelt_header(request: Request) -> None:
    """Raise Invalid for a header that is almost `X-Conversation-Id`: its conversation would get nothing."""
    wanted = CONVERSATION_HEADER.lower()
    bare = wanted.removeprefix("x-")
    name = bare if bare in request.headers else misspelt(request.headers.keys(), wanted)
    if name is not None:
        detail = f"Unknown header. Did you mean `{CONVERSATION_HEADER}`?"
        raise InvalidFields([FieldError(f"/{name}", detail, "header", is_unknown=True)])


def _refuse_misspelt(members: JsonObject, *path: str) -> None:
    """Raise Invalid for a member that is almost `conversation_id`: its conversation would get nothing."""
    if (name := misspelt(members, _NAME)) is not None:
        raise InvalidFields([unknown_field([*path, name], [_NAME])])


def _passed(content: JsonObject) -> Response:
    """Return an answer of the model's endpoint of which nothing is stored."""
    response = json_response(content)
    name_conversation(response, None)
    return response


def json_response(content: JsonObject) -> Response:
    """Return a JSON object as a response."""
    return Response(json.dumps(content), media_type="application/json")


async def open_stream(
    request: Request,
    services: Services,
    answering: AbstractAsyncContextManager[Result],
    lines: Callable[[Result], AsyncGenerator[bytes]],
) -> tuple[EventStream, Result]:
    """Begin an answer while the client is connected; return the stream of its lines, which ends it, and the answer."""
    stack = AsyncExitStack()
    answer = await while_connected(request, stack.enter_async_context(answering))
    events = kept_alive(lines(answer), every_s=services.settings.live.live_heartbeat_s)
    return EventStream(events, stack), answer


async def while_connected(request: Request, work: Coroutine[object, object, Result]) -> Result:
    """Await work for a client; cancel it if the client disconnects."""
    working = asyncio.create_task(work)
    disconnecting = asyncio.create_task(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({working, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        disconnecting.cancel()
        if not working.done():
            working.cancel()
        await asyncio.gather(working, disconnecting, return_exceptions=True)
    if working.cancelled():
        raise ClientDisconnect
    return working.result()


async def _events(events: AsyncGenerator[AnswerEvent]) -> AsyncGenerator[bytes]:
    """Yield the events of a chat completion; a failure becomes an event with OpenAI's `error`."""
    try:
        async for event in events:
            yield f"data: {event.data}\n\n".encode()
    except AppError as error:
        details = error.error if isinstance(error, UpstreamRefusal) else None
        shown = details or openai_error_of(error, status=openai_status_of(error), fields=error.fields)
        yield f"data: {json.dumps({'error': shown})}\n\n".encode()


def _generation_request(
    body: JsonObject, *, header: str | None, project: str | None, is_retry: bool
) -> GenerationRequest:
    metadata = body.get("metadata")
    _refuse_misspelt(body)
    if isinstance(metadata, dict):
        _refuse_misspelt(metadata, "metadata")
    in_metadata = metadata.get("conversation_id") if isinstance(metadata, dict) else None
    name = next((name for name in (body.get("conversation_id"), header, in_metadata) if name is not None), None)
    if name is None:
        return GenerationRequest(
            {name: value for name, value in body.items() if name != "on_disconnect"}, None, ContextOptions()
        )
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
        problem = FieldError("/conversation_id", f"an id, or a text of 1 to {_MAX_NAME} characters")
        raise InvalidFields([problem])
    sent = {name: value for name, value in body.items() if name not in _OURS}
    if isinstance(metadata, dict) and "conversation_id" in metadata:
        sent["metadata"] = {name: value for name, value in metadata.items() if name != "conversation_id"}
        if not sent["metadata"]:
            del sent["metadata"]
    return GenerationRequest(
        body=sent,
        conversation=named_conversation(
            name, project, owner=_read(TypeAdapter(Name | None), body.get("user"), "/user")
        ),
        context=_read(TypeAdapter(ContextOptions), body.get("context") or {}, "/context"),
        token_budget=_read(TypeAdapter(TokenBudget | None), body.get("token_budget"), "/token_budget"),
        is_retry=is_retry,
        on_disconnect=_read(TypeAdapter(OnDisconnect | None), body.get("on_disconnect"), "/on_disconnect") or "abort",
    )


def named_conversation(name: str, project: str | None, *, owner: str | None) -> ConversationName:
    """Return the conversation that a text names: an id, or an external id in the project."""
    try:
        conversation_id = ConversationId(parse_id(name.removeprefix(CONVERSATION_PREFIX)))
    except ValueError:
        return ConversationName(external_id=name, project=project, owner=owner, owner_pointer="/user")
    return ConversationName(conversation_id=conversation_id, owner=owner, owner_pointer="/user")


def _read(shape: TypeAdapter[Result], value: JsonValue, at: str) -> Result:
    try:
        return shape.validate_python(value)
    except ValidationError as error:
        raise InvalidFields(fields_of(error, value, root=at)) from None
