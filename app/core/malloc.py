"""Settings of the C library's memory allocator.

By default, glibc raises the size of separately mapped blocks up to 32 MiB. Texts of megabytes are then in heaps, and
freed memory is not returned to the system while a block after it is in use.
"""

import ctypes
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_LARGE_BLOCK_BYTES: Final = 256 * 2**10


def keep_large_blocks_apart() -> None:
    """Map each block of 256 KiB or more separately, so that freeing it returns its memory.

    If the C library is not glibc, this changes nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)


def return_free_memory() -> None:
    """Return memory that is free now to the system, for example after a start.

    If the C library is not glibc, this changes nothing.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
