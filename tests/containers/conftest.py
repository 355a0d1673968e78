"""A Postgres as the image of one is: it listens on TCP and asks for passwords."""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.core.embedded_postgres.location import Account, ServerPaths, choose_account, find_binaries

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class ListeningPostgres:
    """A server on TCP, and the binaries beside it."""

    port: int
    superuser_password: str
    login_password: str
    binaries: Path
    account: Account

    def environment(self) -> dict[str, str]:
        """What the image sets, and what stands in for the port that is not the usual one."""
        return {
            "PATH": f"{self.binaries}:{os.environ['PATH']}",
            "PGPORT": str(self.port),
            "PGPASSWORD": self.superuser_password,
            "POSTGRES_DB": "turnkeep",
            "DATABASE_PASSWORD": self.login_password,
        }

    def psql(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.run("psql", "-X", "-q", "-At", "-h", "127.0.0.1", "-U", "postgres", *words)

    def prepare(self) -> None:
        """What the image does when its volume is new: the database, and our script in it."""
        made = self.psql("-c", "create database turnkeep")
        assert made.returncode == 0, made.stderr
        script = (ROOT / "deploy/postgres-init.sql").read_text()
        first_start = self.run(
            "psql",
            "-v",
            "ON_ERROR_STOP=1",
            "-X",
            "-q",
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-d",
            "turnkeep",
            given=script,
        )
        assert (first_start.returncode, first_start.stderr) == (0, "")

    def run(self, *words: str, given: str | None = None, **environment: str) -> "subprocess.CompletedProcess[str]":
        account = self.account
        return subprocess.run(
            words, env=self.environment() | environment, user=account.uid, group=account.gid,
            extra_groups=account.extra_groups, cwd="/", input=given, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip

    def url(self, template: str) -> str:
        """The URL of docker-compose.yml, from here."""
        return template.replace("@postgres:5432/", f"@127.0.0.1:{self.port}/")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def listening_postgres() -> Iterator[ListeningPostgres]:
    with tempfile.TemporaryDirectory(prefix="turnkeep-listening-", dir="/tmp") as made:
        folder = Path(made)
        account = choose_account(folder)
        os.chown(folder, account.owner, -1)
        place = ServerPaths(base=folder, run=folder)
        server = ListeningPostgres(free_port(), "super0secret", "login0secret", find_binaries(place, account), account)
        password = folder / "password"
        password.write_text(server.superuser_password)
        password.chmod(0o644)
        made_cluster = server.run(
            "initdb", "-D", str(place.data), "-U", "postgres", "--pwfile", str(password), "--auth=scram-sha-256",
            "--encoding=UTF8", "--locale=C", "--no-sync", LC_ALL="C",
        )  # fmt: skip
        assert made_cluster.returncode == 0, made_cluster.stderr
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [server.binaries / "postgres", "-D", place.data, "-h127.0.0.1", f"-p{server.port}", "-k", folder],
                env={"LC_ALL": "C"}, user=account.uid, group=account.gid, extra_groups=account.extra_groups, cwd="/",
                stdout=log, stderr=log,
            )  # fmt: skip
        try:
            until = time.monotonic() + 60
            while server.run("pg_isready", "-q", "-h", "127.0.0.1").returncode != 0:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < until
                time.sleep(0.05)
            yield server
        finally:
            process.terminate()
            process.wait(60)
