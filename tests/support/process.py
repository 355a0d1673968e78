"""A `turnkeep` in a process of its own, on a data directory that may be shared."""

import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from tests.support.command import TURNKEEP

ROOT = Path(__file__).parents[2]
START_S = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def installed_program(name: str) -> str:
    """Where a program of a Debian package is. Without it the test is skipped; in CI, which installs it, it fails."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/bin")
    if found is None:
        reason = f"{name} is not installed: apt install {name}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def children(pid: int) -> list[int]:
    """The processes that a process has started itself."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(after_name[1]) == pid:
                found.append(int(entry.name))
    return found


class Process:
    """One `turnkeep` of its own, on a data directory that may be shared."""

    started: ClassVar[list["subprocess.Popen[str]"]] = []

    def __init__(self, folder: Path, *, begun_by: Sequence[str] = TURNKEEP, code: Path = ROOT, **settings: str) -> None:
        self.begun_by, self.code = begun_by, code
        self.port, self.folder = free_port(), folder
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("TURNKEEP_", "DATABASE_URL"))} | {
            "TURNKEEP_DATA_DIR": str(folder),
            "TURNKEEP_PORT": str(self.port),
            "TURNKEEP_EMBEDDED_SHARED_BUFFERS_MB": "64",
        }
        self.env |= {f"TURNKEEP_{name.upper()}": value for name, value in settings.items()}
        self.serving: subprocess.Popen[str] | None = None
        self._log = tempfile.TemporaryFile("a+")  # noqa: SIM115

    def command(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.begun_by, *args], env=self.env, cwd=self.code, capture_output=True, text=True,
            timeout=START_S, check=False,
        )  # fmt: skip

    def start(self, command: str = "serve", *, stderr: int | None = None) -> "Process":
        # a file: nothing reads a pipe while the process runs, and it stops at a line that finds no room
        self._log = tempfile.TemporaryFile("a+")  # noqa: SIM115
        self.serving = subprocess.Popen(
            [*self.begun_by, command],
            env=self.env,
            cwd=self.code,
            text=True,
            stderr=self._log if stderr is None else stderr,
        )
        self.started.append(self.serving)
        return self

    def wait(self) -> "Process":
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            try:
                if self.call("GET", "/readyz")[0] == 200:
                    return self
            except OSError:
                assert self.serving is not None
                assert self.serving.poll() is None, self._said()
                time.sleep(0.05)
        raise AssertionError("not ready in time")

    def stop(self) -> tuple[int, str]:
        assert self.serving is not None
        if self.serving.poll() is None:
            self.serving.send_signal(signal.SIGTERM)
        self.serving.wait(START_S)
        return self.serving.returncode, self._said()

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read()

    @property
    def key(self) -> str:
        return (self.folder / "admin-key").read_text().strip()

    def call(self, method: str, path: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {}),
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


@contextmanager
def process_folder() -> Iterator[Path]:
    """A folder with a path short enough and open enough for the embedded server; afterwards no process is left."""
    before = len(Process.started)  # those of a wider scope go on
    with tempfile.TemporaryDirectory(prefix="turnkeep-process-", dir="/tmp") as made:
        Path(made).chmod(0o711)
        try:
            yield Path(made)
        finally:
            while len(Process.started) > before:  # a test that failed leaves nothing running
                left = Process.started.pop()
                if left.poll() is None:
                    left.terminate()
                    left.wait(START_S)


@contextmanager
def terminal() -> Iterator[tuple[int, Callable[[], str]]]:
    """A terminal of 200 columns for the standard error of a process, and what gives all that was written to it."""
    shown, written = pty.openpty()
    fcntl.ioctl(written, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    collected: list[bytes] = []

    def collect() -> None:
        with suppress(OSError):  # Linux ends a terminal without writers by an error
            while data := os.read(shown, 65536):
                collected.append(data)

    reading = Thread(target=collect, daemon=True)
    reading.start()

    def text() -> str:
        os.close(written)
        reading.join(START_S)
        return b"".join(collected).decode()

    yield written, text
    os.close(shown)
