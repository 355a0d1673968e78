"""A chat message history of LangChain (`pip install turnkeep-client[langchain]`).

Each message is one turn of the conversation, so people, recall and contexts read the history like any conversation.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Final, cast

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)

from turnkeep_client.client import Turnkeep
from turnkeep_client.generated import types
from turnkeep_client.integrations.history import ConversationHistory
from turnkeep_client.integrations.messages import Call, Shown, message_of, shown_of, text_of, turn_of

_FRAMEWORK: Final = "langchain"
_ROLES: Final[Mapping[str, types.Role]] = {
    "human": "user", "user": "user", "ai": "assistant", "assistant": "assistant", "system": "system",
}  # fmt: skip


class TurnkeepChatMessageHistory(BaseChatMessageHistory):
    """The messages of the conversation with the external id `session_id`.

    `RunnableWithMessageHistory(chain, TurnkeepChatMessageHistory)` makes one for each session. `add_messages` called
    again after a failure stores nothing twice. `clear` deletes the conversation.
    """

    def __init__(
        self,
        session_id: str,
        turnkeep: Turnkeep | None = None,
        *,
        owner: str | None = None,
        project: str | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__()
        self.session_id, self._limit = session_id, limit
        self._history = ConversationHistory(turnkeep or Turnkeep(), session_id, owner=owner, project=project)

    @property
    def messages(self) -> list[BaseMessage]:  # pyright: ignore[reportIncompatibleVariableOverride] - as documented there
        """The newest `limit` messages in chronological order; all of them without a limit."""
        return [_message_of(turn) for turn in self._history.turns(self._limit)]

    async def aget_messages(self) -> list[BaseMessage]:
        """Return the messages."""
        return await asyncio.to_thread(lambda: self.messages)

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages, all or none of each 500."""
        self._history.append([turn_of(_FRAMEWORK, message_to_dict(one), _shown(one)) for one in messages])

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages, all or none of each 500."""
        await asyncio.to_thread(self.add_messages, messages)

    def clear(self) -> None:
        """Delete the conversation with everything derived from it."""
        self._history.clear()

    async def aclear(self) -> None:
        """Delete the conversation with everything derived from it."""
        await asyncio.to_thread(self.clear)


def _shown(message: BaseMessage) -> Shown:
    text = text_of(cast("object", message.content))
    if isinstance(message, ToolMessage):
        return Shown("tool", text, call_id=message.tool_call_id)
    if isinstance(message, AIMessage):
        calls = (Call(call["id"] or "", call["name"], json.dumps(call["args"])) for call in message.tool_calls)
        return Shown("assistant", text, tuple(calls))
    role = cast("str", getattr(message, "role", message.type))
    return Shown(_ROLES.get(role, "user"), text)


def _message_of(turn: types.Turn) -> BaseMessage:
    given = message_of(_FRAMEWORK, turn)
    if given is not None:
        return messages_from_dict([cast("dict[str, object]", given)])[0]
    shown = shown_of(turn)
    match shown.role:
        case "tool":
            return ToolMessage(shown.text, tool_call_id=shown.call_id or "")
        case "assistant":
            calls = [{"id": call.id, "name": call.name, "args": call.parsed} for call in shown.calls]
            return AIMessage(shown.text, tool_calls=calls)
        case "system":
            return SystemMessage(shown.text)
        case "user":
            return HumanMessage(shown.text)
