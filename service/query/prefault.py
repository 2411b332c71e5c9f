"""Has the code of the libraries that searches use in memory, before a search needs it.

Of a library's file the system reads what is executed, when it is executed first: a search of a new
program waited twenty to thirty times for the disk, longer than for all that it read of the table.
And what only searches execute is soon displaced by the files that are scanned. Pages that are
mapped stay for longer.

They are those of files and the same for all processes, so the system can drop them at any time.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from logstore.memory import memory_limit

_LIBRARIES: Final = (
    *("_duckdb.", "libarrow.", "libarrow_compute.", "libarrow_python.", "libparquet."),
    *("backend_c.", "_multiarray_umath.", "_parquet.", "_compute.", "lib.cpython", "orjson."),
)
"""How the names of their files begin, 140 MB of code and constants in all."""
_LEAST_MEMORY: Final = 1 << 30
"""Of machine or container. With less, these pages would displace others that are needed."""
_MAPS: Final = Path("/proc/self/maps")
_MADV_POPULATE_READ: Final = 22


@cache
def prefault() -> int:
    """Maps the libraries' code, once in a process, and returns how many bytes that are.

    It takes some 50 ms if the files are in the page cache. Only Linux, from 5.14 on, has what it
    takes; elsewhere nothing is done, and searches do without.
    """
    importlib.import_module("duckdb")
    if sys.platform != "linux" or memory_limit() < _LEAST_MEMORY:
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    mapped = 0
    with suppress(OSError):
        for begin, size in read_only(_MAPS.read_text().splitlines()):
            if madvise(begin, size, _MADV_POPULATE_READ) == 0:
                mapped += size
    return mapped


def read_only(maps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Where pages of the libraries lie that nobody writes to, and how many bytes they are.

    `maps` are lines of Linux's `/proc/self/maps`.
    """
    for line in maps:
        addresses, rights, *_, path = line.split(maxsplit=5)
        if rights[:2] == "r-" and path.rsplit("/", 1)[-1].startswith(_LIBRARIES):
            begin, end = (int(address, 16) for address in addresses.split("-"))
            yield begin, end - begin
