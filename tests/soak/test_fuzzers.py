"""The fuzzers of the WebSocket and of MCP (`tests/soak/fuzz.py`): a short slice, and the long form.

Settings of the long form, by environment: TURNKEEP_SOAK_SEED; TURNKEEP_SOAK_MESSAGES, how many to each (20 000).
"""

import os

import pytest

from tests.soak.fuzz import run

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
MESSAGES = int(os.environ.get("TURNKEEP_SOAK_MESSAGES", "20000"))


@pytest.mark.slow
async def test_no_changed_message_is_an_unexpected_error() -> None:
    counts = await run(SEED, messages=400)
    assert (counts["frames sent"], counts["messages sent"]) == (400, 400)


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_no_changed_message_of_very_many_is_an_unexpected_error(capsys: pytest.CaptureFixture[str]) -> None:
    counts = await run(SEED, messages=MESSAGES)
    with capsys.disabled():
        print(dict(sorted(counts.items())))  # noqa: T201
    assert (counts["frames sent"], counts["messages sent"]) == (MESSAGES, MESSAGES)
