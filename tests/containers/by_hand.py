"""Builds and runs an image without an engine: each stage is a folder that its steps run in, by mount and chroot.

The base image is stood in for by this machine: its /usr and libraries, read-only, with the Python of this run as
/usr/local, and a fresh /etc. So a step sees no file of the checkout that no COPY named. What it does not show: that the
base image has all the tools of this machine; the steps need a POSIX shell, coreutils, useradd and Python.
"""

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile import Stage, context_files, parse

# what a builder would be given for reaching package indexes, and the Python of a base image
PASSED = ("PIP_", "UV_INDEX", "UV_DEFAULT_INDEX", "UV_FIND_LINKS", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ETC = (
    *("passwd", "group", "login.defs", "nsswitch.conf", "hosts", "resolv.conf"),
    *("ld.so.conf", "ld.so.conf.d", "ssl", "ca-certificates"),
)
STEP_TIMEOUT_S = 900
AS_ROOT = () if os.geteuid() == 0 else ("--user", "--map-root-user", "--map-auto")
NAMESPACE = ("unshare", *AS_ROOT, "--mount")


def why_not() -> str | None:
    """Why this machine cannot do it; None when it can."""
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        return "unshare is not installed: on Linux, apt install util-linux"
    done = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"this user may make no namespaces ({done.stderr.strip()}): run it as root"


@dataclass
class Root:
    """The file system of a stage or container, with what its next step runs as."""

    path: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": BASE_PATH})
    workdir: str = "/"
    user: str = "0:0"
    volumes: dict[str, Path] = field(default_factory=dict)

    def inside(self, path: str) -> Path:
        return self.path / path.lstrip("/")

    def command(self, words: list[str], *, passed: dict[str, str] | None = None) -> list[str]:
        """The command that runs `words` inside, in namespaces that end with it."""
        root = shlex.quote(str(self.path))
        mounts = [f"mount --bind -o ro {path} {root}{path}" for path in _shared_folders()]
        mounts += [f"mount --rbind {path} {root}{path}" for path in ("/proc", "/dev")]
        if sys.base_prefix != "/usr":
            mounts.append(f"mount --bind -o ro {shlex.quote(sys.base_prefix)} {root}/usr/local")
        mounts += [f"mount --bind {shlex.quote(str(there))} {root}{here}" for here, there in self.volumes.items()]
        environment = {"HOME": "/", **(passed or {}), **self.environment}
        inner = [
            *("chroot", f"--userspec={self.user}", "--groups=", str(self.path)),
            *("/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment.items())),
            *("/bin/sh", "-c", f"cd {shlex.quote(self.workdir)} && exec {shlex.join(words)}"),
        ]
        return [*NAMESPACE, "/bin/sh", "-ec", "\n".join([*mounts, f"exec {shlex.join(inner)}"])]


def _shared_folders() -> list[str]:
    tops = ["/usr", *(path for path in ("/bin", "/sbin", "/lib", "/lib64") if _is_folder(path))]
    links = [folder for folder in os.environ.get("PIP_FIND_LINKS", "").split() if _is_folder(folder)]
    return tops + links


def _is_folder(path: str) -> bool:
    return Path(path).is_dir() and not Path(path).is_symlink()


def base(path: Path) -> Root:
    """An image with Python and nothing of ours."""
    path.mkdir(parents=True)
    path.chmod(0o755)
    for folder in ("etc", "home", "opt", "proc", "dev", "tmp", "var", "run", *_shared_folders()):
        (path / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    (path / "tmp").chmod(0o1777)
    for link in ("bin", "sbin", "lib", "lib64"):
        if (there := Path("/", link)).is_symlink():
            (path / link).symlink_to(there.readlink())
    for name in ETC:
        there = Path("/etc", name)
        if there.is_dir():
            shutil.copytree(there, path / "etc" / name, symlinks=True, ignore=shutil.ignore_patterns("private"))
        elif there.exists():
            shutil.copy(there, path / "etc" / name)
    root = Root(path)
    _run(root, "ldconfig")  # libpython of /usr/local, as in the image of Python
    return root


def build(context: Path, folder: Path) -> tuple[Stage, Root]:
    """Run every step of the Dockerfile of `context`; the last stage and its file system."""
    allowed = context_files(context)
    roots: dict[str, Root] = {}
    stages = parse((context / "Dockerfile").read_text())
    for stage in stages:
        root = roots[stage.name] = base(folder / f"stage-{stage.name}")
        for step in stage.instructions:
            if step.name == "RUN":
                _run(root, step.rest)
            elif step.name == "COPY":
                *sources, target = step.words()
                given = roots[step.flags["from"]].path if "from" in step.flags else None
                _copy(root, [(given, source) for source in sources], target, context=context, allowed=allowed)
            elif step.name == "ENV":
                root.environment |= step.pairs()
            elif step.name == "WORKDIR":
                root.workdir = step.rest
                root.inside(step.rest).mkdir(parents=True, exist_ok=True)
            elif step.name == "USER":
                root.user = step.rest
    return stages[-1], roots[stages[-1].name]


def _run(root: Root, script: str) -> None:
    passed = {name: value for name, value in os.environ.items() if name.upper().startswith(PASSED)}
    done = subprocess.run(
        root.command(["/bin/sh", "-ec", script], passed=passed),
        capture_output=True, text=True, timeout=STEP_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"RUN {script}\n{done.stdout}{done.stderr}"


def _copy(
    root: Root, sources: list[tuple[Path | None, str]], target: str, *, context: Path, allowed: list[str]
) -> None:
    there = root.inside(target if target.startswith("/") else f"{root.workdir}/{target}")
    into_folder = target.endswith("/") or target in {".", "./"}
    assert into_folder or len(sources) == 1, f"COPY of several needs a target that ends with /: {target}"
    for given, source in sources:
        if given is not None:
            shutil.copytree(given / source.lstrip("/"), there, symlinks=True, dirs_exist_ok=True)
            continue
        files = [name for name in allowed if name == source or name.startswith(f"{source.rstrip('/')}/")]
        assert files, f"COPY {source}: .dockerignore lets no such file through"
        for name in files:
            inner = name.rsplit("/", 1)[-1] if name == source else name.removeprefix(f"{source.rstrip('/')}/")
            end = there / inner if into_folder or name != source else there
            end.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(context / name, end)
