"""The chat message history of langchain: messages of all types come back as they were."""

import asyncio

from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from turnkeep_client import Turnkeep
from turnkeep_client.integrations.langchain import TurnkeepChatMessageHistory

MESSAGES: list[BaseMessage] = [
    SystemMessage("You look things up."),
    HumanMessage([{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]),
    AIMessage(
        "",
        id="run-1",
        tool_calls=[
            {"id": "1", "name": "look", "args": {"id": 12345678901234567890, "deep": {"a": [1, None]}}},
            {"id": "2", "name": "look", "args": {}},
        ],
        invalid_tool_calls=[{"id": "3", "name": "look", "args": "{", "error": "no JSON"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        response_metadata={"model_name": "gpt-5-mini"},
    ),
    ToolMessage("rain", tool_call_id="1", artifact={"rows": [1, 2]}, name="look"),
    ToolMessage([{"type": "text", "text": "a null \0"}], tool_call_id="2", status="error"),
    AIMessage([{"type": "reasoning", "reasoning": "so"}, {"type": "text", "text": "Rain."}], name="Bot"),
    AIMessageChunk("half"),
    FunctionMessage("1", name="old"),
    ChatMessage("as a critic", role="critic"),
    AIMessage(""),
]  # fmt: skip


async def main() -> None:
    turnkeep, memory = Turnkeep(), InMemoryChatMessageHistory()
    history = TurnkeepChatMessageHistory("check-langchain", turnkeep)
    memory.add_messages(MESSAGES)
    await history.aadd_messages(MESSAGES)
    history.add_user_message("Hi.")
    memory.add_user_message("Hi.")
    history.add_ai_message("Hello.")
    memory.add_ai_message("Hello.")
    again = TurnkeepChatMessageHistory("check-langchain", turnkeep)
    assert again.messages == memory.messages
    assert [type(one) for one in again.messages] == [type(one) for one in memory.messages]
    assert await again.aget_messages() == memory.messages
    assert TurnkeepChatMessageHistory("check-langchain", turnkeep, limit=2).messages == memory.messages[-2:]
    turnkeep.conversation("check-langchain").append(
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "9", "name": "look", "arguments": '{"a": 1}'}],
        },
        {"role": "tool", "tool_call_id": "9", "content": "sun"},
    )
    assert again.messages[-2:] == [
        AIMessage("I look.", tool_calls=[{"id": "9", "name": "look", "args": {"a": 1}}]),
        ToolMessage("sun", tool_call_id="9"),
    ]
    await again.aclear()
    assert history.messages == []


asyncio.run(main())
