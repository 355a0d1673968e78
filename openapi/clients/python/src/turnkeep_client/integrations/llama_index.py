"""A chat store and a memory block of LlamaIndex (`pip install turnkeep-client[llama-index]`), both for its `Memory`.

The store keeps each message as one turn of the conversation whose external id is the `session_id` of the memory. Which
messages `Memory` has archived is one position in the metadata of that conversation. Invariant: archived messages stay
stored, so the block finds them. The block searches turns, summaries and facts of all sessions of an owner, and the
memories of an agent.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, cast

from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock, ToolCallBlock
from llama_index.core.memory.memory import BaseMemoryBlock
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
from llama_index.core.utils import get_tokenizer  # pyright: ignore[reportUnknownVariableType] - of a plain List
from pydantic import Field, PrivateAttr

from turnkeep_client.client import Turnkeep
from turnkeep_client.generated import types
from turnkeep_client.integrations.history import ConversationHistory
from turnkeep_client.integrations.messages import Call, JsonObject, Shown, message_of, shown_of, text_of, turn_of
from turnkeep_client.paging import items

_FRAMEWORK: Final = "llama-index"
_ARCHIVED: Final = "llama_index.archived_position"
_MAX_HISTORIES: Final = 1_000
_MAX_QUERY: Final = 8_000
_MAX_HITS: Final = 200
_MAX_MEMORIES: Final = 20
_ROLES: Final[Mapping[str, types.Role]] = {
    "system": "system", "developer": "system", "user": "user", "tool": "tool", "function": "tool",
}  # fmt: skip


class TurnkeepChatStore(AsyncDBChatStore):
    """A chat store for `Memory.from_defaults(session_id="trip", chat_store=TurnkeepChatStore(Turnkeep()))`.

    `add_messages` called again after a failure stores nothing twice. `set_messages` keeps the messages that are the
    same at the beginning, erases the others, and appends the new ones. `delete_messages` of all deletes the
    conversation with everything derived from it.
    """

    _turnkeep: Turnkeep = PrivateAttr()
    _owner: str | None = PrivateAttr()
    _project: str | None = PrivateAttr()
    _history: Callable[[str], ConversationHistory] = PrivateAttr()

    def __init__(
        self, turnkeep: Turnkeep | None = None, *, owner: str | None = None, project: str | None = None
    ) -> None:
        super().__init__()
        self._turnkeep = turnkeep or Turnkeep()
        self._owner, self._project = owner, project
        self._history = lru_cache(_MAX_HISTORIES)(self._new_history)

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class."""
        return "TurnkeepChatStore"

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """Return `limit` messages from the `offset`-th on, oldest first; of any status if it is None."""
        turns = await asyncio.to_thread(self._turns, key, status)
        first = offset or 0
        return [_message_of(turn) for turn in turns[first : None if limit is None else first + limit]]

    async def count_messages(self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE) -> int:
        """Return how many messages there are of a status; of any status if it is None."""
        return len(await asyncio.to_thread(self._turns, key, status))

    async def add_message(self, key: str, message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE) -> None:
        """Append a message."""
        await self.add_messages(key, [message], status)

    async def add_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Append messages, all or none of each 500. Archived ones need that there are no active ones before them."""
        await asyncio.to_thread(self._add, key, messages, status)

    async def set_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Replace all messages by these."""
        await asyncio.to_thread(self._set, key, messages, status)

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Erase the message with this index among all messages of the key, and return it."""
        return await asyncio.to_thread(self._delete_one, key, idx)

    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        """Erase the messages of a status; if it is None, delete the conversation."""
        await asyncio.to_thread(self._delete, key, status)

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Erase the oldest `n` active messages, and return them."""
        return await asyncio.to_thread(self._delete_oldest, key, n)

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Archive the oldest `n` active messages, and return them. They stay stored, and are found by recall."""
        return await asyncio.to_thread(self._archive_oldest, key, n)

    async def get_keys(self) -> list[str]:
        """Return the external ids of the conversations of the project, with an `owner` of theirs, that have turns."""
        return await asyncio.to_thread(self._keys)

    def _new_history(self, key: str) -> ConversationHistory:
        return ConversationHistory(self._turnkeep, key, owner=self._owner, project=self._project)

    def _archived(self, key: str) -> int:
        """Return the position up to which messages are archived; 0 if none are."""
        position = self._history(key).conversation()["metadata"].get(_ARCHIVED)
        return position if isinstance(position, int) else 0

    def _turns(self, key: str, status: MessageStatus | None) -> list[types.Turn]:
        if status is None:
            return self._history(key).turns()
        archived = self._archived(key)
        if status is MessageStatus.ACTIVE:
            return self._history(key).turns(after=archived)
        return [turn for turn in self._history(key).turns() if _position(turn) <= archived] if archived else []

    def _add(self, key: str, messages: Sequence[ChatMessage], status: MessageStatus) -> None:
        if status is MessageStatus.ARCHIVED and self._turns(key, MessageStatus.ACTIVE):
            raise ValueError("Archived messages cannot follow active ones: archive these first.")
        self._history(key).append([_turn_of(message) for message in messages])
        if status is MessageStatus.ARCHIVED:
            self._archive(key, self._turns(key, MessageStatus.ACTIVE))

    def _archive(self, key: str, turns: Sequence[types.Turn]) -> None:
        if turns:
            self._history(key).update_metadata({_ARCHIVED: _position(turns[-1])})

    def _set(self, key: str, messages: Sequence[ChatMessage], status: MessageStatus) -> None:
        turns, given = self._history(key).turns(), [_dumped(message) for message in messages]
        same = 0
        for turn, one in zip(turns, given, strict=False):
            if message_of(_FRAMEWORK, turn) != one:
                break
            same += 1
        self._history(key).erase([turn["id"] for turn in turns[same:]])
        self._history(key).append([_turn_of(message) for message in messages[same:]])
        if status is MessageStatus.ARCHIVED:
            self._archive(key, self._history(key).turns(1))
        elif self._archived(key):
            self._history(key).update_metadata({_ARCHIVED: None})

    def _delete_one(self, key: str, idx: int) -> ChatMessage | None:
        turns = self._history(key).turns()
        if not 0 <= idx < len(turns):
            return None
        erased = self._history(key).erase([turns[idx]["id"]])
        return _message_of(turns[idx]) if erased else None

    def _delete(self, key: str, status: MessageStatus | None) -> None:
        if status is None:
            self._history(key).clear()
        else:
            self._history(key).erase([turn["id"] for turn in self._turns(key, status)])

    def _delete_oldest(self, key: str, count: int) -> list[ChatMessage]:
        turns = self._history(key).take(lambda: self._turns(key, MessageStatus.ACTIVE), count)
        return [_message_of(turn) for turn in turns]

    def _archive_oldest(self, key: str, count: int) -> list[ChatMessage]:
        turns = self._turns(key, MessageStatus.ACTIVE)[:count]
        self._archive(key, turns)
        return [_message_of(turn) for turn in turns]

    def _keys(self) -> list[str]:
        found = items(
            self._turnkeep.api.list_conversations,
            project=self._project or "default", owner=self._owner, archived="any", limit=200,
        )  # fmt: skip
        return [str(one["external_id"]) for one in found if one["external_id"] is not None and one["turn_count"]]


class TurnkeepMemoryBlock(BaseMemoryBlock[str]):
    """A memory block for `Memory.from_defaults(memory_blocks=[TurnkeepMemoryBlock(owner="mia")])`.

    It gives what the newest user message recalls of all sessions of the owner in the project, and with `agent_id` of
    the memories of this agent: at most `k` lines of at least `min_relevance`, within `token_limit`. Messages of the
    chat history are left out.

    With `TurnkeepChatStore` all messages are in Turnkeep already. With another chat store set
    `accept_short_term_memory=True`: then messages that leave the chat history are appended to the conversation of the
    session.
    """

    name: str = "turnkeep"
    priority: int = Field(default=1, description="From 1 on, lines are left out if the memory is over its limit.")
    accept_short_term_memory: bool = False
    turnkeep: Turnkeep = Field(default_factory=Turnkeep, exclude=True)
    owner: str | None = None
    project: str = "default"
    agent_id: str | None = None
    kinds: list[types.EntryKind] = Field(default=["turn", "summary", "fact"])
    k: int = 8
    min_relevance: float = 0.11
    token_limit: int = 1_000
    session_id: str | None = Field(default=None, description="Of messages that are put without a memory.")
    tokenizer_fn: Callable[[str], list[int]] = Field(
        default_factory=cast("Callable[[], Callable[[str], list[int]]]", get_tokenizer), exclude=True
    )
    _history: Callable[[str], ConversationHistory] = PrivateAttr()

    def model_post_init(self, context: object, /) -> None:
        """Prepare the conversations of sessions."""
        super().model_post_init(context)
        self._history = lru_cache(_MAX_HISTORIES)(self._new_history)

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Leave out the least relevant lines until this many tokens are saved."""
        return self._fitting(content.splitlines(), self._tokens(content) - tokens_to_truncate) or None

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: object) -> str:
        del block_kwargs
        asked = [_text(one) for one in messages or [] if one.role == MessageRole.USER and _text(one).strip()]
        if not asked:
            return ""
        return await asyncio.to_thread(self._recalled, asked[-1], {_text(one) for one in messages or []})

    async def _aput(self, messages: list[ChatMessage]) -> None:
        by_session: dict[str, list[types.TurnInput]] = {}
        for message in messages:
            session = str(message.additional_kwargs.get("session_id") or self.session_id or "")
            if not session:
                raise ValueError("Name the session of the messages: `session_id` of the memory or of the block.")
            others = {name: value for name, value in message.additional_kwargs.items() if name != "session_id"}
            turn = _turn_of(message.model_copy(update={"additional_kwargs": others}))
            by_session.setdefault(session, []).append(turn)
        for session, turns in by_session.items():
            await asyncio.to_thread(self._history(session).append, turns)

    def _new_history(self, session: str) -> ConversationHistory:
        return ConversationHistory(self.turnkeep, session, owner=self.owner, project=self.project)

    def _recalled(self, query: str, shown: set[str]) -> str:
        body: types.EvaluatedRecall = {
            "query": query[:_MAX_QUERY],
            "kinds": self.kinds,
            "k": min(self.k + len(shown), _MAX_HITS),
            "min_relevance": self.min_relevance,
            "project": self.project,
        }
        if self.owner is not None:
            body["owner"] = self.owner
        hits = self.turnkeep.api.recall(body=body)["data"]
        found = [(hit["score"], _line(hit)) for hit in hits if hit["text"] not in shown]
        found += [(memory["score"], _listed(memory["content"])) for memory in self._memories(query)]
        found.sort(key=lambda one: one[0], reverse=True)
        return self._fitting([line for _, line in found[: self.k]], self.token_limit)

    def _memories(self, query: str) -> list[types.MemoryEntry]:
        if self.agent_id is None:
            return []
        body: types.MemoryQuery = {
            "query": query[:_MAX_QUERY],
            "top_k": min(self.k, _MAX_MEMORIES),
            "min_relevance": self.min_relevance,
            "filters": {} if self.owner is None else {"owner": self.owner},
        }
        return self.turnkeep.api.search_memories(body=body, x_agent_id=self.agent_id)["entries"]

    def _fitting(self, lines: Sequence[str], token_limit: int) -> str:
        """Return the first lines that fit together."""
        text = ""
        for line in lines:
            longer = f"{text}\n{line}" if text else line
            if self._tokens(longer) > token_limit:
                break
            text = longer
        return text

    def _tokens(self, text: str) -> int:
        return len(self.tokenizer_fn(text))


