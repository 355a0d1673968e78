"""Shares the counts of calls between processes over the bus, so that a key has one rate however many it reaches.

Each process sends what it has counted every half second, in one message for many keys. A call waits for nothing, and
nothing is stored. Error: until a message arrives, the other processes let through as many calls as if its calls had not
been made. They make up for them afterwards. If the bus is not connected, or a message is lost, the calls of it stay
unknown, and each process counts alone.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from pydantic import TypeAdapter, ValidationError

from app.core.bus.messages import Message
from app.core.ids import new_uuid
from app.core.telemetry import get_logger
from app.tenancy.limits.rates import CallRates
from app.tenancy.limits.schemas import RateUse

RATES: Final = "rates"
"""The kind of the messages."""
_SHARE_S: Final = 0.5
"""A key that uses several processes exceeds its rate by at most what they let through in this time."""
_AT_ONCE: Final = 40
"""Counts in one message: each is about 100 bytes."""


_USES: Final = TypeAdapter(list[RateUse])


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
            self._publish({"k": RATES, "p": self._process, "u": _USES.dump_python(part, mode="json")})
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
            uses = _USES.validate_python(message["u"])
        except (KeyError, ValidationError):
            self._log.warning("message.unreadable")
            return
        self._rates.add_uses(uses)
