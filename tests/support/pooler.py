"""PgBouncer of Debian in front of a Postgres of the tests: each transaction may get another connection."""

import signal
import socket
import subprocess
import time
from pathlib import Path

from app.core.embedded_postgres.location import Account
from tests.support.process import free_port, installed_program

_START_S = 20.0


class Pooler:
    """A pooler that runs as the account, because it refuses root. `host` is an address or the folder of a socket."""

    def __init__(self, folder: Path, account: Account, *, host: str, port: int) -> None:
        self._program = installed_program("pgbouncer")
        self._folder, self._account, self._host = folder, account, host
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "users.txt").write_text('"postgres" ""\n"turnkeep_app" ""\n"turnkeep_ops" ""\n')
        self._configure(port)

    def start(self) -> None:
        account = self._account
        with (self._folder / "pgbouncer.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, self._folder / "pgbouncer.ini"], cwd="/", stdout=log, stderr=log, user=account.uid,
                group=account.gid, extra_groups=account.extra_groups,
            )  # fmt: skip
        until = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert time.monotonic() < until, (self._folder / "pgbouncer.log").read_text()
                time.sleep(0.02)
            else:
                return

    def lead_to(self, port: int) -> None:
        """Lead to another server from now on, as the tool of a cluster does after a failover."""
        self._configure(port)
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(_START_S)
            self._process = None

    def _configure(self, port: int) -> None:
        (self._folder / "pgbouncer.ini").write_text(
            "[databases]\n"
            f"* = host={self._host} port={port}\n"
            "[pgbouncer]\n"
            "listen_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\n"
            "unix_socket_dir =\n"
            "pool_mode = transaction\n"
            # fewer than the processes open, so that they do share
            "default_pool_size = 4\n"
            "server_login_retry = 1\n"
            "auth_type = trust\n"
            f"auth_file = {self._folder}/users.txt\n"
        )
