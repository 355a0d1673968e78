"""Finds the items of a request that its conversation has already, so that they are not stored twice.

Clients send back items with the ids that this service gave them, often with their whole history. An item whose id is
that of a stored item is left out: the model is shown the stored one, once, in its place. Before the last such item all
is history, so an item without a known id is left out there if the conversation has an equal one that no other item of
the request stands for.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from app.agents.generation.align import says
from app.agents.generation.openai_items import item_place, items
from app.conversations.schemas.conversations import Turn
from app.conversations.schemas.history import HistoryQuery
from app.conversations.service import Conversations, ResponseService
from app.core.errors import Conflict, FieldError, NotFound
from app.core.ids import ConversationId, TurnId, parse_id
from app.formats import service as formats
from app.formats.parse.produced import admit_message
from app.formats.schemas import Format, JsonObject
from app.tenancy.schemas import Caller

_EXTRA_TURNS: Final = 50
_MAX_TURNS: Final = 2000

PlacedItem: TypeAlias = tuple[str, JsonObject]
"""An item, with its pointer in the request."""


async def unstored_items(
    conversations: Conversations,
    responses: ResponseService,
    caller: Caller,
    sent: Sequence[PlacedItem],
    within: ConversationId,
    *,
    through: int | None = None,
) -> list[PlacedItem]:
    """Return the items that a conversation does not have, those after the position `through` included.

    Raises NotFound, and Conflict `turn_id_conflict` for an item with the id of a stored one and other content.
    """
    named = list(dict.fromkeys(turn_id for _, item in sent if (turn_id := _turn_id(item)) is not None))
    if not named:
        return list(sent)
    query = HistoryQuery(limit=min(len(sent) + _EXTRA_TURNS, _MAX_TURNS))
    newest = await conversations.history(caller, within, query=query)
    read = {TurnId(parse_id(turn.id)): turn for turn in newest.data}
    missing = [turn_id for turn_id in named if turn_id not in read]
    older = await responses.referenced(caller, missing) if missing else {}
    turns = turns_by_id(read | older, newest.data, within, through=through)
    return new_items(sent, turns, newest.data)


def turns_by_id(
    named: Mapping[TurnId, Turn], newest: Sequence[Turn], within: ConversationId, *, through: int | None
) -> dict[TurnId, Turn]:
    """Return the turns of a conversation by the ids that items may have.

    `named`: turns of any conversations. A turn that was copied from another conversation also has the id that it has
    there. `through`: the last position that the request continues from.
    """
    copies = {TurnId(parse_id(turn.origin_turn_id)): turn for turn in newest if turn.origin_turn_id is not None}
    own = {turn_id: turn for turn_id, turn in named.items() if parse_id(turn.conversation_id) == within}
    return {
        turn_id: turn
        for turn_id, turn in (copies | own).items()
        if through is None or (turn.position is not None and turn.position <= through)
    }


def new_items(sent: Sequence[PlacedItem], stored: Mapping[TurnId, Turn], newest: Sequence[Turn]) -> list[PlacedItem]:
    """Return the items that are not stored. `newest`: the last turns of the conversation.

    Raises Conflict `turn_id_conflict` for an item with a known id and other content.
    """
    turns = [stored.get(turn_id) if (turn_id := _turn_id(item)) is not None else None for _, item in sent]
    last_stored = max((at for at, turn in enumerate(turns) if turn is not None), default=-1)
    if last_stored < 0:
        return list(sent)
    unnamed = Counter(_content(item) for turn in newest for item in items(turn))
    for (at, item), turn in zip(sent, turns, strict=True):
        if turn is not None:
            unnamed[_checked_content(item, turn, at)] -= 1
    new: list[PlacedItem] = []
    for number, ((at, item), turn) in enumerate(zip(sent, turns, strict=True)):
        if turn is not None:
            continue
        content = _content(item, at) if number < last_stored else ""
        if unnamed[content] > 0 and content:
            unnamed[content] -= 1
        else:
            new.append((at, item))
    return new


def _turn_id(item: JsonObject) -> TurnId | None:
    item_id = item.get("id")
    if not isinstance(item_id, str):
        return None
    try:
        return item_place(item_id).turn_id
    except NotFound:
        return None


def _checked_content(item: JsonObject, turn: Turn, at: str) -> str:
    stored = [_content(stored_item) for stored_item in items(turn)]
    if item.get("type", "item_reference" if "role" not in item else "message") == "item_reference":
        return stored[0] if stored else ""
    content = _content(item, at)
    if turn.erased_at is None and content not in stored:
        detail = "The stored item of this id has other content. Leave the id out to add an item, or revise the turn."
        raise Conflict(
            "turn_id_conflict",
            "An item has the id of a stored item and other content; nothing was stored.",
            fields=[FieldError(f"{at}/id", detail)],
        )
    return content


def _content(item: JsonObject, at: str = "") -> str:
    """Return what an item says, without what clients leave out or change: status, annotations, the form of a text."""
    parsed = formats.parse_single_message(Format.OPENAI_RESPONSES, admit_message(item, at)[0], at)
    messages = formats.write(Format.OPENAI, parsed).messages
    return "\n".join(
        [str(item.get("type", "message")), *(f"{message.get('role')} {says(message)}" for message in messages)]
    )
