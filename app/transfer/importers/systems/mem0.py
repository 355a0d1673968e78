"""mem0: memories, as `get_all()` and `POST /v2/memories/` answer them.

Source: https://docs.mem0.ai/api-reference/memory/get-memories and
https://docs.mem0.ai/cookbooks/essentials/exporting-memories: a list, or `{"results": [...]}`, of `{id, memory, user_id,
agent_id, app_id, run_id, hash, metadata, categories, created_at, updated_at, expiration_date}`. An export with a schema
of your own has other members: use `get_all()`.

`user_id` is the owner and `agent_id` the agent of the memory. What else mem0 stores is in `metadata.mem0`.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from app.formats.schemas import JsonObject
from app.transfer.importers.building import ForeignObject, memory, without_null
from app.transfer.importers.json_cursor import JsonCursor

SYSTEM: Final = "mem0"
_KEPT: Final = ("app_id", "run_id", "actor_id", "role", "hash", "categories", "updated_at", "immutable")


def objects(document: JsonCursor) -> Iterator[ForeignObject]:
    """Yield all memories."""
    listed = document if isinstance(document.value, list) else document.need("results", "memories")
    for place in listed.items():
        yield ForeignObject("memory", place, partial(_memory, place), place.name_of("id"))


def _memory(place: JsonCursor) -> Iterator[JsonObject]:
    metadata = place.get("metadata")
    about = without_null({key: place.object().get(key) for key in _KEPT})
    content = place.need("memory", "data", "text")
    if not content.text().strip():
        raise content.error("a text is expected that is not empty")
    yield memory(
        place.need("id").name(),
        content.text(),
        agent_id=place.text_of("agent_id"),
        owner=place.text_of("user_id"),
        metadata={**(metadata.object() if metadata is not None else {}), **({SYSTEM: about} if about else {})},
        created_at=place.time_of("created_at"),
        expires_at=place.need_time_of("expiration_date"),
    )
