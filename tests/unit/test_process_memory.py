"""Memory in use moves into large pages."""

import mmap
import platform
import sys
from pathlib import Path

import pytest

from app.cli.serving import process_memory
from app.cli.serving.process_memory import use_large_pages

LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MIB = 2**20
STORED = b"memory! " * (2 * MIB)


def gives_large_pages() -> bool:
    """Return whether the system gives large pages on request, and only then."""
    release = platform.release().split(".")
    return (
        (sys.platform, int(release[0]), int(release[1])) >= ("linux", 6, 1)
        and LARGE_PAGES.exists()
        and "[madvise]" in LARGE_PAGES.read_text()
    )


needs_large_pages = pytest.mark.skipif(
    not gives_large_pages(), reason="no large pages on request: run it on Linux 6.1 or newer that is set to madvise"
)


def new_memory(size: int) -> mmap.mmap:
    """Return memory that the process had no part of before."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def memory(name: str) -> int:
    """Return bytes of this process: all in use, "Rss", or those in large pages, "AnonHugePages"."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 2**10 * int(next(line for line in lines if line.startswith(name)).split()[1])


@needs_large_pages
def test_memory_in_use_moves_into_large_pages_with_what_it_stores() -> None:
    with new_memory(len(STORED)) as kept:
        kept[:] = STORED
        before = memory("AnonHugePages")
        use_large_pages()
        assert memory("AnonHugePages") >= before + 12 * MIB
        assert kept[:] == STORED


@needs_large_pages
def test_memory_of_which_little_is_in_use_stays_as_it_is() -> None:
    with new_memory(256 * MIB) as reserved:
        for place in range(0, 256 * MIB, 2 * MIB):
            reserved[place] = 1
        before = memory("Rss")
        use_large_pages()
        assert memory("Rss") < before + 64 * MIB


@needs_large_pages
@pytest.mark.parametrize("answer", ["always madvise [never]\n", None])
def test_a_system_that_never_uses_large_pages_or_hides_them_is_left_alone(
    answer: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "enabled"
    if answer is not None:
        said.write_text(answer)
    monkeypatch.setattr(process_memory, "_LARGE_PAGES", said)
    with new_memory(len(STORED)) as kept:
        kept[:] = STORED
        before = memory("AnonHugePages")
        use_large_pages()
        assert memory("AnonHugePages") == before
        assert kept[:] == STORED


@needs_large_pages
@pytest.mark.parametrize("name", [b"/a b", b"/\xff", b"/\xe2\x80\xa8", b"/\x0c", b"/\x85", b"/\r", b" (deleted)"])
def test_files_in_memory_may_have_any_name(name: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mappings = tmp_path / "smaps"
    monkeypatch.setattr(process_memory, "_MAPPINGS", mappings)
    with new_memory(len(STORED)) as kept:
        kept[:] = STORED
        own = Path("/proc/self/smaps").read_bytes()
        mappings.write_bytes(b"7f0000000000-7f0000200000 rw-p 00000000 fe:00 7 " + name + b"\nRss:  2048 kB\n" + own)
        before = memory("AnonHugePages")
        use_large_pages()
        assert memory("AnonHugePages") >= before + 12 * MIB
        assert kept[:] == STORED
