"""The one task that writes: groups of entries, with one write and one fdatasync per group.

The task takes all entries that were submitted meanwhile, writes them with one call, and makes
them durable with one sync, which serves every batch of the group. Meanwhile the event loop
accepts further batches for the next group.

Invariants:

- A `durable` batch's future is done after a sync that covers it; a `fast` one's after
  the write, and its sync follows within `fast_sync_seconds` or `_UNSYNCED_BYTES`.
- Changes of the state are applied with the sync of their entry, before a file may roll,
  so the `state` entry of a new file never misses a change in an older one.
- A file may have space behind its entries, full of old bytes. Every write there ends in an
  `END`, so that the bytes behind it do not look like a torn entry; and nothing of the file's
  present life ever stands behind its last entry.
- A failed write is undone: the file is cut back to its last whole entry, nothing of the
  group is acknowledged, and its positions are given out again. Overwriting its beginning
  would not do: later groups may end where a refused entry begins.
- A failed sync is never retried (the kernel may have dropped the pages).
- However the task ends, every waiting future gets a result or an error. An error in a
  listener is reported to the loop and affects no batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from logstore.batch import AHEAD, RunKey
from logstore.errors import JournalFailed, JournalFull
from logstore.filesystem import File
from logstore.syncer import Syncer
from service.journal import format as wal
from service.journal.failures import FULL
from service.journal.file import JournalFile
from service.journal.state import JournalState


class Appended(NamedTuple):
    """A batch on its way into the file; the tail publishes it once it is synced.

    `crc` is the checksum of head, text and meta, without the file's secret.
    """

    head: bytes
    crc: int
    text: bytes
    meta: bytes
    key: RunKey
    connector: str | None
    ulid: int
    pos: int
    records: int
    lines: int
    digest: int
    fast: bool
    done: asyncio.Future[None]
    flags: int = 0


class Control(NamedTuple):
    """An entry without lines, and the change to be made once it is synced.

    With an empty body it only waits for the sync of all earlier entries. An entry that nobody
    waits for is not `urgent`: it is synced with the next ones, as a `fast` batch is.
    """

    body: bytes
    apply: Callable[[JournalState], None]
    done: asyncio.Future[None]
    urgent: bool = True


Item: TypeAlias = Appended | Control

# What waits for its sync is held in memory for the listeners.
_UNSYNCED_BYTES = 8 << 20
_GATHERED = 64
# Of a large group so much is written at a time; in between the loop answers others.
_STEP_BYTES = 1 << 20


class GroupWriter:
    """Writes to the journal's newest file until it is closed or the disk fails."""

    def __init__(
        self,
        state: JournalState,
        syncer: Syncer,
        *,
        pos: int,
        fast_sync_seconds: float,
        on_synced: Callable[[Sequence[Appended]], None],
        after_sync: Callable[[], None],
        on_full: Callable[[], None],
    ) -> None:
        self._state = state
        self._syncer = syncer
        self._fast_sync_seconds = fast_sync_seconds
        self._on_synced = on_synced
        self._after_sync = after_sync
        self._on_full = on_full
        self._loop = asyncio.get_running_loop()
        self._submitted: list[Item] = []
        self._writing: list[Item] = []
        self._unsynced: list[Item] = []
        self._unsynced_bytes = 0
        self._sync_due = False
        self._next_mark = 0
        self._synced_size = 0
        self._claimed_size = 0
        """How many bytes the file's marks say were synced."""
        self._claim_due = False
        self._claim_timer: asyncio.TimerHandle | None = None
        self._wake: asyncio.Future[None] | None = None
        self._fast_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._out: File | None = None
        self._file: JournalFile
        self.next_pos = pos
        self.written_pos = pos
        self.synced_pos = pos
        self.syncs = 0
        self.listener_failures = 0
        self.failure: JournalFailed | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, file: JournalFile, out: File) -> None:
        """Continues in `file`, whose first `file.size` bytes are synced; starts the task."""
        if self._out is not None:
            self._out.close()
        self._file, self._out = file, out
        self._synced_size = file.size
        self._claimed_size = 0
        self._next_mark = file.size + wal.MARK_EVERY
        if self._task is None:
            self._task = self._loop.create_task(self._work(), name="journal")

    def trim(self) -> None:
        """Cuts unused space off the file, and syncs; call it when nothing is unsynced.

        Raises `OSError`.
        """
        if self._out is not None and self._file.space > self._file.size:
            self._out.truncate(self._file.size)
            self._out.sync()
            self._file.space = self._file.size

    def submit(self, item: Item) -> None:
        """Takes an entry for the next group."""
        self._submitted.append(item)
        self._awake()

    def unsynced(self, key: RunKey) -> list[Appended]:
        """The run's batches that no sync has covered, in order. A refused one is not among them.

        A task sees each batch either here or in the synced part: nothing is awaited in between.
        """
        items = (*self._unsynced, *self._writing, *self._submitted)
        return [item for item in items if isinstance(item, Appended) and item.key == key]

    async def close(self) -> None:
        """Writes and syncs what was submitted, then ends. Raises what broke the task."""
        self._closing = True
        self._awake()
        if self._task is None:
            return
        # Not awaited itself: cancelling the caller must not cancel a sync.
        await asyncio.wait((self._task,))
        self._stop_timers()
        if self._out is not None:
            self._out.close()
        if not self._task.cancelled():
            self._task.result()

    def _awake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _work(self) -> None:
        try:
            while self._submitted or self._unsynced or not self._closing:
                if self._submitted:
                    await self._gather()
                    await self._write()
                if self._unsynced and (self._sync_due or self._closing):
                    await self._sync()
                elif self._claim_due and not self._submitted and not self._unsynced:
                    self._claim()
                elif not self._submitted and not self._closing:
                    await self._sleep()
            self._claim()
        except OSError as error:
            self._fail(JournalFailed(f"the journal's disk failed: {error}"))
        except JournalFailed as failure:
            self._fail(failure)
        except BaseException as error:
            self._fail(JournalFailed(f"the journal's writer was stopped: {error!r}"))
            raise

    async def _gather(self) -> None:
        """Yields to the loop while each turn brings another entry, so that they share the sync."""
        seen = 0
        while seen < len(self._submitted) <= _GATHERED:
            seen = len(self._submitted)
            await asyncio.sleep(0)

    async def _sleep(self) -> None:
        self._wake = self._loop.create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    # --- one group -----------------------------------------------------------------

    async def _write(self) -> None:
        group = self._writing = self._submitted
        self._submitted = []
        assert self._out is not None
        start, marks = self._file.size, (self._next_mark, self._claimed_size)
        pieces, offsets, end = self._layout(group, start)
        try:
            if end - start <= _STEP_BYTES:
                self._out.write_at(pieces, start)
            else:
                await _write_in_steps(self._out, pieces, start)
        except BaseException as error:  # noqa: BLE001 -- raised again, unless the disk is full
            self._next_mark, self._claimed_size = marks
            self._writing = []
            self._refuse(group, error, self._out)
            return
        self._writing = []
        self._file.size = end
        if end > self._file.space:
            self._file.space = end
        self._unsynced_bytes += end - start
        for item, offset in zip(group, offsets, strict=True):
            self._account(item, offset)
        self._file.end_pos = self.written_pos
        self._unsynced += group
        if self._unsynced_bytes >= _UNSYNCED_BYTES:
            self._sync_due = True
        if not self._sync_due and self._fast_timer is None:
            self._fast_timer = self._loop.call_later(self._fast_sync_seconds, self._fast_due)

    def _refuse(self, group: Sequence[Item], error: BaseException, out: File) -> None:
        """Undoes a write that found the disk full; after any other failure the task ends."""
        try:
            if not (isinstance(error, OSError) and error.errno in FULL):
                raise error
            out.truncate(self._file.size)
            self._file.space = self._file.size
        except BaseException as fatal:
            _fail_all(group, JournalFailed(f"writing the journal failed: {fatal!r}"))
            raise
        self.next_pos = self.written_pos
        # What came meanwhile has positions behind those that are given out again.
        later, self._submitted = self._submitted, []
        self._on_full()
        _fail_all([*group, *later], JournalFull(f"the disk of the journal is full: {error}"))

    def _layout(self, group: Sequence[Item], offset: int) -> tuple[list[bytes], list[int], int]:
        """The bytes to write, the offset of each item's body, and where the entries end."""
        secret, pos = self._file.secret, self.written_pos
        pieces: list[bytes] = []
        offsets: list[int] = []
        for item in group:
            if self._synced_size > self._claimed_size or offset >= self._next_mark:
                pieces.append(self._mark_at(offset, pos))
                offset += wal.MARK_BYTES
            offset += wal.PREFIX.size
            offsets.append(offset)
            if isinstance(item, Appended):
                size = len(item.head) + len(item.text) + len(item.meta)
                pieces += (wal.prefix(size, item.crc, secret), item.head, item.text)
                if item.meta:
                    pieces.append(item.meta)
                offset += size
                pos = item.pos + item.records
            elif item.body:
                pieces.append(wal.sealed(item.body, secret))
                offset += len(item.body)
            else:
                offset -= wal.PREFIX.size
        if offset < self._file.space:
            pieces.append(wal.END)
        return pieces, offsets, offset

    def _mark_at(self, offset: int, pos: int) -> bytes:
        self._next_mark = offset + wal.MARK_EVERY
        self._claimed_size = self._synced_size
        return wal.encode_mark(self._file.secret, offset, self._synced_size, pos)

    def _claim(self) -> None:
        """Writes a mark after the last entry, so that a reader knows that it was synced.

        It is not synced itself: a power cut that takes it takes a claim, and no line. A full
        disk has no room for it; the next write begins with a mark.
        """
        self._claim_due = False
        if self._out is None or self._claimed_size == self._synced_size:
            return
        start, marks = self._file.size, (self._next_mark, self._claimed_size)
        end = start + wal.MARK_BYTES
        pieces = [self._mark_at(start, self.written_pos)]
        if end < self._file.space:
            pieces.append(wal.END)
        try:
            self._out.write_at(pieces, start)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._next_mark, self._claimed_size = marks
            self._out.truncate(start)
            self._file.space = start
            return
        self._file.size = end
        self._file.space = max(self._file.space, end)

    def _account(self, item: Item, offset: int) -> None:
        if not isinstance(item, Appended):
            self._sync_due = self._sync_due or item.urgent
            return
        self._file.index.add(
            item.key,
            item.connector,
            offset=offset + len(item.head),
            pos=item.pos,
            ulid=item.ulid,
            digest=item.digest,
            size=len(item.text),
            records=item.records,
            lines=item.lines,
            meta=len(item.meta),
            flags=item.flags,
        )
        self.written_pos = item.pos + item.records
        if item.ulid > self._state.last_ulid and not item.flags & AHEAD:
            self._state.last_ulid = item.ulid
        if item.fast:
            if not item.done.done():
                item.done.set_result(None)
        else:
            self._sync_due = True

    def _fast_due(self) -> None:
        self._fast_timer = None
        self._sync_due = True
        self._awake()

    def _claim_soon(self) -> None:
        self._claim_timer = None
        self._claim_due = True
        self._awake()

    def _stop_timer(self) -> None:
        if self._fast_timer is not None:
            self._fast_timer.cancel()
            self._fast_timer = None

    def _stop_timers(self) -> None:
        self._stop_timer()
        if self._claim_timer is not None:
            self._claim_timer.cancel()
            self._claim_timer = None

    async def _sync(self) -> None:
        self._sync_due = False
        self._stop_timer()
        assert self._out is not None
        await self._syncer.sync(self._out, self._unsynced_bytes)
        # Nobody else writes, so all that is written is synced now.
        items, self._unsynced = self._unsynced, []
        self._unsynced_bytes = 0
        self.syncs += 1
        self._synced_size = self._file.size
        self.synced_pos = self.written_pos
        if self._claim_timer is None:
            self._claim_timer = self._loop.call_later(self._fast_sync_seconds, self._claim_soon)
        batches = []
        for item in items:
            if isinstance(item, Appended):
                batches.append(item)
            else:
                item.apply(self._state)
            if not item.done.done():
                item.done.set_result(None)
        if batches:
            self._tell(batches)
        self._after_sync()

    def _tell(self, batches: Sequence[Appended]) -> None:
        try:
            self._on_synced(batches)
        except Exception as error:  # noqa: BLE001 -- what is synced does not hang on listeners
            self.listener_failures += 1
            self._loop.call_exception_handler(
                {"message": "a listener of the journal failed", "exception": error}
            )

    def _fail(self, failure: JournalFailed) -> None:
        self.failure = failure
        _fail_all([*self._unsynced, *self._submitted], failure)
        self._unsynced, self._submitted = [], []


async def _write_in_steps(out: File, pieces: Iterable[bytes], offset: int) -> None:
    """Writes the pieces from `offset` on, and yields to the loop between the steps."""
    step: list[memoryview] = []
    room = _STEP_BYTES
    for piece in pieces:
        rest = memoryview(piece)
        while len(rest) >= room:
            step.append(rest[:room])
            offset += out.write_at(step, offset)
            rest, step, room = rest[room:], [], _STEP_BYTES
            await asyncio.sleep(0)
        step.append(rest)
        room -= len(rest)
    out.write_at(step, offset)


def _fail_all(items: Iterable[Item], error: JournalFull | JournalFailed) -> None:
    for item in items:
        if not item.done.done():
            item.done.set_exception(error)
