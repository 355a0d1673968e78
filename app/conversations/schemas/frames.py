"""The frames of a live conversation, from and to clients, over WebSocket and as SSE events.

The AsyncAPI document is generated from these models. Offsets and lengths count Unicode code points.
"""

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictInt, StringConstraints, model_validator

from app.conversations.schemas.append import IndexTime, IndexTimeIn, TurnsToAppend
from app.conversations.schemas.conversations import Name, NonNegative, Turn, UsageIn
from app.conversations.schemas.summaries import Summary
from app.core.times import TimeIn, TimeOut
from app.core.validation.ids import IdIn, NewTurnId
from app.core.validation.strict import Strict, Unchecked
from app.formats.message_schemas import DocumentedAs, ToolCall
from app.formats.parse.produced import storable
from app.formats.schemas import JsonObject, Kind, Role

CONTENT: Final = "content"
"""The part with the text of a turn; the other parts are members of its tool calls."""
MAX_CALLS = 128
MAX_CHUNK_BYTES: Final = 64 * 2**10
"""Largest chunk of an open turn: a model writes some bytes at a time, and one larger frame would delay the others."""
PART_PATTERN = r"^(content|tool_calls/(0|[1-9][0-9]?|1[01][0-9]|12[0-7])/(id|name|arguments))$"

Part: TypeAlias = Annotated[
    str,
    StringConstraints(pattern=PART_PATTERN, max_length=32),
    Field(description="`content`, or a member of a tool call such as `tool_calls/0/arguments`."),
]
Writer: TypeAlias = Annotated[
    str,
    StringConstraints(min_length=1, max_length=256),
    Field(description="Name of the writer, chosen by the client; the same writer may resume after a lost connection."),
]
Reason: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]
FrameId: TypeAlias = Annotated[
    str, StringConstraints(min_length=1, max_length=128), Field(description="Echoed in the frame's ack or error.")
]
Calls: TypeAlias = Annotated[
    list[Annotated[JsonObject, DocumentedAs(ToolCall)]], Field(max_length=MAX_CALLS, fail_fast=True)
]


# request bodies of writers


class OpenTurn(Strict):
    """A turn that is written while it streams. `supersedes` takes effect at its commit."""

    role: Role
    id: NewTurnId | None = None
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
    position: Literal["committed", "opened"] = Field(
        default="committed",
        description="Where the turn stands in the conversation: by the order in which turns are committed or, with"
        " `opened`, before all turns that are stored after this call.",
    )


class Chunk(Strict):
    """More text of a turn. Text below the offset taken so far is a repetition and changes nothing."""

    offset: NonNegative
    delta: Annotated[str, StringConstraints(max_length=2**20)]
    part: Part = "content"


class Ending(Strict):
    """The end of a turn. A `length` that differs from the length of its content is refused.

    `tool_calls` are complete, or omit the `arguments` that were streamed as `tool_calls/N/arguments`.
    """

    length: NonNegative | None = None
    usage: UsageIn | None = None
    model: Name | None = None
    metadata: JsonObject | None = None
    tool_calls: Calls | None = None

    @model_validator(mode="before")
    @classmethod
    def _admit(cls, body: object) -> object:
        return storable(dict(body)) if isinstance(body, Unchecked) else body


class Aborting(Strict):
    """Abort a turn. The reason is stored as `abort_reason` in its metadata."""

    reason: Reason | None = None


class Resuming(Strict):
    """Continue a turn after a lost connection, as the same writer; earlier connections can no longer write it."""

    writer: Writer = "writer"


class Offset(BaseModel):
    """The durable length and the received length of one part."""

    part: str
    durable_offset: int
    offset: int


class OpenedTurn(BaseModel):
    """An open turn: its current row, and the offset from which its writer continues each part.

    `epoch` grows with each resume; a chunk with a lower epoch is refused.
    """

    turn: Turn
    writer: str
    epoch: int
    durable_offset: int
    parts: list[Offset]
    lease_expires_at: TimeOut


class ChunkResult(BaseModel):
    """The received length and the durable length of a part."""

    turn_id: str
    part: str
    offset: int
    durable_offset: int


# frames from clients, over WebSocket


class _ClientFrame(Strict):
    id: FrameId | None = None


