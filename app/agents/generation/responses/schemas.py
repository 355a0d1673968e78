"""Requests and answers of OpenAI's Responses API."""

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictBool, StrictInt

from app.agents.generation.messages import MAX_MESSAGES
from app.agents.generation.schemas import (
    ON_DISCONNECT,
    ContextOptions,
    OnDisconnect,
    OpenAIMetadata,
    PassedValue,
    TokenBudget,
)
from app.context.schemas import MAX_SYSTEM_CHARACTERS
from app.conversations.schemas.conversations import Name, ParsedObject
from app.formats.message_schemas import DocumentedAs, ResponsesItem
from app.formats.schemas import JsonObject

REPEATED: Final[JsonObject] = {
    "instructions": None,
    "metadata": {},
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "temperature": None,
    "top_p": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": None, "summary": None},
    "truncation": "auto",
    "user": None,
}
"""The members of a request that are repeated in the response, with their defaults."""
REPEATED_EXTRAS = ("service_tier", "safety_identifier", "prompt_cache_key")
"""Undeclared members of a request that are repeated in the response, besides going to the model."""
MAX_TOOLS = 500
MIN_OUTPUT_TOKENS = 16
"""The lowest limit that OpenAI accepts."""
_MAX_REFERENCE = 512
_STRING: Final[JsonObject] = {"type": ["string", "null"]}
_TOOL_CHOICES: list[JsonValue] = [
    {"type": "string", "enum": ["none", "auto", "required"]},
    {
        "type": "object",
        "properties": {"type": {"type": "string", "enum": ["function", "custom", "allowed_tools"]}},
        "required": ["type"],
    },
    {"type": "null"},
]

Item: TypeAlias = Annotated[ParsedObject, DocumentedAs(ResponsesItem)]
Text: TypeAlias = Annotated[str, Field(max_length=MAX_SYSTEM_CHARACTERS)]


class ConversationReference(BaseModel):
    """A conversation by its id."""

    id: Annotated[str, Field(min_length=1, max_length=_MAX_REFERENCE)]


class CreateResponse(BaseModel):
    """A response to create. The model's endpoint is sent all other members unchanged, as in a chat completion.

    `conversation` and `previous_response_id` exclude each other. Of the tools, functions and custom tools are accepted.
    """

    model_config = ConfigDict(extra="allow")

    model: Name | None = None
    input: str | Annotated[list[Item], Field(max_length=MAX_MESSAGES, fail_fast=True)] | None = Field(
        default=None, description="A text of the user, or items."
    )
    instructions: Text | None = Field(default=None, description="Instructions of this response alone.")
    conversation: Annotated[str, Field(min_length=1, max_length=_MAX_REFERENCE)] | ConversationReference | None = Field(
        default=None, description="The conversation that the input and the output are added to: `conv_…`, or its id."
    )
    previous_response_id: Annotated[str, Field(min_length=1, max_length=_MAX_REFERENCE)] | None = None
    store: StrictBool | None = Field(default=None, description="Default: true. With false nothing is stored.")
    stream: StrictBool | None = None
    stream_options: ParsedObject | None = None
    prompt: PassedValue | None = Field(default=None, description="Only null.")
    context_management: PassedValue | None = Field(default=None, description="Only null.")
    moderation: PassedValue | None = Field(default=None, description="Only null.")
    background: StrictBool | None = Field(default=None, description="Only false.")
    tools: Annotated[list[ParsedObject], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: PassedValue | None = Field(
        default=None,
        description="`none`, `auto`, `required`, or an object of the type `function`, `custom` or `allowed_tools`. With"
        " the last, an answer that calls another tool fails.",
        json_schema_extra={"anyOf": _TOOL_CHOICES},
    )
    parallel_tool_calls: StrictBool | None = None
    max_tool_calls: Annotated[StrictInt, Field(ge=1)] | None = None
    max_output_tokens: Annotated[StrictInt, Field(ge=MIN_OUTPUT_TOKENS)] | None = None
    text: ParsedObject | None = Field(default=None, json_schema_extra={"properties": {"verbosity": _STRING}})
    reasoning: ParsedObject | None = Field(default=None, json_schema_extra={"properties": {"effort": _STRING}})
    temperature: Annotated[float, Field(ge=0, le=2, strict=True)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, strict=True)] | None = None
    top_logprobs: StrictInt | None = Field(default=None, description="Only 0.")
    truncation: Literal["auto", "disabled"] | None = Field(
        default=None,
        description="Default: `auto`. With `disabled`, a conversation of which turns would be left out is refused.",
    )
    include: Annotated[list[Name], Field(max_length=20)] | None = None
    metadata: OpenAIMetadata | None = Field(
        default=None, description="Stored with the response, and not with the conversation."
    )
    user: Name | None = Field(
        default=None,
        description="The owner of the conversation, if this request creates it; 409 if it has another owner.",
    )
    token_budget: TokenBudget | None = Field(default=None, description="The token budget of the context.")
    context: ContextOptions | None = Field(default=None, description="How the context is built.")
    on_disconnect: OnDisconnect | None = Field(default=None, description=ON_DISCONNECT)


class ResponseError(BaseModel):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(BaseModel):
    """Why the model ended an answer early: `max_output_tokens` or `content_filter`."""

    reason: str


class OpenAIResponse(BaseModel):
    """A response in OpenAI's format, with members of the request. Times are in seconds since 1970."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    model: str
    output: list[JsonObject]
    previous_response_id: str | None
    conversation: ConversationReference | None = Field(
        description="The conversation of its turns; null if nothing is stored."
    )
    store: bool
    usage: JsonObject | None
    metadata: JsonObject
    tools: list[JsonObject]
    tool_choice: JsonValue
    parallel_tool_calls: bool


class DeletedResponse(BaseModel):
    """A deleted response."""

    id: str
    object: Literal["response"]
    deleted: bool
