"""The vocabulary of the audit: actions, kinds of objects and actors, entries."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Annotated, Final, Literal, Protocol, TypeAlias
from uuid import UUID

from pydantic import BaseModel, Field, StrictInt, StringConstraints

from app.core.ids import NO_KEY_ID, KeyId, TenantId
from app.core.times import TimeOut
from app.core.validation.strict import Strict
from app.core.views import IdOut

BreakKind: TypeAlias = Literal["entry_changed", "entry_removed", "entry_added", "seal_changed", "seal_removed"]
MAX_VERIFIED_ENTRIES: Final = 50_000
_MAX_KNOWN: Final = 4_000
_Hash: TypeAlias = Annotated[str, StringConstraints(min_length=64, max_length=64, pattern=r"^[0-9a-f]+$")]


class Action(StrEnum):
    """What a request did. The names are stable: an action is added, and never renamed."""

    CONVERSATION_CREATE = "conversations.create"
    CONVERSATION_UPDATE = "conversations.update"
    CONVERSATION_DELETE = "conversations.delete"
    CONVERSATION_TRASH = "conversations.trash"
    CONVERSATION_RESTORE = "conversations.restore"
    CONVERSATION_FORK = "conversations.fork"
    CONVERSATION_UNDO_COMPACT = "conversations.undo_compact"
    TURN_APPEND = "turns.append"
    TURN_OPEN = "turns.open"
    TURN_RESUME = "turns.resume"
    TURN_COMMIT = "turns.commit"
    TURN_ABORT = "turns.abort"
    TURN_REVISE = "turns.revise"
    TURN_ERASE = "turns.erase"
    RESPONSE_DELETE = "responses.delete"
    SUMMARY_CREATE = "summaries.create"
    FACT_CREATE = "facts.create"
    FACT_UPDATE = "facts.update"
    FACT_RETRACT = "facts.retract"
    FACT_UNDO = "facts.undo"
    FACT_EXTRACT = "facts.extract"
    MEMORY_STORE = "memories.store"
    MEMORY_DELETE = "memories.delete"
    MEMORY_SEARCH = "memories.search"
    RECALL = "recall.search"
    CONTEXT_BUILD = "contexts.build"
    AGENT_ASK = "agents.ask"
    TOOL_CALL = "tools.call"
    TOKEN_CREATE = "tokens.create"  # noqa: S105 - the name of an action
    TOKEN_REVOKE = "tokens.revoke"  # noqa: S105 - the name of an action
    KEY_CREATE = "keys.create"
    KEY_ROTATE = "keys.rotate"
    KEY_REVOKE = "keys.revoke"
    KEY_LIMIT = "keys.limit"
    KEY_LIST = "keys.list"
    TENANT_CREATE = "tenants.create"
    TENANT_UPDATE = "tenants.update"
    TENANT_LIMIT = "tenants.limit"
    TENANT_READ = "tenants.read"
    LIMIT_READ = "limits.read"
    STATS_READ = "stats.read"
    SAMPLES_READ = "samples.read"
    SLOW_CALL_LIST = "slow_calls.list"
    REPLICA_LIST = "replicas.list"
    USAGE_LIST = "usage.list"
    ERASURE_START = "erasures.start"
    ERASURE_END = "erasures.end"
    ERASURE_LIST = "erasures.list"
    EXPORT_READ = "exports.read"
    IMPORT_START = "imports.start"
    IMPORT_END = "imports.end"
    OWNER_READ = "owners.read"
    OPERATION_CANCEL = "operations.cancel"
    WEBHOOK_CREATE = "webhooks.create"
    WEBHOOK_UPDATE = "webhooks.update"
    WEBHOOK_ROTATE = "webhooks.rotate"
    WEBHOOK_TEST = "webhooks.test"
    WEBHOOK_REPLAY = "webhooks.replay"
    WEBHOOK_DISABLE = "webhooks.disable"
    WEBHOOK_DELETE = "webhooks.delete"
    WEBHOOK_LIST = "webhooks.list"
    JOB_LIST = "jobs.list"
    JOB_READ = "jobs.read"
    JOB_RETRY = "jobs.retry"
    JOB_CANCEL = "jobs.cancel"
    SPACE_LIST = "spaces.list"
    SPACE_ADD = "spaces.add"
    SPACE_COMPARE = "spaces.compare"
    SPACE_SWITCH = "spaces.switch"
    SPACE_DROP = "spaces.drop"
    AUDIT_LIST = "audit.list"
    AUDIT_VERIFY = "audit.verify"
    AUDIT_LOSE = "audit.lose"
    """Reads that were left out because too many waited to be written; the count is in `counts`."""


class ObjectKind(StrEnum):
    """What an action was done to."""

    CONVERSATION = "conversation"
    TURN = "turn"
    SUMMARY = "summary"
    FACT = "fact"
    MEMORY = "memory"
    KEY = "key"
    TENANT = "tenant"
    JOB = "job"
    SPACE = "embedding_space"
    TOOL = "tool"
    OPERATION = "operation"
    ERASURE = "erasure"
    IMPORT = "import"
    WEBHOOK = "webhook"


class ActorKind(StrEnum):
    """Who acted.

    An API key, a conversation token of a key, a person by an access token, a job of the service, or a command of its
    operator.
    """

    KEY = "key"
    PERSON = "person"
    TOKEN = "token"  # noqa: S105 - a kind of actor
    JOB = "job"
    COMMAND = "command"


class Actor(Protocol):
    """The caller of a service, as far as an entry names it.

    `key_id` is `NO_KEY_ID` for a job or a command, and a keyed hash for a person.
    """

    @property
    def key_tenant_id(self) -> TenantId:
        """The tenant of the key."""
        ...

    @property
    def key_id(self) -> KeyId:
        """The id of the key."""
        ...

    @property
    def via_token(self) -> bool:
        """Whether the caller gave a conversation token."""
        ...

    @property
    def is_person(self) -> bool:
        """Whether the caller gave an access token of an issuer."""
        ...


@dataclass(frozen=True, slots=True)
class Command:
    """The operator of the installation, who runs a command for a tenant."""

    key_tenant_id: TenantId
    key_id: KeyId = NO_KEY_ID
    via_token: bool = False
    is_person: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as it is stored. Its time is that of the database, or for a read that of the process."""

    tenant_id: UUID
    id: UUID
    recorded_at: datetime
    key_id: UUID | None
    actor: str
    action: str
    object_kind: str | None
    object_id: str | None
    conversation_id: UUID | None
    first_seq: int | None
    last_seq: int | None
    head_hash: bytes | None
    counts: Mapping[str, int]
    request_id: UUID | None


