"""Large segments are made in a process, with an interpreter's lock of its own.

Encoding holds that lock for a good part of its time. In a thread of the service it delays all that
answers, and gets little done itself.

The process is this package's `child` module, started behind the first large cut. It reads the
journal's files itself: rows, names and paths go there, the segment comes back. Both ends speak by
one socket, its standard input, in messages of JSON and bytes (`send`, `receive`):

    from the child   {"ready": true}                    once, when it can work
    to the child     {"node", "seq", "first", "end",
                      "paths", "runs", "connectors"}    rows, file of each row, times, levels,
                                                        traces; paths are their bytes in hexadecimal
    from the child   {"text_bytes", "footer": {…}}      the segment, times, levels, traces
                     {"failed": reason}

Times and levels are what the runs have before and behind the cut (`Carry`).

Nothing depends on the process. While it starts, where none can be started, and if it ends, fails or
stands still at any moment, the segment is made in a thread of the service, from the same batches
and with the same bytes; the next one is tried a minute later. A process that stands still is
killed. It ends with the service, however that ends: its
input does. It offers itself first to a kernel that runs out of memory.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from logstore.clock import Clock
from logstore.segments import footer as footers
from logstore.segments.carry import Last
from logstore.segments.writer import EncodedSegment
from service.runtime.threads import Offload
from service.shipping.cut_work import CutWork, EncodedCut

log = logging.getLogger(__name__)
LARGE_BYTES: Final = 16 << 20
"""Of text: for less the process is not worth its memory, up to 210 MB, nor the way there."""
Part: TypeAlias = "bytes | NDArray[Any]"
_PAUSE_SECONDS: Final = 60.0
_PATIENCE_SECONDS: Final = 30.0
_LEAST_RATE: Final = 1 << 20
"""Bytes of text in a second: a process that is slower than that, beyond its patience, hangs."""
_SIZE: Final = struct.Struct("<Q")


class EncoderFailed(Exception):
    """The process has ended, or could not make the segment."""


class EncoderProcess:
    """Makes segments, large ones in a process; `close` ends that one, the next one starts another.

    `failures` counts processes that could not be started, ended, failed, or did not answer within
    `patience_seconds` and the time that the text may take.
    """

    def __init__(
        self, offload: Offload, clock: Clock, *, patience_seconds: float = _PATIENCE_SECONDS
    ) -> None:
        self._patience = patience_seconds
        self._offload = offload
        self._clock = clock
        self._child: Child | None = None
        self._changing = threading.Lock()
        self._closed = 0  # times
        self._not_before = self._starting_since = clock.monotonic()
        self.failures = 0

    async def __call__(self, work: CutWork) -> EncodedCut:
        """The segment. Raises as `CutWork.encoded`."""
        if work.text_bytes >= LARGE_BYTES:
            try:
                child = await self._offload(partial(self._ready, self._closed))
                if child is not None:
                    seconds = self._patience + work.text_bytes / _LEAST_RATE
                    return await self._offload(lambda: child.encoded(work, seconds))
            except (EncoderFailed, OSError) as error:
                log.warning("a segment is made without a process, which failed: %s", error)
                self.failures += 1
                self._not_before = self._clock.monotonic() + _PAUSE_SECONDS
                await self.close()
        return await self._offload(work.encoded)

    async def close(self) -> None:
        """Ends the process, and what it works on, also one that is just being started."""
        self._closed += 1
        await self._offload(self._end)

    @property
    def pid(self) -> int | None:
        """The number of the process, if there is one."""
        return None if self._child is None else self._child.pid

    def _ready(self, closed: int) -> Child | None:
        """The process, unless it is still starting; begins that if there is none.

        Not if it was closed more often than so: who asked for the process was cancelled. Raises
        `EncoderFailed` if it has ended, or has been starting for too long.
        """
        with self._changing:
            may_start = closed == self._closed and self._clock.monotonic() >= self._not_before
            if self._child is None and may_start:
                self._child = Child()
                self._starting_since = self._clock.monotonic()
            child, since = self._child, self._starting_since
        if child is None or child.ready():
            return child
        if self._clock.monotonic() - since > self._patience:
            raise EncoderFailed(f"it does not start within {self._patience:g} s")
        return None

    def _end(self) -> None:
        with self._changing:
            child, self._child = self._child, None
        if child is not None:
            child.close()


class Child:
    """The process, from the other side. For several threads: it makes one segment at a time."""

    def __init__(self) -> None:
        """Raises `OSError` if it cannot be started."""
        self._ready = False
        self._working = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._news = select.poll()  # unlike select it takes descriptors above 1,023
        self._news.register(self._socket, select.POLLIN)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "service.shipping.child"],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    process_group=0,  # a terminal's Ctrl-C is ours; the session's share as well
                )
        except OSError:
            self._socket.close()
            raise

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def ready(self) -> bool:
        """Whether it can work by now. Raises `EncoderFailed` if it has ended."""
        with self._working:
            if not self._ready and self._news.poll(0):
                self._ready = bool(receive(self._socket)[0].get("ready"))
            return self._ready

    def encoded(self, work: CutWork, seconds: float) -> EncodedCut:
        """The segment. Raises `EncoderFailed`, also if the process stands still for so long."""
        batches, runs = work.batches, work.batches.runs
        paths, file_of = batches.places()
        state = work.before.load(runs)
        about = {
            "node": batches.node,
            "seq": work.seq,
            "first": work.first,
            "end": work.end,
            "paths": [os.fsencode(path).hex() for path in paths],
            "runs": [tuple(key) for key in runs],
            "connectors": batches.connectors,
        }
        with self._working:
            self._socket.settimeout(seconds)
            before = state.times, state.levels, state.traces
            send(self._socket, about, batches.rows, file_of, *before)
            head, parts = receive(self._socket)
        if "failed" in head:
            raise EncoderFailed(str(head["failed"]))
        body, *after = parts
        metadata = {key.encode(): value.encode() for key, value in head["footer"].items()}
        segment = EncodedSegment(bytes(body), footers.decode(metadata), head["text_bytes"])
        carry = work.before.copy()
        carry.save(runs, Last(*(np.frombuffer(part, np.int64) for part in after)))
        return EncodedCut(segment, carry)

    def close(self) -> None:
        """Ends it at once; who waits for a segment of it gets `EncoderFailed`."""
        self._process.kill()
        self._process.wait()
        with self._working:
            self._socket.close()


def send(to: socket.socket, head: Mapping[str, Any], *parts: Part) -> None:
    """A message: its head's size, the head with the sizes of its parts, the parts.

    Raises `EncoderFailed` if the other end is gone.
    """
    views = [part if isinstance(part, bytes) else part.view(np.uint8).data for part in parts]
    text = orjson.dumps({**head, "sizes": [len(view) for view in views]})
    try:
        to.sendall(_SIZE.pack(len(text)) + text)
        for view in views:
            to.sendall(view)
    except OSError as error:
        raise EncoderFailed(f"nobody takes it: {error}") from error


def receive(source: socket.socket) -> tuple[Mapping[str, Any], list[bytearray]]:
    """The next message. Raises `EncoderFailed` if the other end is gone."""
    (size,) = _SIZE.unpack(_exactly(source, _SIZE.size))
    head: dict[str, Any] = orjson.loads(_exactly(source, size))
    return head, [_exactly(source, size) for size in head["sizes"]]


def _exactly(source: socket.socket, size: int) -> bytearray:
    data, got = bytearray(size), 0
    with memoryview(data) as view:
        while got < size:
            try:
                more = source.recv_into(view[got:], 0, socket.MSG_WAITALL)
            except OSError as error:
                raise EncoderFailed(f"nothing comes: {error}") from error
            if more == 0:
                raise EncoderFailed("the other end is gone")
            got += more
    return data
