"""Reads conversations as records of an export, in pages.

Invariant: the records of a conversation show its state at one rev, also if it changes between two pages. A turn that
was superseded later is shown without its successor, turns and summaries that were made later are left out. What was
erased later is shown as erased.
"""

import json
from collections.abc import Sequence
from typing import cast
from uuid import UUID

from app.conversations.archive import store
from app.conversations.archive.store import ExportedConversation, ExportedSummary, ExportedTurn
from app.conversations.find import get_conversation
from app.conversations.responses.store import ResponseRow
from app.conversations.schemas.records import ConversationPlace, RecordPage
from app.core.database.transactions import Transaction
from app.core.ids import ConversationId, TenantId, format_id
from app.core.times import format_time
from app.formats.schemas import JsonObject
from app.tenancy.schemas import Caller

_TURNS = 500
_SUMMARIES = 200
_PAGE_BYTES = 2 * 2**20


class ConversationExporter:
    """Reader of the records of conversations, in the transactions of exports."""

    async def list_conversations(
        self, tx: Transaction, tenant_id: TenantId, *, conversation_id: UUID | None, project: str | None,
        after: UUID | None, limit: int,
    ) -> list[tuple[JsonObject, ConversationPlace]]:  # fmt: skip
        """Return the records of conversations by id, each with the place after it."""
        rows = await store.list_conversations(
            tx, tenant_id, conversation_id=conversation_id, project=project, after=after, limit=limit
        )
        return [(_conversation(row), ConversationPlace(row.id, row.last_seq, row.rev)) for row in rows]

    async def require(self, caller: Caller, tx: Transaction, conversation_id: ConversationId) -> None:
        """Raise NotFound unless the conversation exists and the caller reaches it."""
        await get_conversation(caller, tx, conversation_id)

    async def read(self, tx: Transaction, tenant_id: TenantId, place: ConversationPlace) -> RecordPage:
        """Return the next page of turns or summaries."""
        conversation_id = ConversationId(place.conversation_id)
        match place.part:
            case "turns":
                turns, is_cut = await store.list_committed(
                    tx, tenant_id, conversation_id, after=place.seq, through=place.through, limit=_TURNS,
                    max_bytes=_PAGE_BYTES,
                )  # fmt: skip
                more = is_cut or len(turns) == _TURNS
                records = [_turn(turn, place) for turn in turns]
                after = _after(place, "turns", seq=turns[-1].row.seq or 0) if more else _after(place, "aborted")
                return RecordPage(records, after, _size(turns))
            case "aborted":
                turns, is_cut = await store.list_aborted(
                    tx, tenant_id, conversation_id, after=place.after, limit=_TURNS, max_bytes=_PAGE_BYTES
                )
                more = is_cut or len(turns) == _TURNS
                records = [_turn(turn, place) for turn in turns]
                after = _after(place, "aborted", last=turns[-1].row.id) if more else _after(place, "summaries")
                return RecordPage(records, after, _size(turns))
            case _:
                last = None if place.after is None else (place.seq, place.after)
                summaries = await store.list_summaries(
                    tx, tenant_id, conversation_id, rev=place.rev, after=last, limit=_SUMMARIES
                )
                end = summaries[-1] if len(summaries) == _SUMMARIES else None
                after = None if end is None else _after(place, "summaries", seq=end.to_position, last=end.id)
                size = sum(len(one.text or "") + sum(len(str(line[1])) for line in one.lines) for one in summaries)
                return RecordPage([_summary(one) for one in summaries], after, size)


def _after(place: ConversationPlace, part: str, *, seq: int = 0, last: UUID | None = None) -> ConversationPlace:
    return ConversationPlace(place.conversation_id, place.through, place.rev, part, seq, last)


def _size(turns: Sequence[ExportedTurn]) -> int:
    texts = (text for turn in turns for text in (turn.row.content, turn.row.tool_calls, turn.row.tool_results))
    requests = (turn.response.request for turn in turns if turn.response is not None)
    return sum(len(text) for text in (*texts, *requests) if text is not None)


def _id(value: UUID | None) -> str | None:
    return None if value is None else format_id(value)


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _parsed(text: str | None) -> JsonObject | None:
    return None if text is None else cast("JsonObject", json.loads(text))


