"""Shares the counts of calls between processes over the bus, so that a key has one rate however many it reaches.

Each process sends what it has counted every half second, in one message for many keys. A call waits for nothing, and
nothing is stored. Error: until a message arrives, the other processes let through as many calls as if its calls had not
been made. They make up for them afterwards. If the bus is not connected, or a message is lost, the calls of it stay
unknown, and each process counts alone.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, cast
from uuid import UUID

from pydantic import JsonValue

from app.core.bus.messages import Message
from app.core.ids import KeyId, TenantId, new_uuid
from app.core.telemetry import get_logger
from app.tenancy.limits.rates import CallRates
from app.tenancy.limits.schemas import RateUse
from app.tenancy.schemas import RateClass

RATES: Final = "rates"
"""The kind of the messages."""
_SHARE_S: Final = 0.5
"""A key that uses several processes exceeds its rate by at most what they let through in this time."""
_AT_ONCE: Final = 40
"""Counts in one message: each is about 100 bytes."""


class RateSharing:
    """Sends the counts of this process, and receives those of others."""

    def __init__(self, rates: CallRates, *, publish: Callable[[Message], None]) -> None:
        self._rates = rates
        self._publish = publish
        self._process = str(new_uuid())
        self._log = get_logger()

    def share(self) -> int:
        """Send what was counted since the last time; return the number of messages."""
        uses = self._rates.take_unshared()
        for first in range(0, len(uses), _AT_ONCE):
            part = uses[first : first + _AT_ONCE]
            self._publish({"k": RATES, "p": self._process, "u": [_written(use) for use in part]})
        return -(-len(uses) // _AT_ONCE)

    async def share_forever(self) -> None:
        """Send what was counted every half second, until cancelled."""
        while True:
            await asyncio.sleep(_SHARE_S)
            self.share()

    def on_message(self, message: Message) -> None:
        """Count the calls that another process has sent."""
        if message.get("p") == self._process:
            return
        try:
            uses = [_read(use) for use in cast("Sequence[object]", message["u"])]
        except (KeyError, TypeError, ValueError):
            self._log.warning("message.unreadable")
            return
        self._rates.add_uses(uses)


def _written(use: RateUse) -> JsonValue:
    return [use.tenant_id.hex, use.key_id.hex, use.rate_class.value, use.per_s, use.calls]


def _read(written: object) -> RateUse:
    tenant_id, key_id, rate_class, per_s, calls = cast("Sequence[object]", written)
    return RateUse(
        TenantId(UUID(str(tenant_id))), KeyId(UUID(str(key_id))), RateClass(str(rate_class)), float(str(per_s)),
        int(str(calls)),
    )  # fmt: skip
