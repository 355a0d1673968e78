"""OpenAI Responses items as turns, to be stored or to be shown. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.conversations.schemas.conversations import MAX_PARTS, TurnInput, content_text
from app.core.errors import AppError, FieldError, Invalid
from app.formats.schemas import CanonicalTurn, Format, JsonObject, ParsedTurn, Role
from app.formats.service import canonical_of, parse, text_of

_CHARACTERS_PER_TOKEN = 4
_MEMBER_OF = {"tool_calls": "", "tool_call_id": "/call_id", "actor": ""}


@dataclass(frozen=True, slots=True)
class Item:
    """One item that was sent: where it stands in the request, and the turn that it is."""

    at: str
    turn: ParsedTurn


def read_items(given: Sequence[JsonObject], *, root: str, user_id: str | None, maximum: int) -> list[Item]:
    """The items of a list. What a user says is said by `user_id`. Raises Invalid with a pointer to the wrong field."""
    if len(given) > maximum:
        raise refusal(root, f"at most {maximum} items in one turn")
    items: list[Item] = []
    for index, turn in enumerate(parse(Format.OPENAI_RESPONSES, list(given), root=root)):
        at = f"{root}/{index}"
        if isinstance(turn.content, list) and len(turn.content) > MAX_PARTS:
            raise refusal(f"{at}/content", f"at most {MAX_PARTS} parts in one item")
        spoken = user_id is not None and turn.role is Role.USER and turn.actor is None
        items.append(Item(at, replace(turn, actor=user_id) if spoken else turn))
    return items


def to_store(items: Sequence[Item]) -> list[tuple[str, TurnInput]]:
    """The items as turns to append, with where each stands."""
    return [
        (
            item.at,
            TurnInput.model_construct(
                None,
                role=item.turn.role,
                kind=item.turn.kind,
                actor=item.turn.actor,
                content=item.turn.content,
                tool_calls=item.turn.tool_calls,
                tool_call_id=item.turn.tool_call_id,
                tool_results=item.turn.tool_results,
                adapter=item.turn.adapter,
            ),
        )
        for item in items
    ]


def to_show(items: Sequence[Item]) -> list[CanonicalTurn]:
    """The items as turns that are still to come."""
    shown: list[CanonicalTurn] = []
    for index, item in enumerate(items):
        turn = canonical_of(item.turn, turn_id=f"upcoming-{index}")
        shown.append(replace(turn, content_tokens=len(text_of(turn)) // _CHARACTERS_PER_TOKEN))
    return shown


def question_of(items: Sequence[Item], *, maximum: int) -> str | None:
    """What the user says in these items, to recall by; None where nothing is said."""
    said = [content_text(item.turn.content) for item in items if item.turn.role is Role.USER]
    text = "\n".join(one for one in said if one.strip())[:maximum]
    return text if text.strip() else None


def refusal(at: str, detail: str) -> Invalid:
    """The error for one wrong field."""
    return Invalid("invalid_request", "The request breaks a rule; nothing was stored.", fields=[FieldError(at, detail)])


def in_items(error: AppError) -> AppError:
    """The same error where it points into a turn, pointing into the item that the turn was read from."""
    error.fields = tuple(replace(one, pointer=_in_item(one.pointer)) for one in error.fields)
    return error


def _in_item(pointer: str) -> str:
    steps = pointer.split("/")
    if len(steps) <= 3 or steps[3] not in _MEMBER_OF:  # noqa: PLR2004 - "", list, index
        return pointer
    return "/".join(steps[:3]) + _MEMBER_OF[steps[3]]
