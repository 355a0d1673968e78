"""An agent of pydantic-ai with a conversation and a long-term memory: prints its answers to some messages."""

import asyncio
import json
import os
import sys

from pydantic_ai import Agent, ModelMessage
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, KEY = os.environ["TURNKEEP_URL"], os.environ["TURNKEEP_API_KEY"]


async def converse(mode: str, project: str, conversation: str, messages: list[str]) -> list[str]:
    """The answers of the agent to messages of one session; a header of every chat completion names the conversation."""
    agent = Agent(
        OpenAIChatModel("fake-chat", provider=OpenAIProvider(base_url=f"{URL}/openai/v1", api_key=KEY)),
        instructions="Remember what the user tells you.",
        model_settings={"extra_headers": {"X-Project": project, "X-Conversation-Id": conversation}},
        toolsets=[MCPToolset(f"{URL}/mcp", headers={"Authorization": f"Bearer {KEY}"})],
    )
    answers: list[str] = []
    history: list[ModelMessage] = []
    async with agent:
        for message in messages:
            if mode == "streamed":
                async with agent.run_stream(message, message_history=history) as streamed:
                    answers.append("".join([piece async for piece in streamed.stream_text(delta=True)]))
                    history = streamed.all_messages()
            else:
                result = await agent.run(message, message_history=history)
                answers.append(result.output)
                history = result.all_messages()
    return answers


json.dump(asyncio.run(converse(*sys.argv[1:4], sys.argv[4:])), sys.stdout)
