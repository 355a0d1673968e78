"""The long form of random operations against the model: 5 000 sequences, goes on where it was stopped.

Settings of a run, by environment: TURNKEEP_SOAK_SEED; TURNKEEP_SOAK_SEQUENCES, how many (5 000);
TURNKEEP_SOAK_MODEL_STATE, the file that lets it go on; TURNKEEP_SOAK_MODEL_KILL_EVERY, after about how many sequences
something is killed (25), and 0 for a run without kills on the app in this process.
"""

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.soak.model import run_sequence
from tests.soak.walks import run_walks
from tests.support.api import open_service
from tests.support.postgres import TestDatabase

# read at import: the suite removes TURNKEEP_ settings from the environment before the first test
SEED = int(os.environ.get("TURNKEEP_SOAK_SEED", "1"))
SEQUENCES = int(os.environ.get("TURNKEEP_SOAK_SEQUENCES", "5000"))
STATE = os.environ.get("TURNKEEP_SOAK_MODEL_STATE")
KILL_EVERY = int(os.environ.get("TURNKEEP_SOAK_MODEL_KILL_EVERY", "25"))
REPORT_EVERY = 100
PER_ROUND = 250


@pytest.mark.soak
@pytest.mark.timeout(14_000)
@pytest.mark.skipif(KILL_EVERY == 0, reason="TURNKEEP_SOAK_MODEL_KILL_EVERY is 0: leave it out for a run with kills")
async def test_five_thousand_random_sequences_agree_with_the_rules_through_kills(
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = Path(STATE) if STATE else None
    with capsys.disabled():  # each round says what it came to
        report = await run_walks(SEED, sequences=SEQUENCES, kill_every=KILL_EVERY, per_round=PER_ROUND, state=state)
    assert report.violations == [], report
    assert report.counts["sequences"] >= SEQUENCES
    assert report.kills.total() >= SEQUENCES // KILL_EVERY // 2


@pytest.mark.soak
@pytest.mark.timeout(7000)
@pytest.mark.skipif(KILL_EVERY > 0, reason="a run with kills: set TURNKEEP_SOAK_MODEL_KILL_EVERY=0 for one without")
async def test_five_thousand_random_sequences_agree_with_the_rules(
    database: TestDatabase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = Path(STATE) if STATE else None
    done, counts = 0, Counter[str]()
    if state is not None and state.exists():
        kept = json.loads(state.read_text())
        if kept["seed"] == SEED:
            done, counts = kept["done"], Counter(kept["counts"])
    started = time.monotonic()
    async with open_service(database, tmp_path, embedder="none") as service:
        for number in range(done, SEQUENCES):
            async with await service.new_tenant() as client:
                counts += await run_sequence(client, SEED, number)
            if (number + 1) % REPORT_EVERY == 0 or number + 1 == SEQUENCES:
                with capsys.disabled():
                    print(f"{number + 1} sequences, {time.monotonic() - started:.0f} s, {dict(counts)}")  # noqa: T201
                if state is not None:
                    state.write_text(json.dumps({"seed": SEED, "done": number + 1, "counts": counts}))
    assert counts["append"] > 0
