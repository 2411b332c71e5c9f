"""The open journal of a node, and the one task that writes to it.

`Journal.append` and the `record_…` calls pass entries to the `GroupWriter`. `pin` returns a
snapshot of all synced entries. `release` gives away files whose lines are in the store.

The writer task takes all entries that were submitted since its last group, writes them with one
call, and makes them durable with one fdatasync, which serves every batch of the group. During the
sync the event loop accepts further batches for the next group.

Invariants:

- The future of a `durable` batch is done after a sync that covers the batch. The future of a `fast`
  one is done after the write; its sync follows within `fast_sync_seconds` or `_UNSYNCED_BYTES`.
- A change of the state is applied with the sync of its entry, before a file may roll. So the
  `state` entry of a new file contains every change in older files.
- A file may have space after its entries, full of old bytes. Every write into that space ends in an
  `END`, so that the bytes after it do not look like a torn entry. No bytes of the file's present
  life ever follow its last entry.
- A failed write is undone: the file is cut back to its last whole entry, no entry of the group is
  acknowledged, and its positions are given out again. Overwriting only the beginning of the failed
  write would not be enough: later groups may end where a refused entry begins.
- A failed sync is never retried, because the kernel may have dropped the pages.
- However the task ends, every waiting future gets a result or an error. An error in a listener is
  reported to the loop and affects no batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from service.journal import format as wal
from service.journal.file import JournalFile, ReadHandles
from service.journal.files import DiskSpace, FileMaker, Spares, Succession
from service.journal.format import FULL, translated
from service.journal.reader import JournalPin
from service.journal.recovery import DamagedRange, Recovered
from service.journal.state import Cut, JournalState, StateChange
from service.runtime.process import Offload
from service.settings import JournalSettings
from tailrace.logstore.batch import AHEAD, RunKey
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import InvalidName, JournalFailed, JournalFull, NodeNotReady, TooLarge
from tailrace.logstore.filesystem import File, FileSystem, Syncer


class Appended(NamedTuple):
    """A batch that is being written; the tail publishes it once it is synced.

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


class ControlEntry(NamedTuple):
    """An entry without lines, and the change of the state to apply once it is synced.

    An entry with an empty body only waits for the sync of all earlier entries. An entry without a
    waiting caller is not `urgent`: like a `fast` batch, it is synced with the next entries.
    """

    body: bytes
    apply: Callable[[JournalState], None]
    done: asyncio.Future[None]
    urgent: bool = True


Item: TypeAlias = Appended | ControlEntry

# Batches that wait for their sync are held in memory for the listeners.
_UNSYNCED_BYTES = 8 << 20
_GATHERED = 64
# A large group is written in steps of this size, and the loop runs between them.
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
        """Returns the run's accepted batches that no sync has covered, in order.

        Batches move to the synced part without an await, so a task sees each in exactly one place.
        """
        items = (*self._unsynced, *self._writing, *self._submitted)
        return [item for item in items if isinstance(item, Appended) and item.key == key]

    async def close(self) -> None:
        """Writes and syncs all submitted entries, then ends. Raises the error of the task."""
        self._closing = True
        self._awake()
        if self._task is None:
            return
        # The task itself is not awaited: cancelling the caller must not cancel a sync.
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
        """Yields to the loop as long as each turn brings an entry, so that they share the sync."""
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
        """Undoes a write that failed on a full disk; after any other failure the task ends."""
        try:
            if not (isinstance(error, OSError) and error.errno in FULL):
                raise error
            out.truncate(self._file.size)
            self._file.space = self._file.size
        except BaseException as fatal:
            _fail_all(group, JournalFailed(f"writing the journal failed: {fatal!r}"))
            raise
        self.next_pos = self.written_pos
        # Entries submitted since then have positions above those that are given out again.
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

        The mark is not synced: a power cut that loses it loses a claim and no line. If the disk is
        full, it is left out; the next write begins with a mark.
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
        # This is the only writer, so everything written is synced now.
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
            self._report(batches)
        self._after_sync()

    def _report(self, batches: Sequence[Appended]) -> None:
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
    """Writes the pieces from `offset` on, and yields to the loop between steps."""
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


# Inside the class, `bytes` is the journal's size.
_Raw: TypeAlias = bytes

# Released files that are kept to be overwritten.
SPARE_FILES = 2
_MAX_BATCH_BYTES = wal.MAX_ENTRY_BYTES - (1 << 20)
_CONTROL_ROOM = 1 << 20
_NAME_CACHE = 4096


