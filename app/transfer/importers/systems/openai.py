"""OpenAI Conversations: the conversation object and the list of its items.

Source: https://platform.openai.com/docs/api-reference/conversations (`GET /v1/conversations/{id}` and `GET
/v1/conversations/{id}/items?order=asc`). OpenAI has no export of them, so the document is made of these answers:
`{"id": "conv_…", "created_at": …, "metadata": {…}, "items": [… or the list object]}`, or a list of such objects.

Items are stored without loss in the format `openai_responses`, so that `/openai/v1` gives them back as they were. They
have no times of their own: all have that of the conversation.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final, cast

from app.core.errors import Invalid
from app.formats import service as formats
from app.formats.schemas import Format, JsonObject
from app.transfer.importers.building import ForeignObject, TurnBuilder, conversation
from app.transfer.importers.json_cursor import JsonCursor

SYSTEM: Final = "openai"


def objects(document: JsonCursor) -> Iterator[ForeignObject]:
    """Yield one conversation, or those of a list."""
    if not isinstance(document.value, list):
        document.need("items")
    for place in document.items() if isinstance(document.value, list) else [document]:
        yield ForeignObject("conversation", place, partial(_conversation, place), place.name_of("id"))


def _conversation(place: JsonCursor) -> Iterator[JsonObject]:
    name = place.need("id").name()
    about = place.get("metadata")
    created_at = place.time_of("created_at")
    metadata: JsonObject = {**(about.object() if about is not None else {}), SYSTEM: {"created_at": created_at}}
    yield conversation(name, metadata=metadata, created_at=created_at)
    items = place.need("items")
    calls: set[str] = set()
    names: set[str] = set()

    def read(item: JsonCursor, number: int) -> Iterator[JsonObject]:
        external_id = item.text_of("id") or f"item-{number}"
        if external_id in names:
            raise item.error("its id is that of an earlier item")
        for turn in _turns(item):
            answered = turn.get("tool_call_id")
            results = [call.get("tool_call_id") for call in _objects(turn.get("tool_results"))]
            if any(call is not None and call not in calls for call in (answered, *results)):
                raise item.error("it answers a call that no item before it made")
            names.add(external_id)
            calls.update(str(call["id"]) for call in _objects(turn.get("tool_calls")))
            record: JsonObject = {"type": "turn", "external_id": external_id, **turn}
            if created_at is not None:
                record["occurred_at"] = created_at
            yield record

    listed = (items.need("data") if isinstance(items.value, dict) else items).items()
    yield from TurnBuilder(SYSTEM).read_all(listed, read)


def _turns(item: JsonCursor) -> list[JsonObject]:
    item.object()
    try:
        parsed = formats.parse_single_message(Format.OPENAI_RESPONSES, item.object(), item.at)
    except Invalid as error:
        detail = error.fields[0].detail if error.fields else "an item of the Responses API is expected"
        raise item.error(detail) from error
    return [turn.members() for turn in parsed]


def _objects(value: object) -> list[JsonObject]:
    return cast("list[JsonObject]", value) if isinstance(value, list) else []
