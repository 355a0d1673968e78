"""The memory of autogen: what is added comes back as it was, and only to its agent and its owner."""

import asyncio

from autogen_core.memory import Memory, MemoryContent, MemoryMimeType
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import SystemMessage, UserMessage
from turnkeep_client import Turnkeep
from turnkeep_client.integrations.autogen import TurnkeepMemory

CONTENTS = [
    MemoryContent(content="I am allergic to peanuts.", mime_type=MemoryMimeType.TEXT, metadata={"topic": "food"}),
    MemoryContent(content={"city": "Lisbon", "since": 2019}, mime_type=MemoryMimeType.JSON),
    MemoryContent(content='{"pet": "a cat named Otto"}', mime_type="application/json"),
]


def without_score(content: MemoryContent) -> dict:
    metadata = {name: value for name, value in (content.metadata or {}).items() if name != "score"}
    return content.model_dump() | {"metadata": metadata}


async def main() -> None:
    turnkeep = Turnkeep()
    memory = TurnkeepMemory("check-autogen", turnkeep, owner="mia", min_relevance=0.0)
    assert isinstance(memory, Memory)
    for content in CONTENTS:
        await memory.add(content)
    for content, question in zip(CONTENTS, ["Which food must I avoid?", "Where in Lisbon?", "What pet?"], strict=True):
        found = (await memory.query(question)).results
        assert without_score(found[0]) == without_score(content), found[0]
        assert len(found) == 3
    assert (await memory.query("")).results == []
    assert (await TurnkeepMemory("other", turnkeep, owner="mia").query("peanuts")).results == []
    assert (await TurnkeepMemory("check-autogen", turnkeep, owner="bob").query("peanuts")).results == []
    images = MemoryContent(content=b"secret", mime_type=MemoryMimeType.BINARY)
    [refused] = await asyncio.gather(memory.add(images), return_exceptions=True)
    assert isinstance(refused, ValueError)
    assert "secret" not in str(refused)

    context = UnboundedChatCompletionContext()
    await context.add_message(UserMessage(content="May I eat peanuts?", source="user"))
    agent_memory = TurnkeepMemory("check-autogen", turnkeep, owner="mia")
    await agent_memory.update_context(context)
    last = (await context.get_messages())[-1]
    assert isinstance(last, SystemMessage)
    assert "allergic" in last.content
    loaded = Memory.load_component(memory.dump_component())
    assert len((await loaded.query("peanuts")).results) == 3
    await memory.clear()
    assert (await memory.query("peanuts")).results == []


asyncio.run(main())
