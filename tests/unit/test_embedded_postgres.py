"""The embedded server: one per directory, shared, hard to kill, silent about content."""

import asyncio
import multiprocessing
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue
from pathlib import Path

import asyncpg
import pytest

from app.core.embedded_postgres import location as postgres_place
from app.core.embedded_postgres.server import EmbeddedPostgres
from app.core.errors import Unavailable

_FORK = multiprocessing.get_context("fork")

HOLD = """
import sys
from pathlib import Path
from app.core.embedded_postgres.server import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]), shared_buffers_mb=16)
server.start()
print(server.url("postgres", "postgres"), flush=True)
sys.stdin.read()
server.close()
"""


def server_at(root: Path) -> EmbeddedPostgres:
    return EmbeddedPostgres(root, shared_buffers_mb=16)


def hold(root: Path) -> subprocess.Popen[str]:
    """Start another process that uses the server until its stdin is closed."""
    command = [sys.executable, "-c", HOLD, str(root)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def without_facts(process: subprocess.Popen[str]) -> None:
    process.communicate("", timeout=60)
    assert process.returncode == 0


def url_from(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def postmaster_of(root: Path) -> int:
    return int((base_of(root) / "data/postmaster.pid").read_text().split()[0])


def base_of(root: Path) -> Path:
    """Where the data really is: below /var/lib when pytest's own folder is closed to the server's user."""
    note = root / "location"
    return Path(note.read_text().strip()) if note.exists() else root


async def ask(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Make a folder the server's user can pass through, which pytest's own are not for anybody but their owner."""
    yield from new_folder()


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """One folder for all tests here, so that initdb runs once."""
    for folder in new_folder():
        yield folder / "postgres"


def new_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="turnkeep-test-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def server(root: Path) -> Iterator[EmbeddedPostgres]:
    server = server_at(root)
    server.start()
    yield server
    server.close()


async def test_a_started_server_answers_with_its_settings(server: EmbeddedPostgres) -> None:
    url = server.url("postgres", "postgres")
    assert server.running()
    assert await ask(url, "SHOW fsync") == "on"
    assert await ask(url, "SHOW timezone") == "UTC"
    assert await ask(url, "SHOW listen_addresses") == ""
    assert await ask(url, "SHOW server_encoding") == "UTF8"
    assert await ask(url, "SELECT datlocale FROM pg_database WHERE datname = 'postgres'") == "C.UTF-8"
    assert await ask(url, "SELECT default_version FROM pg_available_extensions WHERE name = 'vector'")


async def test_other_users_may_reach_neither_the_socket_nor_the_data(server: EmbeddedPostgres, root: Path) -> None:
    assert server.running()
    for folder in ("run", "data"):
        assert stat.S_IMODE((base_of(root) / folder).stat().st_mode) & 0o007 == 0


async def test_every_session_is_authenticated_by_the_kernel_and_none_comes_over_tcp(server: EmbeddedPostgres) -> None:
    url = server.url("postgres", "postgres")
    rules = "SELECT string_agg(type || ' ' || auth_method, ', ') FROM pg_hba_file_rules"
    assert await ask(url, rules) == "local peer, local peer"
    assert await ask(url, "SELECT count(*) FROM pg_ident_file_mappings WHERE error IS NOT NULL") == 0
    assert await ask(url, "SHOW listen_addresses") == ""


def become(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def session_as(uid: int, gid: int, url: str, query: str = "SELECT 'session'") -> str:
    """What a process of this user and group alone gets at the URL: the answer, or the name of the error."""

    def attempt(answers: "Queue[str]") -> None:
        become(uid, gid)
        try:
            answers.put(str(asyncio.run(ask(url, query))))
        except (OSError, asyncpg.PostgresError) as error:
            answers.put(type(error).__name__)

    with in_child(attempt) as answer:
        return answer


@contextmanager
def started_as(uid: int, gid: int, root: Path) -> Generator[str]:
    """A server that a process of this user starts, and closes in the end: its URL."""
    ended = _FORK.Event()

    def run(answers: "Queue[str]") -> None:
        become(uid, gid)
        server = server_at(root)
        try:
            server.start()
            answers.put(server.url("postgres", "postgres"))
            ended.wait(60)
        except Unavailable as error:
            answers.put(error.detail)
        server.close()

    with in_child(run) as url:
        try:
            assert url.startswith("postgresql://"), url
            yield url
        finally:
            ended.set()


@contextmanager
def in_child(run: "Callable[[Queue[str]], None]") -> Generator[str]:
    """Run in a forked process, which needs to read no file of the interpreter again; gives what it puts first."""
    answers: Queue[str] = _FORK.Queue()
    child = _FORK.Process(target=run, args=(answers,))
    child.start()
    try:
        yield answers.get(timeout=120)
    finally:
        child.join(60)
        child.kill()
    assert child.exitcode == 0


def user(name: str) -> tuple[int, int]:
    entry = pwd.getpwnam(name)
    return entry.pw_uid, entry.pw_gid


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="these start Postgres as another user: run them as root")


@as_root
def test_as_root_no_process_of_the_servers_user_gets_a_session_or_reads_its_files(
    server: EmbeddedPostgres, root: Path
) -> None:
    url, base = server.url("postgres", "postgres"), base_of(root)
    uid, gid = user(pwd.getpwuid((base / "data").stat().st_uid).pw_name)
    assert session_as(0, 0, url) == "session"
    assert session_as(uid, gid, url) == "PermissionError"
    for reached in (base / "data/PG_VERSION", base / "server.log", Path(f"/proc/{postmaster_of(root)}/cwd/PG_VERSION")):
        read = subprocess.run(["/bin/cat", str(reached)], check=False, user=uid, group=gid, extra_groups=[])
        assert read.returncode != 0, reached
    # a process that reaches the socket all the same is asked who it is
    assert session_as(uid, base.stat().st_gid, url) == "InvalidAuthorizationSpecificationError"
    assert session_as(*user("daemon"), url) == "PermissionError"


@as_root
def test_as_root_the_servers_user_cannot_change_who_may_open_a_session(server: EmbeddedPostgres, root: Path) -> None:
    assert server.running()
    for name in ("pg_hba.conf", "pg_ident.conf"):
        rules = (base_of(root) / name).stat()
        assert rules.st_uid == 0
        assert stat.S_IMODE(rules.st_mode) == 0o644


@as_root
@pytest.mark.slow
def test_as_root_data_that_is_open_to_others_is_kept_and_closed_at_the_next_start(open_folder: Path) -> None:
    folder = open_folder / "postgres"
    server = server_at(folder)
    server.start()
    uid, gid = (folder / "data").stat().st_uid, user("nobody")[1]
    session_as(0, 0, server.url("postgres", "postgres"), "CREATE TABLE kept AS SELECT 42 AS answer")
    server.close()
    # every process of the server's user is trusted
    (folder / "data/pg_hba.conf").write_text("local all all trust\nhost all all all reject\n")
    for path in (folder / "pg_hba.conf", folder / "pg_ident.conf"):
        path.unlink()
    os.chown(folder, 0, 0)
    folder.chmod(0o711)
    for path in (folder / "data", folder / "run"):
        os.chown(path, uid, gid)
        path.chmod(0o700)

    again = server_at(folder)
    again.start()
    url = again.url("postgres", "postgres")
    try:
        assert session_as(0, 0, url, "SELECT answer FROM kept") == "42"
        assert session_as(uid, gid, url) == "PermissionError"
        assert session_as(uid, folder.stat().st_gid, url) == "InvalidAuthorizationSpecificationError"
    finally:
        again.close()


@as_root
@pytest.mark.slow
def test_started_by_another_user_than_root_only_that_user_and_root_get_a_session(open_folder: Path) -> None:
    uid, gid = user("daemon")
    os.chown(open_folder, uid, gid)
    folder = open_folder / "postgres"
    with started_as(uid, gid, folder) as url:
        assert session_as(uid, gid, url) == "session"
        assert session_as(0, 0, url) == "session"
        assert session_as(*user("nobody"), url) == "PermissionError"
        # were the folders open, as by a careless chmod, Postgres would still ask
        for path in (folder, folder / "run", folder / "run/.s.PGSQL.5432"):
            path.chmod(0o777)
        assert session_as(*user("nobody"), url) == "InvalidAuthorizationSpecificationError"


@as_root
@pytest.mark.slow
def test_a_folder_that_root_has_used_starts_for_its_own_user_again(open_folder: Path) -> None:
    uid, gid = user("daemon")
    os.chown(open_folder, uid, gid)
    folder = open_folder / "postgres"
    with started_as(uid, gid, folder):
        pass
    with started_as(0, 0, folder) as url:
        assert session_as(uid, gid, url) == "session"
    with started_as(uid, gid, folder) as url:
        assert session_as(uid, gid, url) == "session"


async def test_closing_stops_the_server_and_the_data_is_there_again(root: Path) -> None:
    server = server_at(root)
    server.start()
    await ask(server.url("postgres", "postgres"), "CREATE TABLE IF NOT EXISTS kept AS SELECT 42 AS answer")
    server.close()
    server.close()
    assert not server.running()
    assert not (base_of(root) / "data/postmaster.pid").exists()
    server.start()
    assert await ask(server.url("postgres", "postgres"), "SELECT answer FROM kept") == 42
    server.close()


async def test_a_second_user_shares_the_server_and_the_last_one_stops_it(server: EmbeddedPostgres, root: Path) -> None:
    other = hold(root)
    assert url_from(other) == server.url("postgres", "postgres")
    server.close()
    assert server.running()
    without_facts(other)
    assert not server.running()


async def test_a_killed_user_takes_neither_the_server_nor_its_share_of_it_along(root: Path) -> None:
    starter = hold(root)
    url = url_from(starter)
    starter.kill()
    starter.wait(20)
    assert await ask(url, "SELECT 1") == 1
    survivor = server_at(root)
    survivor.start()
    survivor.close()
    assert not survivor.running()


async def test_the_server_has_a_session_of_its_own(server: EmbeddedPostgres, root: Path) -> None:
    assert server.running()
    assert os.getsid(postmaster_of(root)) != os.getsid(0)


async def test_a_server_that_was_killed_starts_again_at_once_with_what_was_committed(
    server: EmbeddedPostgres, root: Path
) -> None:
    await ask(server.url("postgres", "postgres"), "CREATE TABLE IF NOT EXISTS survived AS SELECT 7 AS answer")
    other = server_at(root)
    other.start()
    os.kill(postmaster_of(root), signal.SIGKILL)
    server.start()
    assert await ask(server.url("postgres", "postgres"), "SELECT answer FROM survived") == 7
    other.close()
    assert server.running()


async def test_a_stale_pid_file_with_a_recycled_pid_does_not_hinder(root: Path) -> None:
    server = server_at(root)
    server.start()
    os.kill(postmaster_of(root), signal.SIGKILL)
    pid_file = base_of(root) / "data/postmaster.pid"
    sleeper = subprocess.Popen(["/bin/sleep", "60"])  # noqa: ASYNC220 - does not block
    try:
        lines = pid_file.read_text().splitlines()
        pid_file.write_text("\n".join([str(sleeper.pid), *lines[1:]]) + "\n")
        (base_of(root) / "run/.s.PGSQL.5432.lock").write_text(f"{sleeper.pid}\n")
        server.start()
        assert server.running()
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()
        server.close()


@pytest.mark.slow
def test_three_processes_that_start_at_once_get_one_server(open_folder: Path) -> None:
    fresh = open_folder / "postgres"
    racers = [hold(fresh) for _ in range(3)]
    urls = {url_from(racer) for racer in racers}
    assert len(urls) == 1
    for racer in racers:
        without_facts(racer)
    assert not (fresh / "data/postmaster.pid").exists()


@as_root
@pytest.mark.slow
async def test_as_root_a_folder_closed_to_the_servers_user_stays_closed_and_notes_where_the_data_went(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_place, "_FALLBACK_ROOT", open_folder / "var")
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    server = server_at(closed / "postgres")
    server.start()
    await ask(server.url("postgres", "postgres"), "CREATE TABLE kept AS SELECT 42 AS answer")
    server.close()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert Path((closed / "postgres/location").read_text().strip()).parent == open_folder / "var"
    again = server_at(closed / "postgres")
    again.start()
    assert await ask(again.url("postgres", "postgres"), "SELECT answer FROM kept") == 42
    again.close()


@as_root
def test_as_root_data_that_can_no_longer_be_reached_is_not_replaced_by_an_empty_database(open_folder: Path) -> None:
    closed = open_folder / "closed"
    (closed / "data").mkdir(parents=True)
    closed.chmod(0o700)
    with pytest.raises(Unavailable) as refusal:
        server_at(closed).start()
    assert refusal.value.code == "embedded_postgres_place"


async def test_nothing_that_a_client_sends_reaches_the_log(server: EmbeddedPostgres, root: Path) -> None:
    connection = await asyncpg.connect(server.url("postgres", "postgres"))
    await connection.execute("CREATE TEMP TABLE once (secret text PRIMARY KEY, CHECK (length(secret) < 9))")
    await connection.execute("INSERT INTO once VALUES ('s3cret')")
    for statement in (
        "INSERT INTO once VALUES ('s3cret')",
        "INSERT INTO once VALUES ('s3cret-long-enough')",
        "SELECT 's3cret'::uuid",
        "SELECT '{\"a\": s3cret}'::jsonb",
        "SELECT s3cret FROM once",
    ):
        with pytest.raises(asyncpg.PostgresError):
            await connection.execute(statement)
    with pytest.raises(asyncpg.PostgresError):
        await connection.fetch("SELECT $1::text::int", "s3cret")
    backend = await connection.fetchval("SELECT pg_backend_pid()")
    waiting = asyncio.create_task(connection.fetch("SELECT pg_sleep(20), 's3cret'"))
    await asyncio.sleep(0.1)
    os.kill(backend, signal.SIGSEGV)
    with pytest.raises((asyncpg.PostgresError, OSError)):
        await waiting
    connection.terminate()
    deadline = time.monotonic() + 30
    while not server.running():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    log = (base_of(root) / "server.log").read_text()
    assert "terminated by signal" in log
    assert "s3cret" not in log


def test_a_log_that_has_grown_large_is_emptied(root: Path) -> None:
    log = base_of(root) / "server.log"
    with log.open("ab") as opened:
        opened.truncate(20 * 2**20)
    server = server_at(root)
    server.start()
    server.close()
    assert log.stat().st_size < 2**20


def test_a_root_too_long_for_a_socket_gets_a_short_private_one(open_folder: Path) -> None:
    root = open_folder / ("long-" * 30)
    root.mkdir()
    account = postgres_place.choose_account(root)
    paths = postgres_place.ServerPaths(base=root, run=root / "run")
    found = postgres_place.choose_paths(root, account)
    assert paths.run != found.run
    assert len(str(found.run)) < 80


def test_a_processor_without_avx2_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_place.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(postgres_place, "_cpu_features", lambda: {"sse2", "fma"})
    with pytest.raises(Unavailable, match=r"avx2.*TURNKEEP_DATABASE_URL") as refusal:
        server_at(Path("/nowhere")).start()
    assert refusal.value.code == "embedded_postgres_unsupported"


def test_data_of_another_version_is_refused(open_folder: Path) -> None:
    data = open_folder / "data"
    data.mkdir(mode=0o700)
    (data / "PG_VERSION").write_text("15\n")
    account = postgres_place.choose_account(open_folder / "elsewhere")
    os.chown(data, account.owner, -1)
    with pytest.raises(Unavailable) as refusal:
        server_at(open_folder).start()
    assert refusal.value.code == "embedded_postgres_version"
    assert "written by PostgreSQL 15" in refusal.value.detail
    for step in ("turnkeep backup", "move the data folder away", "turnkeep restore"):
        assert step in refusal.value.detail, "it says the way out"
    assert [path.name for path in data.iterdir()] == ["PG_VERSION"]
