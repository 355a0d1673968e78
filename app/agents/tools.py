"""The tools that models are offered, in one table. Each takes a schema that REST takes too, and calls what REST calls.

What a tool is called over, MCP or a model of ours, is none of its business. To add one: an entry in `_memory_tools` or
`_conversation_tools`, with a handler that asks the caller for the scope that the route asks for. Listing, validation,
errors, logs and metrics follow from the entry.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar, cast
from uuid import UUID

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema

from app.agents.ask_schemas import AgentAnswer, AskAgent, Asks, agent_disabled
from app.agents.tool_schemas import AppendTurns, BuildContext, GetHistory
from app.context.schemas import Context
from app.context.service import ContextBuilder
from app.conversations.schemas import AppendResult
from app.conversations.service import Conversations
from app.conversations.summary_schemas import HistoryPage
from app.core.errors import AppError, Invalid
from app.core.ids import ConversationId
from app.core.invalid import MAX_FIELDS, cut_fields, field_errors
from app.memory.memories import Memories
from app.memory.memory_schemas import MemoryEntries, MemoryQuery, MemoryStore, MemoryStored
from app.recall.gateway import MemoryGateway
from app.recall.schemas import Recall, RecallResult
from app.recall.service import Recaller
from app.tenancy.schemas import Caller, Scope

Arguments = Mapping[str, JsonValue]
JsonSchema = dict[str, object]
InputT = TypeVar("InputT", bound=BaseModel)

READS: Final = {"read_only_hint": True, "open_world_hint": False}
"""Hints of a tool that changes nothing. Whatever is called twice gives the same, so it needs no hint of that."""
ADDS: Final = {"read_only_hint": False, "destructive_hint": False, "open_world_hint": False}
"""Hints of a tool that adds, and takes nothing away."""


@dataclass(frozen=True, slots=True)
class ToolServices:
    """What tools stand on. `agent` answers `ask_agent`; the agent's own tools have none."""

    conversations: Conversations
    contexts: ContextBuilder
    recaller: Recaller
    memories: Memories
    agent: Asks | None = None

    def memory_of(self, caller: Caller) -> MemoryGateway:
        """The long-term memory of the agent that asks; Forbidden where its key has none."""
        return MemoryGateway(caller, memories=self.memories, recaller=self.recaller)


class Group(StrEnum):
    """What a tool is about. The memory tools have a switch of their own."""

    MEMORY = "memory"
    CONVERSATION = "conversation"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Call:
    """A call whose arguments are valid. `conversation_id` is for logs."""

    run: Callable[[ToolServices, Caller], Awaitable[BaseModel]]
    conversation_id: UUID | None


@dataclass(frozen=True, slots=True)
class Tool:
    """One entry of the table. `prepare` raises Invalid for arguments that break a rule, with the fields."""

    name: str
    title: str
    description: str
    input_schema: JsonSchema
    output_schema: JsonSchema
    hints: Mapping[str, bool]
    group: Group
    prepare: Callable[[Arguments], Call]


class _Untitled(GenerateJsonSchema):
    """Schemas without a title for every member, which repeats its name and costs a model tokens."""

    def field_title_should_be_set(self, schema: object) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """No member has one."""
        del schema
        return False

    def generate(self, schema: CoreSchema, mode: str = "validation") -> JsonSchema:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The schema, with the dialect that it is in."""
        return {"$schema": self.schema_dialect, **super().generate(schema, mode)}  # pyright: ignore[reportArgumentType]


def tool(
    name: str,
    takes: type[InputT],
    gives: type[BaseModel],
    handler: Callable[[ToolServices, Caller, InputT], Awaitable[BaseModel]],
    *,
    title: str,
    description: str,
    group: Group,
    hints: Mapping[str, bool],
) -> Tool:
    """An entry: what it takes and gives, who carries it out, and what a model is told of it."""

    def prepare(arguments: Arguments) -> Call:
        try:
            body = takes.model_validate(arguments)
        except ValidationError as error:
            raise refused_arguments(error, arguments) from None
        return Call(
            lambda services, caller: handler(services, caller, body),
            cast("UUID | None", getattr(body, "conversation_id", None)),
        )

    return Tool(
        name=name,
        title=title,
        description=description,
        input_schema=takes.model_json_schema(schema_generator=_Untitled),
        output_schema=gives.model_json_schema(schema_generator=_Untitled, mode="serialization"),
        hints=hints,
        group=group,
        prepare=prepare,
    )


def refused_arguments(error: ValidationError, arguments: object) -> AppError:
    """What pydantic found wrong with the arguments of a tool."""
    fields = field_errors([{**one, "loc": ("body", *one["loc"])} for one in error.errors()], arguments)
    return Invalid("invalid_request", "The arguments break a rule; `errors` says which and where.", fields=fields)


def error_text(error: AppError, known: frozenset[str]) -> str:
    """An error in a sentence for a model; `known` are the names that pointers may hold."""
    where = [f"{field.pointer or 'the arguments'}: {field.detail}" for field in cut_fields(error.fields, known)]
    return "\n".join([f"{error.code}: {error.detail}", *where[:MAX_FIELDS]])


def all_tools() -> tuple[Tool, ...]:
    """Every tool there is, as they are listed."""
    return (*raw_tools(), *_agent_tools())


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
                "Read the turns of a stored conversation as they were said, a page at a time: `order` desc begins with"
                " the newest; give `next_cursor` back as `cursor` for the next page. Erased turns are shown as"
                " tombstones, with `erased_at` and without content."
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
    return await services.conversations.history(
        caller,
        conversation_id,
        order=body.order,
        after=body.after,
        before=body.before,
        actors=body.actors,
        limit=body.limit,
        cursor=body.cursor,
        include_superseded=body.include_superseded,
        include_summaries=body.include_summaries,
    )


async def _ask_agent(services: ToolServices, caller: Caller, body: AskAgent) -> AgentAnswer:
    caller.require(Scope.WRITE)
    if services.agent is None:
        raise agent_disabled()
    answer, _ = await services.agent.ask(caller, body=body, repeat=None)
    return answer
