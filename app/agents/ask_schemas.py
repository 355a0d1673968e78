"""The vocabulary of asking an agent: the question, and its answer with what was said last."""

from typing import Annotated, Protocol

from pydantic import BaseModel, Field, StringConstraints, field_validator

from app.conversations.schemas import IdIn
from app.core.errors import Forbidden
from app.core.strict import Strict
from app.core.times import TimeOut
from app.formats.schemas import Role
from app.tenancy.schemas import Caller, Repeatable

MAX_QUERY_CHARACTERS = 32_768


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

    async def ask(self, caller: Caller, *, body: AskAgent, repeat: Repeatable | None) -> tuple[AgentAnswer, bool]:
        """The answer; says whether the same request had been answered before."""
        ...


def agent_disabled() -> Forbidden:
    """What is said where no agent is to be asked."""
    return Forbidden("agent_disabled", "No agent answers here; TURNKEEP_ENABLE_INTERNAL_AGENT=true switches it on.")
