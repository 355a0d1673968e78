"""Arguments of tools beyond the bodies of the REST calls, and the schemas of `ask_agent`."""

from typing import Annotated, ClassVar, Final, Literal, Protocol, TypeAlias
from uuid import UUID

from pydantic import BaseModel, Field, StrictBool, StrictInt, StringConstraints, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from app.agents.lifecycle.schemas import Tree
from app.context.schemas import Context, ContextRequest, MaxTurnTokens, SummaryRequest
from app.conversations.schemas.append import TurnsToAppend
from app.conversations.schemas.conversations import AppendResult, Filter, Name, NonNegative
from app.conversations.schemas.history import HistoryPage, HistoryQuery, ListedStatus
from app.core.errors import Forbidden, PublicValueError
from app.core.paging import Order
from app.core.times import TimeOut
from app.core.validation.ids import ConversationIdIn, ConversationNameIn, IdIn
from app.core.validation.strict import Strict
from app.formats.schemas import Role
from app.memory.longterm.schemas import MemoryEntries
from app.memory.schemas import FactCreate, FactSearch
from app.recall.schemas import Recall, RecallResult, WaitForVectorsMs
from app.tenancy.schemas import Caller, IdempotencyKey, RequestResult

MAX_QUERY_CHARACTERS = 32_768
ExternalId: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Limit: TypeAlias = Annotated[StrictInt, Field(ge=1, le=200)]
Cursor: TypeAlias = Annotated[str, StringConstraints(max_length=1024)]
ProjectName: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=128)]
_PART: Final = frozenset({"turn_id", "start", "length"})
_Position = Annotated[StrictInt, Field(ge=0, le=2**53 - 1)]


class AskAgent(Strict):
    """A question or task for the agent. It is stored as a turn of the named conversation, or of a new one."""

    query: Annotated[str, StringConstraints(min_length=1, max_length=MAX_QUERY_CHARACTERS)]
    conversation_id: ConversationIdIn | None = None

    @field_validator("query")
    @classmethod
    def _not_blank(cls, query: str) -> str:
        if not query.strip():
            raise PublicValueError("a query must have at least one character that is not a space")
        return query


class AgentTurn(BaseModel):
    """A turn of the conversation, with its text."""

    id: str
    role: Role
    actor: str
    content: str
    occurred_at: TimeOut


class AgentAnswer(BaseModel):
    """The agent's answer, and its conversation."""

    conversation_id: str
    response: str
    tools_used: list[str] = Field(description="The tools that were run for this answer, each once.")
    history: list[AgentTurn] = Field(
        description="The last 10 turns, the oldest first; this answer is the last of them."
    )


class SupportsAsk(Protocol):
    """The service that answers `ask_agent`."""

    async def ask(
        self, caller: Caller, *, body: AskAgent, idempotency_key: IdempotencyKey | None = None
    ) -> RequestResult[AgentAnswer]:
        """Return the answer."""
        ...


def agent_disabled() -> Forbidden:
    """Return the error for a disabled agent."""
    return Forbidden("agent_disabled", "The agent is disabled. Set TURNKEEP_ENABLE_INTERNAL_AGENT=true to enable it.")


class ConversationNames(Strict):
    """The names of a conversation: its id, or its external id in a project."""

    conversation_id: ConversationNameIn | None = Field(None, description="The id of the conversation.")
    external_id: ExternalId | None = Field(
        None, description="Your own name for the conversation, in place of conversation_id."
    )
    project: ProjectName | None = Field(
        None, description="The project that external_id belongs to: `default` if it is left out."
    )

    @model_validator(mode="after")
    def _one_name(self) -> "ConversationNames":
        if self.conversation_id is not None and self.external_id is not None:
            raise PublicValueError("Give conversation_id or external_id, not both.")
        return self


class NamedConversation(ConversationNames):
    """A conversation that must be named."""

    @model_validator(mode="after")
    def _some_name(self) -> "NamedConversation":
        if self.conversation_id is None and self.external_id is None:
            raise PublicValueError("Give conversation_id or external_id.")
        return self


class BuildContext(NamedConversation, ContextRequest):
    """A context to build for a conversation, within a token budget."""

    # models have no use for these: their schema is short
    max_turn_tokens: SkipJsonSchema[MaxTurnTokens | None] = None
    wait_for_vectors_ms: SkipJsonSchema[WaitForVectorsMs] = 0


class AppendTurns(NamedConversation, TurnsToAppend):
    """Turns to append to a conversation, all or none."""

    is_always_unchecked: ClassVar[bool] = True

    expected_seq: NonNegative | None = None
    owner: Name | None = Field(
        None, description="The owner of the conversation, if this call creates it; an error if it has another owner."
    )


