import sys

from agents import Agent, Runner
from turnkeep_client import Turnkeep
from turnkeep_client.integrations.openai_agents import TurnkeepSession

session = TurnkeepSession("trip-agents", Turnkeep(), owner="mia")
agent = Agent(name="Planner", instructions="You plan trips.", model="gpt-5-mini")
print(Runner.run_sync(agent, sys.argv[1], session=session).final_output)
