"""The error of rates that several processes count and share, for any distribution of calls."""

import random
from collections import deque
from dataclasses import replace
from uuid import uuid4

import pytest

from app.core import limits
from app.core.bus.messages import Message
from app.core.ids import KeyId, TenantId
from app.settings.rates import RateSettings
from app.tenancy.limits.rate_sharing import RateSharing
from app.tenancy.limits.rates import CallRates
from app.tenancy.schemas import Caller, RateClass

PER_S, BURST_S, SHARE_S, STEP_S = 20, 2, 0.5, 0.01


class Installation:
    """Processes with a clock of their own making, whose messages arrive `delay_s` after they were sent."""

    def __init__(self, patch: pytest.MonkeyPatch, *, processes: int, delay_s: float) -> None:
        self.now = 1000.0
        patch.setattr(limits, "monotonic", lambda: self.now)
        settings = RateSettings(rate_write_per_s=PER_S, rate_burst_s=BURST_S)
        self.delay_s = delay_s
        self._on_way: deque[tuple[float, Message]] = deque()
        self.rates = [CallRates(settings) for _ in range(processes)]
        self._sharing = [RateSharing(one, publish=self._send) for one in self.rates]

    def _send(self, message: Message) -> None:
        self._on_way.append((self.now + self.delay_s, message))

    def step(self, number: int) -> None:
        """Go on by a hundredth of a second; each process shares at its own time within half a second."""
        self.now += STEP_S
        every = round(SHARE_S / STEP_S)
        for place, sharing in enumerate(self._sharing):
            if number % every == place * 7 % every:
                sharing.share()
        while self._on_way and self._on_way[0][0] <= self.now:
            message = self._on_way.popleft()[1]
            for sharing in self._sharing:
                sharing.on_message(message)


def caller() -> Caller:
    return Caller(
        key_tenant_id=TenantId(uuid4()), key_id=KeyId(uuid4()), scopes=frozenset(), agent_id=None,
        long_term_enabled=False,
    )  # fmt: skip


@pytest.mark.parametrize("processes", [1, 2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_calls_exceed_the_rate_at_most_by_those_that_were_on_the_way(
    monkeypatch: pytest.MonkeyPatch, processes: int, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - no cryptography
    installation, key = Installation(monkeypatch, processes=processes, delay_s=0.05), caller()
    unknown_s, capacity = SHARE_S + installation.delay_s + STEP_S, PER_S * BURST_S
    accepted: list[list[float]] = [[] for _ in range(processes)]
    weights = [chance.random() for _ in range(processes)]
    seconds = 60
    for number in range(int(seconds / STEP_S)):
        installation.step(number)
        if number % 500 == 0:  # another distribution of the calls from time to time
            weights = [chance.random() ** 3 for _ in range(processes)]
        for _ in range(chance.choice((0, 0, 1, 3))):
            [place] = chance.choices(range(processes), weights)
            status = installation.rates[place].take(key, RateClass.WRITE)
            assert status is not None
            if status.retry_after_s:
                continue
            accepted[place].append(installation.now)
            total = sum(map(len, accepted))
            since = installation.now - unknown_s
            on_way = sum(1 for other in accepted if other is not accepted[place] for at in other if at >= since)
            assert total <= capacity + PER_S * (installation.now - 1000) + on_way + 1
    total = sum(map(len, accepted))
    assert total >= 0.98 * PER_S * seconds, "the rate can be used: what is shared is not counted twice"
    assert total <= capacity + PER_S * seconds * 1.1


def test_an_equal_key_id_of_another_tenant_keeps_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    installation, one = Installation(monkeypatch, processes=2, delay_s=0), caller()
    other = replace(one, key_tenant_id=TenantId(uuid4()))
    here, there = installation.rates
    for _ in range(PER_S * BURST_S):
        here.take(one, RateClass.WRITE)
    there.take(other, RateClass.WRITE)
    installation.step(0)
    left = [there.take(each, RateClass.WRITE) for each in (one, other)]
    assert [status and status.retry_after_s > 0 for status in left] == [True, False]


def test_few_calls_of_a_key_are_not_sent_before_they_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "monotonic", lambda: 1000.0)
    sent: list[Message] = []
    settings = RateSettings(rate_write_per_s=1000, rate_burst_s=10)
    buckets, key = CallRates(settings), caller()
    sharing = RateSharing(buckets, publish=sent.append)
    for _ in range(9):
        buckets.take(key, RateClass.WRITE)
    assert (sharing.share(), sent) == (0, [])
    buckets.take(key, RateClass.WRITE)
    assert sharing.share() == 1
    assert sent[0]["u"] == [[str(key.key_tenant_id), str(key.key_id), "write", 1000.0, 10]]
    assert sharing.share() == 0
    for _ in range(100):  # many keys go into messages of a bounded size
        other = caller()
        for _ in range(10):
            buckets.take(other, RateClass.WRITE)
    assert sharing.share() == 3
