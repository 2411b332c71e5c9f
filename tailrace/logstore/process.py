"""Memory of the process: its limit, freed memory given back, the garbage collector paused.

Batches, segments and chunks are buffers of megabytes that live for moments and are made on several
threads. glibc keeps freed memory in an arena for each thread, and Arrow's own pool keeps it as
well: together several times the highest use at one moment. `give_back_freed_memory` makes large
buffers come from the system and go back to it at once. Its numbers are glibc's (`man 3 mallopt`);
with another C library it changes nothing.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE_BYTES = 1 << 20
_KEPT_BYTES = 4 << 20  # more than what a search of a few thousand lines lets go
_ARENAS = 2
_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_limit() -> int:
    """The memory of this container, or of the machine, in bytes."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _LIMITS:
        with suppress(OSError, ValueError):
            found = min(found, int(Path(path).read_text()))
    return found


def give_back_freed_memory() -> None:
    """Makes glibc return freed memory to the system. Call it before threads begin."""
    import pyarrow as pa  # settings are read without it

    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


# A start makes several hundred thousand objects that stay: modules, classes, functions. While they
# are made, Python's cyclic garbage collector would look at all of them again and again.


@contextmanager
def collection_paused() -> Iterator[None]:
    """Nothing is collected while the block runs, which imports modules."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
