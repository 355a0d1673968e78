import asyncio
import sys

from llama_index.core.agent import FunctionAgent
from llama_index.core.memory import Memory
from llama_index.llms.openai import OpenAI
from turnkeep_client import Turnkeep
from turnkeep_client.integrations.llama_index import TurnkeepChatStore, TurnkeepMemoryBlock


async def main(session: str, message: str) -> None:
    turnkeep = Turnkeep()
    memory = Memory.from_defaults(
        session_id=session,
        chat_store=TurnkeepChatStore(turnkeep, owner="mia"),
        memory_blocks=[TurnkeepMemoryBlock(turnkeep=turnkeep, owner="mia")],
    )
    agent = FunctionAgent(llm=OpenAI(model="gpt-5-mini"), system_prompt="You plan trips.", streaming=False)
    print(await agent.run(message, memory=memory))


asyncio.run(main("trip-llama-index", sys.argv[1]))