class Journal:
    """The journal of one folder, used from one event loop. Its constructor begins a new file.

    `taken_bytes` counts the bytes of text that were appended since then. `offload` runs the filling
    of a spare with zeros while no old file is available.

    Raises `JournalFull`, `NodeNotReady` or `JournalFailed` if the file cannot be made.
    """

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        syncer: Syncer,
        clock: Clock,
        entropy: Entropy,
        settings: JournalSettings,
        recovered: Recovered,
        state: JournalState,
        on_synced: Callable[[Sequence[Appended]], None],
        offload: Offload | None = None,
        *,
        spare_files: int = SPARE_FILES,
    ) -> None:
        self._settings = settings
        self.state = state
        self.files = list(recovered.files)
        self.succession = Succession()
        self._found = recovered.found
        self._closing = False
        self.postponed: str | None = None
        """Why no new file is begun though one is due."""
        self.taken_bytes = 0
        self._names: dict[tuple[RunKey, str | None], tuple[_Raw, _Raw, _Raw]] = {}
        self._older_bytes = sum(file.size for file in self.files)
        # A journal that holds only one file could never release anything.
        self._file_bytes = min(settings.file_bytes, settings.max_bytes // 4)
        self._roll_at = self._file_bytes
        self._spares = Spares(
            fs, folder, clock, offload,
            file_bytes=self._file_bytes,
            min_free_bytes=settings.min_free_bytes,
            most=spare_files,
            found=recovered.spares,
        )  # fmt: skip
        self._release_pos = 0
        self._confirmed_on_disk = 0
        self._ends_file = False
        self._last_unkept = ""
        """Files up to this ULID may hold deleted lines: none of them becomes a spare."""
        self.space = DiskSpace(fs, folder, self._spares, min_free_bytes=settings.min_free_bytes)
        pos = max(recovered.next_pos, state.last_cut().end)
        self._writer = GroupWriter(
            state,
            syncer,
            pos=pos,
            fast_sync_seconds=settings.fast_sync_seconds,
            on_synced=on_synced,
            after_sync=self._grown,
            on_full=self._spares.drop,
        )
        self._loop = asyncio.get_running_loop()
        handles = ReadHandles(fs) if recovered.handles is None else recovered.handles
        self._maker = FileMaker(fs, folder, clock, entropy, self._spares, handles)
        try:
            self.roll()
        except BaseException:
            self._maker.close()
            raise

    # --- what it holds -------------------------------------------------------------

    @property
    def next_pos(self) -> int:
        """The position of the next line."""
        return self._writer.next_pos

    @property
    def synced_pos(self) -> int:
        """One past the last line that is certainly on the disk."""
        return self._writer.synced_pos

    @property
    def syncs(self) -> int:
        """The number of group syncs so far."""
        return self._writer.syncs

    @property
    def failure(self) -> JournalFailed | None:
        """The error after which the journal accepts no more entries."""
        return self._writer.failure

    @property
    def bytes(self) -> int:
        """Bytes in all its files, without unused space and spares."""
        return self._older_bytes + self.files[-1].size

    @property
    def fullness(self) -> float:
        """The used share of `max_bytes`; at 1 no batch is accepted."""
        return self.bytes / self._settings.max_bytes

    def problems(self) -> Iterator[str]:
        """Yields sentences that say why batches are refused or no new file can be begun."""
        if self.failure is not None:
            yield str(self.failure)
        shortage = self.space.shortage()
        if shortage is not None:
            yield shortage
        elif self.postponed is not None:
            yield self.postponed

    def pin(self) -> JournalPin:
        """Pins the synced entries; release it, or use it in a `with`. Raises `NodeNotReady`."""
        self.succession.check()
        return JournalPin(
            self.state.node,
            list(self.files),
            first_pos=max(self.files[0].first_pos, self.state.base),
            confirmed_pos=self.state.confirmed.end,
            confirmed_seq=self.state.confirmed.seq,
            end_pos=self.synced_pos,
        )

    def unsynced(self, key: RunKey) -> list[Appended]:
        """The run's batches that may not be on the disk yet, in order."""
        return self._writer.unsynced(key)

    def check(self, pin: JournalPin, start: int, end: int) -> None:
        """Reads synced entries again; reports damaged ones, which are never returned again."""
        reason = "are not what was synced: they were left out when their lines were to be shipped"
        for file, rows in pin.damaged(start, end):
            for row in rows:
                offset, size = int(row["offset"]), int(row["size"]) + int(row["meta"])
                if offset not in file.damaged:
                    file.damaged |= {offset}
                    first, lines = int(row["pos"]), int(row["records"])
                    run = file.index.runs[row["run"]]
                    found = DamagedRange(
                        *(file.path, offset, size, "", reason),
                        first=first,
                        end=first + lines,
                        lines=lines,
                        run=run,
                    )
                    self._found.append(found)

    # --- what goes in --------------------------------------------------------------

    def append(
        self,
        key: RunKey,
        ulid: int,
        text: _Raw,
        *,
        records: int,
        lines: int,
        digest: int,
        connector: str | None = None,
        meta: _Raw = b"",
        fast: bool = False,
        flags: int = 0,
    ) -> tuple[int, asyncio.Future[None]]:
        """Appends a batch. Returns its first position and a future that is done when it is safe.

        `flags` are those of the ULID; the flag of the metadata is added.

        Raises `JournalFull`, `JournalFailed`, `NodeNotReady`, `TooLarge`, `InvalidName`; the
        future raises the first two.
        """
        self._check_room(len(text) + len(meta))
        names = self._names.get((key, connector)) or self._encode_names(key, connector)
        writer = self._writer
        pos = writer.next_pos
        flags |= wal.flags_of(meta)
        head, crc = wal.encode_batch(names, ulid, pos, text, records, lines, digest, meta, flags)
        writer.next_pos = pos + records
        self.taken_bytes += len(text)
        done = self._loop.create_future()
        writer.submit(
            Appended(
                *(head, crc, text, meta, key, connector, ulid, pos, records, lines, digest, fast),
                *(done, flags),
            )
        )
        return pos, done

    async def record_cut(self, seq: int, first: int) -> Cut:
        """Makes the cut of a segment durable: all lines so far from position `first` on."""
        cut = Cut(seq, first, self.next_pos)
        await self._record(StateChange.cut(self.state.node, cut), beyond=True)
        return cut

    async def record_close(self, key: RunKey) -> int:
        """Makes a close durable. Returns the position; all lines below it came before the close."""
        pos = self.next_pos
        await self._record(StateChange.close(key, pos))
        return pos

    async def record_tombstone(self, fqn: str, run: str | None, t: int) -> None:
        """Makes a deletion durable: all ULIDs of the run (or of the pipeline) up to `t`.

        It drops recorded closes of these runs.
        """
        await self._record(StateChange.tombstone(fqn, run, t))

    async def record_open(self, key: RunKey, connector: str) -> None:
        """Makes the beginning of a run by a gen-1 connector durable."""
        await self._record(StateChange.opened(key, connector))

    def finish_close(self, key: RunKey, pos: int) -> None:
        """Records that the close at `pos` is done, so that no start repeats it."""
        if self.state.closes.get(key, pos + 1) <= pos:
            self._note(StateChange.finished_close(key, pos))

    def finish_deletion(self, fqn: str, run: str | None, t: int) -> None:
        """Records that the deletion up to `t` is in the store, so that no start repeats it."""
        self._note(StateChange.finished_deletion(fqn, run, t))

    def _note(self, change: StateChange) -> None:
        """Records a change without waiting. If the entry is lost, the work is done twice."""
        if self._writer.failure is None and not self._closing:
            self._submit(change, urgent=False).add_done_callback(_heard)

    async def synced(self, pos: int) -> None:
        """Returns when all lines below `pos` are on the disk. Raises `JournalFailed`.

        For callers that need a `fast` batch to be durable.
        """
        if pos > self.synced_pos:
            self._check_open()
            await self._submit(StateChange.none())

    async def _record(self, change: StateChange, *, beyond: bool = False) -> None:
        """Appends a change of the state, even if the journal slightly exceeds `max_bytes`.

        `beyond` allows any excess, for entries without which nothing could be shipped.
        """
        self._check_open()
        if self.bytes > self._settings.max_bytes + _CONTROL_ROOM and not beyond:
            raise self._full()
        await self._submit(change)

    def _submit(self, change: StateChange, *, urgent: bool = True) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        self._writer.submit(ControlEntry(change.body, change.apply, done, urgent))
        return done

    def _check_open(self) -> None:
        if self._writer.failure is not None:
            raise self._writer.failure
        if self._closing:
            raise NodeNotReady("the node is stopping")

    def _check_room(self, size: int) -> None:
        if self._writer.failure is not None or self._closing:
            self._check_open()
        if self._older_bytes + self.files[-1].size + size > self._settings.max_bytes:
            raise self._full()
        if size > _MAX_BATCH_BYTES:
            raise TooLarge(f"a batch of {size} bytes; an entry holds {_MAX_BATCH_BYTES}")
        self.space.take(size)

    def _full(self) -> JournalFull:
        return JournalFull(
            f"the journal holds {self.bytes} bytes of at most {self._settings.max_bytes}: the"
            f" object store has not stored its lines"
        )

    def _encode_names(self, key: RunKey, connector: str | None) -> tuple[_Raw, _Raw, _Raw]:
        if len(self._names) >= _NAME_CACHE:
            self._names.clear()
        names = (key.fqn.encode(), key.run.encode(), (connector or "").encode())
        if max(map(len, names)) > wal.MAX_NAME_BYTES:
            raise InvalidName(f"a name has more than {wal.MAX_NAME_BYTES} bytes of UTF-8")
        self._names[key, connector] = names
        return names

    # --- files ---------------------------------------------------------------------

    def roll(self) -> None:
        """Begins a new file whose first entry is the present state, synced.

        Call it only when nothing is unsynced: at the start, and after a sync. Raises `JournalFull`
        or `NodeNotReady`, which leave everything unchanged, or `JournalFailed`.
        """
        with translated("a journal file could not be ended"):
            # Every byte of an older file counts as synced.
            self._writer.trim()
        file, out = self._maker.make(self.state, self._writer.written_pos, self.files)
        self.postponed = None
        self._ends_file = False
        self._older_bytes = sum(older.size for older in self.files)
        self.files.append(file)
        self._roll_at = self._file_bytes
        self._writer.begin(file, out)
        self._confirmed_on_disk = self.state.confirmed.end
        if len(self.files) > 1:
            self.files[-2].spill_index()
        self._let_go()

    async def end_file_of(self, deleted: Collection[tuple[str, str | None]]) -> None:
        """Ends the newest file if needed, so that bytes of these runs or pipelines leave the disk.

        Begins a new file if the newest one has such lines or unused space. Raises `JournalFull` or
        `NodeNotReady` if it cannot, and `JournalFailed`.
        """
        self._last_unkept = self.files[-1].ulid
        self._spares.drop_used()
        newest = self.files[-1]
        if newest.space == newest.size and not newest.has_any(deleted):
            return
        self._check_open()
        self._ends_file = True
        await self._submit(StateChange.none())  # a file ends after a sync
        if self._ends_file:
            raise JournalFull(self.postponed or "no new journal file could be begun")

    def _grown(self) -> None:
        size = self.files[-1].size
        if (size >= self._roll_at or self._ends_file) and not self._closing:
            self._roll_if_possible()
        elif size >= self._file_bytes // 4 and self._spares.lacking:
            # Not at the start of a file: a node with little traffic writes no zeros.
            self._spares.begin_to_fill(self.files[-1].ulid)

    def _roll_if_possible(self) -> None:
        try:
            self.roll()
        except (JournalFull, NodeNotReady) as error:
            # The present file is used further; a new one is tried again once it has grown.
            self.postponed = str(error)
            self._roll_at = self.files[-1].size + self._file_bytes // 16

    def confirm(self, cut: Cut) -> None:
        """Records that the oldest unconfirmed segment is in the store."""
        self.state.confirm(cut)
        if self._writer.failure is not None or self._closing:
            return
        self._record_confirmed(cut, again=True)

    def _record_confirmed(self, cut: Cut, *, again: bool) -> None:
        done = self._submit(StateChange.confirm(self.state.node, cut))
        done.add_done_callback(lambda done: self._confirmed(cut, done, again=again))

    def _confirmed(self, cut: Cut, done: asyncio.Future[None], *, again: bool) -> None:
        """Releases files that had to stay until the confirmation was on the disk.

        If the disk is full, it records the confirmation once more, because spares are dropped by
        then. If that fails too, it releases the files without a record: if the node dies before the
        next file begins, it finds a segment that it cannot encode again, and ships the lines
        that it holds as a fork.
        """
        if done.cancelled() or isinstance(done.exception(), JournalFailed):
            return
        if done.exception() is not None and again and not self._closing:
            self._record_confirmed(cut, again=False)
            return
        self._confirmed_on_disk = max(self._confirmed_on_disk, cut.end)
        self._let_go()

    def release(self, pos: int) -> None:
        """Gives away every file whose lines are all below `pos`, oldest first.

        Waits until a synced entry says that their segments are confirmed.
        """
        self._release_pos = max(self._release_pos, pos)
        self._let_go()

    def _let_go(self) -> None:
        pos = min(self._release_pos, self._confirmed_on_disk)
        while len(self.files) > 1 and self.files[0].end_pos <= pos:
            file = self.files.pop(0)
            self._older_bytes -= file.size
            self.succession.let_go(file, self._give)

    def _give(self, path: str, size: int) -> None:
        """Makes a spare of a file without readers, unless it may hold deleted lines."""
        ulid = path.rsplit("/", 1)[-1].removesuffix(wal.SUFFIX)
        self._spares.give(path, size if ulid > self._last_unkept else 0)

    async def close(self) -> None:
        """Syncs everything, then accepts no more entries. Raises `JournalFailed`."""
        self._closing = True
        await self._spares.close()
        known = self.failure
        try:
            await self._writer.close()
        finally:
            for file in self.files:
                file.close()
            self._maker.close()
        if self.failure is not None and known is None:
            raise self.failure


def _heard(done: asyncio.Future[None]) -> None:
    """Ignores the error of an entry without a waiting caller: appends report a full disk."""
    if not done.cancelled():
        done.exception()
