"""The frames of a live conversation: what clients send and what they are sent, over WebSocket and as SSE events.

The AsyncAPI document is made from these models. Offsets and lengths count Unicode code points.
"""

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictInt, StringConstraints

from app.conversations.schemas.append import GivenTurns
from app.conversations.schemas.conversations import IdIn, Name, NonNegative, Turn, UsageIn
from app.conversations.schemas.summaries import Summary
from app.core.times import TimeIn, TimeOut
from app.core.validation.strict import Strict
from app.formats.message_schemas import DocumentedAs, ToolCall
from app.formats.schemas import JsonObject, Kind, Role

CONTENT: Final = "content"
"""The part of a turn that is its text; the other parts are members of its tool calls."""
MAX_CALLS = 128
PART_PATTERN = r"^(content|tool_calls/(0|[1-9][0-9]?|1[01][0-9]|12[0-7])/(id|name|arguments))$"

Part: TypeAlias = Annotated[
    str,
    StringConstraints(pattern=PART_PATTERN, max_length=32),
    Field(description="`content`, or a member of a tool call such as `tool_calls/0/arguments`."),
]
Writer: TypeAlias = Annotated[
    str,
    StringConstraints(min_length=1, max_length=256),
    Field(description="Who writes, in the caller's own words; the same writer may resume after a lost connection."),
]
Reason: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]
FrameId: TypeAlias = Annotated[
    str, StringConstraints(min_length=1, max_length=128), Field(description="Echoed in the frame's ack or error.")
]
Calls: TypeAlias = Annotated[
    list[Annotated[JsonObject, DocumentedAs(ToolCall)]], Field(max_length=MAX_CALLS, fail_fast=True)
]


# what a writer gives


class OpenTurn(Strict):
    """A turn that will be written while it streams. `supersedes` takes effect at its commit."""

    role: Role
    id: IdIn | None = None
    actor: Name | None = None
    kind: Kind | None = None
    model: Name | None = None
    adapter: Name | None = None
    metadata: JsonObject = Field(default_factory=dict[str, JsonValue])
    supersedes: IdIn | None = None
    tool_call_id: Name | None = None
    occurred_at: TimeIn | None = None


class Opening(Strict):
    """Open a turn."""

    turn: OpenTurn
    writer: Writer = "writer"


class Chunk(Strict):
    """More of a turn's text. What lies below the length taken so far is a repeat and changes nothing."""

    offset: NonNegative
    delta: Annotated[str, StringConstraints(max_length=2**20)]
    part: Part = "content"


class Ending(Strict):
    """The end of a turn. A `length` that is not that of its content is refused.

    `tool_calls` are complete, or leave `arguments` to what was streamed as `tool_calls/N/arguments`.
    """

    length: NonNegative | None = None
    usage: UsageIn | None = None
    model: Name | None = None
    metadata: JsonObject | None = None
    tool_calls: Calls | None = None


class Aborting(Strict):
    """Give a turn up. The reason is kept as `abort_reason` in its metadata."""

    reason: Reason | None = None


class Resuming(Strict):
    """Go on with a turn after a lost connection, as the same writer; whoever wrote before is fenced off."""

    writer: Writer = "writer"


class Offset(BaseModel):
    """How much of one part is durable, and how much has been taken."""

    part: str
    durable_offset: int
    offset: int


class OpenedTurn(BaseModel):
    """An open turn: the row as it stands, and from where on its writer goes on in each part.

    `epoch` grows with each resume; a chunk that names a lower one is refused.
    """

    turn: Turn
    writer: str
    epoch: int
    durable_offset: int
    parts: list[Offset]
    lease_expires_at: TimeOut


class ChunkResult(BaseModel):
    """What was taken of a part, and what of it is durable."""

    turn_id: str
    part: str
    offset: int
    durable_offset: int


# what a client sends over WebSocket


class _ClientFrame(Strict):
    id: FrameId | None = None


class AuthFrame(_ClientFrame):
    """The first frame where no header and no subprotocol carried a key or token."""

    type: Literal["auth"]
    token: Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class OpenFrame(_ClientFrame, Opening):
    """Open a turn; answered with its id."""

    type: Literal["open"]


class ChunkFrame(_ClientFrame, Chunk):
    """More of a turn; answered at once, and again when it is durable."""

    type: Literal["chunk"]
    turn_id: IdIn


class CommitFrame(_ClientFrame, Ending):
    """Finish a turn; answered with it when it is durable."""

    type: Literal["commit"]
    turn_id: IdIn


class AbortFrame(_ClientFrame, Aborting):
    """Give a turn up."""

    type: Literal["abort"]
    turn_id: IdIn


class ResumeFrame(_ClientFrame, Resuming):
    """Go on with a turn."""

    type: Literal["resume"]
    turn_id: IdIn


