"""Encodes cuts as segments, large ones in a separate process; run as a module, it is that process.

**Order.** Cuts are encoded in order, each with the `Carry` at the end of the previous one.
Uploading a segment takes a moment in which the processor is idle, so `CutEncoder` begins the next
cut as soon as one is encoded. Memory holds at most one segment besides the one that is being
uploaded. `CutEncoder.carry` only includes confirmed cuts: readers of lines that are not yet
confirmed begin with it.

**Process.** Encoding holds the interpreter lock for a good part of its time. In a thread of the
service a large segment would delay all answers and make little progress itself. `EncoderProcess`
therefore starts this module as a process at the first large cut. The process reads the journal
files itself: it receives rows, names and paths, and returns the segment. Both ends talk over one
socket, the standard input of the process, in messages of JSON and bytes (`send`, `receive`):

    from the child   {"ready": true}                    once, when it can work
    to the child     {"node", "seq", "first", "end",
                      "paths", "runs", "connectors"}    rows, file of each row, times, levels,
                                                        traces; paths are their bytes in hexadecimal
    from the child   {"text_bytes", "footer": {…}}      the segment, times, levels, traces
                     {"failed": reason}

Times, levels and traces are the `Carry` of the runs before and after the cut.

The process is optional. If it is still starting, cannot be started, ends, fails or hangs, a thread
of the service makes the segment from the same batches and with the same bytes. The next start is
tried a minute later. A hanging process is killed. The process ends with the service, however the
service ends, because its input ends; while it works it reads no input, so it notices that only
after the segment. If the kernel runs out of memory, the process is the first candidate to be
killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from service.journal.format import translated
from service.journal.journal import Journal
from service.journal.reader import JournalBatches
from service.journal.state import Cut
from service.runtime.health import Ongoing
from service.runtime.process import Offload, start_with_socket
from tailrace.logstore.batch import BATCH, RunKey
from tailrace.logstore.clock import Clock
from tailrace.logstore.filesystem import Disk, File
from tailrace.logstore.process import give_back_freed_memory
from tailrace.logstore.segments import file_format as footers
from tailrace.logstore.segments.detect import Carry, Last
from tailrace.logstore.segments.writer import EncodedSegment, encode_segment


@dataclass(frozen=True, slots=True)
class EncodedCut:
    """The segment of a cut, and the state of the runs at its end."""

    segment: EncodedSegment
    carry: Carry


@dataclass(frozen=True, slots=True)
class CutWork:
    """The batches of a cut: the positions from `first` up to, not including, `end`.

    `before` is the state of the runs at the end of the previous cut. The caller pins the files of
    the batches until the work is done.
    """

    batches: JournalBatches
    seq: int
    first: int
    end: int
    before: Carry

    @property
    def text_bytes(self) -> int:
        """Bytes of text."""
        return int(self.batches.rows["size"].sum(dtype=np.int64))

    def encoded(self, *, threads: bool = False) -> EncodedCut:
        """Encodes the segment in this process, with `threads` in two threads.

        Raises `Damaged`, and the errors of reading the journal.
        """
        carry = self.before.copy()
        segment = encode_segment(
            self.batches,
            node=self.batches.node,
            seq=self.seq,
            ranges=[(self.first, self.end)],
            carry=carry,
            threads=threads,
        )
        return EncodedCut(segment, carry)


class SegmentEncoder(Protocol):
    """Encodes cuts as segments."""

    @property
    def failures(self) -> int:
        """The number of failures of the separate process."""
        ...

    async def __call__(self, work: CutWork) -> EncodedCut:
        """Encodes a cut. Raises as `CutWork.encoded`."""
        ...

    async def close(self) -> None:
        """Releases its resources. May be repeated, and the encoder can still be used."""
        ...


class OffloadedEncoder:
    """Encodes each segment by `offload`."""

    failures = 0

    def __init__(self, offload: Offload) -> None:
        self._offload = offload

    async def __call__(self, work: CutWork) -> EncodedCut:
        """As `SegmentEncoder`."""
        return await self._offload(work.encoded)

    async def close(self) -> None:
        """Does nothing: it has no resources."""


class CutEncoder:
    """Encodes the cuts of one journal, in order, by `encode`."""

    def __init__(
        self, journal: Journal, offload: Offload, encode: SegmentEncoder, ongoing: Ongoing
    ) -> None:
        self._journal = journal
        self._ongoing = ongoing
        self._offload = offload
        self._make = encode
        self._ahead: asyncio.Task[EncodedCut] | None = None
        self.carry = Carry()
        """What the runs had at the end of the last confirmed segment; not to be changed."""

    async def encoded(self, cut: Cut) -> EncodedCut:
        """The oldest unconfirmed cut as a segment.

        Raises `NodeNotReady` if no descriptor is free to read it.
        """
        ahead, self._ahead = self._ahead, None
        return await (self._encode(cut, self.carry) if ahead is None else ahead)

    def begin(self, cut: Cut, carry: Carry) -> None:
        """Begins the cut that will be requested next, unless it is begun already."""
        if self._ahead is None:
            work = self._encode(cut, carry)
            self._ahead = asyncio.get_running_loop().create_task(work, name="encode ahead")

    async def close(self) -> None:
        """Waits for the begun cut: while a thread reads the journal, its pin must be held."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await asyncio.wait({ahead})
            if not ahead.cancelled():
                ahead.exception()  # no caller waits for it any more
        await self._make.close()

    async def _encode(self, cut: Cut, before: Carry) -> EncodedCut:
        with (
            translated("a segment could not be made"),
            self._journal.pin() as pin,
            self._ongoing.piece(),
        ):
            await self._offload(lambda: self._journal.check(pin, cut.first, cut.end))
            batches = pin.batches(start=cut.first, end=cut.end)
            return await self._make(CutWork(batches, cut.seq, cut.first, cut.end, before))


