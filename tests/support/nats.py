"""A NATS server of the tests: Debian's `nats-server`, on a free port, killed and started again at will."""

import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.support.process import installed_program


class NatsServer:
    """One server. `options` are added to its command line."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._program = installed_program("nats-server")
        self._log = folder / "nats.log"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [self._program, "-a", "127.0.0.1", "-p", str(self.port), "-l", str(self._log), *self._options]
        self._process = subprocess.Popen(command)
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        """As a crash would end it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
