"""Requests to a chat model through Turnkeep, and their results."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SkipValidation,
    StrictBool,
    StrictInt,
)

from app.agents.generation.messages import MAX_MESSAGES, RequestMessages, require_system_length
from app.context.schemas import (
    MAX_FILTERED_PARTICIPANTS,
    MAX_QUERY_CHARACTERS,
    MAX_RECENT_TURNS,
    MAX_TOKEN_BUDGET,
    ContextRequest,
    Gap,
    Name,
    SemanticRecall,
    SystemText,
    Tokenizer,
)
from app.conversations.schemas.conversations import (
    MessageObject,
    ParsedObject,
    Turn,
    content_text,
    with_valid_policies,
)
from app.conversations.schemas.responses import ContinuedResponse
from app.core.ids import ConversationId, format_id
from app.core.validation.ids import ConversationNameIn
from app.core.validation.strict import Strict
from app.formats.schemas import JsonObject, Role
from app.recall.schemas import WaitForVectorsMs
from app.tenancy.schemas import IdempotencyKey

OnDisconnect: TypeAlias = Literal["abort", "keep"]
"""What happens to the new messages and the answer if the client disconnects before the end of the answer."""
ON_DISCONNECT: Final = (
    "If the client disconnects before the end of the answer: `abort` stores nothing; `keep` stores the new messages and"
    " the answer so far, with `incomplete: true` in its metadata. Default: `abort`."
)

CONVERSATION_PREFIX: Final = "conv_"
"""What the id of a conversation begins with in OpenAI's format."""
MAX_ITEMS: Final = 500
OpenAIMetadata: TypeAlias = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
"""Metadata in OpenAI's format."""
PassedValue: TypeAlias = Annotated[JsonValue, SkipValidation]
_ConversationMetadata: TypeAlias = Annotated[OpenAIMetadata, AfterValidator(with_valid_policies)]

TokenBudget = Annotated[StrictInt, Field(ge=1, le=MAX_TOKEN_BUDGET)]


class ContextOptions(Strict):
    """How the context of a generated answer is built: the fields of `POST …/context` that a client may choose."""

    recent_turns: Annotated[StrictInt, Field(ge=1, le=MAX_RECENT_TURNS)] | None = None
    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARACTERS)] | None = None
    semantic_recall: SemanticRecall | None = None
    include_facts: StrictBool = False
    include_memories: StrictBool = False
    include_summary: StrictBool = True
    filter_participants: Annotated[list[Name], Field(min_length=1, max_length=MAX_FILTERED_PARTICIPANTS)] | None = None
    as_actor: Name | None = None
    system: SystemText | None = None
    agent_id: Name | None = None
    tokenizer: Tokenizer = "o200k_base"
    wait_for_vectors_ms: WaitForVectorsMs = 0

    def request(self, *, token_budget: int, system: str | None, messages_pointer: str) -> ContextRequest:
        """Return the complete context request; the system text of the messages follows the one given here.

        Raises TooLarge `text_too_large` if both together are too long.
        """
        texts = "\n\n".join(text for text in (self.system, system) if text)
        require_system_length(texts, messages_pointer)
        members = {name: getattr(self, name) for name in type(self).model_fields}
        return ContextRequest.model_validate({**members, "token_budget": token_budget, "system": texts or None})


class Generate(Strict):
    """Messages to answer in a conversation. Without `conversation_id` and `external_id` a new conversation is created.

    `messages` are OpenAI's chat messages; messages that are already stored are not stored again. `parameters` are sent
    to the model unchanged (`temperature`, `tools`, …).
    """

    conversation_id: ConversationNameIn | None = None
    external_id: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    project: Annotated[str, Field(min_length=1, max_length=128)] = "default"
    owner: Name | None = Field(
        None, description="The owner of the conversation, if this request creates it; 409 if it has another owner."
    )
    messages: Annotated[list[MessageObject], Field(min_length=1, max_length=MAX_MESSAGES)]
    token_budget: TokenBudget | None = None
    context: ContextOptions = ContextOptions()
    model: Name | None = None
    parameters: ParsedObject = Field(default_factory=dict[str, JsonValue])
    stream: StrictBool = False
    on_disconnect: OnDisconnect = Field("abort", description=ON_DISCONNECT)


class GeneratedUsage(BaseModel):
    """Tokens that the model read and wrote, as reported by its endpoint; null if it reports none."""

    prompt_tokens: int | None
    completion_tokens: int | None


class Generated(BaseModel):
    """An answer. `turns`: the turns that were stored, the new messages and the answer. `response`: the answer's text.

    `gap`: the turns of the conversation that the model was shown neither verbatim nor by a summary. It is null if there
    are none, and for a replayed answer.
    """

    conversation_id: str
    turns: list[Turn]
    response: str
    usage: GeneratedUsage
    gap: Gap | None


class GeneratedDelta(BaseModel):
    """The next text of an answer that is being generated."""

    type: Literal["delta"]
    text: str


