"""Assembles the answer of a chat model from streamed chunks. No I/O.

Only the first choice is kept, because a conversation has one next turn. Unknown fields are kept too: texts are
concatenated, other values replace the earlier ones.

An answer that is nothing but calls of offered tools, written as text, becomes these calls; not if the client asked for
JSON, or for no calls. In a stream the text is already sent, so the calls follow it in the last chunk of the answer.
"""

import json
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import Final, Literal, cast

from pydantic import JsonValue

from app.agents.generation.call_deltas import EMPTY_VALUES, Delta, StreamedCalls, extended, merged, with_calls
from app.conversations.schemas.conversations import TurnInput
from app.core.errors import Invalid
from app.core.ids import format_id, new_uuid
from app.formats import service as formats
from app.formats.parse.produced import storable
from app.formats.parse.text_calls import read_text_calls
from app.formats.schemas import Format, JsonObject
from app.formats.turns import parse_tool_call
from app.providers.schemas import InvalidAnswer, UpstreamRefusal
from app.providers.service import usage_in

_CONCATENATED: Final = frozenset({"content", "refusal", "reasoning_content", "reasoning", "thinking"})
_MAX_INTEGER: Final = 2**53 - 1
_MAX_USAGE_CHARACTERS: Final = 4096
_MAX_MODEL_CHARACTERS: Final = 256
_MAX_ORIGIN_CHARACTERS: Final = 256
TEXT_CALL: Final = "text_call"
"""The member of a turn's metadata that marks an answer whose text is a tool call: `read` or `unreadable`."""
_FIRST_HIGH_SURROGATE, _LAST_HIGH_SURROGATE = "\ud800", "\udbff"


