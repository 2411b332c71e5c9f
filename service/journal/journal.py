"""The open journal of a node.

`append` and the `record_…` calls pass entries to the group writer; `pin` gives a view of
everything that is synced; `release` gives away files whose lines are in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

from logstore.batch import RunKey
from logstore.clock import Clock, Entropy
from logstore.errors import InvalidName, JournalFailed, JournalFull, NodeNotReady, TooLarge
from logstore.filesystem import FileSystem
from logstore.syncer import Syncer
from service.journal import format as wal
from service.journal.failures import translated
from service.journal.file import ReadHandles
from service.journal.reading import Found
from service.journal.recovery import Recovered
from service.journal.recycling import DiskSpace, FileMaker, Spares, Succession
from service.journal.settings import JournalSettings
from service.journal.state import Change, Cut, JournalState
from service.journal.view import JournalPin
from service.journal.writer import Appended, Control, GroupWriter
from service.runtime.threads import Offload

# Inside the class, `bytes` is the journal's size.
_Raw: TypeAlias = bytes

# Files that were let go and stay to be written over.
SPARE_FILES = 2
_MAX_BATCH_BYTES = wal.MAX_ENTRY_BYTES - (1 << 20)
_CONTROL_ROOM = 1 << 20
_NAME_CACHE = 4096


class Journal:
    """The journal of one folder, used from one event loop. It begins a new file when it is made.

    `taken_bytes` counts the text that was appended since then. `offload` runs the filling of a
    spare with zeros while no old file is available.

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
        # A journal that holds only one file could never let anything go.
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
        """The number that the next line gets."""
        return self._writer.next_pos

    @property
    def synced_pos(self) -> int:
        """One past the last line that is certainly on the disk."""
        return self._writer.synced_pos

    @property
    def syncs(self) -> int:
        """How many group syncs there were."""
        return self._writer.syncs

    @property
    def failure(self) -> JournalFailed | None:
        """The error after which the journal accepts nothing any more."""
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
        """Why batches are refused, or no new file is begun, as sentences."""
        if self.failure is not None:
            yield str(self.failure)
        shortage = self.space.shortage()
        if shortage is not None:
            yield shortage
        elif self.postponed is not None:
            yield self.postponed

    def pin(self) -> JournalPin:
        """The part that is synced now; release it, or use it in a `with`. Raises `NodeNotReady`."""
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
        """Reads synced entries again; damaged ones are reported, and never given out again."""
        reason = "are not what was synced: they were left out when their lines were to be shipped"
        for file, rows in pin.damaged(start, end):
            for row in rows:
                offset, size = int(row["offset"]), int(row["size"]) + int(row["meta"])
                if offset not in file.damaged:
                    file.damaged |= {offset}
                    first, lines = int(row["pos"]), int(row["records"])
                    run = file.index.runs[row["run"]]
                    found = Found(
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
        """Appends a batch: its first position, and a future that is done when it is safe.

        `flags` are those of the ULID; that of the metadata is added.

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
        """Makes the cut of a segment durable: all lines so far from `first` on."""
        cut = Cut(seq, first, self.next_pos)
        await self._record(Change.cut(self.state.node, cut), beyond=True)
        return cut

    async def record_close(self, key: RunKey) -> int:
        """Makes a close durable, giving the position below which all lines came before it."""
        pos = self.next_pos
        await self._record(Change.close(key, pos))
        return pos

    async def record_tombstone(self, fqn: str, run: str | None, t: int) -> None:
        """Makes a deletion durable: all ULIDs of the run (or of the pipeline) up to `t`.

        It drops recorded closes of these runs.
        """
        await self._record(Change.tombstone(fqn, run, t))

    async def record_open(self, key: RunKey, connector: str) -> None:
        """Makes durable that a gen-1 connector begins a run."""
        await self._record(Change.opened(key, connector))

    def finish_close(self, key: RunKey, pos: int) -> None:
        """Records that the close at `pos` is done, so that no start repeats it."""
        if self.state.closes.get(key, pos + 1) <= pos:
            self._note(Change.finished_close(key, pos))

    def finish_deletion(self, fqn: str, run: str | None, t: int) -> None:
        """Records that the deletion up to `t` is in the store, so that no start repeats it."""
        self._note(Change.finished_deletion(fqn, run, t))

    def _note(self, change: Change) -> None:
        """Records a change that nobody waits for. If it is lost, the work is done twice."""
        if self._writer.failure is None and not self._closing:
            self._submit(change, urgent=False).add_done_callback(_heard)

    async def synced(self, pos: int) -> None:
        """Returns when all lines below `pos` are on the disk. Raises `JournalFailed`.

        For callers that need a `fast` batch to be durable.
        """
        if pos > self.synced_pos:
            self._check_open()
            await self._submit(Change.none())

    async def _record(self, change: Change, *, beyond: bool = False) -> None:
        """Appends an entry of the state, also when a little more than `max_bytes` is held.

        `beyond` allows any excess, for entries without which nothing could be shipped.
        """
        self._check_open()
        if self.bytes > self._settings.max_bytes + _CONTROL_ROOM and not beyond:
            raise self._full()
        await self._submit(change)

    def _submit(self, change: Change, *, urgent: bool = True) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        self._writer.submit(Control(change.body, change.apply, done, urgent))
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
            f"the journal holds {self.bytes} bytes of at most {self._settings.max_bytes}: "
            "the object store has not taken what it holds"
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

        Only when nothing is unsynced: at the start, and behind a sync. Raises `JournalFull`
        or `NodeNotReady`, which leave everything as it was, or `JournalFailed`.
        """
        with translated("a journal file could not be ended"):
            # Of an older file every byte counts as synced.
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
        """Sees to it that the lines of these runs, or pipelines, leave the disk with their files.

        Begins a new file if the newest one has such lines, or unused space. Raises `JournalFull`
        or `NodeNotReady` if it cannot, and `JournalFailed`.
        """
        self._last_unkept = self.files[-1].ulid
        self._spares.drop_used()
        newest = self.files[-1]
        if newest.space == newest.size and not newest.has_any(deleted):
            return
        self._check_open()
        self._ends_file = True
        await self._submit(Change.none())  # a file ends after a sync
        if self._ends_file:
            raise JournalFull(self.postponed or "no new journal file could be begun")

    def _grown(self) -> None:
        size = self.files[-1].size
        if (size >= self._roll_at or self._ends_file) and not self._closing:
            self._roll_if_possible()
        elif size >= self._file_bytes // 4 and self._spares.lacking:
            # Not at the start of a file: a node with little to do writes no zeros.
            self._spares.begin_to_fill(self.files[-1].ulid)

    def _roll_if_possible(self) -> None:
        try:
            self.roll()
        except (JournalFull, NodeNotReady) as error:
            # The file at hand goes on; a new one is tried again when that has grown.
            self.postponed = str(error)
            self._roll_at = self.files[-1].size + self._file_bytes // 16

    def confirm(self, cut: Cut) -> None:
        """Records that the oldest unconfirmed segment is in the store."""
        self.state.confirm(cut)
        if self._writer.failure is not None or self._closing:
            return
        self._record_confirmed(cut, again=True)

    def _record_confirmed(self, cut: Cut, *, again: bool) -> None:
        done = self._submit(Change.confirm(self.state.node, cut))
        done.add_done_callback(lambda done: self._confirmed(cut, done, again=again))

    def _confirmed(self, cut: Cut, done: asyncio.Future[None], *, again: bool) -> None:
        """Releases what had to stay until the confirmation was on the disk.

        On a full disk it tries once more, because spares are dropped by then. After that it
        releases without: if the node dies before the next file begins, it finds a segment that
        it cannot encode again, and ships what it holds as a fork.
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
        """Makes a file that nobody reads any more a spare, unless it may hold deleted lines."""
        ulid = path.rsplit("/", 1)[-1].removesuffix(wal.SUFFIX)
        self._spares.give(path, size if ulid > self._last_unkept else 0)

    async def close(self) -> None:
        """Syncs everything, then accepts nothing more. Raises `JournalFailed` if it cannot."""
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
    """An entry that nobody waits for may fail: the disk is full, and appends report that."""
    if not done.cancelled():
        done.exception()