@dataclass(frozen=True, slots=True)
class ConversationName:
    """The conversation of a request: an existing one by its id, or one by its external id, created if missing.

    `owner` becomes the owner of a conversation that is created; an existing one may have no other owner.
    `owner_pointer` is the place of the owner in the request.
    """

    conversation_id: ConversationId | None = None
    external_id: str | None = None
    project: str | None = None
    owner: str | None = None
    owner_pointer: str = "/owner"


@dataclass(frozen=True, slots=True)
class ResponseInput:
    """The messages of a request of Responses, and how they are stored.

    `is_all_new`: no message is looked for among the stored ones. `previous`: the response to continue from, in place of
    a conversation. `response`: what is stored of the request; None if nothing is stored. `truncates`: turns may be left
    out of the context.
    """

    messages: RequestMessages
    is_all_new: bool
    previous: ContinuedResponse | None
    response: JsonObject | None
    truncates: bool


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request for an answer. `body` is sent to the endpoint without our own fields. None: no conversation."""

    body: JsonObject
    conversation: ConversationName | None
    context: ContextOptions
    token_budget: int | None = None
    is_retry: bool = False
    idempotency_key: IdempotencyKey | None = None
    response_input: ResponseInput | None = None
    """The messages, if they are not those of `body`."""
    on_disconnect: OnDisconnect = "abort"
    allowed_tools: frozenset[str] | None = None
    """The only tools that the answer may call; None: any."""

    @property
    def is_passed_on(self) -> bool:
        """Whether request and answer pass unchanged, and nothing is stored."""
        return self.conversation is None and self.response_input is None


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """An answer of the endpoint, and the turns that were stored with it.

    A replay (`is_replay`) has only the stored turns.
    """

    completion: JsonObject
    conversation_id: ConversationId | None
    turns: list[Turn]
    gap: Gap | None = None
    is_replay: bool = False

    @property
    def text(self) -> str:
        """Return the text of the answer, the last of the stored turns."""
        is_answered = bool(self.turns) and self.turns[-1].role is Role.ASSISTANT
        return content_text(self.turns[-1].content) if is_answered else ""

    def generated(self) -> Generated:
        """Return the answer as the API shows it."""
        usage = (self.turns[-1].usage if self.turns else None) or {}
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
        prompt, completion = (count if isinstance(count, int) else None for count in counts)
        return Generated(
            conversation_id="" if self.conversation_id is None else format_id(self.conversation_id),
            turns=self.turns,
            response=self.text,
            usage=GeneratedUsage(prompt_tokens=prompt, completion_tokens=completion),
            gap=self.gap,
        )


class CreateChatCompletion(BaseModel):
    """A chat completion to create, in OpenAI's format. All other members pass unread."""

    model_config = ConfigDict(strict=True, extra="allow")

    conversation_id: PassedValue | None = Field(
        default=None, description="The conversation, as in the header X-Conversation-Id."
    )
    token_budget: PassedValue | None = Field(
        default=None, description="The token budget of the context; only with a conversation."
    )
    context: PassedValue | None = Field(default=None, description="How the context is built; only with a conversation.")
    on_disconnect: PassedValue | None = Field(
        default=None,
        description=f"{ON_DISCONNECT} Only with a conversation.",
        json_schema_extra={"enum": ["abort", "keep", None]},
    )
    model: str | None = None
    stream: bool | None = None
    stream_options: ParsedObject | None = None
    store: bool | None = None
    n: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: int | float | None = None
    top_p: int | float | None = None
    frequency_penalty: int | float | None = None
    presence_penalty: int | float | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    stop: str | list[str] | None = None
    tools: list[PassedValue] | None = None
    tool_choice: str | ParsedObject | None = None
    parallel_tool_calls: bool | None = None
    response_format: ParsedObject | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    metadata: ParsedObject | None = None
    user: str | None = Field(
        default=None,
        description="The owner of the conversation, if this request creates it; 409 if it has another owner. It is"
        " passed on too.",
    )
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def members(self) -> JsonObject:
        """Return the members that were sent, as they were sent."""
        return {name: value for name, value in self if name in self.model_fields_set}


class NewConversation(BaseModel):
    """A conversation to create, with its first items."""

    items: list[ParsedObject] | None = Field(default=None, max_length=MAX_ITEMS)
    metadata: _ConversationMetadata | None = None


class ChangedConversation(BaseModel):
    """The new metadata of a conversation; it replaces the old."""

    metadata: _ConversationMetadata | None


class NewItems(BaseModel):
    """Items to append, all or none."""

    items: list[ParsedObject] = Field(min_length=1, max_length=MAX_ITEMS)


class OpenAIConversation(BaseModel):
    """A conversation in OpenAI's format; `created_at` in seconds since 1970."""

    id: str
    object: str
    created_at: int
    metadata: dict[str, JsonValue]


class DeletedConversation(BaseModel):
    """A deleted conversation."""

    id: str
    object: str
    deleted: bool


class Items(BaseModel):
    """A page of items in order; `last_id` is the `after` of the next page."""

    object: str
    data: list[dict[str, JsonValue]]
    first_id: str | None
    last_id: str | None
    has_more: bool