log = logging.getLogger(__name__)
LARGE_BYTES: Final = 16 << 20
"""Bytes of text; for less, the process is not worth its memory (up to 210 MB) and transfers."""
Part: TypeAlias = "bytes | NDArray[Any]"
_PAUSE_SECONDS: Final = 60.0
_PATIENCE_SECONDS: Final = 30.0
_LEAST_RATE: Final = 1 << 20
"""Bytes of text per second; a process that is slower, after `patience_seconds`, hangs."""
_SIZE: Final = struct.Struct("<Q")


class EncoderFailed(Exception):
    """The process has ended, or could not make the segment."""


class EncoderProcess:
    """Encodes segments, large ones in a process. After `close`, the next large one starts another.

    `failures` counts processes that could not be started, ended, failed, or did not answer within
    `patience_seconds` plus the time that the text may take.
    """

    def __init__(
        self, offload: Offload, clock: Clock, *, patience_seconds: float = _PATIENCE_SECONDS
    ) -> None:
        self._patience = patience_seconds
        self._offload = offload
        self._clock = clock
        self._child: EncodingWorker | None = None
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
        """Ends the process and its work, also a process that is just being started."""
        self._closed += 1
        await self._offload(self._end)

    @property
    def pid(self) -> int | None:
        """The id of the process; None without one."""
        return None if self._child is None else self._child.pid

    def _ready(self, closed: int) -> EncodingWorker | None:
        """Returns the process, None if it is still starting; starts one if none runs.

        Starts none if `close` was called since the request (`closed` is the number of calls before
        it): its caller was cancelled. Raises `EncoderFailed` if the process has ended, or has been
        starting for too long.
        """
        with self._changing:
            may_start = closed == self._closed and self._clock.monotonic() >= self._not_before
            if self._child is None and may_start:
                self._child = EncodingWorker()
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


