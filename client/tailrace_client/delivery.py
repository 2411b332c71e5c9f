"""Delivers records of one run: buffer, spool and sender put together.

    delivery = Delivery(Service(url), "/var/spool/me", Target(url, fqn, run), Options(), say=print)
    delivery.put(encode_record("hello", level="INFO"))
    delivery.close(Closing("success"), seconds=5)

Two threads: one writes to the spool the records that a `put` could not write, and syncs; one sends.
Both begin with the first record. Neither keeps the program from ending.

A forked child begins anew: unsent records of its parent stay the parent's, and its own records
go into a queue of its own. A queue whose process has ended is delivered by any process that
uses the same spool for the same service: of the same run first, others when there is time.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Set

from tailrace_client import system
from tailrace_client.buffer import Buffer, Options
from tailrace_client.presence import Presence
from tailrace_client.records import BatchIds
from tailrace_client.sender import BatchSource, Sender
from tailrace_client.service import Service
from tailrace_client.spool import (
    Closing,
    SpooledBatch,
    SpoolQueue,
    Target,
    has_work,
    queues,
    read_target,
    set_aside_in,
)

_IDLE_SECONDS = 1.0
_ADOPT_SECONDS = 2.0
_LOOK_SECONDS = 0.01
_STOPPED_SECONDS = 0.05
_HURRIED_SECONDS = 0.5
_REFUSED_SECONDS = 3600.0


class Stats(NamedTuple):
    """Numbers of this process's records by outcome; `pending` are not acknowledged yet.

    `delivered` and the later fields also count those of other processes' queues.
    """

    accepted: int
    pending: int
    dropped: int
    delivered: int
    duplicates: int
    deleted: int
    refused: int


class Left(NamedTuple):
    """The number of records that could not be delivered in time, and their folder.

    `lost` are further ones that are not in it, because the spool cannot be written.
    """

    records: int
    folder: str
    lost: int = 0


class Delivery:
    """Takes records of one run and delivers them. Raises `OSError` if the spool cannot be used.

    `say` takes a sentence for the program's user, when something is wrong or well again. With
    `started_ms` it reports that the run began then, and that its client lives, until it is closed.
    """

    def __init__(
        self,
        service: Service,
        spool: str,
        target: Target,
        options: Optional[Options] = None,
        *,
        say: Callable[[str], None],
        ids: Optional[BatchIds] = None,
        started_ms: Optional[int] = None,
    ) -> None:
        self.spool = os.path.abspath(spool)
        self.target = target
        self._service = service
        self._options = (options or Options()).check()
        self._say = say
        self._ids = ids or BatchIds()
        for path in self._queues():
            self._ids.go_above(os.path.basename(path))
        self._begin()
        self._buffer.open()
        self.owner = os.getpid()
        self._presence: Optional[Presence] = None
        if started_ms is not None:
            with suppress(OSError):  # only for a program after this one to report
                if self._buffer.queue is not None:
                    self._buffer.queue.started_ms = started_ms
            self._presence = Presence(
                service, target.fqn, target.run, started_ms, reported=self._start_reported
            )
            self._sender.presence = self._presence
            self._presence.start()
        _living.add(self)

    def _begin(self) -> None:
        """The state of a process; a forked child has its own."""
        self._buffer = Buffer(self.spool, self.target, self._ids, self._options, self._say)
        self._buffer.on_work = self._wake
        self._sender = Sender(
            self._service, self._ids, lock=self._buffer.locked, pause=self._pause, say=self._say
        )
        self._threads: tuple[threading.Thread, ...] = ()
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._writes: SimpleQueue[None] = SimpleQueue()
        self._asleep = self._writer_asleep = False
        self._stop = threading.Event()
        self._done = threading.Event()
        self._until: Optional[float] = None
        self._closing: Optional[Closing] = None
        self._adopted_at = self._refused_at = float("-inf")
        self._refused: Set[str] = set()
        self._working = threading.Lock()
        self._adopted: Optional[SpoolQueue] = None
        self._hurried = False

    def _queues(self) -> List[str]:
        """The queues of the spool; none if it cannot be read, which the buffer says."""
        try:
            return queues(self.spool)
        except OSError:
            return []

    def _start_reported(self) -> None:
        with self._buffer.locked(), suppress(OSError):
            if self._buffer.queue is not None:
                self._buffer.queue.start_reported()

    # --- for the program -------------------------------------------------------------

    def put(self, record: bytes) -> bool:
        """Takes a record, a line of ndjson; False if it was dropped, which is counted."""
        if self._until is not None:
            self._buffer.drop(1, "the delivery is closed")
            return False
        if not self._threads:
            self._start()
        return self._buffer.put(record, may_wait=threading.current_thread() not in self._threads)

    def put_all(self, records: Sequence[bytes]) -> int:
        """Takes records with one write to the spool; how many were dropped, which are counted."""
        taken = sum([self.put(record) for record in records])
        self._buffer.write(system.monotonic() + self._options.block_seconds)
        return len(records) - taken

    def has_room(self, size: int) -> bool:
        """Whether records of so many bytes fit now, without dropping others."""
        return self._buffer.has_room(size)

    def flush(self) -> None:
        """Writes what is in memory to the spool and syncs it; does not wait for the service."""
        self._buffer.write(system.monotonic() + self._options.block_seconds)
        self._buffer.sync()

    def wait(self, seconds: float) -> bool:
        """Waits until everything is acknowledged; False if that takes longer than `seconds`."""
        until = system.monotonic() + seconds
        while self._buffer.pending:
            if system.monotonic() > until:
                return False
            system.sleep(_LOOK_SECONDS)
        return True

    @property
    def stats(self) -> Stats:
        """What became of the records so far."""
        counts, buffer = self._sender.counts, self._buffer
        return Stats(
            buffer.written + buffer.in_memory,
            buffer.pending,
            buffer.dropped,
            counts.delivered,
            counts.duplicates,
            counts.deleted,
            counts.refused,
        )

    def close(self, closing: Optional[Closing], seconds: float) -> Optional[Left]:
        """Delivers what there is and then closes the run, unless `closing` is None.

        Takes at most `seconds`, and a `block_seconds`. What is left stays in the spool, with
        the wish to close the run; returned is how much it is. None: all was delivered.
        """
        if self._until is None:
            if closing is not None:
                began_ms = None if self._presence is None else self._presence.started_ms
                closing = closing._replace(started_ms=began_ms, ended_ms=system.now_ms())
            self._closing = closing
            self._until = system.monotonic() + seconds
            self._buffer.write(system.monotonic() + self._options.block_seconds)
            self._stop.set()
            self._wakes.put(None)
            self._writes.put(None)
        if not self._threads:
            self._start()
        if self._threads:
            self._done.wait(max(self._until - system.monotonic(), 0.0))
        else:  # the interpreter starts no threads any more
            self._service.timeout_seconds = min(self._service.timeout_seconds, max(seconds, 0.1))
            self._send()
        return None if self._done.is_set() else self._leave()

    def _leave(self) -> Optional[Left]:
        """Writes a note of the steps that another process has to do."""
        buffer = self._buffer
        lost = buffer.keep(system.monotonic() + _STOPPED_SECONDS)
        with buffer.locked(system.monotonic() + _STOPPED_SECONDS) as held, suppress(OSError):
            if held and buffer.queue is not None and not self._done.is_set():
                buffer.queue.seal()
                if self._closing is not None:
                    buffer.queue.closing = self._closing
        with suppress(OSError):
            buffer.sync()
        folder = os.path.join(self.spool, "") if buffer.queue is None else buffer.queue.path
        return Left(buffer.pending - lost, folder, lost)

    # --- threads -----------------------------------------------------------------------

    def _start(self) -> None:
        buffer = self._buffer
        with buffer.locked(system.monotonic() + self._options.block_seconds) as held:
            if not held or self._threads:
                return
            sender = threading.Thread(target=self._send, name="tailrace-sender", daemon=True)
            writer = threading.Thread(target=self._write, name="tailrace-writer", daemon=True)
            with suppress(RuntimeError):  # the interpreter ends: `close` sends
                sender.start()
                self._threads = (sender,)
                writer.start()
                self._threads = (sender, writer)
        if os.getpid() != self.owner:
            self._wait_at_exit_of_child()

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            self._wakes.put(None)
        if self._writer_asleep and self._buffer.unwritten:
            self._writer_asleep = False
            self._writes.put(None)

    def _write(self) -> None:
        """The writer: puts into the spool what is in memory, and syncs."""
        synced_at = system.monotonic()
        while not self._stop.is_set():
            self._writer_asleep = True
            if not self._buffer.unwritten:
                with suppress(Empty):
                    self._writes.get(timeout=self._options.sync_seconds)
            self._writer_asleep = False
            if not self._buffer.write():
                self._stop.wait(_STOPPED_SECONDS)  # the disk refuses: the sender takes it of memory
            if system.monotonic() - synced_at >= self._options.sync_seconds:
                with suppress(OSError):  # said when it is to be sent
                    self._buffer.sync()
                synced_at = system.monotonic()

    def _send(self) -> None:
        """The sender: sends batch by batch; once stopped, until all is sent or time is up."""
        with self._working:
            try:
                if self._adopt(own=True):
                    while self._turn():
                        pass
            finally:
                self._release()

    def _turn(self) -> bool:
        """Sends a batch, or waits for one; False when there is nothing to do any more."""
        stopping = self._stop.is_set()
        try:
            if stopping:
                self._buffer.write(self._until)
            held = self._buffer.next_held()
            if held is not None:
                return self._deliver(held, held.batch)
            batch, seconds = self._buffer.next_batch(at_once=stopping)
            if batch is not None and self._buffer.queue is not None:
                return self._deliver(self._buffer.queue, batch)
        except OSError as error:
            self._say(f"the spool {self.spool} cannot be read or written: {error.strerror}")
            return self._pause(_IDLE_SECONDS)
        if stopping:
            self._finish()
            return False
        if not self._adopt(own=False):
            return False
        self._asleep = seconds > _IDLE_SECONDS
        if self._asleep and self._buffer.pending:  # it came before we slept
            seconds = 0.0
        with suppress(Empty):
            self._wakes.get(timeout=max(min(seconds, _IDLE_SECONDS), 0.001))
        self._asleep = False
        return True

    def _deliver(self, batches: BatchSource, batch: SpooledBatch) -> bool:
        try:
            return self._sender.deliver(batches, batch)
        finally:
            self._buffer.sending = None

    def _finish(self) -> None:
        """All is sent: closes the run and removes the queue."""
        if self._buffer.unwritten or not self._adopt(own=True):  # children that have ended
            return
        if self._presence is not None:
            self._presence.stop()
        if self._closing is None or self._sender.close_run(self.target, self._closing):
            with self._buffer.locked():
                if self._buffer.queue is not None:
                    self._buffer.queue.closed()
                self._done.set()

    def _release(self) -> None:
        with self._buffer.locked(), suppress(OSError):
            queue = self._buffer.queue
            if queue is not None:
                if not self._done.is_set() and self._closing is not None:
                    queue.closing = self._closing
                queue.release()
        self._service.close()

    def _pause(self, seconds: float, asked: bool = False) -> bool:
        """Waits before the next attempt; False if there is no time for it.

        When the program closes, there is an attempt at once, and then each half second, but
        not sooner than the service `asked` for.
        """
        began = system.monotonic()
        if not self._stop.is_set() and not self._stop.wait(seconds):
            return True
        now = system.monotonic()
        rest = max(began + seconds - now, 0.0)
        if not asked:
            rest = min(rest, _HURRIED_SECONDS) if self._hurried else 0.0
            self._hurried = True
        if self._until is None or now + rest >= self._until:
            return False
        system.sleep(rest)
        return True

    # --- queues of others ----------------------------------------------------------------

    def _adopt(self, *, own: bool) -> bool:
        """Delivers queues whose processes have ended; with `own`, those of this run.

        False if there is no time any more.
        """
        now = system.monotonic()
        if not own and now - self._adopted_at < _ADOPT_SECONDS:
            return True
        self._adopted_at = now
        if now - self._refused_at >= _REFUSED_SECONDS:
            self._refused_at = now
            self._find_refused()
        for path in self._queues():
            if not has_work(path) and path not in self._refused:
                continue
            try:
                target = read_target(path)
                if target.url != self.target.url or (own and target[:3] != self.target[:3]):
                    continue
                queue = SpoolQueue.take_over(path, refused=path in self._refused)
                self._refused.discard(path)
            except (OSError, ValueError) as error:
                self._say(f"a queue of the spool cannot be read: {error}")
                continue
            if queue is not None and not self._deliver_all(queue):
                return False
        return True

    def _find_refused(self) -> None:
        """Says what the service refused, also in programs before this one, and has it retried."""
        aside = {queue: set_aside_in(queue) for queue in self._queues()}
        self._refused = {queue for queue, paths in aside.items() if paths}
        found = [path for paths in aside.values() for path in paths]
        if found:
            batches = "1 batch" if len(found) == 1 else f"{len(found)} batches"
            self._say(
                f"ALARM: {batches} that the service refused or that are damaged are in the spool,"
                f" such as {found[0]}: refused ones are sent again by each start and once an hour"
            )

    def _deliver_all(self, queue: SpoolQueue) -> bool:
        self._adopted = queue
        try:
            self._sender.report_start(queue)
            for batch in queue.sealed():
                if not self._sender.deliver(queue, batch):
                    return False
            closing = queue.closing
            if closing is not None:
                if not self._sender.close_run(queue.target, closing):
                    return False
                queue.closed()
            return True
        finally:
            self._adopted = None
            queue.release()

    # --- fork ----------------------------------------------------------------------------

    def _wait_at_exit_of_child(self) -> None:
        """Children of multiprocessing may end without `atexit`."""
        util: Any = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, self.close, (None, self._options.exit_seconds), exitpriority=0)

    def after_fork(self) -> None:
        """In a forked child: begins anew, and leaves to the parent what is the parent's."""
        with suppress(OSError):
            self._buffer.leave_to_parent()
            if self._adopted is not None:
                self._adopted.leave_to_parent()
        self._presence = None  # the parent reports
        self._ids.after_fork()
        self._service.after_fork()
        self._begin()


_living: weakref.WeakSet[Delivery] = weakref.WeakSet()


def _after_fork() -> None:
    for delivery in list(_living):
        delivery.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
