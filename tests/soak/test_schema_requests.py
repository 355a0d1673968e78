"""Requests that schemathesis makes from the OpenAPI document, very many (`tests/soak/schema.py`).

A slice, with one key and without sequences, is `tests/api/test_fuzz.py`. Settings, by environment: TURNKEEP_SOAK_SEED;
TURNKEEP_SOAK_CASES, how many with each key (20 000); TURNKEEP_SOAK_SCHEMA_STATE, a file to go on from.
"""

import os
from pathlib import Path

import pytest

from tests.soak.schema import ROLES, run_all

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
CASES = int(os.environ.get("TURNKEEP_SOAK_CASES", "20000"))
STATE = os.environ.get("TURNKEEP_SOAK_SCHEMA_STATE")


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_request_made_from_the_document_breaks_or_is_answered_otherwise_than_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tally = run_all(SEED, cases=CASES, examples=20, state=Path(STATE) if STATE else None)
    with capsys.disabled():
        print(tally)  # noqa: T201
    assert tally.wrong == []
    assert min(tally.sent(role) for role in ROLES) >= CASES
