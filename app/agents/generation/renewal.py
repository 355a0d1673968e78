"""Renewal of an exchange's lease while its answer is generated."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Final

from app.conversations.service import Exchange, Exchanges

_RENEWALS_PER_LEASE: Final = 6


@asynccontextmanager
async def renewed(exchanges: Exchanges, exchange: Exchange | None, *, lease_s: float) -> AsyncGenerator[None]:
    """Renew the leases of an exchange until the block ends; None: there are none."""

    async def renew() -> None:
        while exchange is not None:
            exchanges.renew(exchange, now=monotonic())
            await asyncio.sleep(lease_s / _RENEWALS_PER_LEASE)

    renewing = asyncio.create_task(renew())
    try:
        yield
    finally:
        renewing.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(renewing, return_exceptions=True)