def _conversation(row: ExportedConversation) -> JsonObject:
    title: JsonObject | None = None
    if row.derived_title is not None:
        title = {
            "text": row.derived_title,
            "source": row.derived_title_source,
            "turn_ids": [format_id(one) for one in row.derived_title_turn_ids or ()],
            "model": row.derived_title_model,
        }
    return {
        "type": "conversation",
        "id": format_id(row.id),
        "project": row.project,
        "external_id": row.external_id,
        "owner": row.owner,
        "title": row.title,
        "derived_title": title,
        "participants": cast("JsonObject", row.participants) or None,
        "tools": cast("JsonObject", row.tools) or None,
        "metadata": cast("JsonObject", row.metadata) or None,
        "retention": row.retention,
        "compaction": cast("JsonObject", row.compaction) or None,
        "facts": cast("JsonObject", row.facts) or None,
        "ttl_s": row.ttl_s,
        "expires_at": None if row.expires_at is None else format_time(row.expires_at),
        "created_at": format_time(row.created_at),
        "updated_at": format_time(row.updated_at),
        "active_at": format_time(row.active_at),
        "forked_from": _id(row.forked_from),
        "chain_start": _hex(row.chain_start),
        "archived": row.archived or None,
        "pinned": row.pinned or None,
        "token_epoch": row.token_epoch,
        "last_seq": row.last_seq,
        "head_hash": row.chain_hash.hex(),
        "rev": row.rev,
        "summarized": {
            "turn_id": _id(row.summarized_through),
            "position": row.summarized_position,
            "turns": row.summarized_turns,
            "tokens": row.summarized_tokens,
        },
        "erased_position": row.erased_position,
        "facts_seq": row.facts_seq,
        "facts_rev": row.facts_rev,
        "facts_held": row.facts_held,
    }


def _turn(turn: ExportedTurn, place: ConversationPlace) -> JsonObject:
    row = turn.row
    is_own = row.superseded_by == row.id  # an aborted turn that nothing replaced
    is_known = turn.superseder_seq is not None and turn.superseder_seq <= place.through
    return {
        "type": "turn",
        "id": format_id(row.id),
        "seq": row.seq,
        "position": row.position,
        "rev": min(row.rev, place.rev),
        "kind": row.kind,
        "actor": row.actor,
        "role": row.role,
        "content": _parsed(row.content),
        "tool_calls": _parsed(row.tool_calls),
        "tool_call_id": row.tool_call_id,
        "tool_results": _parsed(row.tool_results),
        "usage": _parsed(row.usage),
        "content_tokens": row.content_tokens,
        "model": row.model,
        "adapter": row.adapter,
        "metadata": _parsed(row.metadata),
        "status": row.status if row.status == "aborted" else None,
        "superseded_by": _id(row.superseded_by) if is_own or is_known else None,
        "supersedes": _id(row.supersedes),
        "origin_turn_id": _id(row.origin_turn_id),
        "occurred_at": format_time(row.occurred_at),
        "created_at": format_time(row.created_at),
        "committed_at": None if row.committed_at is None else format_time(row.committed_at),
        "erased_at": None if row.erased_at is None else format_time(row.erased_at),
        "salt": _hex(row.salt),
        "content_hash": _hex(row.content_hash),
        "chain_hash": _hex(row.chain_hash),
        "response": None if turn.response is None else _response(turn.response),
    }


def _response(row: ResponseRow) -> JsonObject:
    members: JsonObject = {
        "previous_turn_id": _id(row.previous_turn_id),
        "input_turn_ids": [format_id(one) for one in row.input_turn_ids],
        "owns_conversation": row.owns_conversation,
        "request": _parsed(row.request),
        "created_at": format_time(row.created_at),
    }
    return {name: value for name, value in members.items() if value is not None}


def _summary(row: ExportedSummary) -> JsonObject:
    lines = [{"turn_id": _id(UUID(str(key))), "text": str(text), "tokens": tokens} for key, text, tokens in row.lines]
    doubtful = [{"start": start, "end": end, "reason": reason} for start, end, reason in row.doubtful]
    return {
        "type": "summary",
        "id": format_id(row.id),
        "kind": row.kind,
        "level": row.level,
        "from_position": row.from_position,
        "to_position": row.to_position,
        "actors": cast("JsonObject", row.actors) or None,
        "text": row.text,
        "abstract": row.abstract,
        "lines": cast("JsonObject", lines) or None,
        "tokens": row.tokens,
        "model": row.model,
        "prompt_version": row.prompt_version,
        "refused_for": row.refused_for,
        "doubtful": cast("JsonObject", doubtful) or None,
        "replaced_by": _id(row.replaced_by),
        "rev": row.rev,
        "created_at": format_time(row.created_at),
    }
