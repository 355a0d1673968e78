"""The chat store and the memory block of llama_index: messages come back as they were, archived ones too."""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from llama_index.core.agent import FunctionAgent
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CitationBlock,
    ImageBlock,
    LLMMetadata,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from turnkeep_client import Turnkeep
from turnkeep_client.integrations.llama_index import TurnkeepChatStore, TurnkeepMemoryBlock

PROJECT = f"check-llama-{uuid.uuid4()}"
ACTIVE, ARCHIVED = MessageStatus.ACTIVE, MessageStatus.ARCHIVED
MESSAGES = [
    ChatMessage(role="system", content="You look things up."),
    ChatMessage(
        role="user",
        blocks=[TextBlock(text="What is this?"), ImageBlock(url="https://x/y.png"), ImageBlock(image=b"\x89PNG\r\n")],
    ),
    ChatMessage(
        role="assistant",
        blocks=[
            ThinkingBlock(content="so", additional_information={"signature": "s"}),
            TextBlock(text="I look."),
            ToolCallBlock(tool_call_id="1", tool_name="look", tool_kwargs={"id": 2**64, "deep": {"a": [1, None]}}),
            ToolCallBlock(tool_call_id="2", tool_name="look", tool_kwargs="{"),
        ],
        additional_kwargs={"usage": {"total_tokens": 3}},
    ),
    ChatMessage(role="tool", content="rain", additional_kwargs={"tool_call_id": "1", "name": "look"}),
    ChatMessage(role="tool", content="a null \0", additional_kwargs={"tool_call_id": "2"}),
    ChatMessage(
        role="assistant",
        blocks=[CitationBlock(cited_content=TextBlock(text="x"), source="s", title="t", additional_location_info={})],
    ),
    ChatMessage(role="developer", content="Be brief."),
    ChatMessage(role="model", content="Rain."),
    ChatMessage(role="assistant", content=""),
]  # fmt: skip


