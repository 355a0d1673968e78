"""A request of the Responses API as a chat completion, and what a response repeats of its request. Pure.

What cannot be done is refused with the name of its field: nothing is accepted and ignored that would change the answer.
"""

from collections.abc import Mapping
from typing import Final, cast

from pydantic import JsonValue, ValidationError

from app.agents.generation.responses.schemas import (
    MAX_TOOLS,
    REPEATED,
    REPEATED_EXTRAS,
    ConversationReference,
    CreateResponse,
)
from app.agents.generation.schemas import CreateChatCompletion
from app.core.errors import FieldError, Invalid, InvalidFields
from app.core.validation.invalid import fields_of, unknown_field
from app.core.validation.misspelt import misspelt
from app.formats.parse.validation import check_json, is_name, read_text
from app.formats.schemas import JsonObject
from app.providers.schemas import LimitName

_PASSED: Final = ("model", "temperature", "top_p", "parallel_tool_calls", "user")
_REFUSED: Final[Mapping[str, str]] = {
    "access_programs": "not available",
    "image": "not available",
    "messages": "send `input`",
    "conversation_id": "send `conversation`",
}
_REFUSED_MEMBERS: Final[Mapping[str, str]] = {
    "prompt": "templates are not stored here; send `instructions` and `input`",
    "context_management": "the context is built within `token_budget`",
    "moderation": "not available",
}
_TOOL_MEMBERS: Final = {
    "function": ("name", "description", "parameters", "strict"),
    "custom": ("name", "description", "format"),
}
_CHOICES: Final = frozenset({"none", "auto", "required"})
_NAME: Final = "a text of 1 to 256 characters"
_LOGPROBS: Final = "message.output_text.logprobs"
_NO_LOGPROBS: Final = "log probabilities are not returned; `/openai/v1/chat/completions` passes them on"


def chat_body(body: CreateResponse, *, limit_name: LimitName) -> JsonObject:
    """Return the members of the chat completion, without its messages. Raises Invalid."""
    extras = cast("JsonObject", body.model_extra or {})
    _refuse(body, extras)
    _refuse_misspelt(extras)
    try:
        CreateChatCompletion.model_validate(extras)
    except ValidationError as error:
        raise InvalidFields(fields_of(error, extras)) from None
    choice = None if body.tool_choice is None else _tool_choice(body.tool_choice)
    chat = {name: value for name, value in extras.items() if name not in _REFUSED}
    for name in _PASSED:
        if (value := cast("JsonValue", getattr(body, name))) is not None:
            chat[name] = value
    if body.max_output_tokens is not None:
        chat[limit_name] = body.max_output_tokens
    if body.tools:
        chat["tools"] = [_tool(tool, f"/tools/{at}") for at, tool in enumerate(body.tools)]
        if choice is not None:
            chat["tool_choice"] = choice
    else:
        chat.pop("parallel_tool_calls", None)  # endpoints refuse it without tools
    return chat | _text_members(body.text or {}) | _reasoning_members(body.reasoning or {})


def allowed_tools(body: CreateResponse) -> frozenset[str] | None:
    """Return the names of the only tools that the answer may call, from a valid request; None: any."""
    choice = body.tool_choice
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return None
    tools = cast("list[JsonObject]", choice["tools"])
    return frozenset(str(tool["name"]) for tool in tools)


def repeated_members(body: CreateResponse) -> JsonObject:
    """Return what a response repeats of its request, with OpenAI's defaults."""
    extras = cast("JsonObject", body.model_extra or {})
    members = {name: cast("JsonValue", getattr(body, name)) for name in REPEATED}
    shown = {name: REPEATED[name] if value is None else value for name, value in members.items()}
    return shown | {name: extras[name] for name in REPEATED_EXTRAS if extras.get(name) is not None}


def input_items(body: CreateResponse) -> list[tuple[str, JsonObject]]:
    """Return the items of the input, each with its pointer. Raises Invalid if there is nothing to answer."""
    sent = body.input
    if sent is None:
        if body.conversation is None and body.previous_response_id is None:
            raise _invalid("/input", "This is required without `conversation` or `previous_response_id`.")
        return []
    if isinstance(sent, str):
        check_json(sent, "/input")
        return [("/input", {"role": "user", "content": sent})]
    return [(f"/input/{at}", item) for at, item in enumerate(sent)]


def conversation_name(body: CreateResponse) -> str | None:
    """Return the conversation that a request names. Raises Invalid if it also names a previous response."""
    name = body.conversation
    name = name.id if isinstance(name, ConversationReference) else name
    if name is not None and body.previous_response_id is not None:
        raise _invalid("/previous_response_id", "not beside `conversation`: a response continues one of them")
    return name


def is_reference(item: JsonObject) -> bool:
    """Return whether an item is a reference to a stored one."""
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item and is_name(item.get("id")))


