"""The tests that cannot hold where the whole run is on a Citus, each with the reason: skipped there, and counted."""

import os
from collections.abc import Mapping

import pytest

from tests.support.postgres import WORKERS_VARIABLE

NOT_ON_CITUS: Mapping[str, str] = {
    "api/test_owners.py::test_what_is_written_while_a_conversation_is_claimed_gets_its_owner": (
        "who waits for a lock is seen on the node only"
    ),
    "api/test_lists.py::test_heads_have_no_index_but_their_key_and_their_updates_stay_hot": (
        "updates are counted on the node only"
    ),
    "api/test_statements.py::test_appends_leave_the_head_hot": "updates are counted on the node only",
}
"""Tests, as `file::function` below `tests`, and why Citus cannot do what they look at."""


def skip_on_citus(items: list[pytest.Item]) -> None:
    """Skip the listed tests, if the run is on a Citus."""
    if not os.environ.get(WORKERS_VARIABLE):
        return
    for item in items:
        name = item.nodeid.removeprefix("tests/").split("[")[0]
        if name in NOT_ON_CITUS:
            item.add_marker(
                pytest.mark.skip(reason=f"not on Citus, {NOT_ON_CITUS[name]}: unset TURNKEEP_TEST_POSTGRES")
            )