class ScriptedLLM(FunctionCallingLLM):
    """Calls `look` once, and then answers with the result and what it was sent as system text."""

    sent: list[list[ChatMessage]] = []  # noqa: RUF012 - a field of pydantic

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_function_calling_model=True)

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        del kwargs
        self.sent.append(list(messages))
        if messages[-1].role == MessageRole.USER:
            call = ToolCallBlock(tool_call_id="call-1", tool_name="look", tool_kwargs={"place": "Lisbon"})
            return ChatResponse(message=ChatMessage(role="assistant", blocks=[call]))
        return ChatResponse(message=ChatMessage(role="assistant", content=f"It is: {messages[-1].content}"))

    def get_tool_calls_from_response(self, response: ChatResponse, *args: Any, **kwargs: Any) -> list[ToolSelection]:
        del args, kwargs
        return [
            ToolSelection(tool_id=str(one.tool_call_id), tool_name=one.tool_name, tool_kwargs=dict(one.tool_kwargs))
            for one in response.message.blocks
            if isinstance(one, ToolCallBlock)
        ]  # fmt: skip

    def _prepare_chat_with_tools(self, tools: Any, chat_history: Any = None, **kwargs: Any) -> dict[str, Any]:
        del tools, kwargs
        return {"messages": chat_history}

    def _unused(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    chat = complete = stream_chat = stream_complete = _unused
    acomplete = astream_chat = astream_complete = _unused


async def same_as_the_store_of_the_framework(turnkeep: Turnkeep) -> None:
    ours, theirs = TurnkeepChatStore(turnkeep, project=PROJECT), SQLAlchemyChatStore(table_name="check")
    stores = (ours, theirs)

    async def both(method: str, *arguments: Any) -> None:
        found = [await getattr(store, method)("s", *arguments) for store in stores]
        assert found[0] == found[1], (method, arguments, found)
        for status in (ACTIVE, ARCHIVED, None):
            kept = [await store.get_messages("s", status) for store in stores]
            assert kept[0] == kept[1], (method, status, kept)
            counts = [await store.count_messages("s", status) for store in stores]
            assert counts == [len(kept[0])] * 2

    await both("add_messages", MESSAGES)
    await both("add_message", MESSAGES[1])
    await both("get_messages", ACTIVE, 3, 2)
    await both("archive_oldest_messages", 4)
    await both("archive_oldest_messages", 1)
    await both("add_message", MESSAGES[0])
    await both("delete_oldest_messages", 2)
    await both("delete_messages", ARCHIVED)
    await both("add_messages", MESSAGES[:2])
    await both("archive_oldest_messages", 2)
    await both("set_messages", MESSAGES)
    await both("set_messages", [*MESSAGES[:4], *MESSAGES[7:]])
    await both("set_messages", MESSAGES[:2], ARCHIVED)
    await both("add_messages", MESSAGES[2:4], ARCHIVED)
    await both("add_message", MESSAGES[4])
    assert await TurnkeepChatStore(turnkeep, project=PROJECT).get_messages("s", None) == MESSAGES[:5]
    assert await ours.get_keys() == ["s"]
    assert await ours.delete_message("s", 1) == MESSAGES[1]
    assert await ours.delete_message("s", 99) is None
    assert await ours.get_messages("s", None) == [MESSAGES[0], *MESSAGES[2:5]]
    await both("delete_messages")
    assert await ours.get_keys() == []


async def a_message_that_is_put_again_is_stored_once(turnkeep: Turnkeep) -> None:
    """The answer of the first attempt is lost: the caller only knows that it failed."""
    store, failures = TurnkeepChatStore(turnkeep, project=PROJECT), [True]
    history = store._history("lost")  # noqa: SLF001
    send = history._append  # noqa: SLF001

    def lose(turns: Any, key: str) -> None:
        send(turns, key)
        if failures:
            failures.pop()
            raise ConnectionError

    history._append = lose  # noqa: SLF001
    memory = Memory.from_defaults(session_id="lost", chat_store=store)
    message = ChatMessage(role="user", content="Only once.")
    [failed] = await asyncio.gather(memory.aput(message), return_exceptions=True)
    assert isinstance(failed, ConnectionError), failed
    await memory.aput(message)
    assert await memory.aget_all() == [message]
    await memory.aput(message)
    assert await memory.aget_all() == [message, message]


async def an_agent_goes_on_in_a_second_session(turnkeep: Turnkeep) -> None:
    def look(place: str) -> str:
        """Look at a place."""
        return f"rain in {place}"

    def remembering(session: str) -> Memory:
        block = TurnkeepMemoryBlock(turnkeep=turnkeep, owner="mia", project=PROJECT)
        store = TurnkeepChatStore(turnkeep, owner="mia", project=PROJECT)
        return Memory.from_defaults(session_id=session, chat_store=store, memory_blocks=[block])

    llm = ScriptedLLM()
    agent = FunctionAgent(llm=llm, tools=[look], streaming=False)
    await agent.run("I am allergic to peanuts. How is Lisbon?", memory=remembering("first"))
    kept = await remembering("first").aget_all()
    assert [one.role.value for one in kept] == ["user", "assistant", "tool", "assistant"]
    [call] = [block for block in kept[1].blocks if isinstance(block, ToolCallBlock)]
    assert (call.tool_call_id, call.tool_kwargs) == ("call-1", {"place": "Lisbon"})
    assert (kept[2].content, kept[2].additional_kwargs["tool_call_id"]) == ("rain in Lisbon", "call-1")
    assert kept[3].content == "It is: rain in Lisbon"
    turns = list(turnkeep.conversation("first", project=PROJECT).turns())
    assert [call["id"] for call in turns[1]["tool_calls"]] == ["call-1"] == [turns[2]["tool_call_id"]]

    llm.sent.clear()
    await agent.run("How is Lisbon now?", memory=remembering("first"))
    assert llm.sent[0][-5:-1] == kept, llm.sent[0]
    llm.sent.clear()
    await agent.run("Am I allergic to peanuts?", memory=remembering("second"))
    system = llm.sent[0][0]
    assert system.role == MessageRole.SYSTEM
    assert "allergic to peanuts. How is Lisbon?" in str(system.content), system
    assert "Am I allergic" not in str(system.content)
    memory: Any = {"content": "Peanuts are what Mia cannot eat.", "owner": "mia"}
    turnkeep.api.store_memory(body=memory, x_agent_id=PROJECT)
    asked = [ChatMessage(role="user", content="Am I allergic to peanuts?")]
    for agent_id, is_found in ((None, False), (PROJECT, True)):
        own = TurnkeepMemoryBlock(turnkeep=turnkeep, owner="mia", project=PROJECT, agent_id=agent_id)
        assert ("what Mia cannot eat" in await own.aget(asked)) == is_found
    other = TurnkeepMemoryBlock(turnkeep=turnkeep, owner="bob", project=PROJECT)
    assert await other.aget([ChatMessage(role="user", content="Am I allergic to peanuts?")]) == ""


async def archived_messages_are_recalled(turnkeep: Turnkeep) -> None:
    """A chat history of 120 tokens leaves the first message out; the block gives it back."""
    block = TurnkeepMemoryBlock(turnkeep=turnkeep, project=PROJECT, owner="ann", kinds=["turn"])
    memory = Memory.from_defaults(
        session_id="long", token_limit=400, token_flush_size=60, chat_history_token_ratio=0.3,
        chat_store=TurnkeepChatStore(turnkeep, project=PROJECT, owner="ann"), memory_blocks=[block],
    )  # fmt: skip
    await memory.aput(ChatMessage(role="user", content="My cat is called Otto."))
    for number in range(12):
        await memory.aput(ChatMessage(role="assistant", content=f"Noted, number {number}."))
        await memory.aput(ChatMessage(role="user", content=f"The train number {number} leaves at {number} o'clock."))
    everything = await memory.aget_all()
    active = await memory.aget_all(ACTIVE)
    assert len(everything) == 25
    assert active == everything[-len(active) :]
    assert len(active) < 15
    found = await memory.aget(input="What is my cat called?")
    assert "My cat is called Otto." in str(found[0].content), found
    assert found[1:] == active
    assert "train number 11" not in str(found[0].content)


async def a_block_keeps_to_its_limit(turnkeep: Turnkeep) -> None:
    asked = [ChatMessage(role="user", content="When does the train leave?")]

    def block(**options: Any) -> TurnkeepMemoryBlock:
        return TurnkeepMemoryBlock(turnkeep=turnkeep, owner="ann", project=PROJECT, min_relevance=0, **options)

    whole = await block(k=5).aget(asked)
    assert len(whole.splitlines()) == 5
    short = await block(k=5, token_limit=60).aget(asked)
    assert 0 < len(short.splitlines()) < 5
    assert len(block().tokenizer_fn(short)) <= 60
    assert whole.startswith(short)
    kept = await block().atruncate(whole, 30)
    assert kept
    assert whole.startswith(kept)
    assert len(block().tokenizer_fn(whole)) - len(block().tokenizer_fn(kept)) >= 30
    assert await block().atruncate(whole, 10_000) is None
    assert await block().aget([]) == ""


async def a_block_takes_what_another_store_lets_go(turnkeep: Turnkeep) -> None:
    block = TurnkeepMemoryBlock(turnkeep=turnkeep, project=PROJECT, accept_short_term_memory=True)
    memory = Memory.from_defaults(
        session_id="waterfall",
        token_limit=100,
        token_flush_size=10,
        chat_history_token_ratio=0.3,
        memory_blocks=[block],
    )
    messages = [ChatMessage(role="user", content=f"This is sentence number {number}.") for number in range(8)]
    for message in messages:
        await memory.aput(message)
    gone = await memory.aget_all(ARCHIVED)
    assert gone
    assert await TurnkeepChatStore(turnkeep, project=PROJECT).get_messages("waterfall") == gone
    [refused] = await asyncio.gather(block.aput(messages[:1]), return_exceptions=True)
    assert isinstance(refused, ValueError)


async def other_programs_write_too(turnkeep: Turnkeep) -> None:
    turnkeep.conversation("foreign", project=PROJECT).append(
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "9", "name": "look", "arguments": '{"a": 1}'}],
        },
        {"role": "tool", "tool_call_id": "9", "content": "sun"},
    )
    call = ToolCallBlock(tool_call_id="9", tool_name="look", tool_kwargs={"a": 1})
    assert await TurnkeepChatStore(turnkeep, project=PROJECT).get_messages("foreign") == [
        ChatMessage(role="assistant", blocks=[TextBlock(text="I look."), call]),
        ChatMessage(role="tool", content="sun", additional_kwargs={"tool_call_id": "9"}),
    ]


async def main() -> None:
    turnkeep = Turnkeep()
    await same_as_the_store_of_the_framework(turnkeep)
    await a_message_that_is_put_again_is_stored_once(turnkeep)
    await an_agent_goes_on_in_a_second_session(turnkeep)
    await archived_messages_are_recalled(turnkeep)
    await a_block_keeps_to_its_limit(turnkeep)
    await a_block_takes_what_another_store_lets_go(turnkeep)
    await other_programs_write_too(turnkeep)


asyncio.run(main())
