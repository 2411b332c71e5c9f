"""The open journal of a node: what may go in, what is held, what may go.

`append` and the `record_…` calls hand entries to the group writer; `pin` gives a view
of what is synced; `release` lets files go whose lines are in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.syncer import Syncer
from logstore.entropy import Entropy
from logstore.errors import JournalFailed, JournalFull, NodeNotReady
from logstore.filesystem import FileSystem
from service.journal import format as wal
from service.journal.file import JournalFile
from service.journal.index import FileIndex
from service.journal.recovery import Recovered
from service.journal.state import Cut, JournalState, encode_cut_entry
from service.journal.view import JournalPin
from service.journal.writer import Appended, Control, GroupWriter

_ENTRY_OVERHEAD = 256
_NAME_CACHE = 4096
_FILE_CHAIN = 1000


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """When a file is full, how much all files may take, how long `fast` waits for its sync."""

    file_bytes: int = 64 << 20
    max_bytes: int = 8 << 30
    fast_sync_seconds: float = 1.0


class Journal:
    """Used from one event loop. Begins a new file when it is made.

    `taken_bytes` counts the text that was appended since then.
    """

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        syncer: Syncer,
        clock: Clock,
        entropy: Entropy,
        limits: JournalLimits,
        recovered: Recovered,
        state: JournalState,
        on_synced: Callable[[Sequence[Appended]], None],
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._clock = clock
        self._entropy = entropy
        self._limits = limits
        self.state = state
        self.files = list(recovered.files)
        self._closing = False
        self.taken_bytes = 0
        self._names: dict[tuple[RunKey, str | None], tuple[bytes, bytes, bytes]] = {}
        self._older_bytes = sum(file.size for file in self.files)
        pos = max(recovered.next_pos, state.last_cut().end)
        self._writer = GroupWriter(
            state,
            syncer,
            pos=pos,
            fast_sync_seconds=limits.fast_sync_seconds,
            on_synced=on_synced,
            after_sync=self._roll_if_full,
        )
        self._loop = asyncio.get_running_loop()
        self.roll()

    # --- what it holds -------------------------------------------------------------

    @property
    def next_pos(self) -> int:
        """The number that the next line gets."""
        return self._writer.next_pos

    @property
    def synced_pos(self) -> int:
        """One past the last line that is on the disk for sure."""
        return self._writer.synced_pos

    @property
    def syncs(self) -> int:
        """How many group syncs there were."""
        return self._writer.syncs

    @property
    def failure(self) -> JournalFailed | None:
        """Why the journal takes nothing any more."""
        return self._writer.failure

    @property
    def bytes(self) -> int:
        """The size of all its files."""
        return self._older_bytes + self.files[-1].size

    def pin(self) -> JournalPin:
        """The synced part of now; release it, or use it in a `with`."""
        return JournalPin(
            self.state.node,
            list(self.files),
            first_pos=max(self.files[0].first_pos, self.state.base),
            confirmed_pos=self.state.confirmed.end,
            end_pos=self.synced_pos,
        )

    # --- what goes in --------------------------------------------------------------

    def append(
        self,
        key: RunKey,
        ulid: int,
        text: bytes,
        *,
        records: int,
        lines: int,
        digest: int,
        connector: str | None = None,
        meta: bytes = b"",
        fast: bool = False,
    ) -> tuple[int, asyncio.Future[None]]:
        """Takes a batch: its first position, and a future that is done when it is safe.

        Raises `JournalFull`, `JournalFailed`, `NodeNotReady`; the future raises the first two.
        """
        self._check_room(len(text) + len(meta))
        names = self._names.get((key, connector)) or self._encode_names(key, connector)
        writer = self._writer
        pos = writer.next_pos
        head = wal.encode_batch(names, ulid, pos, text, records, lines, digest, meta)
        writer.next_pos = pos + records
        self.taken_bytes += len(text)
        done = self._loop.create_future()
        writer.submit(
            Appended(
                head, text, meta, key, connector, ulid, pos, records, lines, digest, fast, done
            )
        )
        return pos, done

    async def record_cut(self, seq: int, first: int) -> Cut:
        """Makes the cut of a segment durable: all lines from `first` on that were taken by now."""
        cut = Cut(seq, first, self.next_pos)
        entry = encode_cut_entry(self.state.node, cut)
        await self._record(wal.CUT, entry, lambda state: state.cuts.append(cut))
        return cut

    async def record_close(self, key: RunKey) -> int:
        """Makes a close durable, giving the position below which all came before it."""
        pos = self.next_pos

        def apply(state: JournalState) -> None:
            state.closes[key] = pos

        await self._record(wal.CLOSE, {"fqn": key.fqn, "run": key.run, "pos": pos}, apply)
        return pos

    async def record_tombstone(self, fqn: str, run: str | None, t: int) -> None:
        """Makes a deletion durable: all ULIDs of the run (or of the pipeline) up to `t`."""

        def apply(state: JournalState) -> None:
            state.tombstones[fqn, run] = max(state.tombstones.get((fqn, run), 0), t)

        entry = {"fqn": fqn, "run": run, "t": ulids.encode(t)}
        await self._record(wal.TOMBSTONE, entry, apply)

    async def _record(
        self, kind: int, value: Mapping[str, Any], apply: Callable[[JournalState], None]
    ) -> None:
        self._check_room(_ENTRY_OVERHEAD)
        done = self._loop.create_future()
        self._writer.submit(Control(wal.encode_json(kind, value), apply, done))
        await done

    def _check_room(self, size: int) -> None:
        if self._writer.failure is not None:
            raise self._writer.failure
        if self._closing:
            raise NodeNotReady("the node is stopping")
        if self.bytes + size + _ENTRY_OVERHEAD > self._limits.max_bytes:
            raise JournalFull(
                f"the journal holds {self.bytes} bytes of at most {self._limits.max_bytes}: "
                "the object store has not taken what it holds"
            )

    def _encode_names(self, key: RunKey, connector: str | None) -> tuple[bytes, bytes, bytes]:
        if len(self._names) >= _NAME_CACHE:
            self._names.clear()
        names = (key.fqn.encode(), key.run.encode(), (connector or "").encode())
        self._names[key, connector] = names
        return names

    # --- files ---------------------------------------------------------------------

    def roll(self) -> None:
        """Begins a new file whose first entry is the state of now, synced.

        Only when nothing is unsynced: at the start, and behind a sync.
        """
        pos = self._writer.written_pos
        ulid = ulids.encode(self._next_file_ulid())
        self.state.files = [*self.state.files, ulid][-_FILE_CHAIN:]
        secret = self._entropy.getrandbits(64).to_bytes(8, "big")
        path = f"{self._folder}/{ulid}{wal.SUFFIX}"
        out = self._fs.open(path, "create")
        header = wal.encode_header(file=ulid, secret=secret, first_pos=pos, node=self.state.node)
        size = out.write([header, wal.encode_json(wal.STATE, self.state.encoded(pos=pos))])
        out.sync()
        self._fs.sync_folder(self._folder)
        file = JournalFile(
            self._fs,
            path,
            ulid=ulid,
            secret=secret,
            node=self.state.node,
            first_pos=pos,
            size=size,
            index=FileIndex(),
        )
        self._older_bytes = sum(older.size for older in self.files)
        self.files.append(file)
        self._writer.begin(file, out)
        if len(self.files) > 1:
            self.files[-2].spill_index()

    def _next_file_ulid(self) -> int:
        """Above every older file's, so that order of names is order of files."""
        fresh = ulids.fresh(self._clock, self._entropy)
        newest = ulids.decode(self.files[-1].ulid) if self.files else 0
        return max(fresh, newest + 1)

    def _roll_if_full(self) -> None:
        if self.files[-1].size >= self._limits.file_bytes and not self._closing:
            self.roll()

    def release(self, pos: int) -> None:
        """Lets every file go, oldest first, whose lines are all below `pos`."""
        while len(self.files) > 1 and self.files[0].end_pos <= pos:
            file = self.files.pop(0)
            self._older_bytes -= file.size
            file.release()

    def confirm(self, cut: Cut) -> None:
        """The oldest unconfirmed segment is in the store."""
        self.state.confirm(cut)

    def reincarnate(self, node: str, base: int) -> None:
        """Goes on as another node, to which all lines from `base` on belong.

        What was cut before is void. The caller sees to it that nothing is being appended.
        """
        self.state.reincarnate(node, base)
        self.roll()

    async def close(self) -> None:
        """Syncs what was taken, then takes nothing more."""
        self._closing = True
        await self._writer.close()
        for file in self.files:
            file.close()
