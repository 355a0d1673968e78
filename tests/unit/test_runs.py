"""The suite itself: what it says of skipped tests, and that every reason says how to have the test run."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
REASONS = {"skip": 0, "skipif": None}
"""Where a call has its reason when not by keyword."""


def test_the_end_of_a_run_says_what_was_skipped_and_how_to_run_it(tmp_path: Path) -> None:
    skipped = tmp_path / "tests" / "unit"
    skipped.mkdir(parents=True)
    (skipped / "test_two.py").write_text(
        "import pytest\n"
        "@pytest.mark.skipif(True, reason='no engine is installed: apt install engine')\n"
        "@pytest.mark.parametrize('number', [1, 2])\n"
        "def test_with_an_engine(number): ...\n"
        "def test_with_a_key(): pytest.skip('no key is named: set KEY')\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.runs", "-p", "no:cacheprovider", "-q", "-n", "0"]
    done = subprocess.run(
        [*command, "--rootdir", tmp_path, skipped], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert any("skipped tests, and how to run them" in line for line in lines), done.stdout
    assert "tests/unit: 2 skipped: no engine is installed: apt install engine" in lines
    assert "tests/unit: 1 skipped: no key is named: set KEY" in lines


def reasons(file: Path) -> Iterator[str]:
    """The text of every reason in a file that is given as text there."""
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in REASONS:
            continue
        given = [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
        place = REASONS[node.func.attr]
        for reason in given or ([] if place is None else node.args[place : place + 1]):
            match reason:
                case ast.Constant(value=str(text)):
                    yield text
                case ast.JoinedStr():
                    yield ast.unparse(reason)
                case _:
                    pass


def test_a_reason_to_skip_a_test_says_how_to_run_it() -> None:
    files = [file for file in (ROOT / "tests").rglob("*.py") if "skip" in file.read_text()]
    found = [(file.name, reason) for file in files for reason in reasons(file)]
    assert len(found) > 10
    assert [one for one in found if ": " not in one[1]] == [], "say after a colon how to have the test run"
