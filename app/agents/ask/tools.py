"""The tools of the model behind `ask_agent`: which it is granted, what becomes of its calls, and how failures read.

A call that may not be carried out is never begun; why not is told to the model in our words, since an error is one more
text that it reads.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from pydantic import BaseModel, JsonValue

from app.agents.tools.registry import raw_tools
from app.agents.tools.tool import Call, Group, Tool, ToolServices, error_text
from app.core.errors import AppError, Unavailable
from app.core.ids import ConversationId, format_id
from app.core.telemetry import error_stack, error_type, get_logger
from app.core.validation.invalid import property_names
from app.core.validation.json_text import parse_json
from app.formats.schemas import JsonObject
from app.providers.schemas import ModelCall, ToolOffer
from app.tenancy.schemas import Caller

GRANTED: Final = ("recall_memory", "store_memory", "recall", "get_history")
"""Those that read, and the one that stores a memory; to append turns as somebody is for the program that asks."""
MAX_RESULT_CHARACTERS: Final = 16_000
MAX_ARGUMENT_CHARACTERS: Final = 32_768
_DEPTH: Final = 16
_CONVERSATION: Final = "conversation_id"
_NAMES: Final = (_CONVERSATION, "external_id")
_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
_NOISE: Final = frozenset({"object", "rev", "content_hash", "chain_hash", "index_state", "content_tokens", "status"})


@dataclass(frozen=True, slots=True)
class Granted:
    """What one caller's model may use: the tools by name, and how they are offered."""

    tools: Mapping[str, Tool]
    offers: tuple[ToolOffer, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call as it is repeated to the model, and what is to be run for it; else `refusal` says why nothing is."""

    name: str
    arguments: str
    tool: str | None
    call: Call | None = None
    refusal: tuple[str, str] = ("", "")
    needs_conversation: bool = False


class Toolbox:
    """The granted tools of an installation."""

    def __init__(self, services: ToolServices, *, names: Sequence[str] | None, memory_tools: bool) -> None:
        self._services = services
        known = {one.name: one for one in raw_tools()}
        wanted = GRANTED if names is None else names
        if unknown := [name for name in wanted if name not in known]:
            raise Unavailable(
                "agent_tool_unknown",
                f"TURNKEEP_INTERNAL_AGENT_TOOLS names {len(unknown)} that are none of: {', '.join(known)}.",
            )
        self._tools: Mapping[str, Tool] = {
            name: known[name] for name in wanted if memory_tools or known[name].group is not Group.MEMORY
        }
        self._offers: Mapping[str, ToolOffer] = {name: _offer(one) for name, one in self._tools.items()}
        schemas = [cast("JsonValue", one.input_schema) for one in self._tools.values()]
        self._names = frozenset(name for schema in schemas for name in property_names(schema))

    def granted(self, caller: Caller) -> Granted:
        """Return the tools that the caller may use."""
        tools = {name: one for name, one in self._tools.items() if one.access.allows(caller)}
        return Granted(tools, tuple(self._offers[name] for name in tools))

    def texts(self) -> list[str]:
        """What the model is told of its tools."""
        return [text for offer in self._offers.values() for text in (offer.description, *_texts(offer.parameters))]

    def prepare(
        self,
        granted: Granted,
        call: ModelCall,
        *,
        conversation_id: ConversationId,
        withhold: Callable[[str], bool],
        many: bool,
    ) -> Prepared:
        """Check a call: granted, within its limits, of valid arguments, and none that give away what is ours."""
        tool = granted.tools.get(call.name)
        if tool is None:
            shown = _NOT_IN_A_NAME.sub("_", call.name)[:64] or "_"
            return Prepared(shown, "{}", None, refusal=("tool_not_granted", "There is no such tool for you."))
        if many:
            return Prepared(
                tool.name, "{}", tool.name, refusal=("too_many_calls", "Too many calls at once; call it again.")
            )
        if len(call.arguments) > MAX_ARGUMENT_CHARACTERS:
            return Prepared(tool.name, "{}", tool.name, refusal=("text_too_large", "These arguments are too long."))
        try:
            parsed = parse_json((call.arguments.strip() or "{}").encode("utf-8", "surrogatepass"), max_depth=_DEPTH)
            arguments: dict[str, JsonValue] = parsed if isinstance(parsed, dict) else {"": parsed}
            text = json.dumps(arguments, ensure_ascii=False)
            if withhold("\n".join(_said(arguments))):
                said = ("arguments_refused", "These arguments hold what is not to be stored or looked for.")
                return Prepared(tool.name, "{}", tool.name, refusal=said)
            needs = tool.needs_conversation and not any(arguments.get(name) is not None for name in _NAMES)
            if needs:
                arguments = {**arguments, _CONVERSATION: format_id(conversation_id)}
            ready = tool.prepare(arguments)
        except AppError as error:
            return Prepared(tool.name, "{}", tool.name, refusal=(error.code, error_text(error, self._names)))
        return Prepared(tool.name, text, tool.name, ready, needs_conversation=needs)

    async def run(self, prepared: Prepared, caller: Caller) -> tuple[str, str]:
        """What a call gave, or why it failed, as a text for the model; and `ok`, or the code of the error."""
        if prepared.call is None:
            code, detail = prepared.refusal
            return _failed(detail), code
        try:
            result = await prepared.call.run(self._services, caller)
        except AppError as error:
            return _failed(error_text(error, self._names)), error.code
        except Exception as error:  # noqa: BLE001 - whatever it is, the model goes on without it
            code = "internal_error"
            get_logger().error("agent.failed", code=code, error_type=error_type(error), stack=error_stack(error))
            return _failed("internal_error: The tool failed."), code
        return _result_text(result), "ok"


def _failed(detail: str) -> str:
    return f"Error. {detail}"


def _result_text(result: BaseModel) -> str:
    text = json.dumps(_lean(cast("JsonValue", result.model_dump(mode="json"))), ensure_ascii=False)
    if len(text) <= MAX_RESULT_CHARACTERS:
        return text
    return f"{text[:MAX_RESULT_CHARACTERS]} […cut off here; ask for less at once]"


def _said(value: JsonValue) -> list[str]:
    """Every text and name in a value, without the escapes that JSON has for them."""
    if isinstance(value, list):
        return [text for item in value for text in _said(item)]
    if isinstance(value, dict):
        return [text for name, item in value.items() for text in (name, *_said(item))]
    return [str(value)]


def _lean(value: JsonValue) -> JsonValue:
    """A result without what is empty and what says nothing to a reader."""
    if isinstance(value, list):
        return [_lean(item) for item in value]
    if not isinstance(value, dict):
        return value
    lean = {name: _lean(item) for name, item in value.items() if name not in _NOISE}
    return {name: item for name, item in lean.items() if item not in (None, [], {})}


def _offer(tool: Tool) -> ToolOffer:
    """A tool as the model is offered it: where it takes a conversation, this one where none is named."""
    schema = cast("JsonObject", {name: value for name, value in tool.input_schema.items() if name != "$schema"})
    if tool.needs_conversation:
        properties = dict(cast("JsonObject", schema["properties"]))
        named = dict(cast("JsonObject", properties[_CONVERSATION]))
        named["description"] = "Left out: this conversation."
        properties[_CONVERSATION] = named
        schema["properties"] = properties
    return ToolOffer(tool.name, tool.description, schema)


def _texts(schema: JsonValue) -> list[str]:
    """Every description in a schema."""
    if isinstance(schema, list):
        return [text for item in schema for text in _texts(item)]
    if not isinstance(schema, dict):
        return []
    own = schema.get("description")
    return [*([own] if isinstance(own, str) else []), *(text for item in schema.values() for text in _texts(item))]
