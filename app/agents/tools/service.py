"""Public API of tools: the table of tools that models are offered, and the texts of their errors.

Each tool accepts a REST schema and calls the service that REST calls. To add one: add an entry to `_memory_tools`,
`conversation_tools` or `fact_tools`, with the scopes of the route as its `access`.
"""

from dataclasses import replace
from typing import Final

from app.agents.tools.answers import ToolAnswer, answer_bytes, fit, fit_beside, fit_list
from app.agents.tools.conversations import conversation_tools, fit_page, found_or_created
from app.agents.tools.facts import fact_tools
from app.agents.tools.lifecycle import lifecycle_tools
from app.agents.tools.schemas import AgentAnswer, AskAgent, AskAgentTool, MemoryAnswer, StoredMemory, agent_disabled
from app.agents.tools.small_profile import small_tools
from app.agents.tools.tool import (
    ADDS,
    READER,
    READER_AND_WRITER,
    READS,
    WRITER,
    Group,
    Tool,
    ToolServices,
    error_text,
    tool,
)
from app.memory.longterm.schemas import MemoryQuery, MemoryStore
from app.tenancy.schemas import Caller

__all__ = [
    "Group",
    "Tool",
    "ToolServices",
    "all_tools",
    "answer_bytes",
    "error_text",
    "fit",
    "fit_page",
    "raw_tools",
    "small_tools",
]

_BYTES_PER_CHARACTER: Final = 4
"""Of a text that is sent twice, with its quotes and line ends escaped."""
_CUT_MEMORIES: Final = (
    "To keep the answer short, long memories are shown by the passage that has most words of the query: search for"
    " other words of them to read on, or for fewer memories with top_k."
)


def all_tools() -> tuple[Tool, ...]:
    """Return all tools, in the order of the list."""
    return (*raw_tools(), *lifecycle_tools(), *_agent_tools())


def raw_tools() -> tuple[Tool, ...]:
    """Return the tools that may be granted to `ask_agent`."""
    return (*_memory_tools(), *conversation_tools(), *fact_tools())


def _memory_tools() -> tuple[Tool, ...]:
    return (
        tool(
            "recall_memory",
            MemoryQuery,
            MemoryAnswer,
            _recall_memory,
            title="Recall long-term memory",
            description=(
                "Search your own long-term memory, which outlives conversations: facts, preferences and decisions that"
                " you stored earlier with store_memory. Use it when the user refers to something that is not in this"
                " conversation, or before you ask what you may have been told already. `query` is a question or a few"
                " words. Entries come best first, also those that hardly match: `relevance` estimates from 0 to 1 how"
                " likely an entry answers, and below 0.1 it is probably unrelated. `min_relevance` leaves such out."
            ),
            group=Group.MEMORY,
            hints=READS,
            access=replace(READER, long_term=True),
        ),
        tool(
            "store_memory",
            MemoryStore,
            StoredMemory,
            _store_memory,
            title="Store a long-term memory",
            description=(
                "Store one thing worth knowing in later conversations: a stable preference, a fact about a person or"
                " project, a decision with its reason. Write a sentence that is understood without this conversation;"
                " one memory per call. It cannot be changed or deleted by you: when something has changed, store the"
                " correction. Do not store secrets, nor what is only of use right now."
            ),
            group=Group.MEMORY,
            hints=ADDS,
            access=replace(WRITER, long_term=True),
        ),
    )


def _agent_tools() -> tuple[Tool, ...]:
    return (
        tool(
            "ask_agent",
            AskAgentTool,
            AgentAnswer,
            _ask_agent,
            title="Ask the memory agent",
            description=(
                "Ask an agent that keeps the memory: it searches stored conversations and long-term memory for you,"
                " stores what you tell it to remember, and answers in words. `query` is the question or the task, in"
                " one message. Give the `conversation_id` of its answer back to go on in the same conversation; without"
                " one it begins another. It may ask you back where it is unsure."
            ),
            group=Group.AGENT,
            hints=ADDS,
            access=READER_AND_WRITER,
        ),
    )


async def _recall_memory(services: ToolServices, caller: Caller, body: MemoryQuery) -> ToolAnswer:
    """Return the entries; if they are too long together, those with long texts by their passages for the query."""
    found = await services.recall_service.recall_own_memories(caller, body)
    shown, max_bytes = found.model_dump(mode="json"), services.max_answer_bytes
    if answer_bytes(shown) > max_bytes:
        max_characters = max_bytes // _BYTES_PER_CHARACTER // len(found.entries)
        entries = await services.recall_service.shorten_memories(
            body.query, found.entries, max_characters=max_characters
        )
        shown = found.model_copy(update={"entries": entries}).model_dump(mode="json")
        shown = {"cut": _CUT_MEMORIES} | fit_list(shown, "entries", max_bytes=max_bytes, how=_CUT_MEMORIES)
    return ToolAnswer(shown)


async def _store_memory(services: ToolServices, caller: Caller, body: MemoryStore) -> StoredMemory:
    await services.memories.store(caller, body=body)
    return StoredMemory(stored=True)


async def _ask_agent(services: ToolServices, caller: Caller, body: AskAgentTool) -> ToolAnswer:
    if services.agent is None:
        raise agent_disabled()
    conversation_id = await found_or_created(services, caller, body) if body.external_id else body.conversation_id
    asked = AskAgent.model_construct(query=body.query, conversation_id=conversation_id)
    answer = (await services.agent.ask(caller, body=asked)).value.model_dump(mode="json")
    return ToolAnswer(fit_beside(answer, "history", max_bytes=services.max_answer_bytes))
