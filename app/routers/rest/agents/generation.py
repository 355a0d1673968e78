"""Generate an answer over REST."""

from collections.abc import AsyncGenerator
from typing import Final

from fastapi import APIRouter, Request, Response

from app.agents.generation.schemas import ConversationName, Generate, Generated, GeneratedDelta, GenerationRequest
from app.agents.generation.service import AnswerStream, StoredAnswer
from app.core.errors import AppError, FieldError, Invalid
from app.core.ids import ConversationId, format_id
from app.formats.schemas import JsonObject
from app.routers.http.dependencies import AgentWriter, Services
from app.routers.http.idempotency import IdempotencyHeader, mark_replay
from app.routers.http.problems import problem_of, problem_responses, request_id_of, status_of
from app.routers.http.routing.strict_route import StrictJsonRoute
from app.routers.live.sse import event_content
from app.routers.openai.chat_completions import CONVERSATION_HEADER, open_stream, while_connected
from app.tenancy.schemas import IdempotencyKey


class _GenerateRoute(StrictJsonRoute):
    """A route whose `parameters` go to the model. Messages are checked when they are read."""

    produced_members = frozenset({"messages"})

    def passes(self, member: str) -> bool:
        """Return whether the member is `parameters`."""
        return member == "parameters"


router = APIRouter(prefix="/v1/generate", tags=["generation"], route_class=_GenerateRoute)

_DATA: Final = {
    "description": "The `data` of one event, as JSON. `event` is `delta` (with `text`), then `done`, or `error` with a"
    " problem.",
    "anyOf": [
        GeneratedDelta.model_json_schema(),
        {"$ref": "#/components/schemas/Generated"},
        {"$ref": "#/components/schemas/Problem"},
    ],
}


@router.post(
    "",
    response_model=Generated,
    responses={200: {"model": Generated, "content": event_content(_DATA)}} | problem_responses(404, 429, 500, 502),
)
async def generate(
    body: Generate, caller: AgentWriter, services: Services, request: Request, idempotency_key: IdempotencyHeader
) -> Response:
    """Let the chat model answer in a conversation, and store the new messages with the answer, in one commit.

    The model is sent a context of the conversation within `token_budget`, which always has the new messages. Messages
    that are already stored are not stored again, so clients may send the whole history. With `stream` the answer is
    sent as events: `delta`, then `done` with the complete answer, or `error`; the header `X-Conversation-Id` has the
    conversation from the start.
    """
    generation_request = _generation_request(
        body, None if idempotency_key is None else idempotency_key.for_agent(caller.agent)
    )
    if not body.stream:
        answered = await while_connected(request, services.generation.complete(caller, generation_request))
        response = Response(answered.generated().model_dump_json(), media_type="application/json")
        mark_replay(response, is_replay=answered.is_replay)
        return response
    answering = services.generation.streaming(caller, generation_request)
    stream, answer = await open_stream(request, services, answering, lambda answer: _events(answer, request))
    if answer.result.conversation_id is not None:
        stream.headers[CONVERSATION_HEADER] = format_id(answer.result.conversation_id)
    mark_replay(stream, is_replay=answer.result.is_replay)
    return stream


def _generation_request(body: Generate, idempotency_key: IdempotencyKey | None) -> GenerationRequest:
    if body.conversation_id is not None and body.external_id is not None:
        wrong = [FieldError("/external_id", "not beside conversation_id")]
        raise Invalid("invalid_request", "A conversation is named by one of its names.", fields=wrong)
    name = ConversationName(
        conversation_id=None if body.conversation_id is None else ConversationId(body.conversation_id),
        external_id=body.external_id,
        project=body.project,
        owner=body.owner,
    )
    sent: JsonObject = {**body.parameters, "messages": [*body.messages]}
    sent.pop("stream", None)
    if body.model is not None:
        sent["model"] = body.model
    return GenerationRequest(
        sent, name, body.context, body.token_budget, idempotency_key=idempotency_key, on_disconnect=body.on_disconnect
    )


async def _events(answer_stream: AnswerStream | StoredAnswer, request: Request) -> AsyncGenerator[bytes]:
    try:
        async for event in answer_stream.events():
            if event.text:
                yield _event("delta", GeneratedDelta(type="delta", text=event.text).model_dump_json())
    except AppError as error:
        problem = problem_of(request_id_of(request.scope), error, status=status_of(error), fields=error.fields)
        yield _event("error", problem.model_dump_json())
        return
    yield _event("done", answer_stream.result.generated().model_dump_json())


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()
