"""The request for a context and its response."""

from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    TypeAdapter,
    field_validator,
)

from app.conversations.schemas.conversations import CompactionIn, MessageObject, Retention
from app.conversations.schemas.summaries import SummaryKind
from app.core.errors import PublicValueError
from app.core.times import TimeOut
from app.core.validation.ids import IdIn
from app.core.validation.strict import Strict
from app.formats.schemas import Format
from app.recall.schemas import RELEVANCE_FLOOR, WaitForVectorsMs

MAX_TOKEN_BUDGET = 10_000_000
MAX_RECENT_TURNS = 1000
MAX_FILTERED_PARTICIPANTS = 100
MAX_RECALLED_TURNS = 100
MAX_QUERY_CHARACTERS = 32_768
MAX_SYSTEM_CHARACTERS = 2**20
_MAX_SYSTEM_TEXTS = 100
MAX_NAME_CHARACTERS = 256

Tokenizer: TypeAlias = Literal["o200k_base", "cl100k_base"]
SectionName: TypeAlias = Literal["system", "recent", "summary", "facts", "memories", "recalled"]
Decision: TypeAlias = Literal["included", "dropped"]

MaxTurnTokens: TypeAlias = Annotated[StrictInt, Field(ge=1, le=MAX_TOKEN_BUDGET)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)]


class CompactionRequest(CompactionIn):
    """A compaction to run now. The conversation's policy is the default of omitted fields.

    `through`: the last turn to summarise.
    """

    through: IdIn | None = None


def _join_texts(value: object) -> object:
    """Return the texts of a list as one, with an empty line between two; any other value as it is."""
    if not isinstance(value, list) or len(cast("list[object]", value)) > _MAX_SYSTEM_TEXTS:
        return cast("object", value)
    texts = [_text_of(part) for part in cast("list[object]", value)]
    # its error names the place in the list, and becomes one of the request
    return "\n\n".join(_TEXTS.validate_python(texts, strict=True))


def _text_of(value: object) -> object:
    """Return the text of a part `{"type": "text", "text": …}`; any other value as it is."""
    if not isinstance(value, dict):
        return value
    part = cast("dict[str, object]", value)
    return part.get("text") if part.get("type") == "text" else part


_Text: TypeAlias = Annotated[str, Field(max_length=MAX_SYSTEM_CHARACTERS)]
_TEXTS: Final = TypeAdapter(list[_Text])
SystemText: TypeAlias = Annotated[
    str,
    Field(max_length=MAX_SYSTEM_CHARACTERS),
    BeforeValidator(
        _join_texts, json_schema_input_type=_Text | Annotated[list[_Text], Field(max_length=_MAX_SYSTEM_TEXTS)]
    ),
]
"""A system text, or a list of texts or of text parts, which become one."""


class SummaryRequest(Strict):
    """Turns to summarise: through this turn; by default all but the newest."""

    through: IdIn | None = None


class RecallScope(StrEnum):
    """Whose turns are recalled: those of the conversation, of all its owner's in its project, or of the project."""

    CONVERSATION = "conversation"
    OWNER = "owner"
    PROJECT = "project"


class SemanticRecall(Strict):
    """How many earlier turns to recall, their lowest similarity (cosine), and the conversations to search."""

    model_config = ConfigDict(frozen=True)

    k: Annotated[StrictInt, Field(ge=1, le=MAX_RECALLED_TURNS)] | None = Field(
        default=None, description="Left out: it follows the budget."
    )
    threshold: Annotated[StrictFloat, Field(ge=0, le=1)] = 0.0
    min_relevance: Annotated[StrictFloat, Field(ge=0, le=1)] = 0.0
    scope: RecallScope = Field(
        default=RecallScope.CONVERSATION,
        description=(
            "`owner`: all conversations of its owner in its project, or only itself where it has no owner; `project`:"
            " all of its project."
        ),
    )


