"""A tool for models: a name, a description, schemas and a handler.

The entry is independent of its transport (MCP or `ask_agent`), which reads listing, validation, errors, logs and
metrics from it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar, cast
from uuid import UUID

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema

from app.agents.lifecycle.service import Lifecycle
from app.agents.tools.leniency import read_arguments
from app.agents.tools.schemas import NamedConversation, SupportsAsk
from app.context.compaction.service import Compactor
from app.context.service import ContextBuilder
from app.conversations.service import Conversations, Sessions
from app.core.errors import AppError, InvalidFields
from app.core.ids import ID_PATTERN
from app.core.validation.invalid import MAX_FIELDS, cut_fields, fields_of, public_detail
from app.memory.longterm.service import Memories
from app.memory.service import FactService
from app.recall.service import RecallService
from app.tenancy.schemas import Caller, Scope, scopes_of

Arguments = Mapping[str, JsonValue]
JsonSchema = dict[str, object]
InputT = TypeVar("InputT", bound=BaseModel)

READS: Final = {"read_only_hint": True, "open_world_hint": False}
"""Hints of a tool that changes nothing, and so needs no hint that it is idempotent."""
ADDS: Final = {"read_only_hint": False, "destructive_hint": False, "open_world_hint": False}
"""Hints of a tool that adds, and removes nothing."""


@dataclass(frozen=True, slots=True)
class ToolServices:
    """The services that tools call. `lifecycle` serves external agents, `agent` answers `ask_agent`.

    The tools of that agent itself have neither.
    """

    conversations: Conversations
    sessions: Sessions
    contexts: ContextBuilder
    recall_service: RecallService
    memories: Memories
    compactor: Compactor
    facts: FactService
    max_answer_bytes: int
    lifecycle: Lifecycle | None = None
    agent: SupportsAsk | None = None


class Group(StrEnum):
    """The subject of a tool. The memory tools have a switch of their own."""

    MEMORY = "memory"
    CONVERSATION = "conversation"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Call:
    """A call with valid arguments. `conversation_id` is for logs."""

    run: Callable[[ToolServices, Caller], Awaitable[BaseModel]]
    conversation_id: UUID | None


@dataclass(frozen=True, slots=True)
class ToolAccess:
    """The rights to use a tool: scopes, long-term memory.

    `by_token`: a conversation token is enough, and the handler checks the scopes of the conversation.
    """

    scopes: frozenset[Scope]
    long_term: bool = False
    by_token: bool = False

    def allows(self, caller: Caller) -> bool:
        """Return whether the caller may use the tool, in some conversation."""
        if caller.bound is not None:
            return self.by_token and self.scopes <= scopes_of(caller.bound.access)
        return self.scopes <= caller.scopes and (caller.long_term_enabled or not self.long_term)


READER: Final = ToolAccess(frozenset({Scope.READ}))
WRITER: Final = ToolAccess(frozenset({Scope.WRITE}))
READER_AND_WRITER: Final = ToolAccess(frozenset({Scope.READ, Scope.WRITE}))


@dataclass(frozen=True, slots=True)
class Tool:
    """One entry of the table. `prepare` raises Invalid with the fields of invalid arguments.

    `needs_conversation`: the arguments must name a conversation. `is_cut`: long texts of an answer are cut. Of an
    answer that its caller sends to a model, they are not.
    """

    name: str
    title: str
    description: str
    input_schema: JsonSchema
    output_schema: JsonSchema | None
    hints: Mapping[str, bool]
    group: Group
    access: ToolAccess
    needs_conversation: bool
    is_cut: bool
    prepare: Callable[[Arguments], Call]

    @property
    def writes(self) -> bool:
        """Whether the tool stores or changes something."""
        return self.hints.get("read_only_hint") is not True


class _Untitled(GenerateJsonSchema):
    """Generates schemas without field titles, which repeat the names and cost tokens."""

    def field_title_should_be_set(self, schema: object) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return False: no field has a title."""
        del schema
        return False

    def generate(self, schema: CoreSchema, mode: str = "validation") -> JsonSchema:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the schema with its dialect."""
        return {"$schema": self.schema_dialect, **super().generate(schema, mode)}  # pyright: ignore[reportArgumentType]


_PROVIDER_SHAPES: Final[Mapping[str, str]] = {
    "ContentPart": 'A content part, such as {"type": "text", "text": "Hello"}.',
    "ToolCall": 'A tool call, such as {"id": "c1", "name": "search", "arguments": "{}"}.',
    "ToolOutput": 'A tool result, such as {"tool_call_id": "c1", "content": "Done."}.',
    "Message": 'A message or item, such as {"role": "user", "content": "Hello"}.',
}
"""Definitions of provider formats, and their short descriptions: in full they are four times as long as the rest."""


def argument_schema(takes: type[BaseModel]) -> JsonSchema:
    """Return the schema of arguments, without `$ref`, titles and null defaults, which many clients cannot read."""
    schema = _without_provider_shapes(takes.model_json_schema(schema_generator=_Untitled))
    definitions = cast("Mapping[str, JsonSchema]", schema.get("$defs", {}))
    return {name: value for name, value in _resolved(schema, definitions).items() if name != "$defs"}


def _without_provider_shapes(schema: JsonSchema) -> JsonSchema:
    """Return a schema with provider messages and their parts as plain objects, with an example of each."""
    definitions = dict(cast("Mapping[str, JsonSchema]", schema.get("$defs", {})))
    for name in _PROVIDER_SHAPES.keys() & definitions.keys():
        definitions[name] = {"type": "object", "description": _PROVIDER_SHAPES[name]}
    shortened: JsonSchema = {name: value for name, value in schema.items() if name != "$defs"}
    used: dict[str, JsonSchema] = {}
    waiting: list[object] = [shortened]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            members = cast("JsonSchema", value)
            named = str(members.get("$ref", "")).rpartition("/")[2]
            if named in definitions and named not in used:
                used[named] = definitions[named]
                waiting.append(used[named])
            waiting.extend(members.values())
        elif isinstance(value, list):
            waiting.extend(cast("list[object]", value))
    return {**shortened, "$defs": {name: used[name] for name in sorted(used)}} if used else shortened


def _resolved(schema: JsonSchema, definitions: Mapping[str, JsonSchema]) -> JsonSchema:
    if isinstance(reference := schema.get("$ref"), str):
        others = {name: value for name, value in schema.items() if name != "$ref"}
        return _resolved({**definitions[reference.rpartition("/")[2]], **others}, definitions)
    resolved: JsonSchema = {}
    for name, value in schema.items():
        match name, value:
            case ("title", str()) | ("default", None):
                pass
            case "pattern", str() if value == ID_PATTERN:
                pass  # its description says it in fewer tokens
            case "properties", dict():
                members = cast("Mapping[str, JsonSchema]", value)
                resolved[name] = {member: _resolved(inner, definitions) for member, inner in members.items()}
            case (("anyOf" | "oneOf" | "allOf"), list()):
                resolved[name] = [_resolved(branch, definitions) for branch in cast("list[JsonSchema]", value)]
            case (("items" | "additionalProperties"), dict()):
                resolved[name] = _resolved(cast("JsonSchema", value), definitions) or True
            case _:
                resolved[name] = value
    return resolved


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
    access: ToolAccess | None = None,
    is_cut: bool = True,
) -> Tool:
    """Return a tool of its models for input and output, its handler, its description, and its access.

    The default access is the scope to read or to write, by the hints. A call requires the scopes before its handler.
    """
    input_schema = argument_schema(takes)
    rights = access or (READER if hints["read_only_hint"] else WRITER)

    def prepare(arguments: Arguments) -> Call:
        body, _ = valid_arguments(takes, arguments, input_schema)

        async def run(services: ToolServices, caller: Caller) -> BaseModel:
            if not rights.by_token:
                for scope in sorted(rights.scopes):
                    caller.require(scope)
            return await handler(services, caller, body)

        return Call(run, cast("UUID | None", getattr(body, "conversation_id", None)))

    return Tool(
        name=name,
        title=title,
        description=description,
        input_schema=input_schema,
        output_schema=_without_provider_shapes(
            gives.model_json_schema(schema_generator=_Untitled, mode="serialization")
        ),
        hints=hints,
        group=group,
        access=rights,
        needs_conversation=issubclass(takes, NamedConversation),
        is_cut=is_cut,
        prepare=prepare,
    )


def valid_arguments(
    takes: type[InputT], arguments: Arguments, input_schema: JsonSchema
) -> tuple[InputT, dict[str, JsonValue]]:
    """Return the value of arguments, and the arguments as they were read. Raises Invalid."""
    members = read_arguments(arguments, input_schema)
    try:
        return takes.model_validate(members), members
    except ValidationError as error:
        raise InvalidFields(fields_of(error, members)) from None


def error_text(error: AppError, names: frozenset[str]) -> str:
    """Return an error as a sentence for a model; `names` are those that pointers may contain."""
    fields = cut_fields(error.fields[:MAX_FIELDS], names)
    sentence = public_detail(error, fields)
    others = fields[1:] if fields and fields[0].detail in sentence else fields
    where = [f"{field.pointer or 'the arguments'}: {field.detail}" for field in others]
    return "\n".join([f"{error.code}: {sentence}", *where])
