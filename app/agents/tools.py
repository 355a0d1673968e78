"""The tools that models are offered, in one table. Each takes a schema that REST takes too, and calls what REST calls.

To add one: an entry in `_memory_tools` or `_conversation_tools`, with a handler that asks the caller for the scope that
the route asks for.
"""

from app.agents.ask_schemas import AgentAnswer, AskAgent, agent_disabled
from app.agents.lifecycle_tools import lifecycle_tools
from app.agents.tool_schemas import AppendTurns, BuildContext, GetHistory
from app.agents.tooling import ADDS, READS, Group, Tool, ToolServices, tool
from app.context.schemas import Context
from app.conversations.history_schemas import HistoryPage
from app.conversations.schemas import AppendResult
from app.core.ids import ConversationId
from app.memory.memory_schemas import MemoryEntries, MemoryQuery, MemoryStore, MemoryStored
from app.recall.schemas import Recall, RecallResult
from app.tenancy.schemas import Caller, Scope


def all_tools() -> tuple[Tool, ...]:
    """Every tool there is, as they are listed."""
    return (*raw_tools(), *lifecycle_tools(), *_agent_tools())


def raw_tools() -> tuple[Tool, ...]:
    """The tools that do something themselves: those that `ask_agent` may be granted."""
    return (*_memory_tools(), *_conversation_tools())


def _memory_tools() -> tuple[Tool, ...]:
    return (
        tool(
            "recall_memory",
            MemoryQuery,
            MemoryEntries,
            _recall_memory,
            title="Recall long-term memory",
            description=(
                "Search your own long-term memory, which outlives conversations: facts, preferences and decisions that"
                " you stored earlier with store_memory. Use it when the user refers to something that is not in this"
                " conversation, or before you ask what you may have been told already. `query` is a question or a few"
                " words. Entries come best first, with a score; none means that nothing like it was stored."
            ),
            group=Group.MEMORY,
            hints=READS,
        ),
        tool(
            "store_memory",
            MemoryStore,
            MemoryStored,
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
        ),
    )


def _conversation_tools() -> tuple[Tool, ...]:
    return (
        tool(
            "recall",
            Recall,
            RecallResult,
            _recall,
            title="Search conversations",
            description=(
                "Search what was said in stored conversations, by meaning and by words: turns and summaries, the best"
                " first. Narrow it with `conversation_ids`, `project`, `owner` or `filters` (actors, roles, times,"
                " metadata); without them everything is searched that the key may read. `neighbours` adds the turns"
                " around a hit."
            ),
            group=Group.CONVERSATION,
            hints=READS,
        ),
        tool(
            "build_context",
            BuildContext,
            Context,
            _build_context,
            title="Build a context",
            description=(
                "Build the message list for one model call from a stored conversation, never over `token_budget`: the"
                " newest turns verbatim, a summary of older ones, and where asked for earlier turns (semantic_recall)"
                " and memories that matter to `query`. `format` says for which provider."
            ),
            group=Group.CONVERSATION,
            hints=READS,
        ),
        tool(
            "append_turns",
            AppendTurns,
            AppendResult,
            _append_turns,
            title="Append turns",
            description=(
                "Append 1 to 500 turns to a stored conversation, all or none; when this answers they are durable and"
                " found by recall. Give each turn an `id` to make a repeated call store nothing twice, and"
                " `expected_seq` to append only if nobody else did meanwhile. Turns are never overwritten."
            ),
            group=Group.CONVERSATION,
            hints=ADDS,
        ),
        tool(
            "get_history",
            GetHistory,
            HistoryPage,
            _get_history,
            title="Read a conversation",
            description=(
                "Read the turns of a stored conversation as they were said: the newest page first, in chronological"
                " order. Give `next_cursor` back as `cursor` for the page before it. `order` asc starts at the first"
                " turn. Erased turns are shown as tombstones, with `erased_at` and without content."
            ),
            group=Group.CONVERSATION,
            hints=READS,
        ),
    )


def _agent_tools() -> tuple[Tool, ...]:
    return (
        tool(
            "ask_agent",
            AskAgent,
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
        ),
    )


async def _recall_memory(services: ToolServices, caller: Caller, body: MemoryQuery) -> MemoryEntries:
    caller.require(Scope.READ)
    return await services.memory_of(caller).recall_memory(body)


async def _store_memory(services: ToolServices, caller: Caller, body: MemoryStore) -> MemoryStored:
    caller.require(Scope.WRITE)
    stored, _ = await services.memory_of(caller).store_memory(body)
    return stored


async def _recall(services: ToolServices, caller: Caller, body: Recall) -> RecallResult:
    caller.require(Scope.READ)
    return await services.recaller.recall(caller, request=body)


async def _build_context(services: ToolServices, caller: Caller, body: BuildContext) -> Context:
    caller.require(Scope.READ)
    return await services.contexts.build(caller, ConversationId(body.conversation_id), request=body)


async def _append_turns(services: ToolServices, caller: Caller, body: AppendTurns) -> AppendResult:
    conversation_id = ConversationId(body.conversation_id)
    caller.require_conversation(Scope.WRITE, conversation_id)
    result, _, _ = await services.conversations.append(
        caller, conversation_id, turns=body.turns, expected_seq=body.expected_seq
    )
    return result


async def _get_history(services: ToolServices, caller: Caller, body: GetHistory) -> HistoryPage:
    conversation_id = ConversationId(body.conversation_id)
    caller.require_conversation(Scope.READ, conversation_id)
    return await services.conversations.history(caller, conversation_id, query=body.query())


async def _ask_agent(services: ToolServices, caller: Caller, body: AskAgent) -> AgentAnswer:
    caller.require(Scope.WRITE)
    if services.agent is None:
        raise agent_disabled()
    answer, _ = await services.agent.ask(caller, body=body, repeat=None)
    return answer
