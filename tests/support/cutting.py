"""Lets work die at every one of its statements in turn, as a killed process would, until it comes to its end."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.core.database.transactions import Transaction

_STATEMENTS = ("fetch", "fetchrow", "execute")
_MAX_CUTS = 200


class CutOffError(Exception):
    """Stands for the death of the process."""


async def cut_off_everywhere(
    work: Callable[[], Awaitable[object]],
    *,
    after_each: Callable[[], Awaitable[object]],
    again_from: int = 0,
    maximum: int | None = None,
) -> int:
    """Run work again and again, each time one statement further, until it ends; says how often it was cut off.

    After `maximum` statements it goes on from `again_from`: a step that is begun anew from where it was cut off would
    never end. What must hold whenever it was cut off is looked at `after_each`.
    """
    cuts, allowed = 0, 0
    while cuts < _MAX_CUTS:
        with pytest.MonkeyPatch.context() as patched:
            _allow(patched, allowed)
            try:
                await work()
            except CutOffError:
                cuts += 1
            else:
                return cuts
        allowed = allowed + 1 if maximum is None or allowed < maximum else again_from
        await after_each()
    raise AssertionError(f"it did not end though it was begun {cuts} times")


def _allow(patched: pytest.MonkeyPatch, statements: int) -> None:
    left = statements

    def failing(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def fail(self: Transaction, sql: str, *args: object) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise CutOffError
            return await original(self, sql, *args)

        return fail

    for name in _STATEMENTS:
        patched.setattr(Transaction, name, failing(getattr(Transaction, name)))