class AuthFrame(_ClientFrame):
    """The first frame, if no header and no subprotocol has a key or token."""

    type: Literal["auth"]
    token: Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class OpenFrame(_ClientFrame, Opening):
    """Open a turn; the `ack` has its id."""

    type: Literal["open"]


class ChunkFrame(_ClientFrame, Chunk):
    """More text of a turn; acknowledged at once, and again when it is durable."""

    type: Literal["chunk"]
    turn_id: IdIn


class CommitFrame(_ClientFrame, Ending):
    """Commit a turn; the `ack` has the turn, after it is durable."""

    type: Literal["commit"]
    turn_id: IdIn


class AbortFrame(_ClientFrame, Aborting):
    """Abort a turn."""

    type: Literal["abort"]
    turn_id: IdIn


class ResumeFrame(_ClientFrame, Resuming):
    """Continue a turn after a lost connection."""

    type: Literal["resume"]
    turn_id: IdIn


class AppendFrame(_ClientFrame, TurnsToAppend):
    """Append whole turns, as `POST …/turns` does."""

    type: Literal["append"]
    expected_seq: NonNegative | None = None
    index: IndexTimeIn = IndexTime.NOW
    idempotency_key: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None


class SubscribeFrame(_ClientFrame):
    """Follow the conversation: changes after `after_rev`, turns after `after_seq`, or by default the newest turns."""

    type: Literal["subscribe"]
    after_seq: NonNegative | None = None
    after_rev: NonNegative | None = None


class PingFrame(_ClientFrame):
    """Request a `pong`; also renews the leases of the turns that this connection writes."""

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


# frames to clients


class PartText(BaseModel):
    """The text so far of one part of an open turn."""

    part: str
    text: str


class PendingTurn(BaseModel):
    """An open turn: its row (with `content` null), and the text so far of each part."""

    turn: Turn
    writer: str
    parts: list[PartText]


class WriterPresence(BaseModel):
    """The writer of an open turn."""

    turn_id: str
    writer: str
    actor: str


class SnapshotFrame(BaseModel):
    """The state of the conversation: the turns changed since the start position, and the open turns with their text.

    A snapshot may have several frames; all but the last have `more`, and only the last has `pending`.
    """

    type: Literal["snapshot"]
    seq: int
    rev: int
    turns: list[Turn]
    pending: list[PendingTurn]
    more: bool


class TurnOpenedFrame(BaseModel):
    """A turn was opened."""

    type: Literal["turn.opened"]
    turn: Turn
    writer: str


class TurnDeltaFrame(BaseModel):
    """More text of an open turn. If `offset` is below the client's length, cut the text to `offset` first."""

    type: Literal["turn.delta"]
    turn_id: str
    part: str
    offset: int
    delta: str


class TurnCommittedFrame(BaseModel):
    """A turn was committed, after streaming or by an append."""

    type: Literal["turn.committed"]
    rev: int
    turn: Turn


class TurnAbortedFrame(BaseModel):
    """An open turn was aborted, or its lease expired; `length` is the length of its content."""

    type: Literal["turn.aborted"]
    turn_id: str
    length: int


class TurnSupersededFrame(BaseModel):
    """Another turn superseded this turn."""

    type: Literal["turn.superseded"]
    rev: int
    turn_id: str
    superseded_by: str


class TurnErasedFrame(BaseModel):
    """The content of a turn was erased; the turn keeps its seq and position."""

    type: Literal["turn.erased"]
    rev: int
    turn_id: str


class SummaryCreatedFrame(BaseModel):
    """A summary of older turns was created; contexts use it instead of them, and the turns are kept."""

    type: Literal["summary.created"]
    rev: int
    summary: Summary


class PresenceFrame(BaseModel):
    """The current writers."""

    type: Literal["presence"]
    writers: list[WriterPresence]


class RereadFrame(BaseModel):
    """Some frames were dropped because the client read too slowly: subscribe again after this rev."""

    type: Literal["reread"]
    after_rev: int


class ErrorFrame(BaseModel):
    """A frame was refused, with an error code of the REST API (`docs/errors.md`). Other clients are not notified.

    Some codes have additional members, as their problems have.
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
    """A frame was executed. The members depend on the type of the frame."""

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
    sanitised: list[str] | None = None


class PongFrame(BaseModel):
    """The response to a ping."""

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
