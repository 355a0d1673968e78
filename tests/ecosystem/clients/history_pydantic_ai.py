import asyncio
import sys

from pydantic_ai import Agent
from turnkeep_client import Turnkeep
from turnkeep_client.integrations.pydantic_ai import TurnkeepMessages


async def main(prompt: str) -> None:
    messages = TurnkeepMessages("trip-pydantic", Turnkeep(), owner="mia")
    agent = Agent("openai-chat:gpt-5-mini", instructions="You plan trips.")
    result = await agent.run(prompt, message_history=await messages.context(prompt, token_budget=4000))
    await messages.save(result.new_messages())
    print(result.output)


asyncio.run(main(sys.argv[1]))
