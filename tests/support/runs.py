"""A run of the suite as a whole: the bytecode of its processes, and the summary of the skipped tests."""

import os
import sys
from collections import Counter
from collections.abc import Sequence

import pytest


def write_bytecode() -> None:
    """Let the processes of this run write bytecode, also where the environment tells Python to write none.

    A run starts about a hundred processes. Without bytecode each of them compiles every module that it imports, which
    is half of the time that `turnkeep serve` needs to start, and the workers compile every test.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the skipped tests by folder and reason; a reason says how to have the tests run."""
    lines = skip_lines(terminalreporter.stats.get("skipped", []))
    if lines:
        terminalreporter.section("skipped tests, and how to run them")
        for line in lines:
            terminalreporter.write_line(line)


def skip_lines(reports: Sequence[pytest.TestReport]) -> list[str]:
    """Return one line for each folder and reason, like "tests/bus: 29 skipped: nats-server is not installed: ..."."""
    counts: Counter[tuple[str, str]] = Counter()
    for report in reports:
        # of a skipped test: path, line number and "Skipped: reason"
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        folder = "/".join(report.nodeid.partition("::")[0].split("/")[:2])
        counts[folder, reason.removeprefix("Skipped: ")] += 1
    return [f"{folder}: {count} skipped: {reason}" for (folder, reason), count in sorted(counts.items())]
