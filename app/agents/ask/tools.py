"""The tools of the model behind `ask_agent`: which ones are granted, checks of its calls, and texts of failures.

A call that is not allowed is not started. The model gets the reason in our words, because it reads the error as text.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from pydantic import BaseModel, JsonValue

from app.agents.tools.service import raw_tools
from app.agents.tools.tool import Call, Group, Tool, ToolServices, error_text
from app.audit.schemas import Action, ObjectKind
from app.audit.service import AuditTrail
from app.core.errors import AppError, Unavailable
from app.core.ids import ConversationId, format_id
from app.core.telemetry import error_stack, error_type, get_logger
from app.core.validation.invalid import property_names
from app.core.validation.json_text import parse_json
from app.formats.parse.text_calls import TextCall, read_text_calls
from app.formats.schemas import JsonObject
from app.providers.schemas import ModelCall, ModelReply, ToolOffer
from app.settings.models import ToolSettings
from app.tenancy.schemas import Caller

DEFAULT_TOOLS: Final = ("recall_memory", "store_memory", "recall", "get_history")
"""Tools that read, and `store_memory`. Appending turns in the name of an actor is left to the calling program."""
MAX_RESULT_CHARACTERS: Final = 16_000
MAX_ARGUMENT_CHARACTERS: Final = 32_768
_DEPTH: Final = 16
_CONVERSATION: Final = "conversation_id"
_NAMES: Final = (_CONVERSATION, "external_id")
_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_OMITTED_FIELDS: Final = frozenset(
    {"object", "rev", "content_hash", "chain_hash", "index_state", "content_tokens", "status"}
)


@dataclass(frozen=True, slots=True)
class GrantedTools:
    """The tools that the model may use for one caller, by name and as offers."""

    tools: Mapping[str, Tool]
    offers: tuple[ToolOffer, ...]


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A checked call as it is repeated to the model, and the call to run; else `refusal` has code and reason."""

    name: str
    arguments: str
    tool: str | None
    call: Call | None = None
    refusal: tuple[str, str] = ("", "")
    needs_conversation: bool = False


class ToolOutcome(NamedTuple):
    """The result or the error of a call as a text for the model, and `ok` or the error code."""

    text: str
    status: str


class ToolRunner:
    """Checks and runs the granted tools of an installation."""

    def __init__(self, services: ToolServices, *, audit: AuditTrail, settings: ToolSettings) -> None:
        self._services = services
        self._audit = audit
        tools = {tool.name: tool for tool in raw_tools()}
        wanted = DEFAULT_TOOLS if settings.internal_agent_tools is None else settings.internal_agent_tools
        if unknown := [name for name in wanted if name not in tools]:
            raise Unavailable(
                "agent_tool_unknown",
                f"TURNKEEP_INTERNAL_AGENT_TOOLS has {len(unknown)} unknown names. Known tools: {', '.join(tools)}.",
            )
        self._tools: Mapping[str, Tool] = {
            name: tools[name]
            for name in wanted
            if settings.enable_memory_tools or tools[name].group is not Group.MEMORY
        }
        self._offers: Mapping[str, ToolOffer] = {name: _offer(tool) for name, tool in self._tools.items()}
        schemas = [cast("JsonValue", tool.input_schema) for tool in self._tools.values()]
        self._names = frozenset(name for schema in schemas for name in property_names(schema))

    def granted(self, caller: Caller) -> GrantedTools:
        """Return the tools that the caller may use."""
        tools = {name: tool for name, tool in self._tools.items() if tool.access.allows(caller)}
        return GrantedTools(tools, tuple(self._offers[name] for name in tools))

    def texts(self) -> list[str]:
        """Return the texts that describe the tools to the model."""
        return [text for offer in self._offers.values() for text in (offer.description, *_texts(offer.parameters))]

    def prepare(
        self,
        granted: GrantedTools,
        call: ModelCall,
        *,
        conversation_id: ConversationId,
        reveals_prompt: Callable[[str], bool],
        is_over_limit: bool,
    ) -> PreparedCall:
        """Check a call: granted, within the limits, valid arguments, and none that repeats the instructions."""
        tool = granted.tools.get(call.name)
        if tool is None:
            shown = _NOT_IN_A_NAME.sub("_", call.name)[:64] or "_"
            return PreparedCall(shown, "{}", None, refusal=("tool_not_granted", "This tool is not granted to you."))
        if is_over_limit:
            return PreparedCall(
                tool.name, "{}", tool.name, refusal=("too_many_calls", "Too many calls at once; call it again.")
            )
        if len(call.arguments) > MAX_ARGUMENT_CHARACTERS:
            return PreparedCall(tool.name, "{}", tool.name, refusal=("text_too_large", "These arguments are too long."))
        try:
            parsed = parse_json((call.arguments.strip() or "{}").encode("utf-8", "surrogatepass"), max_depth=_DEPTH)
            arguments: dict[str, JsonValue] = parsed if isinstance(parsed, dict) else {"": parsed}
            text = json.dumps(arguments, ensure_ascii=False)
            if reveals_prompt("\n".join(_strings(arguments))):
                refusal = (
                    "arguments_refused",
                    "These arguments repeat the instructions or tool descriptions; remove that text.",
                )
                return PreparedCall(tool.name, "{}", tool.name, refusal=refusal)
            needs = tool.needs_conversation and not any(arguments.get(name) is not None for name in _NAMES)
            if needs:
                arguments = {**arguments, _CONVERSATION: format_id(conversation_id)}
            ready = tool.prepare(arguments)
        except AppError as error:
            return PreparedCall(tool.name, "{}", tool.name, refusal=(error.code, error_text(error, self._names)))
        return PreparedCall(tool.name, text, tool.name, ready, needs_conversation=needs)

    async def run(self, prepared: PreparedCall, caller: Caller) -> ToolOutcome:
        """Run a call; return its result or its error."""
        if prepared.call is None:
            code, detail = prepared.refusal
            return ToolOutcome(_failed(detail), code)
        try:
            result = await prepared.call.run(self._services, caller)
        except AppError as error:
            return ToolOutcome(_failed(error_text(error, self._names)), error.code)
        except Exception as error:  # noqa: BLE001 - the model continues without the result
            code = "internal_error"
            get_logger().error("agent.failed", code=code, error_type=error_type(error), stack=error_stack(error))
            return ToolOutcome(_failed("internal_error: The tool failed."), code)
        self._audit.record_read(
            caller, Action.TOOL_CALL, ObjectKind.TOOL, prepared.tool, conversation_id=prepared.call.conversation_id
        )
        return ToolOutcome(_result_text(result), "ok")


