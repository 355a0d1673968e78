"""A Postgres that is set up as its image does it: it listens on TCP and asks for passwords."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from app.core.embedded_postgres.location import Account

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
