"""How many calls an endpoint answers at once, as its answers show. Pure: times are given, in seconds.

A request that ends while requests sent before it still run shows that the endpoint answers them at once: one with a
single slot answers in the order of arrival. So jobs begin with one call at a time, and one more call is tried now and
then. The method is additive increase and multiplicative decrease: each proof adds one call, and each sign of overload
(429, 503, a time-out) halves the number.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

GAP_S: Final = 1.0
"""Requests sent within this time may arrive at the endpoint in another order."""
_TRIAL_AFTER: Final = 3
_SLOWEST_DECAY: Final = 0.95


@dataclass(frozen=True, slots=True)
class Concurrency:
    """The calls of one kind that the endpoint answers at once.

    `answered` counts answers since the limit changed or a trial showed nothing. `slowest_s` is the time of the slowest
    recent request. Requests sent before `backed_off_at` no longer change the limit.
    """

    limit: int
    answered: int = 0
    slowest_s: float = 0.0
    backed_off_at: float = 0.0


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A request that was answered: its times, and the requests that were answered at once with it."""

    sent_at: float
    ended_at: float
    at_once: int
    is_trial: bool


def requests_at_once(sent_at: float, others: Iterable[float], *, gap_s: float = GAP_S) -> int:
    """Return how many requests an endpoint is shown to answer at once, by one that has ended.

    `others` are the times at which the requests that still run were sent.
    """
    return 1 + sum(other <= sent_at - gap_s for other in others)


def next_limit(state: Concurrency, request: AnsweredRequest, *, max_calls: int) -> Concurrency:
    """Return the state after an answer. The limit grows by one if the request shows that more calls run at once."""
    state = replace(state, slowest_s=max(request.ended_at - request.sent_at, state.slowest_s * _SLOWEST_DECAY))
    if request.sent_at < state.backed_off_at:
        return state
    if request.at_once > state.limit and state.limit < max_calls:
        return replace(state, limit=state.limit + 1, answered=0)
    return replace(state, answered=0 if request.is_trial else state.answered + 1)


def back_off(state: Concurrency, *, sent_at: float, at: float) -> Concurrency:
    """Return the state after a sign of overload: half of the limit, once for all requests that are running."""
    if sent_at < state.backed_off_at:
        return state
    slowest_s = max(state.slowest_s, at - sent_at)
    return Concurrency(max(1, state.limit // 2), slowest_s=slowest_s, backed_off_at=at)


def allowed_calls(state: Concurrency, *, max_calls: int, timeout_s: float) -> int:
    """Return how many calls may run: the limit, and sometimes one more as a trial.

    A trial may wait at the endpoint for another call, so it needs requests that leave much of the time limit.
    """
    is_trial_due = state.answered >= _TRIAL_AFTER and 2 * (state.limit + 1) * state.slowest_s <= timeout_s
    return min(max_calls, state.limit + is_trial_due)
