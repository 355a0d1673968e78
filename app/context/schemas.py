"""What a caller asks of a context and what it gets (SPEC §5)."""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictBool, StrictFloat, StrictInt, field_validator

from app.conversations.schemas import CompactionIn, IdIn
from app.core.strict import Strict
from app.formats.schemas import Format

MAX_TOKEN_BUDGET = 10_000_000
MAX_RECENT_TURNS = 1000
MAX_FILTERED_PARTICIPANTS = 100
MAX_QUERY_CHARACTERS = 32_768
MAX_SYSTEM_CHARACTERS = 2**20
MAX_NAME_CHARACTERS = 256

Tokenizer: TypeAlias = Literal["o200k_base", "cl100k_base"]
SectionName: TypeAlias = Literal["system", "recent", "summary", "facts", "memories", "recalled"]
Decision: TypeAlias = Literal["included", "dropped"]

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)]


class CompactionRequest(CompactionIn):
    """A compaction to make now. What is left out is the conversation's policy; `through` is the last turn it takes."""

    through: IdIn | None = None


class SummaryRequest(Strict):
    """Turns to summarise: through one of them; left out: all but the newest."""

    through: IdIn | None = None


class SemanticRecall(Strict):
    """How many earlier turns to look for, and how near they must be (cosine)."""

    model_config = ConfigDict(frozen=True)

    k: Annotated[StrictInt, Field(ge=1, le=100)] = 10
    threshold: Annotated[StrictFloat, Field(ge=0, le=1)] = 0.0


class ContextRequest(Strict):
    """One context to build. `recent_turns` and `query` have defaults of their own when they are left out."""

    model_config = ConfigDict(frozen=True)

    token_budget: Annotated[StrictInt, Field(ge=1, le=MAX_TOKEN_BUDGET, description="Most tokens of the whole render.")]
    recent_turns: Annotated[StrictInt, Field(ge=1, le=MAX_RECENT_TURNS)] | None = Field(
        None, description="Newest turns to look at; default: the setting max_context_messages."
    )
    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARACTERS)] | None = Field(
        None, description="What to recall by; default: the newest user turn."
    )
    semantic_recall: SemanticRecall | None = Field(None, description="Recall earlier turns; off unless given.")
    include_facts: StrictBool = False
    include_memories: StrictBool = False
    include_summary: StrictBool = True
    filter_participants: Annotated[list[Name], Field(min_length=1, max_length=MAX_FILTERED_PARTICIPANTS)] | None = (
        Field(None, description="Only turns of these actors; a summary only if all its actors are among them.")
    )
    system: Annotated[str, Field(max_length=MAX_SYSTEM_CHARACTERS)] | None = None
    agent_id: Name | None = Field(None, description="Whose memories; needed for them below the scope admin.")
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
    """Tokens of one section: what there was, what is in the context, what is not. `requested` = `used` + `dropped`."""

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


class PositionRange(BaseModel):
    """Turns from one position through another, both included."""

    from_position: int
    to_position: int


class Included(BaseModel):
    """What the context shows. `turn_ids`: the recent ones by position, then the recalled ones, oldest first.

    `highlights`: turns that no summary stands for yet and that have no room; lines of them are shown. Where a summary
    stands, summaries, highlights and recent turns together are the whole conversation.
    """

    turn_ids: list[str]
    summary_ids: list[str]
    highlights: list[PositionRange]
    fact_ids: list[str]
    memory_ids: list[str]


class Explained(BaseModel):
    """Why something is in the context or is not. `tokens` are those of the whole unit (a call and its results)."""

    section: SectionName
    id: str
    decision: Decision
    reason: str
    tokens: int
    score: float | None


class Context(BaseModel):
    """A context, ready for a model. `system` is null where the format keeps it in `messages`, or there is none."""

    format: Format
    messages: list[dict[str, JsonValue]]
    system: str | None
    usage: ContextUsage
    included: Included
    as_of_seq: int
    degraded: list[str]
    explain: list[Explained] | None
