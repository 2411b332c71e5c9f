"""What the node asks of its process: memory that is free goes back, and descriptors suffice.

Batches, segments and chunks are buffers of megabytes that live for moments, made on
several threads. glibc keeps such memory in an arena per thread, and Arrow's own pool
keeps it as well: together several times what is ever used at once. Here large buffers
come from the system and go back to it at once.

The numbers are glibc's (`man 3 mallopt`); elsewhere nothing is changed.

A process that has used up its descriptors can neither write a journal file nor reach the
store. So the limit is raised at the start as far as the system lets it, and connections
get only a part of it: the rest is for the journal, the store and searches.
"""

from __future__ import annotations

import ctypes
import resource

import pyarrow as pa

_ENOUGH = 65_536
_MOST_KEPT = 1024


def raise_limit() -> int:
    """Raises the process's limit of open files, and gives it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return open_files()


def open_files() -> int:
    """How many files the process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


def for_connections(files: int) -> int:
    """How many of `files` connections may have: all but half, or but 1,024 if half is more."""
    return max(1, files - min(files // 2, _MOST_KEPT))


_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE_BYTES = 1 << 20
_KEPT_BYTES = 4 << 20  # more than what a search of a few thousand lines lets go
_ARENAS = 2


def give_back_freed_memory() -> None:
    """Makes glibc return freed memory to the system. Call it before threads begin."""
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
