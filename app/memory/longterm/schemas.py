"""Types of long-term memories: requests of agents, and responses."""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, Field, StrictInt, StringConstraints, field_validator

from app.conversations.schemas.conversations import Name
from app.core.times import TimeIn, TimeOut
from app.core.validation.strict import Strict
from app.formats.schemas import JsonObject

MAX_CONTENT_CHARACTERS = 2**20
"""Limit of the request document; `max_memory_bytes` limits the stored text."""

QueryText: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=10_000)]


def _has_text(text: str) -> str:
    if not text.strip():
        raise ValueError("a text has at least one character that is not a space")
    return text


class MemoryStore(Strict):
    """A memory to store for the agent that asks. After `ttl_s` seconds it is recalled no more, and deleted."""

    content: Annotated[str, StringConstraints(min_length=1, max_length=MAX_CONTENT_CHARACTERS)]
    metadata: JsonObject = Field(default={})
    owner: Name | None = None
    ttl_s: Annotated[StrictInt, Field(ge=1, le=3_153_600_000)] | None = None

    @field_validator("content")
    @classmethod
    def _not_blank(cls, content: str) -> str:
        return _has_text(content)


class MemoryFilters(Strict):
    """What entries are narrowed to. All given ones must hold; times are exclusive.

    `metadata` finds memories whose metadata contains it.
    """

    owner: Name | None = None
    metadata: JsonObject | None = None
    created_after: TimeIn | None = None
    created_before: TimeIn | None = None


class MemoryQuery(Strict):
    """What an agent wants to remember: the `top_k` entries that come nearest."""

    query: QueryText
    top_k: Annotated[StrictInt, Field(ge=1, le=20)] = 5
    filters: MemoryFilters = MemoryFilters()

    @field_validator("query")
    @classmethod
    def _not_blank(cls, query: str) -> str:
        return _has_text(query)


class Memory(BaseModel):
    """A long-term memory of an agent."""

    id: str
    agent_id: str
    owner: str | None
    content: str
    metadata: JsonObject
    created_at: TimeOut
    stored_at: Annotated[list[TimeOut], Field(description="When it was stored: the first time, then each repetition.")]
    expires_at: TimeOut | None


class MemoryStored(BaseModel):
    """That a memory is stored, durable and found from now on; an administrator deletes it by its id.

    A memory with the same text, owner and metadata is the same memory: it keeps its id and gets one more date.
    """

    stored: Literal[True]
    id: str


class MemoryEntry(Memory):
    """A memory that was recalled, and how near it came."""

    score: float


class MemoryEntries(BaseModel):
    """What an agent remembers, best first; `degraded` says what could not take part in the search."""

    entries: list[MemoryEntry]
    degraded: list[str]
