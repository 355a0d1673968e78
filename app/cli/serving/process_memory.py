"""Memory of a started process: pages of 2 MiB, large blocks apart, and no free memory that the process keeps.

A request uses memory that is spread over all of a process, and the processor looks up the place of each page of 4 KiB.
Pages of 2 MiB need few such look-ups (decision 0061). By default glibc raises the size of separately mapped blocks up
to 32 MiB, and keeps freed memory while a block after it is in use. A started process with the bundled model has 279
MiB; 319 without `return_free_memory`, and 387 without `keep_large_blocks_apart` too.
"""

import asyncio
import ctypes
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_LARGE_BLOCK_BYTES: Final = 256 * 2**10
_RETURN_S: Final = 10.0
_MADV_COLLAPSE: Final = 25
_LARGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPPINGS: Final = Path("/proc/self/smaps")
# of memory that is no file, as bytes: a name can be anything
_MEMORY: Final = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(?:\[(?:heap|anon).*)?\n(?:[A-Z].*\n)*?Rss: +(\d+) kB$", re.MULTILINE
)
_USED_SHARE: Final = 0.75


def keep_large_blocks_apart() -> None:
    """Map each block of 256 KiB or more separately, so that freeing it returns its memory (glibc only)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


def return_free_memory() -> None:
    """Return memory that is free to the system (glibc only)."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


async def return_memory_forever() -> None:
    """Return free memory to the system every ten seconds: glibc keeps what many requests at once have used.

    It takes 1 ms, in a thread.
    """
    while True:
        await asyncio.sleep(_RETURN_S)
        await asyncio.to_thread(return_free_memory)


def use_large_pages() -> None:
    """Move the memory that is in use now into pages of 2 MiB, so that requests take less CPU time.

    Call it when a process is ready, in a thread: it takes 3 ms for each of these pages. If the system is not Linux 6.1
    or newer, or never uses large pages, this changes nothing.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    with suppress(OSError):  # a sandbox may hide these files
        if madvise is None or b"[never]" in _LARGE_PAGES.read_bytes():
            return
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for start_text, end_text, used_kib in _MEMORY.findall(_MAPPINGS.read_bytes()):
            start, end = int(start_text, 16), int(end_text, 16)
            # a large page of which little is in use takes memory: stacks of threads stay as they are
            if int(used_kib) * 2**10 >= _USED_SHARE * (end - start):
                madvise(start, end - start, _MADV_COLLAPSE)
