"""Commands import what they run and no more, so that they start quickly. Modules are counted, not seconds."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVER = {"fastapi", "starlette", "uvicorn", "onnxruntime", "tokenizers", "sqlalchemy", "alembic", "openai"}
KEYS = SERVER | {"numpy", "structlog", "asyncpg", "rich", "mcp"}
IMPORTED = re.compile(r"^import time:\s+\d+ \|\s+\d+ \|\s+([\w.]+)$", re.MULTILINE)


def run(words: Sequence[str], folder: Path) -> "tuple[subprocess.CompletedProcess[str], set[str]]":
    """A command in an empty folder, and the packages that it imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNKEEP_", "DATABASE_URL"))}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "app.cli", *words], cwd=ROOT, capture_output=True, text=True,
        timeout=100, check=False,
        env=kept | {"TURNKEEP_DATA_DIR": str(folder / "data"), "TURNKEEP_API_KEY": "key"},
    )  # fmt: skip
    return done, {name.partition(".")[0] for name in IMPORTED.findall(done.stderr)}


@pytest.mark.parametrize(
    ("words", "code", "unwanted"),
    [
        (("--version",), 0, KEYS),
        (("--help",), 0, KEYS - {"rich"}),
        (("keys", "create", "--help"), 0, KEYS - {"rich"}),
        (("serve", "--help"), 0, KEYS - {"rich"}),
        (("keys", "generate"), 0, KEYS),
        (("keys", "list"), 1, SERVER),
        (("tail", "no id"), 1, SERVER | {"numpy"}),
        (("mcp", "--print-config"), 0, (KEYS | {"httpx2"}) - {"structlog", "rich"}),
        (("doctor", "--help"), 0, KEYS - {"rich"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_imports_no_more_than_it_runs(
    tmp_path: Path, words: tuple[str, ...], code: int, unwanted: set[str]
) -> None:
    done, imported = run(words, tmp_path)
    assert done.returncode == code, done.stderr[-500:]
    assert "typer" in imported, "the output of -X importtime was read"
    assert imported & unwanted == set()


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    done, _ = run(["--version"], tmp_path)
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared is not None
    assert done.stdout == f"turnkeep {declared[1]}\n"


@pytest.mark.slow
def test_a_server_leaves_out_what_only_some_installations_need(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done, imported = run(("serve", "--port", str(taken.getsockname()[1])), tmp_path)
    assert (done.returncode, "cannot be listened on" in done.stderr) == (1, True), done.stderr[-2000:]
    assert "fastapi" in imported
    assert imported.isdisjoint({"alembic", "mcp_types", "nats", "openai", "pygments"})
    # a hidden module is listed too, but none below it
    assert not re.search(r"(rich|watchfiles)\.\w", done.stderr)
    assert not re.search(r"opentelemetry\.(sdk|exporter|instrumentation)", done.stderr)