def with_text_calls(reply: ModelReply, granted: GrantedTools, *, shown: Sequence[str] = ()) -> ModelReply | None:
    """Return a reply with the calls of granted tools that it has as text; None for a call that cannot be read.

    A call that the model repeats from the texts `shown` to it is not run: they are data.
    """
    if reply.calls or not granted.tools:
        return reply
    read = read_text_calls(reply.text, granted.tools.keys())
    if read.is_unreadable or any(_is_quoted(call, shown) for call in read.calls):
        return None
    calls = [ModelCall(str(number), call.name, call.arguments) for number, call in enumerate(read.calls)]
    return ModelReply("", tuple(calls)) if calls else reply


def _is_quoted(call: TextCall, shown: Sequence[str]) -> bool:
    """Return whether a text has this call: the tool's name as a JSON string, and the same arguments."""
    name, arguments = f'"{call.name}"', _letters(call.arguments)
    return bool(arguments) and any(name in text.replace("\\", "") and arguments in _letters(text) for text in shown)


def _letters(text: str) -> str:
    """Return a text of JSON without spaces, quotation marks and escapes of these."""
    text = re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), text)
    return "".join(filter(str.isalnum, re.sub(r"\\[\"\\/nrt]", "", text)))


def _failed(detail: str) -> str:
    return f"Error. {detail}"


def _result_text(result: BaseModel) -> str:
    text = json.dumps(_without_empty_fields(cast("JsonValue", result.model_dump(mode="json"))), ensure_ascii=False)
    if len(text) <= MAX_RESULT_CHARACTERS:
        return text
    return f"{text[:MAX_RESULT_CHARACTERS]} […truncated; request fewer results]"


def _strings(value: JsonValue) -> list[str]:
    """Return every text and key in a value, without JSON escapes."""
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    if isinstance(value, dict):
        return [text for name, item in value.items() for text in (name, *_strings(item))]
    return [str(value)]


def _without_empty_fields(value: JsonValue) -> JsonValue:
    """Return a result without empty fields and without fields that are of no use to a model."""
    if isinstance(value, list):
        return [_without_empty_fields(item) for item in value]
    if not isinstance(value, dict):
        return value
    members = {name: _without_empty_fields(item) for name, item in value.items() if name not in _OMITTED_FIELDS}
    return {name: item for name, item in members.items() if item not in (None, [], {})}


def _offer(tool: Tool) -> ToolOffer:
    """Return a tool as offered to the model; the description of its conversation names the current one as default."""
    schema = cast("JsonObject", {name: value for name, value in tool.input_schema.items() if name != "$schema"})
    if tool.needs_conversation:
        properties = dict(cast("JsonObject", schema["properties"]))
        named = dict(cast("JsonObject", properties[_CONVERSATION]))
        named["description"] = "Default: this conversation."
        properties[_CONVERSATION] = named
        schema["properties"] = properties
    return ToolOffer(tool.name, tool.description, schema)


def _texts(schema: JsonValue) -> list[str]:
    """Return every description in a schema."""
    if isinstance(schema, list):
        return [text for item in schema for text in _texts(item)]
    if not isinstance(schema, dict):
        return []
    own = schema.get("description")
    return [*([own] if isinstance(own, str) else []), *(text for item in schema.values() for text in _texts(item))]