@dataclass(slots=True)
class PartialAnswer:
    """The first choice of a chat completion, complete or partial.

    Texts are written into buffers, so that time and memory are linear in the length of the answer, however small its
    pieces are.
    """

    message: JsonObject = field(default_factory=lambda: {"role": "assistant", "content": None})
    calls: StreamedCalls = field(default_factory=StreamedCalls)
    allowed_tools: frozenset[str] | None = None
    """The only tools that it may call; None: any."""
    offered_tools: frozenset[str] = frozenset()
    """The tools whose calls are read from its text."""
    text_call: Literal["read", "unreadable"] | None = None
    id: str | None = None
    model: str | None = None
    usage: JsonObject | None = None
    finish_reason: str | None = None
    _texts: dict[str, StringIO] = field(default_factory=dict[str, StringIO])
    _high_surrogates: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(
        cls,
        completion: JsonObject,
        *,
        allowed_tools: frozenset[str] | None = None,
        offered_tools: frozenset[str] = frozenset(),
    ) -> "PartialAnswer":
        """Return the answer of a completion that was not streamed. Raises InvalidAnswer if it has no answer."""
        for choice in _first_choices(completion):
            if isinstance(message := choice.get("message"), dict):
                answer = cls(message=dict(message), allowed_tools=allowed_tools, offered_tools=offered_tools)
                answer.add({**completion, "choices": [{"finish_reason": choice.get("finish_reason")}]})
                return answer
        raise no_answer()

    @property
    def text(self) -> str:
        """Content of a complete answer, as text that can be stored."""
        content = storable(self.whole().get("content"))
        return content if isinstance(content, str) else ""

    def add(self, piece: JsonObject) -> list[Delta]:
        """Add a chunk; return its additions to the live turn, as text that can be stored.

        Raises InvalidAnswer for a call of a tool that is not allowed.
        """
        for name in ("id", "model"):
            if isinstance(value := piece.get(name), str) and getattr(self, name) is None:
                setattr(self, name, value)
        self.usage = usage_in(piece) or self.usage
        deltas: list[Delta] = []
        for choice in _first_choices(piece):
            if isinstance(reason := choice.get("finish_reason"), str):
                self.finish_reason = reason
            if isinstance(delta := choice.get("delta"), dict):
                deltas += self._take(delta)
        if self.allowed_tools is not None and not self.calls.are_allowed(self.allowed_tools):
            raise _forbidden_call()
        return [Delta(delta.part, text) for delta in deltas if (text := self._storable(delta))]

    def whole(self) -> JsonObject:
        """Return the message as in a completion that was not streamed."""
        message: JsonObject = {**self.message, **{name: text.getvalue() for name, text in self._texts.items()}}
        return {**message, "tool_calls": [*self.calls.whole()]} if self.calls else message

    def read_text_calls(self) -> list[JsonObject]:
        """Add the calls of which the text of the complete answer consists, and return them."""
        if not self.offered_tools or self.finish_reason != "stop" or self.whole().get("tool_calls"):
            return []
        read = read_text_calls(self.text, self.offered_tools)
        self.text_call = "unreadable" if read.is_unreadable else "read" if read.calls else None
        return [
            {
                "id": f"call_{format_id(new_uuid())}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in read.calls
        ]

    def with_message(self, message: JsonObject) -> "PartialAnswer":
        """Return the answer with this message in place of what was added, and no calls read from its text."""
        return replace(
            self, message=message, calls=StreamedCalls(), offered_tools=frozenset(), _texts={}, _high_surrogates={}
        )

    def drop_texts(self) -> None:
        """Remove what was added, except the id, the usage and the reason of the end."""
        self._texts.clear()
        self.message, self.calls = {"role": "assistant", "content": None}, StreamedCalls()

    def _storable(self, delta: Delta) -> str:
        """Return the storable text of a delta; a high surrogate at its end waits for the low one."""
        half = self._high_surrogates.pop(delta.part, "")
        text = half + delta.text if half else delta.text
        if text and _FIRST_HIGH_SURROGATE <= text[-1] <= _LAST_HIGH_SURROGATE:
            self._high_surrogates[delta.part] = text[-1]
            text = text[:-1]
        return str(storable(text))

    def _take(self, delta: JsonObject) -> list[Delta]:
        deltas: list[Delta] = []
        for name, value in delta.items():
            if name == "tool_calls" and isinstance(value, list):
                deltas += self.calls.add([call for call in value if isinstance(call, dict)])
            elif name == "function_call" and isinstance(value, dict):
                deltas += self.calls.add([{"index": 0, "type": "function", "function": value}])
            elif isinstance(value, str) and name in _CONCATENATED:
                self.message.setdefault(name, None)
                self._texts[name] = extended(self._texts.get(name), value)
                if name in {"content", "refusal"}:
                    deltas.append(Delta(name, value))
            elif value not in EMPTY_VALUES and name != "role":
                self.message = merged(self.message, {name: value})
                self._texts.pop(name, None)
        return deltas


def _first_choices(piece: JsonObject) -> list[JsonObject]:
    """Return the first choice of a completion or a chunk, in a list."""
    choices = piece.get("choices")
    listed = choices if isinstance(choices, list) else []
    return [choice for choice in listed if isinstance(choice, dict) and choice.get("index", 0) == 0]


def offered_tools(body: JsonObject, *, allowed: frozenset[str] | None) -> frozenset[str]:
    """Return the names of the functions whose calls are read from the text of an answer to the request `body`."""
    choice, form = body.get("tool_choice"), body.get("response_format")
    wants_json = isinstance(form, dict) and form.get("type") != "text"
    tools = body.get("tools")
    if choice == "none" or wants_json or not isinstance(tools, list):
        return frozenset()
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    names = {name for tool in functions if isinstance(tool, dict) and isinstance(name := tool.get("name"), str)}
    wanted = choice.get("function") if isinstance(choice, dict) else None
    if isinstance(wanted, dict):
        names &= {str(wanted.get("name"))}
    return frozenset(names if allowed is None else names & allowed)


def read_completion(
    completion: JsonObject, *, offered: frozenset[str], allowed: frozenset[str] | None
) -> tuple[JsonObject, PartialAnswer]:
    """Return a completion and its answer, with calls in place of a text that consists of them. Raises InvalidAnswer."""
    answer = PartialAnswer.of(completion, allowed_tools=allowed, offered_tools=offered)
    calls = answer.read_text_calls()
    if not calls:
        return completion, answer
    message: JsonObject = {**answer.message, "content": None, "tool_calls": [*calls]}
    completion = _with_first_choice(completion, {"message": message})
    answer = PartialAnswer.of(completion, allowed_tools=allowed)
    answer.text_call = "read"
    return completion, answer


def with_streamed_calls(piece: JsonObject, calls: list[JsonObject]) -> tuple[JsonObject, JsonObject]:
    """Return the last chunk of a streamed answer with calls, and the part of it that is new to the answer."""
    numbered: list[JsonObject] = [{"index": number, **call} for number, call in enumerate(calls)]
    delta = next((choice.get("delta") for choice in _first_choices(piece)), None)
    new: JsonObject = {"tool_calls": [*numbered]}
    whole = _with_first_choice(piece, {"delta": {**delta, **new} if isinstance(delta, dict) else new})
    added: JsonObject = {"index": 0, "delta": new, "finish_reason": "tool_calls"}
    return whole, {"choices": [added]}


def _with_first_choice(completion: JsonObject, members: JsonObject) -> JsonObject:
    """Return a completion or a chunk whose first choice ends with calls and has these members."""
    choices = completion.get("choices")
    first = _first_choices(completion)
    changed = [
        {**choice, **members, "finish_reason": "tool_calls"} if isinstance(choice, dict) and choice in first else choice
        for choice in (choices if isinstance(choices, list) else [])
    ]
    return {**completion, "choices": [*changed]}


def _usage_of(answer: PartialAnswer) -> JsonObject | None:
    """Return the usage that the endpoint reports; only the two counts if it is too large to store."""
    usage = _interoperable(storable(cast("JsonValue", answer.usage)))
    if not isinstance(usage, dict) or len(json.dumps(usage)) <= _MAX_USAGE_CHARACTERS:
        return usage if isinstance(usage, dict) else None
    counts = {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
    return {name: count for name, count in counts.items() if isinstance(count, int)}


def _interoperable(value: JsonValue) -> JsonValue:
    """Return a value with null for numbers that readers of JSON disagree on: counts are never as large."""
    if isinstance(value, list):
        return [_interoperable(item) for item in value]
    if isinstance(value, dict):
        return {name: _interoperable(member) for name, member in value.items()}
    return None if isinstance(value, int) and abs(value) > _MAX_INTEGER else value


def answer_turn(answer: PartialAnswer, body: JsonObject) -> TurnInput:
    """Return the turn to store for a complete answer to the request `body`. Raises InvalidAnswer."""
    whole = answer.whole()
    said = {name: value for name, value in whole.items() if value not in EMPTY_VALUES or name == "content"}
    said["role"] = "assistant"
    message = cast("JsonObject", storable(with_calls(said)))
    if message.get("refusal") and not message.get("content"):
        message["content"] = None  # endpoints begin a stream with an empty text
    try:
        [parsed] = formats.parse(Format.OPENAI, [message])
    except Invalid:
        standard = {name: message[name] for name in ("role", "content", "tool_calls", "refusal") if name in message}
        try:
            [parsed] = formats.parse(Format.OPENAI, [standard])
        except Invalid:
            raise no_answer() from None
    allowed = answer.allowed_tools
    if allowed is not None and not all(parse_tool_call(call).name in allowed for call in parsed.tool_calls):
        raise _forbidden_call()
    asked = body.get("model")
    model = answer.model or (asked if isinstance(asked, str) else None)
    origin = {"response_id": answer.id, "finish_reason": answer.finish_reason, TEXT_CALL: answer.text_call}
    fields = {
        "usage": _usage_of(answer),
        "model": None if model is None else str(storable(model))[:_MAX_MODEL_CHARACTERS] or None,
        "metadata": {
            name: str(storable(value))[:_MAX_ORIGIN_CHARACTERS] for name, value in origin.items() if value is not None
        },
    }
    return TurnInput.of(parsed).model_copy(update=fields)


def read_piece(data: str) -> JsonObject:
    """Parse the data of one streamed event. Raises InvalidAnswer and UpstreamRefusal."""
    try:
        piece = cast("JsonValue", json.loads(data))
    except (ValueError, RecursionError):
        raise no_answer() from None
    if not isinstance(piece, dict):
        raise no_answer()
    error = piece.get("error")
    if error:
        refusal = InvalidAnswer("model_unavailable", "The chat model's endpoint ended its answer with an error.")
        raise UpstreamRefusal(refusal, status=502, error=error if isinstance(error, dict) else None)
    return piece


def no_answer() -> InvalidAnswer:
    """Return the error for a response that is not a chat completion."""
    return InvalidAnswer("model_invalid", "The chat model's endpoint did not return a chat completion.")


def _forbidden_call() -> InvalidAnswer:
    return InvalidAnswer("model_error", "The chat model called a tool that `tool_choice` does not allow.")
