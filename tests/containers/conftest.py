"""Fixture: a Postgres that listens on TCP and asks for passwords."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from listening_postgres import ListeningPostgres

from app.core.embedded_postgres.location import ServerPaths, choose_account, find_binaries
from tests.support.process import free_port


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
