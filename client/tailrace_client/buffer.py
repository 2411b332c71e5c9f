"""Records on their way to the disk: a bounded queue in memory, then a spool.

    put() ─► memory ─► open batch of the spool ─► sealed batches ─► the sender takes them
                └────► a held batch, while the spool cannot be written ─────────┘

`put` may be called from any thread, from a signal handler, and while another `put` of the same
thread runs: it appends to a deque, and the thread that gets the lock writes all records in it. It
waits at most `block_seconds`, for room or for the lock.

Invariants:
- Records reach the spool in the order in which they were put into memory.
- A record is in memory, in the spool, or counted: as delivered, or as dropped.
- A held batch is older than the records that the spool gets while it is held, and is sent first.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import contextmanager, suppress
from typing import Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Tuple

from tailrace_client import system
from tailrace_client.records import BatchIds, dropped_record
from tailrace_client.spool import (
    BatchContent,
    SpooledBatch,
    SpoolEntry,
    SpoolQueue,
    Target,
    written_since,
)
from tailrace_client.system import RetryPause

POLICIES = ("block", "drop-oldest", "drop-newest")
_LOOK_SECONDS = 0.01
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.1, 5.0


class Options(NamedTuple):
    """Limits and waits for keeping and sending records."""

    block_seconds: float = 0.1
    """How long a `put` may wait, for room and for other threads."""
    on_full: str = "drop-oldest"
    """`block` waits `block_seconds` for room, then drops the new record; `drop-newest` drops it
    at once; `drop-oldest` drops the oldest batch that is not being sent."""
    spool_bytes: int = 256 << 20
    """Of the batches of this process."""
    memory_bytes: int = 8 << 20
    """Of records that could not be written to the spool yet, beyond a batch that is being sent."""
    batch_bytes: int = 1 << 20
    linger_seconds: float = 0.2
    """How long the first record of a batch waits for others."""
    sync_seconds: float = 1.0
    """What is written to the spool is synced after this time, and before it is sent."""
    exit_seconds: float = 5.0
    """How long the end of the program waits for the service."""
    write_through: bool = True
    """Whether `put` itself writes to the spool, or leaves that to a thread."""

    def check(self) -> Options:
        """Raises `ValueError` for a value that cannot be."""
        if self.on_full not in POLICIES:
            raise ValueError(f"on_full is {self.on_full!r}: one of {', '.join(POLICIES)}")
        sizes = (self.spool_bytes, self.memory_bytes, self.batch_bytes, self.sync_seconds)
        if min(sizes) <= 0 or self.block_seconds < 0 or self.linger_seconds < 0:
            raise ValueError("sizes and sync_seconds are above 0, the other times 0 or more")
        return self


class _Drop(NamedTuple):
    """Records that were dropped; `counted` already, where only the note about them is new."""

    records: int
    why: str
    at: float
    counted: bool = False


class _Notes(NamedTuple):
    """What a batch says about dropped records: in so many records of it, of so many others."""

    notes: int = 0
    dropped: int = 0


class HeldBatch:
    """A batch in memory, while the spool cannot be written. The sender takes it unchanged."""

    def __init__(self, target: Target, batch: str, entries: List[SpoolEntry]) -> None:
        self.target = target
        self.id = self._origin = batch
        self.entries = entries
        self.given = False

    @property
    def batch(self) -> SpooledBatch:
        """Its id, its records and their bytes."""
        size = sum([len(entry.payload) for entry in self.entries])
        return SpooledBatch(self.id, len(self.entries), size)

    def origin(self, _: str) -> str:
        """The id under which it was made."""
        return self._origin

    def read(self, _: str) -> BatchContent:
        """What it has."""
        payload = b"".join([entry.payload for entry in self.entries])
        return BatchContent(payload, len(self.entries), 0, self.given)

    def send_anew(self, _: str, new: str, since_ms: int) -> Tuple[str, int]:
        """After a deletion: as `SpoolQueue.send_anew`."""
        self.entries, dropped = written_since(self.entries, since_ms)
        self.id, self.given = new, True
        return new if self.entries else "", dropped

    def give_new_id(self, _: str, ids: BatchIds) -> str:
        """As `SpoolQueue.give_new_id`."""
        self.id = ids.mint()
        return self.id

    def remove(self, _: str) -> None:
        """It was acknowledged, or dropped and counted."""
        self.entries = []

    def set_aside(self, _: str, _why: str) -> str:
        """The service does not take it, and it cannot be kept: an empty path says so."""
        self.entries = []
        return ""


class Buffer:
    """The records that this process has put and the service has not acknowledged."""

    def __init__(
        self,
        spool: str,
        target: Target,
        ids: BatchIds,
        options: Options,
        say: Callable[[str], None],
    ) -> None:
        self.queue: Optional[SpoolQueue] = None
        self.sending: Optional[str] = None
        """The origin of the batch that a request may be about: it is not dropped."""
        self.written = 0
        self.on_work: Callable[[], None] = lambda: None
        """Called when there is something to write or to send."""
        self._spool = spool
        self._target = target
        self._ids = ids
        self._options = options
        self._say = say
        self._memory: Deque[SpoolEntry] = deque()
        self._memory_size = 0
        self._held: Optional[HeldBatch] = None
        self._lock = threading.RLock()
        self._inside = False
        self._opened_at = 0.0
        self._disk_error = ""
        self._retries = RetryPause(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
        self._retry_at = 0.0
        self._drops: Deque[_Drop] = deque()
        self._dropped = 0
        self._notes: Dict[str, _Notes] = {}

    @property
    def in_memory(self) -> int:
        """Records that are not in the spool yet."""
        return len(self._memory)

    @property
    def dropped(self) -> int:
        """Records that were dropped so far."""
        return self._dropped + _new(list(self._drops))

    @property
    def pending(self) -> int:
        """Records that are not acknowledged yet."""
        queue = self.queue
        return len(self._memory) + self.held + (0 if queue is None else queue.records)

    @property
    def held(self) -> int:
        """Records of the batch that is in memory because the spool cannot be written."""
        held = self._held
        return 0 if held is None else len(held.entries)

    @property
    def unwritten(self) -> bool:
        """Whether memory has anything that belongs into the spool."""
        return bool(self._memory or self._drops)

    def open(self) -> None:
        """Makes the queue on disk, which else the first record does; what keeps it is said."""
        with self.locked():
            try:
                self._on_disk()
            except OSError as error:
                self._refused(error)

    def put(self, record: bytes, *, may_wait: bool = True) -> bool:
        """Takes a record, a line of ndjson; False if it was dropped."""
        until = system.monotonic() + (self._options.block_seconds if may_wait else 0.0)
        if not self._has_room(len(record), until):
            self.drop(1, self._disk_error or "the spool is full")
            return False
        self._memory.append(SpoolEntry(system.steady_ms(), record))
        self._memory_size += len(record)
        if self._options.write_through:
            self.write(until)
        self.on_work()
        return True

    def has_room(self, size: int) -> bool:
        """Whether so many bytes fit; memory is written first, if that helps."""
        if not self._fits(size) and self._memory:
            self.write(system.monotonic() + self._options.block_seconds)
        return self._fits(size)

    def drop(self, count: int, why: str) -> None:
        """Counts records as dropped; the run is told by the next write."""
        self._drops.append(_Drop(count, why, system.now_ms() / 1000))

    def _has_room(self, size: int, until: float) -> bool:
        policy = self._options.on_full
        if not self._fits(size) and self._memory:
            self.write(until)  # the disk may be well again
        while not self._fits(size):
            if policy == "drop-oldest":
                if not self._drop_oldest(size, until):
                    return False
            elif policy == "drop-newest" or system.monotonic() >= until:
                return False
            else:
                system.sleep(_LOOK_SECONDS)
        return True

    def _fits(self, size: int) -> bool:
        queue = self.queue
        memory = self._memory_size + size
        spooled = 0 if queue is None else queue.size
        return memory <= self._options.memory_bytes and (
            memory + spooled <= self._options.spool_bytes
        )

    def _drop_oldest(self, size: int, until: float) -> bool:
        """Makes room where there still is none; False if there is nothing to drop."""
        with self.locked(until) as held:
            queue = self.queue
            if not held:
                return False
            if not self._memory:
                self._memory_size = 0  # a thread may have added to it after its record was written
            if self._fits(size):
                return True  # what was in memory was written while this thread waited
            if queue is not None:
                queue.seal()
                for batch in queue.sealed():
                    if queue.origin(batch.id) != self.sending:
                        queue.remove(batch.id)
                        self._drop_batch(batch)
                        return True
            if self._memory:
                self._memory_size -= len(self._memory.popleft().payload)
                self.drop(1, self._disk_error or "the spool is full")
                return True
        return False

    def _drop_batch(self, batch: SpooledBatch) -> None:
        why = self._disk_error or "the spool is full"
        lost = self._notes.pop(batch.id, _Notes())
        if lost.dropped:  # the run is told again
            self._drops.append(_Drop(lost.dropped, why, system.now_ms() / 1000, counted=True))
        self.drop(batch.records - lost.notes, why)

    @contextmanager
    def locked(self, until: Optional[float] = None) -> Iterator[bool]:
        """Whether the queue may be changed inside: without `until` always, else if it was free.

        A signal handler may come in at any point, and it must not wait for the thread that it
        interrupts: the lock lets it pass, and `_inside` says whether a change is going on.
        """
        wait = -1.0 if until is None else max(until - system.monotonic(), 0.0)
        if not self._lock.acquire(timeout=wait):
            yield False
            return
        try:
            if self._inside:
                yield False
                return
            self._inside = True
            try:
                yield True
            finally:
                self._inside = False
        finally:
            self._lock.release()

    def write(self, until: Optional[float] = None, *, at_once: bool = False) -> bool:
        """Moves what is in memory to the spool; False if the lock or the disk did not allow it.

        A disk that refused is tried again after a pause, or `at_once`.
        """
        if not at_once and system.monotonic() < self._retry_at:
            return not self.unwritten
        while self.unwritten:
            with self.locked(until) as held:
                if not held or not self._write_some():
                    return False
        return True

    def _write_some(self) -> bool:
        entries = self._from_memory()
        drops = list(self._drops)
        try:
            self._append([*_as_entries(drops), *entries])
        except BaseException as error:  # an interrupt too: what is not written comes back
            self._memory.extendleft(reversed(entries))
            if not isinstance(error, OSError):
                raise
            self._refused(error)
            return False
        self._report(drops)
        self._taken(entries)
        if self._disk_error:
            self._disk_error, self._retry_at = "", 0.0
            self._retries.reset()
            self._say(f"the spool can be written again: {self._spool}")
        return True

    def _from_memory(self) -> List[SpoolEntry]:
        """The oldest records, as many as a batch has."""
        entries: List[SpoolEntry] = []
        size = 0
        with suppress(IndexError):
            while size < self._options.batch_bytes:
                entries.append(self._memory.popleft())
                size += len(entries[-1].payload)
        return entries

    def _taken(self, entries: List[SpoolEntry]) -> None:
        """Counts what has left memory."""
        self.written += len(entries)
        size = sum([len(entry.payload) for entry in entries])
        # Threads add to the size without a lock; where memory is empty it is right again.
        self._memory_size = max(self._memory_size - size, 0) if self._memory else 0

    def _refused(self, error: OSError) -> None:
        """The disk did not take it: says so once, and when it is tried again."""
        reason = f"the spool cannot be written: {error.strerror or error}"
        if reason != self._disk_error:
            self._say(
                f"{reason}: {self._spool}. Records are sent from memory; those that the service"
                " has not taken are lost if this program is killed"
            )
        self._disk_error = reason
        self._retry_at = system.monotonic() + self._retries.pause()

    def _hold(self) -> Optional[HeldBatch]:
        """Makes a batch of what the spool could not take; None if there is nothing."""
        drops = list(self._drops)
        entries = self._from_memory()
        notes = _as_entries(drops)
        if not (notes or entries):
            return None
        for _ in drops:
            self._drops.popleft()
        self._dropped += _new(drops)
        self._taken(entries)
        return HeldBatch(self._target, self._ids.mint(), [*notes, *entries])

    def keep(self, until: float) -> int:
        """Puts what is held and in memory into the spool, if it can be written now.

        Returns how many records are in memory only.
        """
        self.write(until, at_once=True)
        with self.locked(until) as free:
            held = self._held
            if free and held is not None and held.entries:
                try:
                    self._on_disk().keep(held.id, held.entries, given=held.given)
                except OSError as error:
                    self._refused(error)
                else:
                    self._held = None
        return len(self._memory) + self.held

    def _report(self, drops: List[_Drop]) -> None:
        """Counts drops, and remembers which batch has the note about them."""
        if not drops or self.queue is None:
            return
        for _ in drops:
            self._drops.popleft()
        self._dropped += _new(drops)
        batch = self.queue.open_batch
        before = self._notes.get(batch, _Notes())
        dropped = sum([drop.records for drop in drops])
        self._notes[batch] = _Notes(before.notes + 1, before.dropped + dropped)

    def _on_disk(self) -> SpoolQueue:
        """The queue in the spool, which is made if need be. Raises `OSError`."""
        if self.queue is None:
            self.queue = SpoolQueue.create(self._spool, self._target, self._ids)
        return self.queue

    def _append(self, entries: List[SpoolEntry]) -> None:
        queue = self._on_disk()
        if queue.open_size >= self._options.batch_bytes:
            queue.seal()
        if not queue.open_size:
            self._opened_at = system.monotonic()
        queue.append(entries, self._ids)

    def sync(self) -> None:
        """Syncs what is in the spool. Raises `OSError`."""
        with self.locked():
            files = [] if self.queue is None else self.queue.descriptors()
        for file in files:  # others may write meanwhile
            try:
                system.sync(file)
            finally:
                os.close(file)

    def next_held(self) -> Optional[HeldBatch]:
        """The batch to be sent from memory, after all that the spool has; None without one."""
        with self.locked():
            queue = self.queue
            if self._held is not None and not self._held.entries:
                self._held = None
            waits = queue is not None and (queue.sealed() or queue.open_size)
            if self._held is None and self._disk_error and not waits:
                self._held = self._hold()
            self.sending = None if self._held is None else self._held.origin("")
            return self._held

    def next_batch(self, *, at_once: bool = False) -> Tuple[Optional[SpooledBatch], float]:
        """The oldest batch, to be sent: it is sealed and synced. Else seconds until one is due.

        `at_once` does not wait for more records. Raises `OSError`.
        """
        with self.locked():
            queue = self.queue
            if queue is None:
                return None, float("inf")
            batches = queue.sealed()
            if not batches and queue.open_size:
                age = system.monotonic() - self._opened_at
                full = queue.open_size >= self._options.batch_bytes
                if not full and not at_once and age < self._options.linger_seconds:
                    return None, self._options.linger_seconds - age
                queue.seal()
                batches = queue.sealed()
            if not batches:
                return None, float("inf")
            self.sending = queue.origin(batches[0].id)
            self._notes.pop(batches[0].id, None)
        self.sync()
        return batches[0], 0.0

    def leave_to_parent(self) -> None:
        """In a forked child: everything in here is the parent's."""
        if self.queue is not None:
            self.queue.leave_to_parent()


def _new(drops: List[_Drop]) -> int:
    return sum([drop.records for drop in drops if not drop.counted])


def _as_entries(drops: List[_Drop]) -> List[SpoolEntry]:
    if not drops:
        return []
    count = sum([drop.records for drop in drops])
    note = dropped_record(count, drops[-1].why, drops[0].at, drops[-1].at)
    return [SpoolEntry(system.steady_ms(), note)]
