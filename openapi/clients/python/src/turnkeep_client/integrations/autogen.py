"""A memory of AutoGen agents (`pip install turnkeep-client[autogen]`), over the long-term memories of Turnkeep.

What is stored where: each text that is added is a memory of the agent `agent_id`, across all conversations. Its MIME
type is in the metadata of the memory, next to the metadata that was given. `query` finds the memories by meaning.
"""

import asyncio
import json
from typing import Final, Self, cast

from autogen_core import CancellationToken, Component
from autogen_core.memory import Memory, MemoryContent, MemoryMimeType, MemoryQueryResult, UpdateContextResult
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import SystemMessage
from pydantic import BaseModel

from turnkeep_client.client import Turnkeep
from turnkeep_client.generated import types
from turnkeep_client.integrations.messages import JsonObject
from turnkeep_client.paging import items

_MIME_TYPE: Final = "turnkeep.mime_type"
_IS_OBJECT: Final = "turnkeep.is_object"
_MAX_QUERY: Final = 8_000


class TurnkeepMemoryConfig(BaseModel):
    """The settings of a memory. The API key is not among them: it is read from `TURNKEEP_API_KEY`."""

    agent_id: str
    owner: str | None = None
    k: int = 5
    min_relevance: float = 0.11


class TurnkeepMemory(Memory, Component[TurnkeepMemoryConfig]):
    """A memory for `AssistantAgent(memory=[…])`: each run begins with the memories that match its newest message.

    `owner` is the user whom the memories are about: only theirs are found. `k` is how many are found at most, with at
    least `min_relevance`. An `add` is sent again after failures, and stores one memory. `clear` needs a key with the
    scope `admin`.
    """

    component_config_schema = TurnkeepMemoryConfig
    component_provider_override = "turnkeep_client.integrations.autogen.TurnkeepMemory"

    def __init__(
        self,
        agent_id: str,
        turnkeep: Turnkeep | None = None,
        *,
        owner: str | None = None,
        k: int = 5,
        min_relevance: float = 0.11,
    ) -> None:
        self._turnkeep = turnkeep or Turnkeep()
        self._config = TurnkeepMemoryConfig(agent_id=agent_id, owner=owner, k=k, min_relevance=min_relevance)

    async def update_context(self, model_context: ChatCompletionContext) -> UpdateContextResult:
        """Add the memories that match the newest message, as one system message."""
        messages = await model_context.get_messages()
        newest = messages[-1].content if messages else ""
        found = await self.query(newest if isinstance(newest, str) else json.dumps(newest, default=str))
        if found.results:
            lines = "\n".join(f"- {one.content}" for one in found.results)
            await model_context.add_message(SystemMessage(content=f"Memories that may be relevant:\n{lines}"))
        return UpdateContextResult(memories=found)

    async def query(
        self, query: str | MemoryContent, cancellation_token: CancellationToken | None = None, **kwargs: object
    ) -> MemoryQueryResult:
        """Return the memories that match, the nearest first; the metadata of each has its `score`."""
        del cancellation_token, kwargs
        text = query if isinstance(query, str) else _stored(query)[0]
        if not text.strip():
            return MemoryQueryResult(results=[])
        body: types.MemoryQuery = {
            "query": text[:_MAX_QUERY],
            "top_k": self._config.k,
            "min_relevance": self._config.min_relevance,
            "filters": {"owner": self._config.owner} if self._config.owner else {},
        }
        found = await asyncio.to_thread(self._turnkeep.api.search_memories, body=body, x_agent_id=self._config.agent_id)
        return MemoryQueryResult(results=[_content_of(entry) for entry in found["entries"]])

    async def add(self, content: MemoryContent, cancellation_token: CancellationToken | None = None) -> None:
        """Store a text, or JSON. Raises ValueError for other content."""
        del cancellation_token
        text, metadata = _stored(content)
        body: types.MemoryStore = {"content": text, "metadata": metadata}
        if self._config.owner:
            body["owner"] = self._config.owner
        await asyncio.to_thread(self._turnkeep.api.store_memory, body=body, x_agent_id=self._config.agent_id)

    async def clear(self) -> None:
        """Delete the memories of this agent, with an `owner` those about this owner."""
        await asyncio.to_thread(self._clear)

    async def close(self) -> None:
        """Do nothing: the client may be used by others. Close it with `Turnkeep.close`."""

    def _clear(self) -> None:
        agent_id, owner = self._config.agent_id, self._config.owner
        found = items(self._turnkeep.api.list_memories, agent_id=agent_id, owner=owner, limit=200)
        for memory in list(found):
            self._turnkeep.api.delete_memory(memory["id"])

    def _to_config(self) -> TurnkeepMemoryConfig:
        return self._config

    @classmethod
    def _from_config(cls, config: TurnkeepMemoryConfig) -> Self:
        return cls(config.agent_id, owner=config.owner, k=config.k, min_relevance=config.min_relevance)


def _stored(content: MemoryContent) -> tuple[str, JsonObject]:
    """Return the text and the metadata of a memory."""
    kind = content.mime_type.value if isinstance(content.mime_type, MemoryMimeType) else content.mime_type
    metadata = {**cast("JsonObject", content.metadata or {}), _MIME_TYPE: kind}
    if isinstance(content.content, str):
        return content.content, metadata
    if isinstance(content.content, dict):
        return json.dumps(content.content, ensure_ascii=False), {**metadata, _IS_OBJECT: True}
    raise ValueError("A memory is a text or JSON: images and bytes cannot be stored.")


def _content_of(entry: types.MemoryEntry) -> MemoryContent:
    metadata = dict(entry["metadata"])
    kind = str(metadata.pop(_MIME_TYPE, MemoryMimeType.TEXT.value))
    is_known = kind in {one.value for one in MemoryMimeType}
    is_object = metadata.pop(_IS_OBJECT, False)
    return MemoryContent(
        content=cast("dict[str, object]", json.loads(entry["content"])) if is_object else entry["content"],
        mime_type=MemoryMimeType(kind) if is_known else kind,
        metadata={**metadata, "score": entry["score"]},
    )
