"""The small profile: four tools with flat arguments and short schemas, for models with small contexts.

They have the names of tools of the full profile and call those.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, TypeAlias

from pydantic import BaseModel, Field, JsonValue, StrictInt
from pydantic.json_schema import SkipJsonSchema

from app.agents.tools.schemas import ExternalId
from app.agents.tools.tool import Arguments, Call, Tool, argument_schema, valid_arguments
from app.core.validation.ids import ConversationNameIn, IdIn
from app.core.validation.strict import Strict
from app.memory.longterm.schemas import QueryText

_OptionalName: TypeAlias = Annotated[
    ExternalId | SkipJsonSchema[None], Field(description="Your own name for one conversation.")
]


class SmallMemoryQuery(Strict):
    """A search of long-term memory."""

    query: QueryText
    top_k: Annotated[StrictInt, Field(ge=1, le=20)] = 5


class SmallMemory(Strict):
    """A memory to store."""

    content: Annotated[str, Field(min_length=1)]


class SmallRecall(Strict):
    """A search of conversations."""

    query: QueryText
    k: Annotated[StrictInt, Field(ge=1, le=200)] = 5
    external_id: _OptionalName = None


class SmallHistory(Strict):
    """The conversation to read: `conversation_id` of a found turn, or `external_id`."""

    conversation_id: ConversationNameIn | SkipJsonSchema[None] = None
    external_id: _OptionalName = None
    limit: Annotated[StrictInt, Field(ge=1, le=200)] = 20
    turn_id: IdIn | SkipJsonSchema[None] = None
    start: Annotated[StrictInt, Field(ge=0)] = 0


def small_tools(full: Mapping[str, Tool]) -> tuple[Tool, ...]:
    """Return the tools of the small profile, built from those of the full one."""
    return (
        _small(
            full["recall_memory"],
            SmallMemoryQuery,
            "Search what you stored with store_memory in earlier conversations. Entries come best first.",
        ),
        _small(
            full["store_memory"],
            SmallMemory,
            "Store one thing worth knowing in later conversations, as a sentence that is understood by itself.",
        ),
        _small(
            full["recall"],
            SmallRecall,
            "Search what was said in stored conversations, in all of them or in one. The best hits come first.",
        ),
        _small(
            full["get_history"],
            SmallHistory,
            "Read the newest turns of a conversation, in chronological order. Give its conversation_id or external_id."
            " Long texts are cut: with turn_id and start it reads one turn on.",
        ),
    )


def _small(tool: Tool, takes: type[BaseModel], description: str) -> Tool:
    input_schema = argument_schema(takes)

    def prepare(arguments: Arguments) -> Call:
        _, members = valid_arguments(takes, arguments, input_schema)
        return tool.prepare(_with_list_of_names(members) if takes is SmallRecall else members)

    return replace(tool, description=description, input_schema=input_schema, output_schema=None, prepare=prepare)


def _with_list_of_names(arguments: Arguments) -> Arguments:
    named = dict[str, JsonValue](arguments)
    name = named.pop("external_id", None)
    return named if name is None else {**named, "external_ids": [name]}
