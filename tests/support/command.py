"""The command line in processes of their own, as tests start it many times, and data that such a process finds."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLAIN = (sys.executable, "-m", "app.cli")

# The same, but that the garbage collector rests while modules are imported, and does not look at them afterwards:
# that halves what a start costs, and a start is most of what a short command costs.
_START = """
import gc, sys
gc.disable()
sys.argv[0] = "turnkeep"
from app.cli import main
gc.freeze()
gc.enable()
main()
"""
TURNKEEP = (sys.executable, "-c", _START)


def migrated_data(folder: Path) -> None:
    """Make a data directory whose database is there and migrated, with nothing in it: a copy, once it was made.

    For processes that tests start; that one can begin with no directory at all is for the tests of just that. Outside
    of a test run (a soak by its command) there is no place for the copy: the process makes its own.
    """
    place = os.environ.get("TURNKEEP_TEST_FOLDER")
    if place is None:
        return
    made = Path(place) / f"data-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    if not made.exists():
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNKEEP_", "DATABASE_URL"))}
        subprocess.run(
            [*TURNKEEP, "migrate"], env=kept | {"TURNKEEP_DATA_DIR": str(made)}, cwd=ROOT, check=True, timeout=300,
            stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
    # with its owner: as root, Postgres runs as another user
    subprocess.run(["cp", "-a", str(made), str(folder)], check=True, timeout=60)
