"""A primary Postgres and a synchronous standby on TCP: if the primary is killed, the standby can take its place."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from app.core.database.schema import DATABASE
from app.core.embedded_postgres.location import ServerPaths, choose_account, find_binaries
from tests.support.process import children, free_port

_START_S = 60.0
_SETTINGS = """
listen_addresses = '127.0.0.1'
max_connections = 100
shared_buffers = 64MB
wal_level = replica
max_wal_senders = 10
hot_standby = on
wal_keep_size = 256MB
"""


class ReplicatedPostgres:
    """Two servers in a folder of their own. `primary` is the place (0 or 1) of the one that accepts writes."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="turnkeep-replicated-", dir="/tmp"))
        self.account = choose_account(self.folder)
        os.chown(self.folder, self.account.owner, -1)
        self._binaries = find_binaries(ServerPaths(base=self.folder, run=self.folder), self.account)
        self.ports = (free_port(), free_port())
        self.primary = 0
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """Both servers in one URL, as a client is given it."""
        servers = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"postgresql://postgres@{servers}/{DATABASE}"

    @property
    def primary_url(self) -> str:
        """The server that accepts writes, now."""
        return f"postgresql://postgres@127.0.0.1:{self.ports[self.primary]}/{DATABASE}"

    @property
    def standby_url(self) -> str:
        """The server that follows the other one, now."""
        return f"postgresql://postgres@127.0.0.1:{self.ports[1 - self.primary]}/{DATABASE}"

    def start(self) -> None:
        """Make the primary with an empty database, and its standby."""
        data = self._data(0)
        self._run(
            "initdb", "-D", str(data), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"
        )
        with (data / "postgresql.conf").open("a") as file:
            file.write(_SETTINGS)
        self._launch(0)
        self._psql("create database turnkeep", database="postgres")
        self._add_standby()

    def kill_primary(self) -> None:
        """SIGKILL the whole primary at once, as a machine that loses its power."""
        self._kill(self.primary)

    def kill_standby(self) -> None:
        """SIGKILL the whole standby at once; commits no longer wait for it."""
        self.commit_alone()
        self._kill(1 - self.primary)

    def lose_standby(self) -> None:
        """SIGKILL the whole standby at once; each commit waits until it is back."""
        self._kill(1 - self.primary)

    def return_standby(self) -> None:
        """Start the standby that was killed."""
        self._launch(1 - self.primary)

    def restart_primary(self) -> None:
        """SIGKILL the primary and start it again."""
        self.kill_primary()
        self._launch(self.primary)

    def commit_alone(self) -> None:
        """Let commits not wait for a standby."""
        self._psql("alter system set synchronous_standby_names = ''")
        self._psql("select pg_reload_conf()")

    def on_primary(self, sql: str) -> str:
        """Run a statement as the superuser; return its rows as text."""
        return self._psql(sql)

    def on_standby(self, sql: str) -> str:
        """Run a statement on the standby as the superuser; return its rows as text."""
        return self._psql(sql, place=1 - self.primary)

    def _kill(self, place: int) -> None:
        process = self._processes.pop(place)
        for pid in (process.pid, *children(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(_START_S)

    def promote(self) -> None:
        """Let the standby accept writes, as the tool of a cluster does when the primary is gone."""
        self.primary = 1 - self.primary
        self._run("pg_ctl", "promote", "-D", str(self._data(self.primary)), "-w", "-t", "60")

    def repair(self) -> None:
        """Make a new standby in the place of the server that was killed; each commit waits for it again."""
        self._add_standby()

    def stop(self) -> None:
        """Stop both servers, and delete the folder."""
        for process in self._processes.values():
            process.send_signal(signal.SIGINT)
        for process in self._processes.values():
            process.wait(_START_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def logs(self, characters: int = 2000) -> str:
        """Return the ends of the servers' logs."""
        return "\n".join(path.read_text(errors="replace")[-characters:] for path in sorted(self.folder.glob("*.log")))

    def _add_standby(self) -> None:
        place = 1 - self.primary
        shutil.rmtree(self._data(place), ignore_errors=True)
        self._run(
            "pg_basebackup", "-D", str(self._data(place)), "-h", "127.0.0.1", "-p", str(self.ports[self.primary]),
            "-U", "postgres", "-R", "-X", "stream", "-c", "fast", "--no-sync",
        )  # fmt: skip
        self._launch(place)
        until = time.monotonic() + _START_S
        self._psql("alter system set synchronous_standby_names = '*'")
        self._psql("select pg_reload_conf()")
        while self._psql("select count(*) from pg_stat_replication where sync_state = 'sync'") != "1":
            assert time.monotonic() < until, self.logs()
            time.sleep(0.1)

    def _data(self, place: int) -> Path:
        return self.folder / f"data-{place}"

    def _launch(self, place: int) -> None:
        account = self.account
        with (self.folder / f"{place}.log").open("ab") as log:
            self._processes[place] = process = subprocess.Popen(
                [
                    self._binaries / "postgres", "-D", self._data(place), f"-p{self.ports[place]}",
                    "-k", self.folder,
                ],
                env={"LC_ALL": "C"}, user=account.uid, group=account.gid, extra_groups=account.extra_groups, cwd="/",
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + _START_S
        while self._call("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.ports[place])).returncode != 0:
            assert process.poll() is None, self.logs()
            assert time.monotonic() < until, self.logs()
            time.sleep(0.05)

    def _psql(self, sql: str, *, database: str = DATABASE, place: int | None = None) -> str:
        port = self.ports[self.primary if place is None else place]
        where = ("-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-d", database)
        return self._run("psql", "-X", "-q", "-At", *where, "-c", sql).strip()

    def _run(self, name: str, *words: str) -> str:
        done = self._call(name, *words)
        assert done.returncode == 0, done.stderr + self.logs()
        return done.stdout

    def _call(self, name: str, *words: str) -> "subprocess.CompletedProcess[str]":
        account = self.account
        return subprocess.run(
            [self._binaries / name, *words], env={"LC_ALL": "C", "PATH": f"{self._binaries}:{os.environ['PATH']}"},
            user=account.uid, group=account.gid, extra_groups=account.extra_groups, cwd="/", capture_output=True,
            text=True, timeout=_START_S, check=False,
        )  # fmt: skip
