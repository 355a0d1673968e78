"""The session of openai-agents against its own protocol: prints nothing, and fails where it breaks it."""

import asyncio
from typing import Any

from agents import Agent, ModelResponse, Runner, SQLiteSession, Usage, function_tool, set_tracing_disabled
from agents.memory import Session
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from turnkeep_client import Turnkeep
from turnkeep_client.integrations.openai_agents import TurnkeepSession


class Scripted(Model):
    """Calls a tool, then answers; keeps what it was given."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []

    async def get_response(self, *args: Any, **named: Any) -> ModelResponse:
        self.inputs.append(named["input"] if "input" in named else args[1])
        number = len(self.inputs)
        if number % 2:
            output: Any = ResponseFunctionToolCall(
                type="function_call", call_id=f"call_{number}", name="weather", arguments='{"city": "Kiel"}'
            )
        else:
            text = ResponseOutputText(type="output_text", text=f"Answer {number}: rain", annotations=[])
            output = ResponseOutputMessage(
                id=f"msg_{number}", type="message", role="assistant", status="completed", content=[text]
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> Any:
        raise NotImplementedError


@function_tool
def weather(city: str) -> str:
    return f"rain in {city}"


async def inputs_with(*sessions: Any) -> list[Any]:
    """What the model receives in two runs, each with its session."""
    model = Scripted()
    agent = Agent(name="A", model=model, tools=[weather])
    for session, message in zip(sessions, ["What is the weather in Kiel?", "And now?"], strict=True):
        await Runner.run(agent, message, session=session)
    return model.inputs


async def main() -> None:
    set_tracing_disabled(disabled=True)
    turnkeep = Turnkeep()
    session = TurnkeepSession("check-agents", turnkeep)
    assert isinstance(session, Session)
    sqlite = SQLiteSession("check")
    expected = await inputs_with(sqlite, sqlite)
    assert await inputs_with(session, TurnkeepSession("check-agents", turnkeep)) == expected
    items = await sqlite.get_items()
    assert await session.get_items() == items
    assert await session.get_items(limit=3) == items[-3:]
    assert await session.get_items(limit=0) == []
    assert await session.pop_item() == await sqlite.pop_item()
    assert await session.get_items() == await sqlite.get_items()
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.pop_item() is None


asyncio.run(main())
