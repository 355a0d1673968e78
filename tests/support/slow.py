"""Cases of a long parametrised test: a sample in the default suite, and the others marked `slow`."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest


def sampled(cases: Iterable[Any], every: int = 4) -> Iterator[Any]:
    """Give all cases; of each `every` the first is in the default suite."""
    for number, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        yield pytest.param(*values, marks=[pytest.mark.slow] if number % every else [])
