"""Reads conversations as records of an export, in pages, in the transactions of exports.

Invariant: the records of a conversation show its state at one rev, also if it changes between two pages. A turn that
was superseded later is shown without its successor, turns and summaries that were made later are left out. What was
erased later is shown as erased.
"""

from collections.abc import Sequence
from typing import cast
from uuid import UUID

from app.conversations.schemas.fields import CONVERSATION, RESPONSE, SUMMARY, TURN
from app.conversations.stores import summary_store, turn_list_store
from app.conversations.stores.summary_store import SummaryRow
from app.core.database.transactions import Transaction, field_names
from app.core.entity_fields import record_of
from app.core.ids import ConversationId, TenantId, format_id
from app.formats.schemas import JsonObject
from app.transfer.exports import conversation_store as store
from app.transfer.exports.conversation_store import ExportedTurn
from app.transfer.exports.places import ConversationPlace, RecordPage

_TURNS = 500
_SUMMARIES = 200
_PAGE_BYTES = 2 * 2**20


async def list_conversations(
    tx: Transaction,
    tenant_id: TenantId,
    *,
    conversation_id: UUID | None,
    project: str | None,
    after: UUID | None,
    limit: int,
) -> list[tuple[JsonObject, ConversationPlace]]:
    """Return the records of conversations by id, each with the place after it."""
    rows = await store.list_conversations(
        tx, tenant_id, conversation_id=conversation_id, project=project, after=after, limit=limit
    )
    return [(_conversation(dict(row)), ConversationPlace(row["id"], row["last_seq"], row["rev"])) for row in rows]


async def read_page(tx: Transaction, tenant_id: TenantId, place: ConversationPlace) -> RecordPage:
    """Return the next page of turns or summaries of a conversation."""
    match place.part:
        case "turns":
            return await _committed(tx, tenant_id, place)
        case "aborted":
            return await _aborted(tx, tenant_id, place)
        case _:
            return await _summaries(tx, tenant_id, place)


async def _committed(tx: Transaction, tenant_id: TenantId, place: ConversationPlace) -> RecordPage:
    page = await turn_list_store.list_by_seq(
        tx,
        tenant_id,
        ConversationId(place.conversation_id),
        after=place.seq,
        through=place.through,
        limit=_TURNS,
        max_bytes=_PAGE_BYTES,
    )
    turns = await store.with_links(tx, tenant_id, page.rows)
    last_seq = (page.rows[-1].seq or 0) if page.rows else place.through
    end = place.at("aborted") if last_seq >= place.through else place.at("turns", seq=last_seq)
    return RecordPage([_turn(turn, place) for turn in turns], end, _size(turns))


async def _aborted(tx: Transaction, tenant_id: TenantId, place: ConversationPlace) -> RecordPage:
    conversation_id = ConversationId(place.conversation_id)
    page = await turn_list_store.list_aborted_by_id(
        tx, tenant_id, conversation_id, after=place.after, limit=_TURNS, max_bytes=_PAGE_BYTES
    )
    turns = await store.with_links(tx, tenant_id, page.rows)
    has_more = page.cut or len(turns) == _TURNS
    end = place.at("aborted", after=turns[-1].row.id) if has_more else place.at("summaries")
    return RecordPage([_turn(turn, place) for turn in turns], end, _size(turns))


async def _summaries(tx: Transaction, tenant_id: TenantId, place: ConversationPlace) -> RecordPage:
    rows = await summary_store.list_recorded(
        tx,
        tenant_id,
        ConversationId(place.conversation_id),
        rev=place.rev,
        after=None if place.after is None else (place.seq, place.after),
        limit=_SUMMARIES,
    )
    newest = rows[-1] if len(rows) == _SUMMARIES else None
    end = None if newest is None else place.at("summaries", seq=newest.to_position, after=newest.id)
    size = sum(len(row.text or "") + sum(len(line.text) for line in row.lines) for row in rows)
    return RecordPage([_summary(row) for row in rows], end, size)


def _size(turns: Sequence[ExportedTurn]) -> int:
    texts = (text for turn in turns for text in (turn.row.content, turn.row.tool_calls, turn.row.tool_results))
    requests = (turn.response.request for turn in turns if turn.response is not None)
    return sum(len(text) for text in (*texts, *requests) if text is not None)


def _conversation(columns: dict[str, object]) -> JsonObject:
    record: JsonObject = {"type": "conversation", **record_of(CONVERSATION, columns)}
    title = cast("JsonObject", record["derived_title"])
    record["derived_title"] = None if title["text"] is None else {**title, "turn_ids": title["turn_ids"] or []}
    return record


def _turn(turn: ExportedTurn, place: ConversationPlace) -> JsonObject:
    row = turn.row
    is_own = row.superseded_by == row.id  # an aborted turn that nothing replaced
    is_known = turn.superseder_seq is not None and turn.superseder_seq <= place.through
    shown = row._replace(rev=min(row.rev, place.rev), superseded_by=row.superseded_by if is_own or is_known else None)
    record: JsonObject = {"type": "turn", **record_of(TURN, shown._asdict())}
    if row.status != "aborted":
        record["status"] = None
    if turn.response is not None:
        response = turn.response
        members = record_of(RESPONSE, {name: getattr(response, name) for name in field_names(type(response))})
        record["response"] = {name: value for name, value in members.items() if value is not None}
    return record


def _summary(row: SummaryRow) -> JsonObject:
    lines = [{"turn_id": format_id(line.turn_id), "text": line.text, "tokens": line.tokens} for line in row.lines]
    doubtful = [sentence.model_dump() for sentence in row.doubtful]
    columns = {name: getattr(row, name) for name in field_names(SummaryRow)}
    return {"type": "summary", **record_of(SUMMARY, columns | {"lines": lines, "doubtful": doubtful})}
