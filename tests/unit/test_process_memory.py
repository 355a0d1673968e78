"""Collections pause during imports and leave out what a start has made; memory in use moves into large pages."""

import gc
from contextlib import suppress
from pathlib import Path

import pytest

from app.core import process_memory
from app.core.process_memory import collection_paused, skip_started_objects, use_large_pages

LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
KIB = 2**10
needs_large_pages = pytest.mark.skipif(
    not LARGE_PAGES.exists() or "[never]" in LARGE_PAGES.read_text(),
    reason="this system has no large pages: run it on Linux 6.1 or newer that uses them",
)


def kib_in_large_pages() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("AnonHugePages")).split()[1])


def test_collection_is_paused_and_goes_on_afterwards_even_after_an_error() -> None:
    assert gc.isenabled()
    with suppress(LookupError), collection_paused():
        assert not gc.isenabled()
        raise LookupError
    assert gc.isenabled()


def test_what_was_paused_before_stays_paused() -> None:
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_started_objects_are_left_out_of_collections_and_later_ones_are_not() -> None:
    kept = [{} for _ in range(1000)]
    skip_started_objects()
    later: list[object] = []
    later.append(later)
    try:
        seen = {id(one) for one in gc.get_objects()}
        assert id(kept) not in seen
        assert id(later) in seen
    finally:
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # as tests/conftest.py has it


@needs_large_pages
def test_memory_in_use_moves_into_large_pages_with_what_it_stores() -> None:
    kept = bytearray(b"memory! " * (2 * KIB * KIB))
    before = kib_in_large_pages()
    use_large_pages()
    assert kib_in_large_pages() >= before + 12 * KIB
    assert kept == b"memory! " * (2 * KIB * KIB)


@needs_large_pages
@pytest.mark.parametrize("answer", ["always madvise [never]\n", None])
def test_a_system_that_never_uses_large_pages_is_left_alone(
    answer: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "enabled"
    if answer is not None:
        said.write_text(answer)
    monkeypatch.setattr(process_memory, "_LARGE_PAGES", said)
    kept = bytearray(b"memory! " * (2 * KIB * KIB))
    before = kib_in_large_pages()
    use_large_pages()
    assert kib_in_large_pages() == before
    assert len(kept) == 16 * KIB * KIB