class ContextRequest(Strict):
    """A context to build."""

    model_config = ConfigDict(frozen=True)

    token_budget: Annotated[
        StrictInt, Field(ge=1, le=MAX_TOKEN_BUDGET, description="The token budget of all messages together.")
    ]
    recent_turns: Annotated[StrictInt, Field(ge=1, le=MAX_RECENT_TURNS)] | None = Field(
        default=None,
        description=(
            "N: at least the N newest turns verbatim, at most N + max(1, N/4), while the budget has room; beside a"
            " summary also the turns between it and these. Left out: at least max_context_messages turns, and all older"
            " ones that no summary covers."
        ),
    )
    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARACTERS)] | None = Field(
        default=None,
        description="The query of the recall; default: the newest user turn that says more than `ok`.",
    )
    semantic_recall: SemanticRecall | None = Field(
        default=None, description="Recall earlier turns; default: no recall."
    )
    shorten: StrictBool = Field(
        default=True,
        description="Show parts of turns that are too long; `false`: whole or not at all.",
    )
    max_turn_tokens: MaxTurnTokens | None = Field(
        default=None,
        description="Shorten longer recent turns; default: a third of the budget, if not all fit.",
    )
    include_facts: StrictBool = False
    include_memories: StrictBool = False
    min_relevance: Annotated[StrictFloat, Field(ge=0, le=1, description="Least relevance of a memory.")] = (
        RELEVANCE_FLOOR
    )
    include_summary: StrictBool = True
    filter_participants: Annotated[list[Name], Field(min_length=1, max_length=MAX_FILTERED_PARTICIPANTS)] | None = (
        Field(default=None, description="Only turns of these actors; a summary only if all its actors are among them.")
    )
    as_actor: Name | None = Field(
        default=None,
        description=(
            "Write the context for this actor: its own turns are the assistant's, those of others the user's, with"
            " names; their tool calls are text."
        ),
    )
    system: SystemText | None = None
    agent_id: Name | None = Field(
        default=None, description="The agent whose memories are read; required without the scope `admin`."
    )
    format: Format = Format.OPENAI
    tokenizer: Tokenizer = "o200k_base"
    explain: StrictBool = False
    wait_for_vectors_ms: WaitForVectorsMs = 0

    @field_validator("query")
    @classmethod
    def _not_blank(cls, query: str | None) -> str | None:
        if query is not None and not query.strip():
            raise PublicValueError("a query has at least one character that is not a space")
        return query


class SectionUsage(BaseModel):
    """Tokens of one section: requested and available, shown, and left out for lack of room.

    `requested` = `used` + `dropped`.
    """

    requested: int
    used: int
    dropped: int


class Sections(BaseModel):
    """The sections of a context. The sum of their `used` is that of the context."""

    system: SectionUsage
    recent: SectionUsage
    summary: SectionUsage
    facts: SectionUsage
    memories: SectionUsage
    recalled: SectionUsage


class ContextUsage(BaseModel):
    """Tokens of a context.

    `used` is counted over the final messages, and is never above `budget`. `exact` is false for an estimate.
    """

    budget: int
    used: int
    tokenizer: str
    exact: bool
    sections: Sections


class PassageRange(BaseModel):
    """A run of a turn's plain text: `start` to `end` in code points, `end` excluded."""

    turn_id: str
    start: int
    end: int


class Included(BaseModel):
    """The parts that the context shows.

    `turn_ids`: the recent turns by position, then the recalled ones, oldest first. `passages`: the runs that are shown
    of those turns that are not shown whole.
    """

    turn_ids: list[str]
    passages: list[PassageRange]
    summary_ids: list[str]
    fact_ids: list[str]
    memory_ids: list[str]


class Gap(BaseModel):
    """Live turns that a context neither shows nor covers by a summary: their number, the first and the last position.

    Turns between these two positions may be shown. Turns whose content was erased are not counted: then `degraded`
    contains `erased_sources`.
    """

    turns: int
    from_position: int
    to_position: int


class Explained(BaseModel):
    """Why a part is in the context, or is not. `tokens` are those of the whole unit: a tool call with its results.

    `passages`: the runs that are shown of a turn that is not shown whole.
    """

    section: SectionName
    id: str
    decision: Decision
    reason: str
    tokens: int
    score: float | None
    passages: list[PassageRange]


class Context(BaseModel):
    """A context, ready for a model. `system` is null if the format keeps it in `messages`, or if there is none.

    `gap` is null if every live turn is shown, or covered by a summary that is shown.
    """

    format: Format
    messages: list[MessageObject]
    system: str | None
    usage: ContextUsage
    included: Included
    gap: Gap | None
    as_of_seq: int
    degraded: list[str]
    explain: list[Explained] | None


class ModelCost(BaseModel):
    """The use of a chat model. `prompt_tokens` is an estimate; `max_cost` is by the prices in the settings."""

    model: str
    calls: int
    prompt_tokens: int
    max_completion_tokens: int
    max_cost: float


class CompactionDryRun(BaseModel):
    """Turns that a compaction would summarise, the oldest first, in one summary or several.

    `kind`: what would be made; null if nothing is due. `continues`: more turns may be due than were looked at.
    """

    kind: SummaryKind | None
    turns: int
    tokens: int
    summaries: int
    through: str | None = Field(description="The last turn that would be summarised.")
    continues: bool
    cost: ModelCost | None


class ExtractionDryRun(BaseModel):
    """Turns that an extraction of facts would read. `enabled`: jobs do it; otherwise only a call does."""

    enabled: bool
    turns: int
    tokens: int
    continues: bool
    cost: ModelCost | None


class RetentionDryRun(BaseModel):
    """Turns whose content retention would erase now. Turns that no summary covers wait for one.

    `expires_at`: when the conversation is deleted, if nothing is written to it before; null for never.
    """

    policy: Retention
    turns: int
    tokens: int
    continues: bool
    expires_at: TimeOut | None


class DryRun(BaseModel):
    """What background work would do to a conversation now. Nothing was changed, and no model was asked.

    `cost` is null without a model. It does not include highlights that a model replaces later, and merges of summaries
    into one of a higher level.
    """

    conversation_id: str
    compaction: CompactionDryRun
    extraction: ExtractionDryRun
    retention: RetentionDryRun
