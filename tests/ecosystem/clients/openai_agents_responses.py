"""An agent of openai-agents on the Responses API, with a long-term memory: prints its answers to some messages.

`session` keeps the conversation in an OpenAIConversationsSession and creates responses that store nothing;
`conversation` names a conversation, `previous` continues from the response before, `history` sends the whole history of
a local session with a header that names the conversation.
"""

import asyncio
import json
import os
import sys
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    set_tracing_disabled,
)
from agents.mcp import MCPServerStreamableHttp
from openai import AsyncOpenAI

URL, KEY = os.environ["TURNKEEP_URL"], os.environ["TURNKEEP_API_KEY"]


async def settings_of(how: str, name: str, client: AsyncOpenAI) -> tuple[ModelSettings, dict[str, Any]]:
    """The settings of the model, and how the runner continues a conversation."""
    match how:
        case "session":
            return ModelSettings(store=False), {"session": OpenAIConversationsSession(openai_client=client)}
        case "conversation":
            return ModelSettings(), {"conversation_id": (await client.conversations.create()).id}
        case "previous":
            return ModelSettings(), {"auto_previous_response_id": True}
        case _:
            return ModelSettings(extra_headers={"X-Conversation-Id": name}), {"session": SQLiteSession(name)}


async def converse(how: str, mode: str, name: str, messages: list[str]) -> list[str]:
    """The answers of the agent to messages of one session."""
    client = AsyncOpenAI(base_url=f"{URL}/openai/v1", api_key=KEY)
    settings, continued = await settings_of(how, name, client)
    connection = {"url": f"{URL}/mcp", "headers": {"Authorization": f"Bearer {KEY}"}}
    async with MCPServerStreamableHttp(connection, client_session_timeout_seconds=60) as server:
        agent = Agent(
            name="Assistant",
            instructions="Remember what the user tells you.",
            model=OpenAIResponsesModel("fake-chat", openai_client=client),
            model_settings=settings,
            mcp_servers=[server],
        )
        answers: list[str] = []
        for message in messages:
            if mode == "streamed":
                running = Runner.run_streamed(agent, message, **continued)
                async for _ in running.stream_events():
                    pass
            else:
                running = await Runner.run(agent, message, **continued)
            answers.append(str(running.final_output))
            if how == "previous":
                continued["previous_response_id"] = running.last_response_id
        return answers


async def keep() -> list[Any]:
    """What a session returns of many items, after one was taken back, and after it was cleared."""
    session = OpenAIConversationsSession(openai_client=AsyncOpenAI(base_url=f"{URL}/openai/v1", api_key=KEY))
    await session.add_items([{"role": "user", "content": f"n {number}"} for number in range(45)])
    popped: Any = await session.pop_item()
    newest: list[Any] = list(await session.get_items(limit=3))
    every = await session.get_items()
    await session.clear_session()
    texts = [one["content"][0]["text"] for one in (popped, *newest)]
    return [*texts, len(every), len(await session.get_items())]


set_tracing_disabled(disabled=True)
work = keep() if sys.argv[1] == "keep" else converse(*sys.argv[1:4], sys.argv[4:])
json.dump(asyncio.run(work), sys.stdout)