class AppendFrame(_ClientFrame, GivenTurns):
    """Append whole turns, as `POST …/turns` does."""

    type: Literal["append"]
    expected_seq: NonNegative | None = None
    idempotency_key: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None


class SubscribeFrame(_ClientFrame):
    """Follow the conversation: from what changed after `after_rev`, or the turns after `after_seq`, or the newest."""

    type: Literal["subscribe"]
    after_seq: NonNegative | None = None
    after_rev: NonNegative | None = None


class PingFrame(_ClientFrame):
    """Ask for a pong; renews the leases of the turns this connection writes."""

    type: Literal["ping"]


ClientFrame: TypeAlias = Annotated[
    AuthFrame
    | OpenFrame
    | ChunkFrame
    | CommitFrame
    | AbortFrame
    | ResumeFrame
    | AppendFrame
    | SubscribeFrame
    | PingFrame,
    Field(discriminator="type"),
]


# what a client is sent


class PartText(BaseModel):
    """The text so far of one part of an open turn."""

    part: str
    text: str


class PendingTurn(BaseModel):
    """An open turn as a subscriber meets it: the row (its `content` is null), and the text so far of each part."""

    turn: Turn
    writer: str
    parts: list[PartText]


class WriterPresence(BaseModel):
    """Somebody who is writing."""

    turn_id: str
    writer: str
    actor: str


class SnapshotFrame(BaseModel):
    """Where the conversation stands: what changed since, by rev, and the open turns with their text so far.

    It may come in several frames; all but the last say `more`, and only the last has `pending`.
    """

    type: Literal["snapshot"]
    seq: int
    rev: int
    turns: list[Turn]
    pending: list[PendingTurn]
    more: bool


class TurnOpenedFrame(BaseModel):
    """Somebody began to write."""

    type: Literal["turn.opened"]
    turn: Turn
    writer: str


class TurnDeltaFrame(BaseModel):
    """More text of an open turn. At a lower offset than is held, what is held is cut to it first."""

    type: Literal["turn.delta"]
    turn_id: str
    part: str
    offset: int
    delta: str


class TurnCommittedFrame(BaseModel):
    """A turn is part of the conversation, streamed or appended whole."""

    type: Literal["turn.committed"]
    rev: int
    turn: Turn


class TurnAbortedFrame(BaseModel):
    """An open turn was given up, or its writer was not heard of any more; `length` is that of its content."""

    type: Literal["turn.aborted"]
    turn_id: str
    length: int


class TurnSupersededFrame(BaseModel):
    """Another turn stands in this one's place."""

    type: Literal["turn.superseded"]
    rev: int
    turn_id: str
    superseded_by: str


class TurnErasedFrame(BaseModel):
    """What the turn said is gone; its place stays."""

    type: Literal["turn.erased"]
    rev: int
    turn_id: str


class SummaryCreatedFrame(BaseModel):
    """A summary stands now for older turns, in contexts; the turns stay."""

    type: Literal["summary.created"]
    rev: int
    summary: Summary


class PresenceFrame(BaseModel):
    """Who is writing now."""

    type: Literal["presence"]
    writers: list[WriterPresence]


class RereadFrame(BaseModel):
    """Some frames were left out, because they were not read fast enough: subscribe again after this rev."""

    type: Literal["reread"]
    after_rev: int


class ErrorFrame(BaseModel):
    """A frame was refused; codes are those of the REST API (`docs/errors.md`). Nobody else notices.

    Some codes add members of their own, as their problems do.
    """

    model_config = ConfigDict(extra="allow")

    type: Literal["error"]
    id: str | None
    code: str
    detail: str
    retryable: bool
    turn_id: str | None
    expected_offset: int | None
    errors: list[JsonValue]


class AckFrame(BaseModel):
    """A frame was carried out. Which members are there goes by what was asked."""

    type: Literal["ack"]
    id: str | None = None
    turn_id: str | None = None
    part: str | None = None
    offset: StrictInt | None = None
    durable_offset: StrictInt | None = None
    epoch: StrictInt | None = None
    parts: list[Offset] | None = None
    turn: Turn | None = None
    turns: list[Turn] | None = None
    seq: StrictInt | None = None
    rev: StrictInt | None = None
    head_hash: str | None = None


class PongFrame(BaseModel):
    """The answer to a ping."""

    type: Literal["pong"]
    id: str | None


ServerFrame: TypeAlias = (
    SnapshotFrame
    | TurnOpenedFrame
    | TurnDeltaFrame
    | TurnCommittedFrame
    | TurnAbortedFrame
    | TurnSupersededFrame
    | TurnErasedFrame
    | SummaryCreatedFrame
    | PresenceFrame
    | RereadFrame
    | ErrorFrame
    | AckFrame
    | PongFrame
)
