"""A turn of a chat: build the context, call the model, and store what is new, in one append that refuses conflicts."""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from turnkeep_client.generated import types
from turnkeep_client.generated.errors import ConversationAdvancedError
from turnkeep_client.generated.operations import AsyncOperations

ModelMessage: TypeAlias = dict[str, types.JsonValue]
ModelReply: TypeAlias = str | Mapping[str, object] | Sequence[Mapping[str, object]]
ModelCall: TypeAlias = Callable[[list[ModelMessage]], ModelReply]
AsyncModelCall: TypeAlias = Callable[[list[ModelMessage]], Awaitable[ModelReply] | ModelReply]

MAX_ATTEMPTS: Final = 3
_MESSAGE_TOKENS: Final = 16
"""More than the tokens that the frame of a message costs in any format."""
_NO_BUDGET: Final = 10_000_000
_MAX_QUERY: Final = 32_768
_WAIT_FOR_VECTORS_MS: Final = 300
"""A long message that was just stored is found by its meaning when its vectors are made."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How a turn of a chat is made. `context` goes over what this client asks for."""

    actor: str | None = None
    assistant: str | None = None
    system: str | None = None
    token_budget: int = 8_000
    context: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class ChatResult:
    """The answer, the turns as they were stored, and the context that the model received.

    `attempts`: how often the model was called; more than once if another writer was faster.
    """

    text: str
    turns: list[types.Turn]
    context: types.Context
    attempts: int


class ChatExchange:
    """One exchange: `build` returns the messages for the model, `store` stores its reply."""

    def __init__(self, api: AsyncOperations, conversation_id: str, message: str, options: ChatOptions) -> None:
        self._api, self._conversation_id, self._message, self._options = api, conversation_id, message, options
        self._attempts = 0
        self._context: types.Context | None = None

    async def build(self) -> list[ModelMessage]:
        """Build the context and return its messages with the new one."""
        budget = self._options.token_budget
        body: dict[str, object] = {
            "token_budget": max(1, budget - await self._message_tokens() - _MESSAGE_TOKENS),
            "query": self._message[:_MAX_QUERY] or None,
            "semantic_recall": {"k": 5},
            "wait_for_vectors_ms": _WAIT_FOR_VECTORS_MS,
            "system": self._options.system,
            **(self._options.context or {}),
        }
        self._attempts += 1
        self._context = await self._api.build_context(self._conversation_id, body=cast("types.ContextRequest", body))
        said: ModelMessage = {"role": "user", "content": self._message}
        if self._options.actor is not None and any("name" in one for one in self._context["messages"]):
            said["name"] = self._options.actor
        return [*cast("list[ModelMessage]", self._context["messages"]), said]

    async def _message_tokens(self) -> int:
        """Return the tokens of the new message, or a higher number that costs no request."""
        size = len(self._message.encode())  # a token of any tokenizer has at least one byte
        if size <= self._options.token_budget // 4:
            return size
        body: types.ContextRequest = {"token_budget": _NO_BUDGET, "recent_turns": 1, "system": self._message}
        counted = await self._api.build_context(self._conversation_id, body=body)
        return counted["usage"]["sections"]["system"]["requested"]

    async def store(self, reply: ModelReply) -> ChatResult | None:
        """Store the message and the reply, all or nothing. Returns None for a conflict that can be tried again."""
        if self._context is None:
            raise RuntimeError("Build the context first.")
        _check_reply(reply)
        body: dict[str, object] = {"turns": self._turns(reply), "expected_seq": self._context["as_of_seq"]}
        if not isinstance(reply, str):
            body["format"] = "openai"
        try:
            stored = await self._api.append_turns(self._conversation_id, body=cast("types.Append", body))
        except ConversationAdvancedError:
            if self._attempts >= MAX_ATTEMPTS:
                raise
            return None
        return ChatResult(_text(reply), stored["turns"], self._context, self._attempts)

    def _turns(self, reply: ModelReply) -> list[Mapping[str, object]]:
        said = {"role": "user", "content": self._message} | _actor(self._options.actor)
        if isinstance(reply, str):
            return [said, {"role": "assistant", "content": reply} | _actor(self._options.assistant)]
        return [said, *([reply] if isinstance(reply, Mapping) else reply)]


def _check_reply(reply: object) -> None:
    """Raise TypeError for an object that is no reply, which a function of the caller can return."""
    if isinstance(reply, str | Mapping):
        return
    refused = f"The function that calls the model returned {type(reply).__name__}."
    if inspect.iscoroutine(reply):
        reply.close()  # it will not be awaited
        raise TypeError(f"{refused} An async function needs AsyncTurnkeep.")
    messages = cast("Sequence[object]", reply) if isinstance(reply, Sequence) else ()
    if not messages or not all(isinstance(one, Mapping) for one in messages):
        raise TypeError(f"{refused} Return a text, a message in the format of OpenAI, or a list of messages.")


def _actor(actor: str | None) -> dict[str, object]:
    return {} if actor is None else {"actor": actor}


def _text(reply: ModelReply) -> str:
    """The text of the last message of a reply."""
    if isinstance(reply, str):
        return reply
    last = reply if isinstance(reply, Mapping) else reply[-1]
    content = last.get("content")
    return content if isinstance(content, str) else "" if content is None else json.dumps(content)
