"""The lists of fields agree with tables, rows, requests and records, and convert in both directions."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from uuid import UUID

import pytest
from pydantic import BaseModel
from sqlalchemy import Table

from app.conversations.drafts import make_draft
from app.conversations.hash_chain import canonical_form
from app.conversations.schemas.conversations import TurnInput
from app.conversations.schemas.fields import CONVERSATION, ERASED_COLUMNS, RESPONSE, SUMMARY, TURN
from app.conversations.schemas.frames import OpenTurn
from app.conversations.stores.conversation_store import CHANGEABLE, TurnRow
from app.conversations.tables import conversation_heads, conversations, responses, summaries, turns
from app.conversations.turns.hashes import TurnChain, content_holds, hashed_fields
from app.core.entity_fields import EntityField, columns_of, record_of
from app.core.times import truncate_ms
from app.formats.parse.produced import BESIDE_MESSAGES, OF_CALLERS
from app.memory.facts.tables import fact_evidence, facts
from app.memory.fields import EVIDENCE, FACT, MEMORY
from app.memory.longterm.tables import memories
from app.settings.conversations import LimitSettings
from app.transfer.records import (
    ConversationRecord,
    EvidenceRecord,
    FactRecord,
    MemoryRecord,
    RecordedResponse,
    SummaryRecord,
    TurnRecord,
)

ENTITIES: list[tuple[Collection[EntityField], list[Table], type[BaseModel], set[str]]] = [
    (TURN, [turns], TurnRecord, {"external_id", "conversation_id", "supersedes_external_id", "response"}),
    (CONVERSATION, [conversations, conversation_heads], ConversationRecord, set()),
    (SUMMARY, [summaries], SummaryRecord, {"conversation_id"}),
    (RESPONSE, [responses], RecordedResponse, set()),
    (FACT, [facts], FactRecord, {"is_partial", "evidence"}),
    (EVIDENCE, [fact_evidence], EvidenceRecord, set()),
    (MEMORY, [memories], MemoryRecord, {"external_id"}),
]
NOW = datetime(2026, 11, 20, 8, 30, 0, 125_000, tzinfo=UTC)


def columns(fields: Iterable[EntityField]) -> set[str]:
    return {field.column for field in fields}


@pytest.mark.parametrize(
    ("fields", "tables", "record", "more"), ENTITIES, ids=[entity[2].__name__ for entity in ENTITIES]
)
def test_every_field_is_a_column_and_every_member_of_a_record_is_a_field(
    fields: Collection[EntityField], tables: list[Table], record: type[BaseModel], more: set[str]
) -> None:
    assert columns(fields) <= {column.name for table in tables for column in table.c}
    members = {(field.name or field.column).partition(".")[0] for field in fields if field.is_recorded}
    assert members | more | {"type"} == record.model_fields.keys() | {"type"}


def test_turns_have_no_other_columns_rows_and_inputs() -> None:
    assert columns(TURN) == set(TurnRow._fields) == {column.name for column in turns.c} - {"tenant_id"}
    inputs = {field.column for field in TURN if field.is_input}
    assert inputs | {"id", "occurred_at"} == TurnInput.model_fields.keys()
    assert {field.column for field in TURN if field.is_hashed} == inputs | {"supersedes"}
    assert set(ERASED_COLUMNS) == inputs - {"role", "kind", "actor"}
    assert set(CHANGEABLE) < {field.column for field in CONVERSATION if field.is_input}


def test_what_callers_say_of_a_turn_stands_where_turns_are_opened_and_beside_messages() -> None:
    inputs = TurnInput.model_fields.keys()
    assert OpenTurn.model_fields.keys() == inputs - {"content", "tool_calls", "tool_results", "usage"} | {"supersedes"}
    assert inputs - {"content", "tool_calls", "tool_call_id", "tool_results"} == OF_CALLERS - {"type", "status"}
    assert set(BESIDE_MESSAGES) < inputs


def row(**more: object) -> TurnRow:
    turn = TurnRow(
        id=UUID(int=1), conversation_id=UUID(int=2), rev=1, kind="user_message", actor="ana", role="user",
        status="committed", occurred_at=NOW, created_at=NOW,
    )  # fmt: skip
    return turn._replace(**more)


def test_the_hashed_form_is_what_it_was() -> None:
    assert canonical_form(hashed_fields(row(content='"hi"'))) == (
        b'{"actor":"ana","content":"hi","kind":"user_message","role":"user"}'
    )
    whole = row(
        role="assistant", kind="tool_call_request", content='[{"type":"text","text":"\\u00e9"}]', model="m",
        tool_calls='[{"name":"f","id":"c","arguments":{"b":1e2,"a":12345678901234567890}}]', usage='{"total_tokens":3}',
        metadata='{"k":null}', adapter="openai", supersedes=UUID(int=3),
        occurred_at=datetime(2026, 11, 20, 8, 30, tzinfo=UTC),
    )  # fmt: skip
    assert canonical_form(hashed_fields(whole)).decode() == (
        '{"actor":"ana","adapter":"openai","content":[{"text":"é","type":"text"}],"kind":"tool_call_request",'
        '"metadata":{"k":null},"model":"m","occurred_at":"2026-11-20T08:30:00.000Z","role":"assistant",'
        '"supersedes":"00000000000000000000000003","tool_calls":[{"arguments":{"a":12345678901234567890,"b":100},'
        '"id":"c","name":"f"}],"usage":{"total_tokens":3}}'
    )


def test_a_draft_is_hashed_as_its_row_is() -> None:
    turn = TurnInput(
        role="assistant",  # pyright: ignore[reportArgumentType]
        content="",
        tool_calls=[{"id": "c", "name": "f", "arguments": "{}"}],
        usage={},
        metadata={},
        model="m",
    )
    draft = make_draft(turn, limits=LimitSettings(), now=NOW)
    stored = row()._replace(**draft.columns)
    assert (stored.content, stored.usage, stored.metadata, stored.tool_results) == ('""', "{}", None, None)
    assert canonical_form(draft.fields) == canonical_form(hashed_fields(stored))


def test_a_chain_follows_what_it_has_appended() -> None:
    written, read = TurnChain(), TurnChain()
    rows = [written.append(row(id=UUID(int=number), content=f'"{number}"')) for number in range(3)]
    tombstone = rows[1]._replace(content=None, erased_at=NOW)
    assert [turn.seq for turn in rows] == [1, 2, 3]
    assert all(content_holds(turn) for turn in rows)
    assert all(read.follow(turn) for turn in (rows[0], tombstone, rows[2]))
    assert (read.seq, read.hash) == (written.seq, written.hash)
    assert not TurnChain().follow(rows[1])
    assert not TurnChain().follow(rows[0]._replace(content='"other"'))


def test_a_record_is_read_as_it_was_written() -> None:
    stored = row(
        seq=1, position=1, content='"hi"', tool_calls='[{"id":"c"}]', metadata='{"a":1}', committed_at=NOW,
        salt=bytes(32), content_hash=bytes(range(32)), chain_hash=bytes(32), supersedes=UUID(int=7),
    )  # fmt: skip
    members = record_of(TURN, stored._asdict())
    record = TurnRecord.model_validate({"type": "turn", **{k: v for k, v in members.items() if v is not None}})
    recorded = {field.column for field in TURN if field.is_recorded}
    assert columns_of(TURN, record) == {name: value for name, value in stored._asdict().items() if name in recorded}


def test_members_of_objects_and_empty_values_of_a_conversation_are_written_and_read() -> None:
    values: dict[str, object] = dict.fromkeys(columns(CONVERSATION))
    values |= {
        "id": UUID(int=1), "project": "p", "participants": "[]", "tools": "[]", "metadata": '{"n":1e30}',
        "retention": "full", "compaction": '{"strategy":"rolling"}', "facts": "{}", "derived_title": "t",
        "derived_title_source": "question", "derived_title_turn_ids": [UUID(int=2)], "archived": False,
        "pinned": True, "token_epoch": 0, "last_seq": 0, "chain_hash": bytes(32), "rev": 3, "summarized_position": 0,
        "created_at": NOW,
    }  # fmt: skip
    members = record_of(CONVERSATION, values)
    assert members["derived_title"] == {
        "text": "t", "source": "question", "turn_ids": ["00000000000000000000000002"], "model": None,
    }  # fmt: skip
    assert (members["archived"], members["pinned"], members["participants"]) == (None, True, None)
    assert members["head_hash"] == "00" * 32
    given = {name: value for name, value in members.items() if value is not None and name != "summarized"}
    read = columns_of(CONVERSATION, ConversationRecord.model_validate({"type": "conversation", **given}))
    assert read["derived_title_turn_ids"] == [UUID(int=2)]
    assert read["compaction"] == {"strategy": "rolling"}
    assert (read["archived"], read["pinned"], read["created_at"]) == (False, True, truncate_ms(NOW))
    assert read["summarized_position"] is None