def _refuse_misspelt(extras: JsonObject) -> None:
    """Raise Invalid for a member that is almost the name of a conversation or response: that would get nothing."""
    for right in ("conversation", "previous_response_id", "conversation_id"):
        if (name := misspelt(extras, right)) is not None:
            raise InvalidFields([unknown_field([name], ["conversation" if right == "conversation_id" else right])])


def _refuse(body: CreateResponse, extras: JsonObject) -> None:
    """Raise Invalid for what is not available here."""
    for name, detail in _REFUSED.items():
        if extras.get(name) is not None:
            raise _unsupported(f"/{name}", detail)
    for name, detail in _REFUSED_MEMBERS.items():
        if getattr(body, name) is not None:
            raise _unsupported(f"/{name}", detail)
    if body.background:
        raise _unsupported("/background", "not available: an answer is generated while its client is connected")
    if body.top_logprobs:
        raise _unsupported("/top_logprobs", _NO_LOGPROBS)
    for at, name in enumerate(body.include or ()):
        if name == _LOGPROBS:
            raise _unsupported(f"/include/{at}", _NO_LOGPROBS)
    if body.stream_options and body.stream_options.get("include_obfuscation"):
        raise _unsupported("/stream_options", "events are sent without obfuscation")


def _tool(tool: JsonObject, at: str) -> JsonObject:
    kind = tool.get("type")
    if not isinstance(kind, str) or kind not in _TOOL_MEMBERS:
        raise _unsupported(
            f"{at}/type", "only `function` and `custom`: tools that OpenAI runs itself are not available here"
        )
    if not is_name(tool.get("name")):
        raise _invalid(f"{at}/name", _NAME)
    members = _TOOL_MEMBERS[kind]
    if any(value for name, value in tool.items() if name not in members and name != "type"):
        raise _unsupported(at, f"a tool of this type has only {', '.join(members)}")
    described = {name: tool[name] for name in members if tool.get(name) is not None}
    if kind == "custom" and isinstance(form := described.get("format"), dict) and form.get("type") == "grammar":
        grammar = {name: value for name, value in form.items() if name != "type"}
        described["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": kind, kind: described}


def _tool_choice(choice: JsonValue) -> JsonValue:
    if isinstance(choice, str) and choice in _CHOICES:
        return choice
    if not isinstance(choice, dict):
        raise _invalid("/tool_choice", "`none`, `auto`, `required`, or an object")
    kind = choice.get("type")
    if kind in {"function", "custom"}:
        return _named_tool(choice, "/tool_choice")
    if kind == "allowed_tools":
        tools, mode = choice.get("tools"), choice.get("mode", "auto")
        if not isinstance(tools, list) or not 0 < len(tools) <= MAX_TOOLS:
            raise _invalid("/tool_choice/tools", f"1 to {MAX_TOOLS} tools")
        if mode not in ("auto", "required"):
            raise _invalid("/tool_choice/mode", "`auto` or `required`")
        allowed: list[JsonValue] = [
            _named_tool(tool if isinstance(tool, dict) else {}, f"/tool_choice/tools/{at}")
            for at, tool in enumerate(tools)
        ]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
    raise _unsupported("/tool_choice/type", "only `function`, `custom` and `allowed_tools`")


def _named_tool(tool: JsonObject, at: str) -> JsonObject:
    kind = tool.get("type")
    if not isinstance(kind, str) or kind not in _TOOL_MEMBERS:
        raise _unsupported(f"{at}/type", "only `function` and `custom`")
    if not is_name(tool.get("name")):
        raise _invalid(f"{at}/name", _NAME)
    return {"type": kind, kind: {"name": tool.get("name")}}


def _text_members(text: JsonObject) -> JsonObject:
    """Return `response_format` and `verbosity`."""
    members = _passed_text(text, "verbosity", "/text", as_name="verbosity")
    form = text.get("format")
    if form is None:
        return members
    if not isinstance(form, dict) or form.get("type") not in {"text", "json_object", "json_schema"}:
        raise _invalid("/text/format", "an object of the type `text`, `json_object` or `json_schema`")
    if form["type"] == "json_schema":
        schema: JsonObject = {name: value for name, value in form.items() if name != "type" and value is not None}
        members["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form["type"] == "json_object":
        members["response_format"] = {"type": "json_object"}
    return members


def _reasoning_members(reasoning: JsonObject) -> JsonObject:
    return _passed_text(reasoning, "effort", "/reasoning", as_name="reasoning_effort")


def _passed_text(owner: JsonObject, member: str, at: str, *, as_name: str) -> JsonObject:
    """Return a text of the request under its name in a chat completion; nothing if it is not given."""
    return {} if owner.get(member) is None else {as_name: read_text(owner, member, at)}


def _unsupported(at: str, detail: str) -> Invalid:
    return InvalidFields([FieldError(at, detail)], code="not_supported")


def _invalid(at: str, detail: str) -> Invalid:
    return InvalidFields([FieldError(at, detail)])
