"""What tools take beyond the bodies of the REST calls, and the vocabulary of `ask_agent`."""

from typing import Annotated, Literal, Protocol, TypeAlias
from uuid import UUID

from pydantic import BaseModel, Field, StrictBool, StrictInt, StringConstraints, field_validator, model_validator

from app.context.schemas import ContextRequest, SummaryRequest
from app.conversations.schemas.append import Append
from app.conversations.schemas.conversations import Filter, IdIn
from app.conversations.schemas.history import HistoryQuery, ListedStatus, Order
from app.core.errors import Forbidden
from app.core.times import TimeOut
from app.core.validation.strict import Strict
from app.formats.schemas import Role
from app.memory.schemas import FactCreate, FactSearch
from app.recall.schemas import Recall
from app.tenancy.schemas import Caller, IdempotencyKey

MAX_QUERY_CHARACTERS = 32_768
ExternalId: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Limit: TypeAlias = Annotated[StrictInt, Field(ge=1, le=200)]
Cursor: TypeAlias = Annotated[str, StringConstraints(max_length=1024)]
ProjectName: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=128)]
_Position = Annotated[StrictInt, Field(ge=0, le=2**53 - 1)]


class AskAgent(Strict):
    """A question or task for the agent, as a turn of the conversation that is named, or of a new one."""

    query: Annotated[str, StringConstraints(min_length=1, max_length=MAX_QUERY_CHARACTERS)]
    conversation_id: IdIn | None = None

    @field_validator("query")
    @classmethod
    def _not_blank(cls, query: str) -> str:
        if not query.strip():
            raise ValueError("a query has at least one character that is not a space")
        return query


class AgentTurn(BaseModel):
    """A turn of the conversation, by what was said in it."""

    id: str
    role: Role
    actor: str
    content: str
    occurred_at: TimeOut


class AgentAnswer(BaseModel):
    """What the agent says, and in which conversation it goes on."""

    conversation_id: str
    response: str
    tools_used: list[str] = Field(description="The tools that were run for this answer, each once.")
    history: list[AgentTurn] = Field(
        description="The last 10 turns, the oldest first; this answer is the last of them."
    )


class Asks(Protocol):
    """Who answers `ask_agent`."""

    async def ask(self, caller: Caller, *, body: AskAgent, repeat: IdempotencyKey | None) -> tuple[AgentAnswer, bool]:
        """The answer; says whether the same request had been answered before."""
        ...


def agent_disabled() -> Forbidden:
    """What is said where no agent is to be asked."""
    return Forbidden("agent_disabled", "No agent answers here; TURNKEEP_ENABLE_INTERNAL_AGENT=true switches it on.")


class ConversationNames(Strict):
    """The names of a conversation: its id, or the caller's own name for it in a project."""

    conversation_id: IdIn | None = Field(None, description="The id of the conversation.")
    external_id: ExternalId | None = Field(
        None, description="Your own name for the conversation, in place of conversation_id."
    )
    project: ProjectName | None = Field(
        None, description="The project that external_id belongs to: `default` if it is left out."
    )

    @model_validator(mode="after")
    def _one_name(self) -> "ConversationNames":
        if self.conversation_id is not None and self.external_id is not None:
            raise ValueError("Give conversation_id or external_id, not both.")
        return self


class NamedConversation(ConversationNames):
    """A conversation that must be named."""

    @model_validator(mode="after")
    def _some_name(self) -> "NamedConversation":
        if self.conversation_id is None and self.external_id is None:
            raise ValueError("Give conversation_id or external_id.")
        return self


class BuildContext(NamedConversation, ContextRequest):
    """A context to build: of which conversation, and within which token budget."""


class AppendTurns(NamedConversation, Append):
    """Turns to append to a conversation, all or none."""


class Summarize(NamedConversation, SummaryRequest):
    """Turns of a conversation to summarise: through one of them; left out: all but the newest."""


class AskAgentTool(ConversationNames, AskAgent):
    """A question or task for the agent, as a turn of the conversation that is named, or of a new one."""


class RecallTool(Recall):
    """A search across conversations: those named, or a project's, an owner's, or all of the tenant's."""

    external_ids: Annotated[list[ExternalId], Field(min_length=1, max_length=100)] | None = Field(
        None, description="Your own names for conversations of `project`, besides conversation_ids."
    )


class ListFacts(ConversationNames, FactSearch):
    """Facts to list. All that is given must hold."""

    project: ProjectName | None = Field(
        None, description="Facts that are known in this project; also the project that external_id belongs to."
    )
    limit: Limit = 20
    cursor: Cursor | None = Field(None, description="next_cursor of the page before, with the same filters.")

    def search(self, conversation_id: UUID | None) -> FactSearch:
        """What facts are listed, of a conversation that was found by its name."""
        given: dict[str, object] = {name: getattr(self, name) for name in FactSearch.model_fields}
        return FactSearch.model_validate({**given, "conversation_id": conversation_id})


class AssertFact(ConversationNames, FactCreate):
    """A fact to assert. Where it is held already it gains evidence."""

    project: ProjectName | None = Field(
        None,
        description="The project that the fact is known in; left out: that of the conversation, else all projects."
        " Also the project that external_id belongs to.",
    )


class StoredMemory(BaseModel):
    """That a memory is stored, durable and found from now on. Agents delete nothing, so they learn no id."""

    stored: Literal[True]


class GetHistory(NamedConversation):
    """A page of a conversation's history to read."""

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
    status: ListedStatus = Field("committed", description="aborted: turns that were given up.")
    actors: Annotated[list[Filter], Field(max_length=200)] | None = Field(
        None, description="Only what these actors said."
    )
    limit: Limit = 50
    cursor: Cursor | None = Field(None, description="next_cursor of the page before, with the same filters.")
    include_superseded: StrictBool = False
    include_summaries: StrictBool = False

    def query(self) -> HistoryQuery:
        """What it asks the history for."""
        return HistoryQuery(**self.model_dump(exclude=set(ConversationNames.model_fields)))
