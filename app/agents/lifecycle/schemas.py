"""Requests and responses of the turn lifecycle."""

from operator import not_
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, Field, StrictBool, StrictInt, StringConstraints

from app.context.schemas import MAX_SYSTEM_CHARACTERS, MAX_TOKEN_BUDGET, Gap
from app.conversations.schemas.conversations import MAX_TURNS, MessageObject, Name
from app.core.times import TimeOut
from app.core.validation.strict import Strict

MAX_PATH_CHARACTERS = 1024
# the longest names, signed, take 14 600 characters
MAX_OPERATION_CHARACTERS = 16_384
MAX_DEPTH = 32
MAX_ENTRIES = 200

Project: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=128)]
SessionId: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=512)]
TurnName: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Items: TypeAlias = Annotated[list[MessageObject], Field(max_length=MAX_TURNS, fail_fast=True)]
Instructions: TypeAlias = Annotated[str, StringConstraints(max_length=MAX_SYSTEM_CHARACTERS)]
InputTokens: TypeAlias = Annotated[
    StrictInt, Field(ge=1, le=MAX_TOKEN_BUDGET, description="The token budget of all input items together.")
]
PRODUCED_ITEMS: Final = frozenset({"current_input", "input_items", "output_items"})
"""Members with texts and numbers of a model or a tool: `read_items` checks the rest of them."""

OperationToken: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_OPERATION_CHARACTERS)]


class BeforeTurn(Strict):
    """A turn before its model call. `current_input`: OpenAI Responses items, not stored by this call."""

    project: Project = "default"
    session_id: SessionId
    user_id: Name
    turn_id: TurnName
    current_input: Items = Field(min_length=1)
    base_instructions: Instructions | None = None
    max_input_tok: InputTokens | None = Field(None, description="Default: the setting max_input_tokens.")
    include_memories: StrictBool = Field(default=False, description="Also long-term memories of `agent_id`.")
    agent_id: Name | None = Field(
        None, description="The agent whose memories are read; required without the scope `admin`."
    )


class AfterTurn(Strict):
    """A turn to store: the input and the output of the model, as OpenAI Responses items."""

    project: Project = "default"
    session_id: SessionId
    user_id: Name
    turn_id: TurnName
    input_items: Items = Field(default=[])
    output_items: Items = Field(default=[])


class RunTurn(Strict):
    """Either the fields of before-turn, to prepare a turn, or `operation_token` and `output_items`, to complete it."""

    project: Project | None = Field(None, description="The project of a turn to prepare; default: `default`.")
    session_id: SessionId | None = None
    user_id: Name | None = None
    turn_id: TurnName | None = None
    current_input: Items | None = None
    base_instructions: Instructions | None = None
    max_input_tok: InputTokens | None = None
    include_memories: StrictBool | None = None
    agent_id: Name | None = None
    operation_token: OperationToken | None = Field(
        None, description="To complete a turn: the token that the first call returned."
    )
    output_items: Items | None = None


class SessionRequest(Strict):
    """A session to maintain."""

    project: Project = "default"
    session_id: SessionId


class TreeRequest(Strict):
    """A part of a session's memory to list: `path` and the nodes below it, `depth` levels deep."""

    project: Project = "default"
    session_id: SessionId
    path: Annotated[str, StringConstraints(max_length=MAX_PATH_CHARACTERS)] = Field(
        default="",
        description="A path such as `/memory/{session}/events` or `/events`. Empty: the whole tree.",
    )
    depth: Annotated[StrictInt, Field(ge=1, le=MAX_DEPTH)] = 8
    limit: Annotated[StrictInt, Field(ge=1, le=MAX_ENTRIES)] = 200


class TurnContext(BaseModel):
    """The input for the model. `context_token_count` counts all input items, in o200k_base.

    `gap`: the turns of the session that are neither among the items nor under a summary; null if there are none.
    """

    input_items: list[MessageObject]
    recall_fact_ids: list[str]
    context_token_count: int
    gap: Gap | None


Sanitised: TypeAlias = Annotated[
    list[str],
    Field(
        default_factory=list,
        exclude_if=not_,
        description="JSON pointers of the request, to members that a model or a tool produced and from which characters"
        " were left out: NUL and halves of surrogate pairs. Absent if there are none.",
    ),
]


class TurnPrepared(TurnContext):
    """A turn whose input is stored. `operation_token` completes it, until `expires_at`."""

    operation_token: str
    expires_at: TimeOut
    sanitised: Sanitised


class TurnDone(BaseModel):
    """Confirmation that the turn is stored, by this request or an earlier one."""

    ok: Literal[True]
    sanitised: Sanitised


class MaintenanceCounts(BaseModel):
    """Counts of the maintenance.

    `summaries`: summaries created; `refreshed`: those of them that replaced highlights; `turns_erased`: turns erased by
    the session's retention; `facts_expired`: facts deleted.
    """

    summaries: int
    refreshed: int
    turns_erased: int
    facts_expired: int


class Maintained(BaseModel):
    """The result of a session's maintenance."""

    ok: Literal[True]
    counts: MaintenanceCounts


class TreeEntry(BaseModel):
    """One node of a session's memory. `has_overview`: the node's text has more than `abstract`."""

    path: str
    abstract: str
    updated_at: TimeOut
    has_overview: bool


class Tree(BaseModel):
    """Nodes of a session's memory, each after its parent."""

    summaries: list[TreeEntry]


class NodeText(BaseModel):
    """One node of a session's memory, as text."""

    path: str
    text: str
    updated_at: TimeOut
