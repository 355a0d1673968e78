"""An agent of openai-agents with a conversation and a long-term memory: prints its answers to some messages."""

import asyncio
import json
import os
import sys

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, SQLiteSession, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from openai import AsyncOpenAI

URL, KEY = os.environ["TURNKEEP_URL"], os.environ["TURNKEEP_API_KEY"]


async def converse(mode: str, project: str, conversation: str, messages: list[str]) -> list[str]:
    """The answers of the agent to messages of one session; a header of every chat completion names the conversation."""
    client = AsyncOpenAI(base_url=f"{URL}/openai/v1", api_key=KEY)
    session = SQLiteSession(conversation)
    settings = ModelSettings(extra_headers={"X-Project": project, "X-Conversation-Id": conversation})
    connection = {"url": f"{URL}/mcp", "headers": {"Authorization": f"Bearer {KEY}"}}
    async with MCPServerStreamableHttp(connection, client_session_timeout_seconds=60) as server:
        agent = Agent(
            name="Assistant",
            instructions="Remember what the user tells you.",
            model=OpenAIChatCompletionsModel("fake-chat", openai_client=client),
            model_settings=settings,
            mcp_servers=[server],
        )
        answers: list[str] = []
        for message in messages:
            if mode == "streamed":
                running = Runner.run_streamed(agent, message, session=session)
                async for _ in running.stream_events():
                    pass
            else:
                running = await Runner.run(agent, message, session=session)
            answers.append(str(running.final_output))
        return answers


set_tracing_disabled(disabled=True)
json.dump(asyncio.run(converse(*sys.argv[1:4], sys.argv[4:])), sys.stdout)
