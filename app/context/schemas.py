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

from app.conversations.schemas.conversations import CompactionIn, IdIn, MessageObject
from app.core.validation.strict import Strict
from app.formats.schemas import Format

MAX_TOKEN_BUDGET = 10_000_000
MAX_RECENT_TURNS = 1000
MAX_FILTERED_PARTICIPANTS = 100
MAX_QUERY_CHARACTERS = 32_768
MAX_SYSTEM_CHARACTERS = 2**20
_MAX_SYSTEM_TEXTS = 100
MAX_NAME_CHARACTERS = 256

Tokenizer: TypeAlias = Literal["o200k_base", "cl100k_base"]
SectionName: TypeAlias = Literal["system", "recent", "summary", "facts", "memories", "recalled"]
Decision: TypeAlias = Literal["included", "dropped"]

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)]


class CompactionRequest(CompactionIn):
    """A compaction to make now. What is left out is the conversation's policy; `through` is the last turn it takes."""

    through: IdIn | None = None


def _join_texts(value: object) -> object:
    """Return the texts of a list as one, with an empty line between two; any other value as it is."""
    if not isinstance(value, list) or len(cast("list[object]", value)) > _MAX_SYSTEM_TEXTS:
        return cast("object", value)
    given = [_text_of(one) for one in cast("list[object]", value)]
    # its error names the place in the list, and becomes one of the request
    return "\n\n".join(_TEXTS.validate_python(given, strict=True))


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
    """Turns to summarise: through one of them; left out: all but the newest."""

    through: IdIn | None = None


class RecallScope(StrEnum):
    """Whose turns are recalled: those of the conversation, of all its owner's in its project, or of the project."""

    CONVERSATION = "conversation"
    OWNER = "owner"
    PROJECT = "project"


class SemanticRecall(Strict):
    """How many earlier turns to look for, how near they must be (cosine), and where."""

    model_config = ConfigDict(frozen=True)

    k: Annotated[StrictInt, Field(ge=1, le=100)] = 10
    threshold: Annotated[StrictFloat, Field(ge=0, le=1)] = 0.0
    scope: RecallScope = Field(
        default=RecallScope.CONVERSATION,
        description=(
            "`conversation`; `owner`: all conversations of its owner in its project, or only itself where it has no"
            " owner; `project`: all conversations of its project. Turns of another conversation are labelled with what"
            " it is called and when they were said."
        ),
    )


class ContextRequest(Strict):
    """One context to build. `recent_turns` and `query` have defaults of their own when they are left out."""

    model_config = ConfigDict(frozen=True)

    token_budget: Annotated[StrictInt, Field(ge=1, le=MAX_TOKEN_BUDGET, description="Most tokens of the whole render.")]
    recent_turns: Annotated[StrictInt, Field(ge=1, le=MAX_RECENT_TURNS)] | None = Field(
        default=None,
        description=(
            "N: at least the N newest turns verbatim, and at most N + max(1, N/4), while the budget has room; and where"
            " a summary is shown, the turns between it and these. Left out: at least as many as the setting"
            " max_context_messages, and all older ones that no summary covers, while the budget has room."
        ),
    )
    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARACTERS)] | None = Field(
        default=None, description="What to recall by; default: the newest user turn."
    )
    semantic_recall: SemanticRecall | None = Field(default=None, description="Recall earlier turns; off unless given.")
    include_facts: StrictBool = False
    include_memories: StrictBool = False
    include_summary: StrictBool = True
    filter_participants: Annotated[list[Name], Field(min_length=1, max_length=MAX_FILTERED_PARTICIPANTS)] | None = (
        Field(default=None, description="Only turns of these actors; a summary only if all its actors are among them.")
    )
    as_actor: Name | None = Field(
        default=None,
        description=(
            "Write the context for this actor: its own turns are the assistant's, those of all others the user's, with"
            " their names. Tool calls of the others are written as text."
        ),
    )
    system: SystemText | None = None
    agent_id: Name | None = Field(default=None, description="Whose memories; needed for them below the scope admin.")
    format: Format = Format.OPENAI
    tokenizer: Tokenizer = "o200k_base"
    explain: StrictBool = False

    @field_validator("query")
    @classmethod
    def _not_blank(cls, query: str | None) -> str | None:
        if query is not None and not query.strip():
            raise ValueError("a query has at least one character that is not a space")
        return query


class SectionUsage(BaseModel):
    """Tokens of one section: what was asked for and is there, what is shown, what has no room.

    `requested` = `used` + `dropped`.
    """

    requested: int
    used: int
    dropped: int


class Sections(BaseModel):
    """The sections of a context; their `used` add up to the whole."""

    system: SectionUsage
    recent: SectionUsage
    summary: SectionUsage
    facts: SectionUsage
    memories: SectionUsage
    recalled: SectionUsage


class ContextUsage(BaseModel):
    """`used` is recounted over the final render, never above `budget`; `exact` is false where it is an estimate."""

    budget: int
    used: int
    tokenizer: str
    exact: bool
    sections: Sections


class Included(BaseModel):
    """What the context shows. `turn_ids`: the recent ones by position, then the recalled ones, oldest first."""

    turn_ids: list[str]
    summary_ids: list[str]
    fact_ids: list[str]
    memory_ids: list[str]


class Gap(BaseModel):
    """Live turns that a context neither shows nor covers by a summary: how many, the first and the last of them.

    Turns between these two positions may be shown. Turns whose content was erased are not counted: `degraded` says
    `erased_sources`.
    """

    turns: int
    from_position: int
    to_position: int


class Explained(BaseModel):
    """Why something is in the context or is not. `tokens` are those of the whole unit (a call and its results)."""

    section: SectionName
    id: str
    decision: Decision
    reason: str
    tokens: int
    score: float | None


class Context(BaseModel):
    """A context, ready for a model. `system` is null where the format keeps it in `messages`, or there is none.

    `gap` is null where every live turn is shown or lies under a shown summary.
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
