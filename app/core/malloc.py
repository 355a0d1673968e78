"""What the C library does with memory that is freed.

By itself, glibc raises the size from which a block of memory is mapped apart, up to 32 MiB. After that, texts of
megabytes lie in heaps, and what is freed there is not returned to the system while anything behind it is in use.
"""

import ctypes
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_LARGE_BLOCK_BYTES: Final = 256 * 2**10


def keep_large_blocks_apart() -> None:
    """Let the C library map each block of 256 KiB or more by itself, so that freeing it returns its memory.

    Where the C library is not glibc this changes nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
