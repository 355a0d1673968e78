"""Types of erasures, of their receipts, and of the view of an owner."""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, Field, StrictInt, StringConstraints, model_validator

from app.conversations.schemas.conversations import ListedConversation, Name
from app.core.errors import PublicValueError
from app.core.times import TimeOut
from app.core.validation.ids import ConversationIdIn, IdIn
from app.core.validation.strict import Strict
from app.memory.longterm.schemas import Memory
from app.memory.schemas import Fact

_SUBJECTS = ("conversation_id", "owner", "actor", "tenant")


class SubjectKind(StrEnum):
    """What an erasure is about."""

    CONVERSATION = "conversation"
    OWNER = "owner"
    ACTOR = "actor"
    TENANT = "tenant"


class ErasureStatus(StrEnum):
    """State of an erasure. The counts of a failed or cancelled one are those of what was erased before its end."""

    OPEN = "open"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


class _Subject(Strict):
    conversation_id: ConversationIdIn | None = None
    owner: Name | None = None
    actor: Name | None = None
    tenant: IdIn | None = Field(default=None, description="The id of the tenant whose data is erased, all of it.")
    project: Name | None = Field(default=None, description="Only in this project; with `owner` or `actor`.")


class ErasureCreate(_Subject):
    """What to erase: exactly one of `conversation_id`, `owner`, `actor` and `tenant`."""

    @model_validator(mode="after")
    def _names_one_subject(self) -> "ErasureCreate":
        if sum(getattr(self, name) is not None for name in _SUBJECTS) != 1:
            raise PublicValueError("name exactly one of conversation_id, owner, actor and tenant")
        if self.project is not None and self.owner is None and self.actor is None:
            raise PublicValueError("a project narrows the erasure of an owner or an actor only")
        return self


class ErasedRows(BaseModel):
    """Rows of one table: deleted ones, and rows that stay without their content (tombstones, removed names)."""

    deleted: int
    emptied: int


class Erasure(BaseModel):
    """The receipt of an erasure. It has no personal data, and is kept after its operation, which has the same id.

    `subject_hash` is a keyed hash of what was erased, in hexadecimal. `counts`: rows by table. `signature` covers all
    other members; null while the erasure is open.
    """

    id: str
    tenant_id: str
    subject_kind: SubjectKind
    subject_hash: str
    status: ErasureStatus
    counts: dict[str, ErasedRows]
    created_at: TimeOut
    ended_at: TimeOut | None
    signature: str | None


_Hex = Annotated[str, StringConstraints(max_length=64, pattern=r"^[0-9a-f]{64}$")]
_Time = Annotated[str, StringConstraints(max_length=40)]
_Count = Annotated[StrictInt, Field(ge=0, le=2**53 - 1)]


class ErasedRowsIn(Strict):
    """Rows of one table, as a receipt has them."""

    deleted: _Count
    emptied: _Count


class ReceiptIn(Strict):
    """A receipt, as `GET /v1/erasures/{id}` returned it."""

    id: IdIn
    tenant_id: IdIn
    subject_kind: SubjectKind
    subject_hash: _Hex
    status: ErasureStatus
    counts: Annotated[dict[str, ErasedRowsIn], Field(max_length=100)]
    created_at: _Time
    ended_at: _Time | None
    signature: _Hex | None


class ReceiptCheck(_Subject):
    """A receipt to verify, and optionally the subject that it should be about."""

    receipt: ReceiptIn

    @model_validator(mode="after")
    def _names_one_subject_at_most(self) -> "ReceiptCheck":
        if sum(getattr(self, name) is not None for name in _SUBJECTS) > 1:
            raise PublicValueError("name one of conversation_id, owner, actor and tenant at most")
        return self


class ReceiptVerification(BaseModel):
    """`valid`: this installation signed the receipt for this tenant, and nothing in it was changed.

    `matches`: it is about the given subject; null if none is given.
    """

    valid: bool
    matches: bool | None


class OwnerLookup(Strict):
    """An owner to look up, in all projects or in one. Each list has its own cursor."""

    owner: Name
    project: Name | None = None
    limit: Annotated[StrictInt, Field(ge=1, le=200)] = 20
    conversations_cursor: Annotated[str, StringConstraints(max_length=1024)] | None = None
    facts_cursor: Annotated[str, StringConstraints(max_length=1024)] | None = None
    memories_cursor: Annotated[str, StringConstraints(max_length=1024)] | None = None


class OwnedConversations(BaseModel):
    """Conversations of an owner, the one last written to first; `count` is the number of all."""

    count: int
    data: list[ListedConversation]
    has_more: bool
    next_cursor: str | None


class OwnedFacts(BaseModel):
    """Facts of an owner, newest first, without retracted ones; `count` includes those that are not valid any more."""

    count: int
    data: list[Fact]
    has_more: bool
    next_cursor: str | None


class OwnedMemories(BaseModel):
    """Memories about an owner, of all agents, newest first. They belong to no project."""

    count: int
    data: list[Memory]
    has_more: bool
    next_cursor: str | None


class OwnerView(BaseModel):
    """All that is stored under an owner, by kind."""

    conversations: OwnedConversations
    facts: OwnedFacts
    memories: OwnedMemories
