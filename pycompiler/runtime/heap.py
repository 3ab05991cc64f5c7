"""The C heap keeps memory that plans free, for their next call.

glibc returns the top of its heap to the system as soon as a small multiple of the largest block ever freed is free
there. A plan frees all its tensors in every call, so the next call would take a page fault per 4 KiB of them.  Freeing
one large block, which is never touched, raises that limit to 64 MiB (glibc's own adaptation, see M_MMAP_THRESHOLD in
mallopt(3)). Other allocators ignore it.
"""

from __future__ import annotations

import ctypes
import functools

LARGEST = (32 << 20) - (64 << 10)  # glibc adapts to blocks of up to 32 MiB


@functools.cache
def keep_freed_memory() -> None:
    """Raise the limit, once per process."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.free(libc.malloc(LARGEST))
