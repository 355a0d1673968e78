"""Turns to append as callers send them: in the format of this API, or as messages of a provider.

The parser of a format keeps the fields that a turn cannot express, so that the same messages can be rendered again.
Without a `format`, a turn with blocks that only Anthropic has is parsed as such a message. A turn whose `type` is that
of an OpenAI Responses item is parsed as one.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Self, TypeAlias, cast

from pydantic import (
    BaseModel,
    Field,
    JsonValue,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StrictBool,
    ValidationError,
    model_validator,
)

from app.conversations.schemas.conversations import MAX_PARTS, MAX_TURNS, NonNegative, Strict, TurnContent, TurnInput
from app.core.errors import InvalidFields
from app.core.validation.invalid import fields_of
from app.core.validation.strict import Unchecked
from app.formats import service as formats
from app.formats.parse.produced import BESIDE_MESSAGES, admit_messages
from app.formats.parse.sent_messages import SentMessage, errors_in_messages
from app.formats.parse.validation import field_error
from app.formats.parts import type_of
from app.formats.schemas import GIVEN, Format, JsonObject

_BLOCKS: Final = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use"})
_ITEMS: Final = frozenset(
    {"function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning"}
)
_OF_CONTEXTS: Final = frozenset({"position", "is_error", GIVEN})
"""Members of messages of canonical contexts that turns do not have."""
_OF_TURNS: Final = frozenset(TurnContent.model_fields) - {
    "content",
    "tool_calls",
    "tool_call_id",
    "tool_results",
    "kind",
}
_TurnOfMessage: TypeAlias = tuple[SentMessage, object]
"""A turn to validate, and the message that it was parsed from."""
PRODUCED_MEMBERS: Final = frozenset({"turns", "content", "tool_calls", "tool_results"})
"""Members of bodies and frames in which texts and numbers of a model or a tool are: their models check the rest."""


class IndexTime(StrEnum):
    """When the vectors of appended turns are made: before the append returns (up to a limit), or by a job."""

    NOW = "now"
    DEFERRED = "deferred"


IndexTimeIn: TypeAlias = Annotated[
    IndexTime,
    Field(
        description="When the vectors are made. `now`: before the response, up to a limit. `deferred`: by a job, which"
        " is faster for large imports. In both cases the turns are durable when the response arrives, and recall finds"
        " them by words. A turn that waits for its vectors has `index_state: pending`."
    ),
]

ImportIn: TypeAlias = Annotated[
    StrictBool,
    Field(
        validation_alias="import",
        description="The turns were said before: `active_at` of the conversation becomes the newest `occurred_at` (it"
        " never goes back), and `created_at` the oldest one. Expiry counts from the append.",
    ),
]


class TurnsToAppend(BaseModel):
    """Turns to append, and their format."""

    turns: Annotated[list[TurnInput], Field(min_length=1, max_length=MAX_TURNS, fail_fast=True)]
    format: Format | None = Field(
        None,
        description="The shape of `turns`, if they are messages of a provider. Nothing of them is lost. Without it,"
        " messages of Anthropic and items of OpenAI Responses are recognised by their blocks and types.",
    )
    is_import: ImportIn = False

    is_always_unchecked: ClassVar[bool] = False
    """Whether the texts and numbers of turns were not checked when their JSON was parsed."""

    _sanitised: list[str] = PrivateAttr(default_factory=list)

    @property
    def sanitised(self) -> list[str]:
        """The pointers of members in which characters were left out that cannot be stored."""
        return self._sanitised

    @model_validator(mode="wrap")
    @classmethod
    def _read_turns(cls, body: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        sanitised: list[str] = []
        if isinstance(body, dict) and (cls.is_always_unchecked or isinstance(body, Unchecked)):
            members = dict(cast("dict[str, object]", body))
            turns = cast("list[object]", members.get("turns"))
            if isinstance(cast("object", turns), list) and len(turns) <= MAX_TURNS:
                members["turns"], sanitised = admit_messages(turns, "/turns")
            body = members
        parsed = cls._parsed_turns(cast("object", body))
        read = handler(body) if parsed is None else cls._with_parsed(cast("JsonObject", body), parsed, handler)
        read.sanitised.extend(sanitised)
        return read

    @classmethod
    def _with_parsed(
        cls, body: JsonObject, parsed: Sequence[_TurnOfMessage], handler: ModelWrapValidatorHandler[Self]
    ) -> Self:
        """Return the append with these turns; errors name the messages that they were parsed from."""
        members = {**body, "turns": [turn for _, turn in parsed]}
        with errors_in_messages([sent for sent, _ in parsed]):
            try:
                read = handler(members)
            except ValidationError as error:
                if all(details["loc"][:1] != ("turns",) for details in error.errors(include_url=False)):
                    raise
                raise InvalidFields(fields_of(error, members)) from None
        for turn, (sent, _) in zip(read.turns, parsed, strict=True):
            turn.parsed_from(sent)
        return read

    @classmethod
    def _parsed_turns(cls, body: object) -> Sequence[_TurnOfMessage] | None:
        """Return the turns of the messages of a provider; None if there are no such messages."""
        if not isinstance(body, dict):
            return None
        members = cast("dict[str, Any]", body)
        turns, named = cast("list[object]", members.get("turns")), members.get("format")
        if not isinstance(cast("object", turns), list) or len(turns) > MAX_TURNS:
            return None
        if named is None or named == Format.CANONICAL:
            return _detected(turns, has_contexts=named is not None)
        if named not in list(Format):
            return None
        return [
            (SentMessage(f"/turns/{index}", Format(named), cast("JsonObject", turn)), parsed)
            for index, turn in enumerate(turns)
            for parsed in _parsed(Format(named), turn, f"/turns/{index}")
        ]


class Append(Strict, TurnsToAppend):
    """Turns to append, all or none. With `expected_seq`, a conversation with another seq refuses them."""

    expected_seq: NonNegative | None = None
    index: IndexTimeIn = IndexTime.NOW


def _without_place(message: JsonObject, at: str) -> JsonObject:
    """Return a message of a canonical context as a new turn: without its position, and the id of the turn shown."""
    [members] = _parsed(Format.CANONICAL, message, at)
    return {name: value for name, value in members.items() if name != "id" or "position" not in message}


def _parsed(source: Format, turn: object, at: str) -> list[JsonObject]:
    if not isinstance(turn, dict):
        raise field_error(at, "an object")
    members = cast("JsonObject", turn)
    beside = {name: members[name] for name in BESIDE_MESSAGES if members.get(name) is not None}
    message = {name: value for name, value in members.items() if name not in BESIDE_MESSAGES}
    # bodies and frames are already validated as JSON; to validate each value of a large one again would take a second
    return [{**parsed.members(), **beside} for parsed in formats.parse_single_message(source, message, at)]


def _detected(turns: Sequence[object], *, has_contexts: bool) -> list[_TurnOfMessage] | None:
    """Return the turns with provider messages parsed; None if there are no such messages.

    `has_contexts`: whether messages of canonical contexts are such messages too.
    """
    formats_of = [Format.CANONICAL if has_contexts and _is_of_context(turn) else _format_of(turn) for turn in turns]
    if not any(formats_of):
        return None
    read: list[_TurnOfMessage] = []
    for index, (turn, source) in enumerate(zip(turns, formats_of, strict=True)):
        members = cast("JsonObject", turn)
        sent = SentMessage(f"/turns/{index}", source or Format.CANONICAL, members)
        if source is None:
            read.append((sent, turn))
        elif source is Format.CANONICAL:
            read.append((sent, _without_place(members, sent.at)))
        else:
            read.extend((sent, parsed) for parsed in _read(source, members, sent.at))
    return read


def _is_of_context(turn: object) -> bool:
    return isinstance(turn, dict) and not _OF_CONTEXTS.isdisjoint(cast("JsonObject", turn))


def _format_of(turn: object) -> Format | None:
    if not isinstance(turn, dict):
        return None
    members = cast("dict[str, object]", turn)
    kind, content = type_of(cast("JsonObject", members)), members.get("content")
    if kind == "message" or (kind in _ITEMS and "role" not in members):
        return Format.OPENAI_RESPONSES
    blocks = cast("list[object]", content)[:MAX_PARTS] if isinstance(content, list) else []
    ours = any(name in members for name in ("tool_calls", "tool_results", "tool_call_id"))
    if not ours and any(type_of(cast("JsonValue", block)) in _BLOCKS for block in blocks):
        return Format.ANTHROPIC
    return None


def _read(source: Format, members: JsonObject, at: str) -> list[JsonObject]:
    """Return one message as turns. Members that only turns have (`actor`, `metadata`) are copied to each of them."""
    if source is Format.OPENAI_RESPONSES:
        return _parsed(source, members, at)
    of_turns = {name: value for name, value in members.items() if name in _OF_TURNS and value is not None}
    message = {name: value for name, value in members.items() if name not in _OF_TURNS}
    parsed = formats.parse_single_message(source, message, at)
    if len(parsed) > 1 and "id" in of_turns:
        raise field_error(f"{at}/id", "a message with results and text becomes two turns, which have ids of their own")
    return [{**turn.members(), **of_turns} for turn in parsed]