class Summarize(NamedConversation, SummaryRequest):
    """Turns of a conversation to summarise, through `through`; without it, all but the newest."""


class AskAgentTool(ConversationNames, AskAgent):
    """A question or task for the agent, as a turn of the named conversation or of a new one."""


class RecallTool(Recall):
    """A search across conversations: the named ones, or all of a project, an owner or the tenant."""

    external_ids: Annotated[list[ExternalId], Field(min_length=1, max_length=100)] | None = Field(
        None, description="Your own names for conversations of `project`, besides conversation_ids."
    )


class ListFacts(ConversationNames, FactSearch):
    """Facts to list. All given filters must match."""

    project: ProjectName | None = Field(
        None, description="Facts that are known in this project; also the project that external_id belongs to."
    )
    limit: Limit = 20
    cursor: Cursor | None = Field(None, description="next_cursor of the page before, with the same filters.")

    def search(self, conversation_id: UUID | None) -> FactSearch:
        """Return the search for a conversation whose name was resolved."""
        members: dict[str, object] = {name: getattr(self, name) for name in FactSearch.model_fields}
        return FactSearch.model_validate({**members, "conversation_id": conversation_id})


class AssertFact(ConversationNames, FactCreate):
    """A fact to assert. A fact that is already stored gains evidence."""

    project: ProjectName | None = Field(
        None,
        description="The project that the fact is known in; left out: that of the conversation, else all projects."
        " Also the project that external_id belongs to.",
    )


class StoredMemory(BaseModel):
    """Confirmation that a memory is stored and can be found. It has no id, because agents do not delete."""

    stored: Literal[True]


_Cut: TypeAlias = Annotated[
    str | None, Field(default=None, description="What was left out of a long answer, and how to read it.")
]


class AppendAnswer(AppendResult):
    """The stored turns, and the new state of the conversation."""

    cut: _Cut


class RecallAnswer(RecallResult):
    """Hits, best first."""

    cut: _Cut


class MemoryAnswer(MemoryEntries):
    """Recalled memories, best first."""

    cut: _Cut


class TreeAnswer(Tree):
    """Nodes of a session's memory, each after its parent."""

    cut: _Cut


class ContextAnswer(Context):
    """A context, ready for a model."""

    cut: _Cut


class TurnPart(BaseModel):
    """A part of a turn's plain text, from `start` to `end` (exclusive) of `length` code points."""

    start: int
    end: int
    length: int
    text: str


class HistoryAnswer(HistoryPage):
    """A page of a history, or a part of one turn, whose `data` then has the turn without its content."""

    part: TurnPart | None = None
    cut: _Cut


class GetHistory(NamedConversation):
    """A page of a conversation's history to read, or a part of one of its turns."""

    turn_id: IdIn | None = Field(
        None, description="Read the text of this turn only, from `start`, in place of a page. For long turns."
    )
    start: _Position = Field(0, description="With turn_id: the code point of its text to start from.")
    length: Annotated[StrictInt, Field(ge=1, le=2**53 - 1)] = Field(
        8_000, description="With turn_id: how many code points to read; `part.end` says how many fitted."
    )

    order: Order | None = Field(
        None,
        description="asc starts at the first turn, desc at the newest. Without it a page is in chronological order: the"
        " newest turns, or those just before `before`, or those just after `after`.",
    )
    after: _Position | None = Field(None, description="Only turns after this position.")
    before: _Position | None = Field(None, description="Only turns before this position.")
    since_rev: _Position | None = Field(
        None, description="Only turns that changed after this rev, erased and superseded ones too."
    )
    status: ListedStatus = Field("committed", description="aborted: turns that were aborted.")
    actors: Annotated[list[Filter], Field(max_length=200)] | None = Field(
        None, description="Only turns of these actors."
    )
    limit: Limit = 50
    cursor: Cursor | None = Field(None, description="next_cursor of the page before, with the same filters.")
    include_superseded: StrictBool = False
    include_summaries: StrictBool = False

    def query(self) -> HistoryQuery:
        """Return the query of the history."""
        return HistoryQuery(**self.model_dump(exclude={*ConversationNames.model_fields, *_PART}))

    @model_validator(mode="after")
    def _part_or_page(self) -> "GetHistory":
        changed = {name for name, field in GetHistory.model_fields.items() if getattr(self, name) != field.default}
        if self.turn_id is None and changed & _PART:
            raise PublicValueError("start and length need a turn_id.")
        if self.turn_id is not None and changed - _PART - set(ConversationNames.model_fields):
            raise PublicValueError("With turn_id, give only start and length.")
        return self
