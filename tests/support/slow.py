"""Cases of a long parametrised test: every fourth stays in the default suite, and the others are marked `slow`.

On a Citus, the tests that cannot hold there are skipped.
"""

from collections import Counter

import pytest

from tests.support.not_on_citus import skip_on_citus

_EVERY = 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark most cases of each test that is marked `sampled` as slow, before tests are chosen by their marks."""
    seen: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            function = item.nodeid.split("[")[0]
            if seen[function] % _EVERY:
                item.add_marker("slow")
            seen[function] += 1
    skip_on_citus(items)
