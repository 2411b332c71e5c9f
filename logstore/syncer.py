"""fdatasync without blocking the event loop.

`AioSyncer` submits the sync to the kernel, which reports its end by an eventfd. It needs no thread
and no switch of the interpreter lock, which on two cores costs more than the disk does.
`ThreadSyncer` is for kernels and file systems without that. A failed fdatasync is
always an `OSError`, and the pages that it failed on count as lost: never sync again.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from logstore.clock import Clock
from logstore.filesystem import File

# The average moves by a part of each sync's distance from it; it begins as that of a slow disk.
_AVERAGED = 16
_FIRST_SECONDS = 0.01
_QUICK_SECONDS = 0.001
_LARGE_BYTES = 1 << 20
_ERRNO_OF_TEXT = {os.strerror(number): number for number in errno.errorcode}


class Syncer(Protocol):
    """Makes what was written to a file durable."""

    async def sync(self, file: File, size: int = 0, /) -> None:
        """As `File.sync`: durable once it returns; `size` bytes were written since the last one.

        Raises `OSError`.
        """
        ...

    def close(self) -> None:
        """Releases its resources of the loop and the kernel."""
        ...


class ThreadSyncer:
    """One thread per call, from the loop's pool."""

    async def sync(self, file: File, _size: int = 0, /) -> None:
        await asyncio.to_thread(file.sync)

    def close(self) -> None:
        """Does nothing: there is no resource to release."""


class Fdsync(Protocol):
    """The part of caio's context that `AioSyncer` uses."""

    def fdsync(self, fd: int) -> Awaitable[None]:
        """Waits for the end of an fdatasync; its failure is a `SystemError`."""
        ...

    def close(self) -> None:
        """Detaches from the loop."""
        ...


class AioSyncer:
    """Linux AIO. The context belongs to one loop, and is used in it only."""

    def __init__(self, context: Fdsync) -> None:
        self._context = context
        self._thread = ThreadSyncer()

    async def sync(self, file: File, _size: int = 0, /) -> None:
        try:
            await self._context.fdsync(file.fileno())
        except (OverflowError, ValueError):
            # The kernel did not take the request (its queue is full, or this file system
            # has no asynchronous sync): nothing failed yet, so ask the ordinary way.
            await self._thread.sync(file)
        except SystemError as error:
            # caio gives the text of the errno only.
            number = _ERRNO_OF_TEXT.get(str(error), errno.EIO)
            raise OSError(number, os.strerror(number)) from error

    def close(self) -> None:
        self._context.close()


class QuickSyncer:
    """Syncs in place while the disk is quick, else by `inner`.

    Submitting a sync to the kernel and waiting for its end costs two switches of tasks, more
    than a fast disk takes for it. While syncs take less than `_QUICK_SECONDS` on average,
    the loop therefore waits for the disk itself. One slow sync delays the loop; several make the
    next ones go to `inner`, until they are quick again.
    """

    def __init__(self, inner: Syncer, clock: Clock) -> None:
        self._inner = inner
        self._now = clock.monotonic
        self._average = _FIRST_SECONDS

    async def sync(self, file: File, size: int = 0, /) -> None:
        start = self._now()
        if size > _LARGE_BYTES:  # its time says nothing about the others
            await self._inner.sync(file, size)
            return
        if self._average < _QUICK_SECONDS:
            file.sync()
        else:
            await self._inner.sync(file, size)
        self._average += (self._now() - start - self._average) / _AVERAGED

    def close(self) -> None:
        self._inner.close()


def syncer_for(loop: asyncio.AbstractEventLoop) -> Syncer:
    """The best syncer for this machine; call it inside the running loop."""
    try:
        # Its import fails where the kernel has no AIO, so it cannot stand at the top.
        from caio.linux_aio_asyncio import AsyncioContext

        make: Callable[..., Fdsync] = _resumed(AsyncioContext)
        return AioSyncer(make(loop=loop))
    except (ImportError, OSError, SystemError, NotImplementedError):
        return ThreadSyncer()


def _resumed(context: Any) -> Any:
    """caio's context that goes on when a signal interrupts its look at what has ended.

    The kernel has reported these ends by then, and would not again: who waits for them would wait
    until the end of another sync.
    """

    class Resumed(context):  # type: ignore[misc]
        def _on_read_event(self) -> None:
            while True:
                try:
                    super()._on_read_event()
                    break
                except SystemError as error:
                    if error.args[:1] != (errno.EINTR,):
                        raise

    return Resumed