@dataclass(frozen=True, slots=True)
class ChainedEntry:
    """An entry with its place in the hash chain of its tenant and day: numbers start at 1."""

    day: date
    number: int
    entry: Entry
    hash: bytes


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """The end of the chain of a tenant's day, and where it started.

    `ordinal` counts the days of a tenant in the order in which their chains were started, from 1. `previous_*` is the
    end of the chain that was started before, at that time. `entries_deleted_at`: retention has deleted the entries.
    """

    tenant_id: TenantId
    day: date
    ordinal: int
    entries: int
    hash: bytes
    previous_day: date | None
    previous_entries: int
    previous_hash: bytes
    entries_deleted_at: datetime | None


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Conditions on entries, joined with `and`; None means any."""

    action: str | None = None
    key_id: UUID | None = None
    object_kind: str | None = None
    object_id: str | None = None
    conversation_id: UUID | None = None
    request_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None


class AuditEntry(BaseModel):
    """An entry of the audit: an action, its actor and its object. It has no content and no text of a caller.

    `key_id` is null for jobs and commands. `first_seq` and `last_seq` are the range of the turns that were stored, and
    `head_hash` is the chain hash of the conversation after them. `counts` is empty if the request changed nothing.
    `request_id` is the `X-Request-Id` if that is a ULID or a UUID, else an id that is derived from it. `number` is the
    place in the chain of the day, null until the entry is sealed.
    """

    id: IdOut
    recorded_at: TimeOut
    actor: ActorKind
    key_id: IdOut | None
    action: str
    object_kind: str | None
    object_id: str | None
    conversation_id: IdOut | None
    first_seq: int | None
    last_seq: int | None
    head_hash: str | None
    counts: dict[str, int]
    request_id: IdOut | None
    day: date | None
    number: int | None


class KnownChain(Strict):
    """The end of the chain of a day, as an earlier verification returned it: its entries, and the hash of the last."""

    day: date
    entries: Annotated[StrictInt, Field(ge=1, le=2**53 - 1)]
    hash: _Hash


class AuditVerify(Strict):
    """What to verify of the audit.

    `known`: `chains` of an earlier answer, or of `turnkeep audit verify --json`, that were kept in another place. They
    must still be there, unchanged. `cursor`: the `next_cursor` of the part before, sent with the same `known`.
    """

    known: list[KnownChain] = Field(default=[], max_length=_MAX_KNOWN)
    max_entries: Annotated[StrictInt, Field(ge=1, le=MAX_VERIFIED_ENTRIES)] = 10_000
    cursor: Annotated[str, StringConstraints(max_length=1_024)] | None = None


class AuditBreak(BaseModel):
    """The first place where a chain is not as it was sealed. `number` is null for a whole day."""

    kind: BreakKind
    day: date
    number: int | None


class AuditChain(BaseModel):
    """The end of the chain of a day: its number of entries, and the hash of the last one in hexadecimal."""

    day: date
    entries: int
    hash: str


class AuditVerification(BaseModel):
    """Result of a part of the verification of a tenant's audit, oldest chain first.

    `valid`: no break up to here. `entries`: entries that this part has hashed and compared. `chains`: the chains whose
    end it reached; `deleted_days` of them have no entries any more, because of their age. `unsealed`: entries that are
    in no chain yet. `next_cursor` requests the next part; it is null at the end, and after a break.
    """

    valid: bool
    entries: int
    first_break: AuditBreak | None
    chains: list[AuditChain]
    deleted_days: int
    unsealed: int
    has_more: bool
    next_cursor: str | None
