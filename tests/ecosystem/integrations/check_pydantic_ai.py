"""The message history of pydantic-ai: what `ModelMessagesTypeAdapter` keeps comes back as it was."""

import asyncio

from pydantic_ai import Agent, BinaryContent, ImageUrl, ModelRetry, capture_run_messages
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from turnkeep_client import Turnkeep
from turnkeep_client.integrations.pydantic_ai import TurnkeepMessages

seen: list[list[ModelMessage]] = []


def model(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    """Call a tool twice at once, and a third time, then answer."""
    seen.append(list(messages))
    last = messages[-1].parts[-1]
    if isinstance(last, UserPromptPart):
        return ModelResponse([
            ThinkingPart("so", signature="s"),
            ToolCallPart("weather", {"id": 12345678901234567890}, "1"),
            ToolCallPart("weather", '{"id": 2}', "2"),
        ])  # fmt: skip
    if last.tool_call_id == "2":
        return ModelResponse([TextPart("Once more."), ToolCallPart("weather", {"id": 3}, "3")])
    return ModelResponse([TextPart("Rain.")])


agent = Agent(FunctionModel(model), instructions="Be short.", system_prompt="You look.", retries=2)


@agent.tool_plain
def weather(id: int) -> dict[str, object]:  # noqa: A002 - as models call it
    if id == 2:
        raise ModelRetry("Another number.")
    return {"weather": "rain \0", "id": id}


async def main() -> None:
    turnkeep = Turnkeep()
    messages = TurnkeepMessages("check-pydantic", turnkeep)
    prompt = ["What is this?", ImageUrl("https://x/y.png"), BinaryContent(b"\xff\0", media_type="image/png")]
    with capture_run_messages() as captured:
        result = await agent.run(prompt, message_history=await messages.load())
    await messages.save(result.new_messages())
    assert ModelMessagesTypeAdapter.dump_json(await messages.load()) == result.all_messages_json()
    assert len(captured) == len(result.all_messages())

    second = await agent.run("And now?", message_history=await messages.load())
    await messages.save(second.new_messages())
    assert await messages.load() == ModelMessagesTypeAdapter.validate_json(second.all_messages_json())

    mixed = ModelRequest([ToolReturnPart("weather", "sun", "9"), UserPromptPart("Thanks.")])
    called = ModelResponse([ToolCallPart("weather", {}, "9")])
    await messages.save([called, mixed])
    assert (await messages.load())[-2:] == [called, mixed]
    context = await messages.context("Thanks", 4000, include_summary=False)
    assert [one.kind for one in context[-4:]] == ["response", "response", "request", "request"]
    assert context[-2].parts[0].tool_name == "weather"
    assert (await agent.run("And then?", message_history=context)).output == "Rain."
    assert len(await messages.load(limit=2)) == 1, "the newest message is two turns"
    await messages.clear()
    assert await messages.load() == []


asyncio.run(main())
