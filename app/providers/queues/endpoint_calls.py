"""Queues of the calls of a chat model, in front of its endpoint.

Invariants: no more calls of a kind (jobs, interactive) run than its limit and the setting allow, besides one as a
trial. As long as the endpoint has shown that it answers one call at a time, no job begins while an interactive call
runs or waits. Calls of a kind begin in the order in which they came.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from app.core.errors import AppError, Unavailable
from app.providers.queues.concurrency import (
    GAP_S,
    AnsweredRequest,
    Concurrency,
    allowed_calls,
    back_off,
    next_limit,
    requests_at_once,
)
from app.settings.models import ChatSettings

_OVERLOADED = frozenset({"model_rate_limited", "model_overloaded"})
_MAX_ANSWERS = 100
"""Answers at once in a process; each keeps a connection and its text. Most of their time is spent waiting."""
_MIN_MAX_CALLS = 2
"""Proofs are counted up to this even if one call is allowed: jobs need not wait for interactive calls then."""


@dataclass(slots=True, eq=False)
class SentRequest:
    """A request at the endpoint."""

    sent_at: float
    is_trial: bool


@dataclass(slots=True)
class _Calls:
    """The calls of one kind: their limits, those that run, and those that wait."""

    state: Concurrency
    timeout_s: float
    running: int = 0
    waiting: deque[asyncio.Future[bool]] = field(default_factory=deque[asyncio.Future[bool]])


class EndpointCalls:
    """The calls of one endpoint, in this process."""

    def __init__(self, settings: ChatSettings, *, gap_s: float = GAP_S) -> None:
        self._max_calls = settings.llm_concurrency
        self._gap_s = gap_s
        self._jobs = _Calls(Concurrency(1), settings.llm_job_timeout_s)
        # people wait for interactive calls, so they begin with what the setting allows
        self._interactive = _Calls(Concurrency(self._max_calls), settings.llm_timeout_s)
        self._generated = asyncio.Semaphore(_MAX_ANSWERS)
        self._passed_on = 0
        self._requests: list[SentRequest] = []
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, *, is_job: bool) -> int:
        """Return how many calls of a kind the endpoint has shown to answer at once, at most the setting."""
        return min(self._max_calls, self._calls(is_job=is_job).state.limit)

    @asynccontextmanager
    async def slot(self, *, is_job: bool, wait_s: float) -> AsyncGenerator[bool]:
        """Hold a slot for one call, and yield whether it is a trial.

        Raises Unavailable `model_overloaded` if none is free within `wait_s`.
        """
        calls = self._calls(is_job=is_job)
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        calls.waiting.append(waiter)
        self._admit()
        try:
            async with asyncio.timeout(wait_s):
                is_trial = await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                calls.running -= 1
            elif waiter in calls.waiting:
                calls.waiting.remove(waiter)
            self._admit()
            if isinstance(error, TimeoutError):
                raise _too_many() from error
            raise
        try:
            yield is_trial
        finally:
            calls.running -= 1
            self._admit()

    @asynccontextmanager
    async def passed_on(self, *, deadline: float) -> AsyncGenerator[None]:
        """Hold a slot for a generated answer, and count it as an interactive call.

        Raises Unavailable `model_overloaded` if none is free before `deadline`, a time of the event loop.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._generated.acquire()
        except TimeoutError as error:
            raise _too_many() from error
        self._passed_on += 1
        try:
            yield
        finally:
            self._passed_on -= 1
            self._generated.release()
            self._admit()

    @contextmanager
    def request(self, *, is_job: bool, is_trial: bool = False) -> Generator[SentRequest]:
        """Follow one request, and learn from its end."""
        now = asyncio.get_running_loop().time
        request = SentRequest(now(), is_trial)
        self._requests.append(request)
        try:
            yield request
        except AppError as error:
            if error.code in _OVERLOADED:
                self.back_off(is_job=is_job, sent_at=request.sent_at)
            raise
        else:
            self._learn(request, is_job=is_job, ended_at=now())
        finally:
            self._requests.remove(request)

    def back_off(self, *, is_job: bool, sent_at: float) -> None:
        """Halve the calls of a kind: a request sent at this time has timed out, or the endpoint is overloaded."""
        calls = self._calls(is_job=is_job)
        calls.state = back_off(calls.state, sent_at=sent_at, at=asyncio.get_running_loop().time())

    def _calls(self, *, is_job: bool) -> _Calls:
        return self._jobs if is_job else self._interactive

    def _learn(self, request: SentRequest, *, is_job: bool, ended_at: float) -> None:
        others = [other.sent_at for other in self._requests if other is not request]
        at_once = requests_at_once(request.sent_at, others, gap_s=self._gap_s)
        answered = AnsweredRequest(request.sent_at, ended_at, at_once, request.is_trial)
        max_calls = max(self._max_calls, _MIN_MAX_CALLS)
        calls = self._calls(is_job=is_job)
        calls.state = next_limit(calls.state, answered, max_calls=max_calls)
        if not is_job and at_once > self._jobs.state.limit:
            # what interactive calls show is true of jobs, too
            self._jobs.state = next_limit(self._jobs.state, answered, max_calls=max_calls)

    def _admit(self) -> None:
        """Begin the calls that may begin now."""
        for calls in (self._interactive, self._jobs):
            while calls.waiting and self._may_begin(calls):
                waiter = calls.waiting.popleft()
                if not waiter.done():
                    calls.running += 1
                    waiter.set_result(calls.running > calls.state.limit)

    def _may_begin(self, calls: _Calls) -> bool:
        has_interactive = bool(self._interactive.running or self._interactive.waiting or self._passed_on)
        if calls is self._jobs and calls.state.limit == 1 and has_interactive:
            return False
        if calls.running < min(self._max_calls, calls.state.limit):
            return True
        if calls.running >= allowed_calls(calls.state, max_calls=self._max_calls, timeout_s=calls.timeout_s):
            return False
        # a trial shows something only if it arrives after the requests that run
        left_s = max((request.sent_at for request in self._requests), default=0.0) + self._gap_s
        left_s -= asyncio.get_running_loop().time()
        if left_s > 0 and (self._timer is None or self._timer.cancelled()):
            self._timer = asyncio.get_running_loop().call_later(left_s, self._retry)
        return left_s <= 0

    def _retry(self) -> None:
        self._timer = None
        self._admit()


def _too_many() -> Unavailable:
    return Unavailable("model_overloaded", "Too many calls wait for the chat model; try again.", retry_after_s=1)
