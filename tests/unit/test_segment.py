"""Entries in process memory: what a search that has begun sees of changes, and the order of equal scores."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from app.core.ids import TenantId
from app.index.analyser.query_words import PreparedQuery
from app.index.analyser.word_weights import WordWeights
from app.index.entry_ids import ids_of_numbers, numbers_of_ids, rows_with
from app.index.schemas import EntryKind, PlaceOrder, SearchScope
from app.index.search.resident import ResidentIndex
from app.index.search.segment import Columns, EntryBatch, Segment
from app.index.search.segment_search import search_segment, select_rows
from app.recall.ranking import Question, kth_largest, rank

NEVER = 2**63 - 1
WEIGHTS = WordWeights()
A, B, C = (UUID(int=number) for number in (1, 2, 3))


def batch(*entry_ids: UUID, vectors: Any, pieces: int | list[int] = 1, dates: str | None = None) -> EntryBatch:
    """Turns of one conversation without words, each with its vectors."""
    count, ids = len(entry_ids), numbers_of_ids(entry_ids)
    none = np.zeros(count, dtype=np.int32)
    own_pieces = np.full(count, pieces, np.int32)
    columns = Columns(
        entry_id=ids, kind=np.zeros(count, np.uint8), conversation=none, project=none,
        owner=none, agent=none, actor=none, role=none, group=none, position=np.arange(1, count + 1, dtype=np.int64),
        session=np.zeros(count, np.int64), occurred_at=np.zeros(count, np.int64),
        expires_at=np.full(count, NEVER, np.int64), length=np.ones(count, np.int32), cues=np.zeros(count, np.uint8),
        text_hash=np.zeros(count, np.int64),
        language=np.zeros(count, np.uint8),
        first_piece=np.cumsum(own_pieces, dtype=np.int32) - own_pieces, pieces=own_pieces,
    )  # fmt: skip
    texts: list[str | None] = [None] * count
    return EntryBatch(
        columns, [UUID(int=9)] * count, ["p"] * count, texts, texts, texts, texts,
        np.ones(count, np.int64), dict.fromkeys(((high, low) for high, low in ids.tolist()), dates) if dates else {},
        {}, [np.asarray(vectors, dtype=np.float32)], np.empty(0, np.uint64), none[:0], np.empty(0, np.uint8),
    )  # fmt: skip


def test_a_search_that_has_begun_still_compares_what_is_changed_meanwhile() -> None:
    segment = Segment(2)
    segment.add(batch(A, B, vectors=[[1, 0], [0, 1]]))
    segment.sort()
    view = segment.view
    segment.put(batch(A, vectors=[[1, 0]]))
    found = search_segment(
        view, view.live.nonzero()[0], PreparedQuery("what", vector=np.array([1, 0], np.float32)), weigh=WEIGHTS
    )
    assert found.cosine.tolist() == [1, 0]


def test_no_vector_of_a_removed_entry_remains_even_of_its_earlier_states() -> None:
    segment = Segment(2)
    segment.add(batch(A, B, vectors=[[1, 0], [-1, 0], [0, 1], [0, -1]], pieces=2, dates="[]"))
    segment.sort()
    segment.put(batch(A, vectors=[[1, 0], [-1, 0]], pieces=2, dates="[]"))
    removed = segment.remove(numbers_of_ids([A, C]))
    assert removed.tolist() == numbers_of_ids([A]).tolist()
    view = segment.view
    assert view.vectors[view.vectors.any(axis=1)].tolist() == [[0, 1], [0, -1]]
    assert ids_of_numbers(view.columns.entry_id[view.live]) == [B]
    assert list(view.dates) == [tuple(numbers_of_ids([B])[0].tolist())]


def test_a_name_that_only_removed_entries_have_is_dropped_and_a_search_that_has_begun_keeps_it() -> None:
    segment = Segment(2)
    for entry, owner in ((A, "ann"), (B, "ben"), (C, "ann")):
        segment.put(replace(batch(entry, vectors=[[1, 0]]), owners=[owner]))
    before = segment.view
    segment.remove(numbers_of_ids([A]))
    assert segment.view.texts.owner.get("ann") is not None
    segment.remove(numbers_of_ids([C]))
    after = segment.view
    assert (after.texts.owner.get("ann"), len(after.texts.owner)) == (None, 1)
    assert [after.texts.owner.value(code) for code in after.columns.owner.tolist()] == [None, "ben", None]
    assert before.texts.owner.get("ann") is not None
    segment.put(replace(batch(A, vectors=[[1, 0]]), owners=["ann"]))
    chosen = select_rows(segment.view, SearchScope(kinds=[EntryKind.TURN], owner="ann"), now=0)
    assert ids_of_numbers(segment.view.columns.entry_id[chosen]) == [A]


def test_similar_ids_are_distinguished() -> None:
    half = 2**64 - 1
    ids = [
        UUID(int=0),
        UUID(int=1 << 64),  # another first half
        UUID(int=0x0001_0001),  # 16 bits that cancel each other out
        UUID(int=0x0001_0000_0000_0001),
        UUID(int=half),
    ]
    own = numbers_of_ids(ids)
    for at in range(len(ids)):
        assert rows_with(own, own[at : at + 1]).tolist() == [place == at for place in range(len(ids))]
    assert rows_with(own, own[::-1]).all()
    assert not rows_with(own, own[:0]).any()
    assert rows_with(own[:0], own).tolist() == []


def test_which_entries_are_near_each_other_is_read_again_when_entries_are_added() -> None:
    segment = Segment(2)
    segment.add(batch(A, B, vectors=[[1, 0], [0, 1]]))
    segment.sort()
    query = PreparedQuery("what", vector=np.array([1, 0], np.float32))

    def neighbours(*, afresh: bool) -> list[float]:
        view = segment.view
        found = search_segment(
            view, select_rows(view, SearchScope(kinds=[EntryKind.TURN]), now=0), query, weigh=WEIGHTS
        )
        if afresh:
            found = replace(found, by_place=PlaceOrder(found.by_place.rows))
        ranked = rank(found, Question(query, explain=True), is_calibrated=True)
        return ranked.scores.terms["neighbour"].tolist()

    first = neighbours(afresh=False)
    assert first[0] < first[1]
    kept = segment.view.by_place.derived
    assert neighbours(afresh=False) == neighbours(afresh=True) == first
    assert segment.view.by_place.derived is kept
    assert len(kept) == 3
    third = batch(C, vectors=[[1, 0]])
    segment.put(replace(third, columns=replace(third.columns, position=np.array([3], np.int64))))
    assert segment.view.by_place.derived == ()
    assert neighbours(afresh=False) == neighbours(afresh=True)
    segment.remove(numbers_of_ids([B]))
    assert neighbours(afresh=False) == neighbours(afresh=True)


@pytest.mark.parametrize("count", [3, 5, 7, 11])
def test_equal_entries_are_in_the_order_of_their_ids_wherever_their_vectors_are(count: int) -> None:
    chance = np.random.default_rng(count)
    vector, query = chance.standard_normal((2, 384)).astype(np.float32)
    ids = [UUID(int=int(number)) for number in chance.permutation(count)]
    segment = Segment(384)
    segment.add(batch(*ids, vectors=[vector / np.linalg.norm(vector)] * count))
    segment.sort()
    view = segment.view
    rows = select_rows(view, SearchScope(kinds=[EntryKind.TURN]), now=0)
    found = search_segment(view, rows, PreparedQuery("", vector=query / np.linalg.norm(query)), weigh=WEIGHTS)
    # without neighbours, all are alike
    found.position[:] = -1
    found.group[:] = -1
    ranking = rank(found, Question(PreparedQuery("", vector=vector)), is_calibrated=False)
    for k in (1, 2, count):
        assert [item.source_id for item in ranking.best(k)] == sorted(ids)[:k]


def test_few_of_many_equal_entries_are_made_into_hits() -> None:
    ids = [UUID(int=number) for number in range(1, 3001)]
    segment = Segment(2)
    segment.add(batch(*ids, vectors=np.empty((0, 2)), pieces=0))
    segment.sort()
    view = segment.view
    view.columns.occurred_at[:] = np.arange(3000)
    rows = select_rows(view, SearchScope(kinds=[EntryKind.TURN]), now=0)
    query = PreparedQuery("what", vector=np.array([1, 0], np.float32))
    found = search_segment(view, rows, query, weigh=WEIGHTS)
    made: list[int] = []

    def ids_of(elements: Sequence[int], find: Any = found.source_ids) -> Any:
        made.extend(elements)
        return find(elements)

    object.__setattr__(found, "source_ids", ids_of)
    best = rank(found, Question(query), is_calibrated=False).best(10)
    assert [item.source_id.int for item in best] == list(range(3000, 2990, -1))
    assert len(made) <= 20


@pytest.mark.parametrize("different", [1, 2, 50, 100_000])
def test_the_kth_largest_of_values_is_that_of_a_sort_however_many_are_equal(different: int) -> None:
    chance = np.random.default_rng(different)
    for count in (1, 9, 255, 256, 257, 2816, 20_000):
        values = chance.integers(different, size=count).astype(np.float32) - np.float32(different // 2)
        ordered = np.sort(values)[::-1]
        for k in {1, 2, 10, 11, 78, count} - set(range(count + 1, 100)):
            assert kth_largest(values, k) == ordered[k - 1], (count, k)


@pytest.mark.parametrize("pieces", [[1, 1, 1], [1, 3, 0, 2, 1], [2, 2], [0, 4], [0], []])
@pytest.mark.parametrize("is_part", [False, True])
def test_an_entry_is_as_near_as_the_best_of_its_pieces(pieces: list[int], *, is_part: bool) -> None:
    chance = np.random.default_rng(sum(pieces))
    query, *vectors = chance.standard_normal((1 + sum(pieces), 8)).astype(np.float32)
    vectors = [vector / np.linalg.norm(vector) for vector in vectors]
    others = [0] * (30 if is_part else 0)  # with many others, the vectors in scope are copied before they are compared
    ids = [UUID(int=number) for number in range(1, 1 + len(pieces) + len(others))]
    segment = Segment(8)
    segment.add(batch(*ids, vectors=np.reshape(vectors, (-1, 8)), pieces=[*pieces, *others]))
    segment.sort()
    rows = np.arange(len(pieces))
    found = search_segment(segment.view, rows, PreparedQuery("", vector=query), weigh=WEIGHTS)
    products, end = [float(vector @ query) for vector in vectors], np.cumsum(pieces)
    best = [max(products[stop - count : stop], default=np.nan) for count, stop in zip(pieces, end, strict=True)]
    np.testing.assert_allclose(found.cosine, best, rtol=1e-5)


@pytest.mark.parametrize("count", [16_383, 16_384, 16_385])
def test_each_of_many_entries_is_as_near_as_its_own_vector(count: int) -> None:
    vectors = np.random.default_rng(count).standard_normal((count, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    segment = Segment(4)
    segment.add(batch(*(UUID(int=number) for number in range(count)), vectors=vectors))
    segment.sort()
    query = PreparedQuery("", vector=vectors[0])
    view = segment.view
    found = search_segment(view, np.arange(count), query, weigh=WEIGHTS)
    row_of = {entry_id.int: row for row, entry_id in enumerate(ids_of_numbers(view.columns.entry_id))}
    assert np.allclose(found.cosine[[row_of[number] for number in range(count)]], vectors @ vectors[0], atol=1e-6)


def test_vectors_get_the_length_1_and_those_that_have_it_are_kept_as_they_are() -> None:
    segment = Segment(2)
    long, own = np.array([[3, 4], [0, 0]], ">f4"), np.array([[0.6, 0.8], [0, 1e-4]], np.float32)
    segment.add(replace(batch(A, B, vectors=own, pieces=2), vectors=[long, own]))
    segment.sort()
    expected = np.array([[0.6, 0.8], [0, 0], [0.6, 0.8], [0, 1]], np.float32)
    np.testing.assert_allclose(segment.view.vectors, expected, rtol=1e-7)
    assert segment.view.vectors[2].tolist() == own[0].tolist()


def test_a_removal_reads_the_segments_of_its_tenant_alone() -> None:
    resident = ResidentIndex(max_bytes=2000)
    tenants = [TenantId(UUID(int=number)) for number in range(3)]
    for tenant in tenants:
        resident._find_or_add((tenant, SearchScope((EntryKind.TURN,)), 1))  # noqa: SLF001
    assert {tenant: len(own) for tenant, own in resident._of_tenant.items()} == dict.fromkeys(tenants, 1)  # noqa: SLF001
    last = next(reversed(resident._cached))  # noqa: SLF001
    resident._evict_surplus(last)  # noqa: SLF001
    assert list(resident._of_tenant) == [tenants[2]]  # noqa: SLF001
    resident.evict_tenant(tenants[0])
    resident.remove_entries(tenants[2], [A])
    assert len(resident) == 1
