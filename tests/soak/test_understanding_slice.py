"""A short slice of the crash proof of summaries, retention and facts; `make soak` runs the long form."""

import os

import pytest

from tests.soak.understanding import UnderstandingOptions, run_round

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))


@pytest.mark.slow
async def test_erased_turns_have_a_summary_for_any_killed_process_and_failure_of_the_model() -> None:
    report = await run_round(UnderstandingOptions(SEED, kills=2, operations=12, longest_pause_s=1.0))
    assert report.violations == [], report
    assert report.counts["turns appended"] > 100, report
    assert report.counts["spaces: looks at what is searched"] > 0, report
    assert report.counts["facts"] > 20, report
    assert report.counts["tombstones of audit_only"] + report.counts["tombstones of ephemeral"] > 0, report
