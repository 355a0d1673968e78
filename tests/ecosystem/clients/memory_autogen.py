import asyncio
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_core.memory import MemoryContent, MemoryMimeType
from autogen_ext.models.openai import OpenAIChatCompletionClient
from turnkeep_client import Turnkeep
from turnkeep_client.integrations.autogen import TurnkeepMemory


async def main(task: str) -> None:
    memory = TurnkeepMemory("planner", Turnkeep(), owner="mia")
    agent = AssistantAgent("planner", OpenAIChatCompletionClient(model="gpt-5-mini"), memory=[memory])
    result = await agent.run(task=task)
    await memory.add(MemoryContent(content=task, mime_type=MemoryMimeType.TEXT))
    print(result.messages[-1].content)


asyncio.run(main(sys.argv[1]))
