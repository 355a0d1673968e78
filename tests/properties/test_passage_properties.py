"""Passages of any text: where they are, how long, and that every reader of a turn counts the same text."""

import json
import uuid
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.conversations.drafts import make_draft
from app.conversations.schemas.conversations import TurnInput, turn_text
from app.conversations.stores.conversation_store import TurnRow
from app.conversations.views import canonical_turn, turn_view
from app.formats.schemas import Format
from app.formats.service import parse, text_of
from app.index.analyser.query_words import MAX_QUERY_WORDS, PreparedQuery
from app.recall.passages import MAX_PASSAGES, PieceCosine, cost_of, find_passages, locate_pieces
from tests.properties.test_format_properties import EXAMPLES, LIMITS, messages

common = settings(max_examples=max(50, EXAMPLES // 4), suppress_health_check=list(HealthCheck), print_blob=True)

chars = st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00")
marks = st.sampled_from([" ", "\n", ". ", "! ", "? ", "。", "  ", ",", '"', "}", "lamp", "lamps", "灯", "Straße"])
runs = st.sampled_from(["x" * 90, "river stone " * 9])
texts = st.lists(marks | runs | st.text(chars, max_size=12), max_size=60).map("".join)
THAI = ("ค่ามัดจำของห้องเช่าที่ลิสบอนคือหนึ่งพันสี่ร้อยห้าสิบยูโร", "ค่ามัดจำของห้องเช่าที่ลิสบอนเท่าไร", "แม่น้ำก้อนหินโคมไฟถนน")
CHINESE = ("里斯本公寓的押金是一千四百五十欧元", "里斯本公寓的押金是多少", "灯在河边石头很多山上有树")
ENGLISH = (
    "the deposit of the Lisbon flat is 1450 euros",
    "How much is the deposit of the Lisbon flat?",
    "lamp river stone ",
)
queries = st.sampled_from(["lamp", "Where is the lamp?", "灯", "the", "Straßen und Lampen", "?"])


def row_of(turn: TurnInput) -> TurnRow:
    """The turn as the database has it."""
    now = datetime.now(UTC)
    draft = make_draft(turn, limits=LIMITS, now=now)
    columns: dict[str, Any] = {name: value for name, value in draft.columns.items() if name in TurnRow._fields}
    return TurnRow(
        id=uuid.uuid4(), conversation_id=uuid.uuid4(), rev=1, kind=draft.kind.value, actor=draft.actor,
        role=draft.role.value, status="committed", occurred_at=now, created_at=now,
    )._replace(**columns)  # fmt: skip


@pytest.mark.parametrize("source", list(Format))
@common
@given(data=st.data())
def test_recall_and_contexts_count_the_same_plain_text_of_a_turn(source: Format, data: st.DataObject) -> None:
    for parsed in parse(source, data.draw(st.lists(messages(source), max_size=5))):
        row = row_of(TurnInput.model_validate(json.loads(json.dumps(parsed.members()))))
        assert turn_text(turn_view(row)) == text_of(canonical_turn(row))


@common
@given(text=texts, query=queries, room=st.integers(20, 400), cosines=st.lists(st.floats(-1, 1), max_size=8))
def test_passages_are_short_runs_of_the_text_and_do_not_overlap(
    text: str, query: str, room: int, cosines: list[float]
) -> None:
    pieces = [text[start : start + 50] for start in range(0, len(text), 40)]
    located = locate_pieces(text, pieces, cosines)
    assert all(text[piece.start : piece.end] in text for piece in located)
    passages = find_passages(text, PreparedQuery(query, max_words=MAX_QUERY_WORDS), max_cost=room, pieces=located)
    assert (1 if text else 0) <= len(passages) <= MAX_PASSAGES
    for passage in passages:
        assert 0 <= passage.start < passage.end <= len(text)
        assert cost_of(text[passage.start : passage.end]) <= room
        assert 0 <= passage.score <= 1.0001
    assert all(before.score >= after.score for before, after in pairwise(passages))
    ranges = sorted((passage.start, passage.end) for passage in passages)
    assert all(before[1] <= after[0] for before, after in pairwise(ranges))


@common
@given(before=st.integers(0, 80), after=st.integers(0, 80), end=st.sampled_from([". ", ".\n", "\n"]))
def test_a_sentence_with_the_words_of_the_query_is_whole_in_the_best_passage(before: int, after: int, end: str) -> None:
    fact = "The parrots of Ann are kept in Lisbon"
    sentences = [f"Number {n} is about lamps and stones" for n in range(before)]
    text = end.join([*sentences, fact, *(f"Number {n} is about rivers" for n in range(after))])
    query = PreparedQuery("Where is Ann keeping her parrot?", language="en", max_words=MAX_QUERY_WORDS)
    best, *_ = find_passages(text, query, max_cost=400)
    passage = text[best.start : best.end]
    assert fact in passage
    assert passage.startswith(("Number", "The"))
    assert best.end == len(text) or text[best.end - 1] == "." or text[best.end] == "\n"


@pytest.mark.parametrize(("fact", "question", "filler"), [THAI, CHINESE, ENGLISH], ids=["thai", "chinese", "english"])
@common
@given(before=st.integers(0, 6000), after=st.integers(0, 2000), room=st.integers(400, 2000))
def test_a_run_without_bounds_is_shown_beyond_the_words_of_the_query(
    fact: str, question: str, filler: str, before: int, after: int, room: int
) -> None:
    text = (filler * 500)[:before] + fact + (filler * 500)[:after]
    query = PreparedQuery(question, max_words=MAX_QUERY_WORDS)
    best, *_ = find_passages(text, query, max_cost=room)
    assert fact in text[best.start : best.end]


@pytest.mark.parametrize("end", [". ", "\n", " ", ""])
@common
@given(at=st.integers(0, 15), room=st.integers(1600, 4000))
def test_a_passage_shows_the_whole_piece_that_is_nearest_in_meaning(end: str, at: int, room: int) -> None:
    text = end.join(f"Number {n} is about lamps and stones" for n in range(500))
    starts = [900 * n for n in range(16)]
    pieces = [PieceCosine(start, start + 1000, 0.2 + 0.4 * (n == at)) for n, start in enumerate(starts)]
    best, *_ = find_passages(text, PreparedQuery("Lissabon", max_words=MAX_QUERY_WORDS), max_cost=room, pieces=pieces)
    assert best.start <= starts[at]
    assert best.end >= starts[at] + 1000
