"""How many calls an endpoint answers at once: what its answers show."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.providers.queues.concurrency import (
    AnsweredRequest,
    Concurrency,
    allowed_calls,
    back_off,
    next_limit,
    requests_at_once,
)

TIMEOUT_S = 180.0


def answered(
    at_once: int = 1, *, took_s: float = 5.0, sent_at: float = 100.0, is_trial: bool = False
) -> AnsweredRequest:
    return AnsweredRequest(sent_at, sent_at + took_s, at_once, is_trial)


def test_only_requests_sent_clearly_before_count_as_answered_at_once() -> None:
    assert requests_at_once(100.0, []) == 1
    assert requests_at_once(100.0, [90.0, 98.9]) == 3
    assert requests_at_once(100.0, [99.5, 100.0, 101.0]) == 1


def test_a_proof_adds_one_call_up_to_the_setting() -> None:
    state = Concurrency(1)
    for expected in (2, 3, 4, 4):
        state = next_limit(state, answered(at_once=9), max_calls=4)
        assert state.limit == expected


def test_one_more_call_is_tried_after_a_few_answers_and_not_again_soon_where_it_showed_nothing() -> None:
    state = Concurrency(1)
    allowed: list[int] = []
    for _ in range(4):
        allowed.append(allowed_calls(state, max_calls=4, timeout_s=TIMEOUT_S))
        state = next_limit(state, answered(), max_calls=4)
    assert allowed == [1, 1, 1, 2]
    state = next_limit(state, answered(is_trial=True), max_calls=4)
    assert allowed_calls(state, max_calls=4, timeout_s=TIMEOUT_S) == 1
    assert allowed_calls(Concurrency(1, answered=9), max_calls=1, timeout_s=TIMEOUT_S) == 1


def test_no_call_is_tried_where_requests_take_much_of_the_time_limit() -> None:
    state = Concurrency(1)
    for _ in range(5):
        state = next_limit(state, answered(took_s=60.0), max_calls=4)
    assert allowed_calls(state, max_calls=4, timeout_s=TIMEOUT_S) == 1


def test_overload_halves_the_calls_once_for_all_requests_that_run() -> None:
    state = Concurrency(4, answered=9)
    state = back_off(state, sent_at=100.0, at=110.0)
    assert (state.limit, state.answered) == (2, 0)
    assert back_off(state, sent_at=105.0, at=111.0) == state
    assert next_limit(state, answered(at_once=4, sent_at=105.0), max_calls=4).limit == 2
    assert back_off(state, sent_at=112.0, at=120.0).limit == 1
    assert back_off(Concurrency(1), sent_at=1.0, at=2.0).limit == 1


@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(0, 300), st.booleans(), st.booleans()), max_size=60),
    st.integers(1, 8),
)
def test_the_calls_stay_between_one_and_the_setting(steps: list[tuple[int, float, bool, bool]], most: int) -> None:
    state = Concurrency(1)
    for number, (at_once, took_s, is_trial, fails) in enumerate(steps):
        if fails:
            state = back_off(state, sent_at=number, at=number + took_s)
        else:
            request = answered(at_once, took_s=took_s, sent_at=number, is_trial=is_trial)
            state = next_limit(state, request, max_calls=most)
        assert 1 <= state.limit <= most
        assert 1 <= allowed_calls(state, max_calls=most, timeout_s=TIMEOUT_S) <= most


def simulated(slots: int, *, spread: float, seed: int, calls: int = 400, most: int = 4) -> tuple[Concurrency, float]:
    """Answer calls at an endpoint with so many slots; return the state at its end, and the time."""
    rng = np.random.default_rng(seed)
    state, at, number = Concurrency(1), 0.0, 0
    running: dict[int, tuple[float, bool]] = {}
    ends: list[tuple[float, int]] = []
    queue: list[int] = []
    for _ in range(calls):
        while len(running) < allowed_calls(state, max_calls=most, timeout_s=TIMEOUT_S):
            number += 1
            running[number] = (at, len(running) >= state.limit)
            queue.append(number)
            at += 2.0
        while queue and len(ends) < slots:
            heapq.heappush(ends, (at + 8 * float(rng.lognormal(0, spread)), queue.pop(0)))
        ended_at, done = heapq.heappop(ends)
        at = max(at, ended_at)
        sent_at, is_trial = running.pop(done)
        at_once = requests_at_once(sent_at, [sent for sent, _ in running.values()])
        state = next_limit(state, AnsweredRequest(sent_at, at, at_once, is_trial), max_calls=most)
    return state, at


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("slots", [1, 2])
def test_the_calls_never_exceed_the_slots_of_an_endpoint_with_a_queue(slots: int, seed: int) -> None:
    state, _ = simulated(slots, spread=0.8, seed=seed)
    assert state.limit <= slots


@pytest.mark.parametrize("seed", range(5))
def test_an_endpoint_that_answers_many_at_once_gets_as_many_as_the_setting_allows(seed: int) -> None:
    state, _ = simulated(100, spread=0.8, seed=seed)
    assert state.limit == 4
