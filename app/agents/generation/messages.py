"""The messages of a request: which are stored, which are instructions, and how they are compared. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from pydantic import JsonValue

from app.agents.generation.call_deltas import with_calls
from app.context.schemas import MAX_SYSTEM_CHARACTERS
from app.conversations.schemas.conversations import Turn, TurnInput, content_text
from app.core.errors import FieldError, Invalid, TooLarge
from app.formats import service as formats
from app.formats.parse.produced import admit_message
from app.formats.parse.sent_messages import SentMessage, errors_in_messages
from app.formats.parse.validation import field_error
from app.formats.render.openai import distinct_texts
from app.formats.schemas import CanonicalTurn, Format, JsonObject, ParsedTurn, Role, TurnLike
from app.formats.turns import call_key, to_canonical

MAX_MESSAGES: Final = 10_000
"""The most messages or items of a request."""


@dataclass(frozen=True, slots=True)
class RequestMessages:
    """The messages of a request, without those that are instructions of this call alone.

    `sent`: each message as it was sent. `compared`: the messages as `align` compares them, each with
    the index of its turn. `system`: the text of the instructions.
    """

    turns: Sequence[ParsedTurn]
    sent: Sequence[SentMessage]
    compared: Sequence[tuple[int, JsonObject]]
    system: str | None
    by_item: bool = False
    """Whether each call of an assistant's message is compared alone."""

    def new_from(self, aligned: int) -> int:
        """Return the index of the first new turn; `aligned` of the compared messages are stored."""
        return 0 if aligned == 0 else self.compared[aligned - 1][0] + 1

    def with_their_calls(self, start: int, stored: Sequence[Turn]) -> int:
        """Return the index of the first new turn: `start`, or before it that of a call which is not stored.

        The client has a result of this call: what it received of an answer may differ from what was stored.
        """
        calls = {key for turn in stored for key in _call_keys(turn)}
        for turn in self.turns[start:]:
            for key in _answered_keys(turn) - calls:
                made_at = [number for number in range(start) if key in _call_keys(self.turns[number])]
                start = min([start, *made_at[-1:]])
            calls.update(_call_keys(turn))
        return start

    def canonical(self, start: int) -> list[CanonicalTurn]:
        """Return the turns from an index on, for a context."""
        return [to_canonical(turn, turn_id=f"new-{at}") for at, turn in enumerate(self.turns)][start:]

    def to_store(self, start: int) -> list[TurnInput]:
        """Return the turns from an index on to append."""
        return [TurnInput.of(turn).parsed_from(sent) for sent, turn in zip(self.sent, self.turns, strict=True)][start:]

    def with_system(self, text: str | None) -> "RequestMessages":
        """Return the messages with more instructions before them."""
        own = distinct_texts(text, [self.system]) if self.system else []
        return replace(self, system="\n\n".join([text, *own] if text else own) or None)


def _call_keys(turn: TurnLike) -> set[str]:
    return {call_key(str(call.get("id"))) for call in turn.tool_calls}


def _answered_keys(turn: TurnLike) -> set[str]:
    ids = [str(result.get("tool_call_id")) for result in turn.tool_results]
    return {call_key(call_id) for call_id in (ids if turn.tool_call_id is None else [turn.tool_call_id])}


def read_chat(messages: JsonValue) -> RequestMessages:
    """Return the messages of a chat completion. System messages are instructions. Raises Invalid."""
    if not isinstance(messages, list):
        raise field_error("/messages", "a list of objects")
    require_number(len(messages), "/messages")
    cleaned: list[JsonValue] = [with_calls(message) if isinstance(message, dict) else message for message in messages]
    sent = [SentMessage(f"/messages/{at}", Format.OPENAI, cast("JsonObject", each)) for at, each in enumerate(messages)]
    with errors_in_messages(sent):
        parsed = formats.parse(Format.OPENAI, cleaned, root="/turns")
    spoken = [at for at, turn in enumerate(parsed) if turn.role is not Role.SYSTEM]
    return RequestMessages(
        turns=[parsed[at] for at in spoken],
        sent=[sent[at] for at in spoken],
        compared=[(number, cast("JsonObject", cleaned[at])) for number, at in enumerate(spoken)],
        system=_system_text(parsed, "/messages"),
    )


def read_items(items: Sequence[tuple[str, JsonObject]], *, keeps_system: bool) -> RequestMessages:
    """Return the messages of items of Responses, each with its pointer. Raises Invalid.

    With `keeps_system` system messages are stored as turns; otherwise they are instructions.
    """
    parsed: list[ParsedTurn] = []
    for at, item in items:
        admitted, _ = admit_message(item, at)
        parsed += formats.parse_single_message(Format.OPENAI_RESPONSES, admitted, at)
    spoken = [at for at, turn in enumerate(parsed) if keeps_system or turn.role is not Role.SYSTEM]
    turns = [parsed[at] for at in spoken]
    return RequestMessages(
        turns=turns,
        sent=[SentMessage(items[at][0], Format.OPENAI_RESPONSES, items[at][1]) for at in spoken],
        compared=[
            (at, message) for at, turn in enumerate(turns) for message in formats.write(Format.OPENAI, [turn]).messages
        ],
        system=None if keeps_system else _system_text(parsed, "/input"),
        by_item=True,
    )


def require_number(count: int, at: str) -> None:
    """Raise Invalid for more messages than a request may have."""
    if count > MAX_MESSAGES:
        fields = [FieldError(at, "too many")]
        raise Invalid("invalid_request", f"A request may have at most {MAX_MESSAGES} messages.", fields=fields)


def require_system_length(text: str, at: str) -> None:
    """Raise TooLarge `text_too_large` if the system texts of a request are too long in total."""
    if len(text) > MAX_SYSTEM_CHARACTERS:
        detail = f"The system texts of a request may have at most {MAX_SYSTEM_CHARACTERS} characters in total."
        raise TooLarge("text_too_large", detail, fields=[FieldError(at, "too much system text")])


def _system_text(parsed: Sequence[ParsedTurn], at: str) -> str | None:
    texts = [content_text(turn.content) for turn in parsed if turn.role is Role.SYSTEM]
    require_system_length("\n\n".join(texts), at)
    distinct: dict[str, str] = {}
    for text in texts:
        distinct.setdefault(text.strip(), text)
    return "\n\n".join(distinct.values()) or None
