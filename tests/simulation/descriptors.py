"""A process that has no file descriptors left, for as long as a block runs."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tailrace.logstore.filesystem import NO_DESCRIPTOR

_ROOM = 64


@contextmanager
def no_descriptors() -> Iterator[Callable[[], int]]:
    """Takes all that there are below a limit that is not far away, and gives them back.

    Yields what takes those that became free meanwhile, giving their number. Nothing may be
    imported in the block.
    """
    gc.collect()  # files of earlier tests would be closed in the block
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(highest + _ROOM, hard), hard))
    taken: list[int] = []

    def take() -> int:
        before = len(taken)
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR:
                    raise
                return len(taken) - before

    try:
        assert take() > 0
        yield take
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
