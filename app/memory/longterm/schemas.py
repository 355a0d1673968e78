"""Types of long-term memories: requests of agents, and responses."""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, Field, StrictFloat, StrictInt, StringConstraints, field_validator

from app.conversations.schemas.conversations import Name
from app.core.errors import PublicValueError
from app.core.paging import Order
from app.core.times import TimeIn, TimeOut
from app.core.validation.strict import Strict
from app.formats.schemas import JsonObject

MAX_CONTENT_CHARACTERS = 2**20
"""Limit of the request document; `MAX_MEMORY_BYTES` limits the stored text."""
MAX_MEMORY_BYTES = 64 * 2**10
"""Largest memory: about 16 000 tokens. A whole document belongs in a turn, of which recall finds parts."""

QueryText: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=10_000)]


def _has_text(text: str) -> str:
    if not text.strip():
        raise PublicValueError("a text has at least one character that is not a space")
    return text


class MemoryStore(Strict):
    """A memory to store for the calling agent. After `ttl_s` seconds it is not recalled any more, and is deleted."""

    content: Annotated[str, StringConstraints(min_length=1, max_length=MAX_CONTENT_CHARACTERS)]
    metadata: JsonObject = Field(default={})
    owner: Name | None = None
    ttl_s: Annotated[StrictInt, Field(ge=1, le=3_153_600_000)] | None = None

    @field_validator("content")
    @classmethod
    def _not_blank(cls, content: str) -> str:
        return _has_text(content)


class MemoryFilters(Strict):
    """Filters for memories. A memory must match all given filters; times are exclusive.

    `metadata`: the metadata contains this object.
    """

    owner: Name | None = None
    metadata: JsonObject | None = None
    created_after: TimeIn | None = None
    created_before: TimeIn | None = None


class MemoryQuery(Strict):
    """A search for memories of an agent: the `top_k` most similar ones."""

    query: QueryText
    top_k: Annotated[StrictInt, Field(ge=1, le=20)] = 5
    min_relevance: Annotated[StrictFloat, Field(ge=0, le=1, description="Least relevance of an entry.")] = 0.0
    filters: MemoryFilters = MemoryFilters()

    @field_validator("query")
    @classmethod
    def _not_blank(cls, query: str) -> str:
        return _has_text(query)


class MemoryListing(Strict):
    """Filters and paging of a list of memories, in a body."""

    agent_id: Name | None = None
    owner: Name | None = None
    order: Order = "desc"
    limit: Annotated[StrictInt, Field(ge=1, le=200)] = 20
    cursor: Annotated[str, StringConstraints(max_length=1024)] | None = None


class Memory(BaseModel):
    """A long-term memory of an agent."""

    id: str
    agent_id: str
    owner: str | None
    content: str
    metadata: JsonObject
    created_at: TimeOut
    stored_at: Annotated[
        list[TimeOut], Field(description="The times at which it was stored: the first, and each repetition.")
    ]
    expires_at: TimeOut | None


class MemoryStored(BaseModel):
    """Confirmation that a memory is durable and searchable. An administrator can delete it by its `id`.

    A memory with the same text, owner and metadata is not stored twice: it keeps its id, and `stored_at` gets another
    time.
    """

    stored: Literal[True]
    id: str


class MemoryEntry(Memory):
    """A recalled memory.

    `score` orders the entries. `relevance` estimates from 0 to 1 how likely the memory answers the query; null in an
    embedding space for which this was not measured.
    """

    score: float
    relevance: float | None


class MemoryEntries(BaseModel):
    """Recalled memories of an agent, best first. `degraded` names the parts of the search that were missing."""

    entries: list[MemoryEntry]
    degraded: list[str]
