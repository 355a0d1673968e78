"""OpenAI Responses items as turns, to store or to show. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.conversations.schemas.conversations import MAX_PARTS, TurnInput, content_text
from app.core.errors import FieldError, Invalid, InvalidFields
from app.formats.parse.produced import admit_message
from app.formats.parse.sent_messages import SentMessage
from app.formats.schemas import CanonicalTurn, Format, JsonObject, ParsedTurn, Role
from app.formats.service import parse_single_message, text_of
from app.formats.turns import to_canonical

_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a request, and the turn that it was parsed to.

    `sanitised`: the pointers of its members in which characters were left out that cannot be stored.
    """

    sent: SentMessage
    turn: ParsedTurn
    sanitised: Sequence[str]


def read_items(sent: Sequence[JsonObject], *, root: str, user_id: str | None, maximum: int) -> list[Item]:
    """Parse items. `user_id` becomes the actor of user messages. Raises Invalid with a pointer to the wrong field."""
    if len(sent) > maximum:
        raise refusal(root, f"at most {maximum} items in one turn")
    items: list[Item] = []
    for index, item in enumerate(sent):
        at = f"{root}/{index}"
        admitted, sanitised = admit_message(item, at)
        [turn] = parse_single_message(Format.OPENAI_RESPONSES, admitted, at)
        sent_item = SentMessage(at, Format.OPENAI_RESPONSES, item)
        if isinstance(turn.content, list) and len(turn.content) > MAX_PARTS:
            raise refusal(sent_item.pointer_to(["content"]), f"at most {MAX_PARTS} parts in one item")
        spoken = user_id is not None and turn.role is Role.USER and turn.actor is None
        items.append(Item(sent_item, replace(turn, actor=user_id) if spoken else turn, sanitised))
    return items


def turn_inputs(items: Sequence[Item]) -> list[TurnInput]:
    """Return the items as turns to append."""
    return [TurnInput.of(item.turn).parsed_from(item.sent) for item in items]


def sanitised_in(items: Sequence[Item]) -> list[str]:
    """Return the pointers of all members in which characters were left out."""
    return [pointer for item in items for pointer in item.sanitised]


def upcoming_turns(items: Sequence[Item]) -> list[CanonicalTurn]:
    """Return the items as upcoming turns of a context."""
    shown: list[CanonicalTurn] = []
    for index, item in enumerate(items):
        turn = to_canonical(item.turn, turn_id=f"upcoming-{index}")
        shown.append(replace(turn, content_tokens=len(text_of(turn)) // _CHARACTERS_PER_TOKEN))
    return shown


def query_of(items: Sequence[Item], *, maximum: int) -> str | None:
    """Return the text of the user's items, as the query of a recall; None if there is none."""
    said = [content_text(item.turn.content) for item in items if item.turn.role is Role.USER]
    text = "\n".join(text for text in said if text.strip())[:maximum]
    return text if text.strip() else None


def refusal(at: str, detail: str) -> Invalid:
    """Return the error for one wrong field."""
    return InvalidFields([FieldError(at, detail)])