def _line(hit: types.TurnHit | types.FactHit | types.SummaryHit | types.MemoryHit) -> str:
    """Return a hit as one line; of a turn with its day and actor."""
    turn = hit["turn"]
    source = "" if turn is None else f"[{turn['occurred_at'][:10]}, {turn['actor']}] "
    return _listed(f"{source}{hit['text']}")


def _listed(text: str) -> str:
    return f"- {' '.join(text.split())}"


def _position(turn: types.Turn) -> int:
    return turn["position"] or 0


def _dumped(message: ChatMessage) -> JsonObject:
    return cast("JsonObject", message.model_dump(mode="json"))


def _text(message: ChatMessage) -> str:
    return message.content or ""


def _turn_of(message: ChatMessage) -> types.TurnInput:
    return turn_of(_FRAMEWORK, _dumped(message), _shown(message))


def _shown(message: ChatMessage) -> Shown:
    blocks = cast("list[Mapping[str, object]]", message.model_dump(mode="json")["blocks"])
    parts = [{"type": block["block_type"], **block} for block in blocks if block["block_type"] != "tool_call"]
    text = text_of(parts)
    role: types.Role = _ROLES.get(message.role.value, "assistant")
    if role == "tool":
        call_id = message.additional_kwargs.get("tool_call_id")
        return Shown("tool", text, call_id=call_id if isinstance(call_id, str) else None)
    return Shown(role, text, tuple(_calls(message)))


def _calls(message: ChatMessage) -> Iterator[Call]:
    for block in message.blocks:
        if isinstance(block, ToolCallBlock):
            arguments = block.tool_kwargs if isinstance(block.tool_kwargs, str) else json.dumps(block.tool_kwargs)
            yield Call(block.tool_call_id or "", block.tool_name, arguments)


def _message_of(turn: types.Turn) -> ChatMessage:
    given = message_of(_FRAMEWORK, turn)
    if given is not None:
        return ChatMessage.model_validate(given)
    shown = shown_of(turn)
    text = [TextBlock(text=shown.text)] if shown.text else []
    calls = [ToolCallBlock(tool_call_id=one.id, tool_name=one.name, tool_kwargs=one.parsed) for one in shown.calls]
    answered = {"tool_call_id": shown.call_id} if shown.call_id else {}
    return ChatMessage(role=MessageRole(shown.role), blocks=[*text, *calls], additional_kwargs=answered)
