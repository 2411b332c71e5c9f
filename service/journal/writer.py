"""The one task that writes: groups of entries, one write and one fdatasync a group.

It takes all that was submitted since it last looked, writes it with one call, and makes
it durable with one sync, which serves every batch that waited for it. Meanwhile the
event loop takes further batches for the next group.

Invariants:

- A `durable` batch's future is done after a sync that covers it; a `fast` one's after
  the write, and its sync follows within `fast_sync_seconds`.
- Changes of the state are applied with the sync of their entry, before a file may roll,
  so the `state` entry of a new file never misses what stands in an older one.
- A failed write is undone: the file is cut back to its last whole entry, nothing of the
  group is acknowledged, and its positions are given out again.
- A failed sync is never retried (the kernel may have dropped the pages).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from logstore.batch import RunKey
from logstore.syncer import Syncer
from logstore.errors import JournalFailed, JournalFull
from logstore.filesystem import File
from service.journal import format as wal
from service.journal.file import JournalFile
from service.journal.state import JournalState


class Appended(NamedTuple):
    """A batch on its way into the file; what the tail publishes once it is synced."""

    head: bytes
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


class Control(NamedTuple):
    """An entry without lines, and the change of the state that it stands for."""

    entry: bytes
    apply: Callable[[JournalState], None]
    done: asyncio.Future[None]


Item: TypeAlias = Appended | Control


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
    ) -> None:
        self._state = state
        self._syncer = syncer
        self._fast_sync_seconds = fast_sync_seconds
        self._on_synced = on_synced
        self._after_sync = after_sync
        self._loop = asyncio.get_running_loop()
        self._submitted: list[Item] = []
        self._unsynced: list[Item] = []
        self._sync_due = False
        self._next_mark = 0
        self._synced_size = 0
        self._wake: asyncio.Future[None] | None = None
        self._fast_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._out: File | None = None
        self._file: JournalFile
        self.next_pos = pos
        self.written_pos = pos
        self.synced_pos = pos
        self.syncs = 0
        self.failure: JournalFailed | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, file: JournalFile, out: File) -> None:
        """Goes on in `file`, whose first `file.size` bytes are synced; starts the task."""
        if self._out is not None:
            self._out.close()
        self._file, self._out = file, out
        self._synced_size = file.size
        self._next_mark = file.size + wal.MARK_EVERY
        if self._task is None:
            self._task = self._loop.create_task(self._work(), name="journal")

    def submit(self, item: Item) -> None:
        """Takes an entry for the next group."""
        self._submitted.append(item)
        self._awake()

    async def close(self) -> None:
        """Writes and syncs what was submitted, then ends."""
        self._closing = True
        self._sync_due = True
        self._awake()
        if self._task is not None:
            await self._task
        if self._fast_timer is not None:
            self._fast_timer.cancel()
        if self._out is not None:
            self._out.close()

    def _awake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _work(self) -> None:
        try:
            while not self._closing or self._submitted or self._unsynced:
                if not self._submitted and not self._sync_due:
                    await self._sleep()
                if self._submitted:
                    self._write()
                if self._sync_due:
                    await self._sync()
        except OSError as error:
            self._fail(JournalFailed(f"the journal's disk failed: {error}"))
        except Exception as error:
            self._fail(JournalFailed(f"the journal's writer failed: {error!r}"))
            raise

    async def _sleep(self) -> None:
        self._wake = self._loop.create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    # --- one group -----------------------------------------------------------------

    def _write(self) -> None:
        group, self._submitted = self._submitted, []
        assert self._out is not None
        start, mark = self._file.size, self._next_mark
        pieces, offsets = self._layout(group, start)
        try:
            self._file.size = start + self._out.write(pieces)
        except OSError as error:
            self._out.truncate(start)
            self._next_mark = mark
            self.next_pos = self.written_pos
            _fail_all(group, _write_error(error))
            if error.errno not in _FULL:
                raise
            return
        for item, offset in zip(group, offsets, strict=True):
            self._account(item, offset)
        self._file.end_pos = self.written_pos
        self._unsynced += group
        if not self._sync_due and self._fast_timer is None:
            self._fast_timer = self._loop.call_later(self._fast_sync_seconds, self._fast_due)

    def _layout(self, group: Sequence[Item], offset: int) -> tuple[list[bytes], list[int]]:
        """The bytes to write, and the offset of each item's first byte."""
        pieces: list[bytes] = []
        offsets: list[int] = []
        for item in group:
            if offset >= self._next_mark:
                pieces.append(wal.encode_mark(self._file.secret, offset, self._synced_size))
                self._next_mark = offset + wal.MARK_EVERY
                offset += wal.MARK_BYTES
            offsets.append(offset)
            if isinstance(item, Appended):
                pieces += (item.head, item.text, item.meta) if item.meta else (item.head, item.text)
                offset += len(item.head) + len(item.text) + len(item.meta)
            else:
                pieces.append(item.entry)
                offset += len(item.entry)
        return pieces, offsets

    def _account(self, item: Item, offset: int) -> None:
        if not isinstance(item, Appended):
            self._sync_due = True
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
        )
        self.written_pos = item.pos + item.records
        if item.ulid > self._state.last_ulid:
            self._state.last_ulid = item.ulid
        if item.fast:
            _finish(item.done)
        else:
            self._sync_due = True

    def _fast_due(self) -> None:
        self._fast_timer = None
        self._sync_due = True
        self._awake()

    async def _sync(self) -> None:
        self._sync_due = False
        size, pos = self._file.size, self.written_pos
        count = len(self._unsynced)
        assert self._out is not None
        await self._syncer.sync(self._out)
        items = self._unsynced[:count]
        del self._unsynced[:count]
        self.syncs += 1
        self._synced_size = size
        self.synced_pos = pos
        batches = []
        for item in items:
            if isinstance(item, Appended):
                batches.append(item)
            else:
                item.apply(self._state)
            _finish(item.done)
        self._on_synced(batches)
        self._after_sync()

    def _fail(self, failure: JournalFailed) -> None:
        self.failure = failure
        _fail_all([*self._unsynced, *self._submitted], failure)
        self._unsynced, self._submitted = [], []


_FULL = (errno.ENOSPC, errno.EDQUOT)


def _write_error(error: OSError) -> JournalFull | JournalFailed:
    if error.errno in _FULL:
        return JournalFull(f"the disk of the journal is full: {error}")
    return JournalFailed(f"writing the journal failed: {error}")


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _fail_all(items: Iterable[Item], error: JournalFull | JournalFailed) -> None:
    for item in items:
        if not item.done.done():
            item.done.set_exception(error)