class EncodingWorker:
    """The parent's handle of the process. Threads may share it; it makes one segment at a time."""

    def __init__(self) -> None:
        """Starts the process. Raises `OSError` if it cannot be started."""
        self._ready = False
        self._working = threading.Lock()
        self._process, self._socket = start_with_socket("service.shipping.encoding")
        self._readable = select.poll()  # unlike select it takes descriptors above 1,023
        self._readable.register(self._socket, select.POLLIN)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def ready(self) -> bool:
        """Whether it can work now. Raises `EncoderFailed` if it has ended."""
        with self._working:
            if not self._ready and self._readable.poll(0):
                self._ready = bool(receive(self._socket)[0].get("ready"))
            return self._ready

    def encoded(self, work: CutWork, seconds: float) -> EncodedCut:
        """Encodes a cut. Raises `EncoderFailed`, also without an answer within `seconds`."""
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
        segment = EncodedSegment(bytes(body), footers.decode_footer(metadata), head["text_bytes"])
        carry = work.before.copy()
        carry.save(runs, Last(*(np.frombuffer(part, np.int64) for part in after)))
        return EncodedCut(segment, carry)

    def close(self) -> None:
        """Kills it at once; waiting calls of `encoded` raise `EncoderFailed`."""
        self._process.kill()
        self._process.wait()
        with self._working:
            self._socket.close()


def send(to: socket.socket, head: Mapping[str, Any], *parts: Part) -> None:
    """Sends a message: the size of its head, the head with the sizes of its parts, the parts.

    Raises `EncoderFailed` if the other end is closed.
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
    """Receives the next message. Raises `EncoderFailed` if the other end is closed."""
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
                raise EncoderFailed("the other end is closed")
            got += more
    return data


class OpenFile:
    """A journal file that the process reads."""

    def __init__(self, path: str, file: File) -> None:
        self.path = path
        self._file = file

    def read(self, size: int, offset: int) -> bytes:
        """As `JournalFile.read`. Raises `OSError`."""
        return self._file.pread(size, offset)


def run(parent: socket.socket) -> None:
    """Works until the parent is gone."""
    with suppress(EncoderFailed):
        send(parent, {"ready": True})
        while True:
            head, parts = receive(parent)
            answer: dict[str, Any]
            results: list[Part]
            try:
                answer, results = _encoded(head, parts)
            except Exception as error:  # noqa: BLE001 -- the parent makes it, and raises its own
                answer, results = {"failed": f"{type(error).__name__}: {error}"}, []
            send(parent, answer, *results)


def _encoded(
    head: Mapping[str, Any], parts: Sequence[bytearray]
) -> tuple[dict[str, Any], list[Part]]:
    rows, file_of, *state = parts
    runs = [RunKey(fqn, run) for fqn, run in head["runs"]]
    before = Carry(max(len(runs), 1))
    before.save(runs, Last(*(np.frombuffer(part, np.int64) for part in state)))
    with ExitStack() as opened:
        paths = [os.fsdecode(bytes.fromhex(path)) for path in head["paths"]]
        files = [OpenFile(path, _open(path, opened)) for path in paths]
        batches = JournalBatches(
            head["node"],
            np.frombuffer(rows, BATCH),
            files,
            np.frombuffer(file_of, np.int32),
            runs,
            head["connectors"],
        )
        work = CutWork(batches, head["seq"], head["first"], head["end"], before)
        cut = work.encoded(threads=True)
    segment, last = cut.segment, cut.carry.load(runs)
    about = {"text_bytes": segment.text_bytes, "footer": footers.encode(segment.footer)}
    return about, [segment.body, last.times, last.levels, last.traces]


def _open(path: str, opened: ExitStack) -> File:
    file = Disk().open(path, "read")
    opened.callback(file.close)
    return file


def _offer_to_the_kernel() -> None:
    """Makes the kernel end this process first if memory runs out: no data are lost with it."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


if __name__ == "__main__":
    give_back_freed_memory()
    _offer_to_the_kernel()
    run(socket.socket(fileno=os.dup(0)))
