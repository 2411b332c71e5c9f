"""Verifies the journal of a data folder that no service holds; reads it and changes nothing.

Damage, files that are no journal, and gaps in positions below which nothing says that the
lines are in the store, are faults. What was never synced is none. Lines of confirmed
segments are given file by file and run by run, to be compared with what the store has of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from logstore.batch import BATCH, Indexes, Rows, RunKey
from logstore.errors import Damaged, InvalidInput, UnsupportedVersion
from logstore.filesystem import File, FileSystem
from logstore.runs.blocks import blocks_of
from service.journal import format as wal
from service.journal.file import JournalFile
from service.journal.index import select
from service.journal.replay import Replay
from service.journal.scan import Damage, Entry, read_header, salvage_header, scan
from service.journal.view import JournalBatches
from tailrace.verification.fault import Findings
from tailrace.verification.records import records

_STRETCH = 8 << 20  # bytes of text
Copies = tuple[RunKey, pa.Table]
Report = Callable[[str], None]


@dataclass(slots=True)
class JournalCheck:
    """Reads the files below `folder`, oldest first, one at a time."""

    fs: FileSystem
    folder: str
    findings: Findings
    _replay: Replay = field(default_factory=Replay)
    _gaps: list[tuple[int, str, str]] = field(default_factory=list)
    _end: int | None = None

    def confirmed(self) -> int | None:
        """Reads all files: below which position lines are in segments; None without a journal.

        Raises `OSError` if the disk does not give them.
        """
        names = self._names()
        for name in names:
            self._read(name, newest=name == names[-1])
        state = self._replay.state
        shipped = 0 if state is None else state.confirmed.end
        for first, path, detail in self._gaps:
            if first > shipped:
                self.findings.add("journal-gap", path, detail)
        return None if state is None else shipped

    def files(self, below: int) -> Iterator[tuple[str, Iterator[Copies]]]:
        """Each file's name, and its records below a position, run by run."""
        for name in self._names():
            file = self._open(name)
            if file is None:
                continue
            replay = Replay()
            for item in self._items(file, newest=False):
                if isinstance(item, Entry) and item.kind == wal.BATCH:
                    # What makes no sense was told when the file was read first.
                    with suppress(Damaged, ValueError):
                        replay.apply(item, file)
            yield name, _copies(file, below)
            file.close()

    def _names(self) -> list[str]:
        listed = sorted(name for name, folder in self.fs.scan(self.folder) if not folder)
        return [name for name in listed if name.endswith(wal.SUFFIX)]

    def _open(self, name: str, report: Report = lambda _reason: None) -> JournalFile | None:
        path, ulid = f"{self.folder}/{name}", name.removesuffix(wal.SUFFIX)
        source = self.fs.open(path, "read")
        try:
            header = _header(source, ulid, report)
            if header is None:
                return None
            size = source.size()
            return JournalFile(self.fs, path, header=header, size=size, space=size)
        finally:
            source.close()

    def _items(self, file: JournalFile, *, newest: bool) -> Iterator[Entry | Damage]:
        """Entries and damage, up to what was never synced."""
        source = self.fs.open(file.path, "read")
        try:
            header = wal.FileHeader(
                file.ulid, file.secret, file.first_pos, file.node, self._header_size(file)
            )
            # An older file was synced whole before the next one was begun.
            for item in scan(source, header, synced=0 if newest else source.size()):
                if not isinstance(item, Entry | Damage):
                    return
                yield item
        finally:
            source.close()

    def _header_size(self, file: JournalFile) -> int:
        encoded = wal.encode_header(file=file.ulid, secret=file.secret, first_pos=0, node=file.node)
        return len(encoded)

    def _read(self, name: str, *, newest: bool) -> None:
        path = f"{self.folder}/{name}"

        def report(reason: str) -> None:
            self.findings.add("journal-damaged", path, reason)

        self.findings.count("journal files")
        file = self._open(name, report)
        if file is None:
            self._end = None  # nobody knows where it ended
            return
        if self._end is None:
            self._replay.low_pos = self._replay.low_pos or file.first_pos
        elif file.first_pos > self._end:
            missing = file.first_pos - self._end
            self._gaps.append((file.first_pos, path, f"{missing} lines before it are gone"))
        lost = 0
        stated = False
        for item in self._items(file, newest=newest):
            if isinstance(item, Damage):
                place = f"{path} at {item.offset}"
                self.findings.add("journal-damaged", place, f"{item.reason}, {item.size} bytes")
                lost += item.size
                continue
            if not stated and item.kind != wal.STATE:
                self._replay.without_state(file.node)
            stated = True
            lost = self._apply(item, file, lost)
        self._end = file.end_pos + lost
        rows = sum(int(block["records"].sum()) for block in file.index.blocks())
        self.findings.count("journal lines", rows)
        file.close()

    def _apply(self, entry: Entry, file: JournalFile, lost: int) -> int:
        """How many bytes may hold lines that nobody counted, after the entry."""
        try:
            self._replay.apply(entry, file)
        except (Damaged, InvalidInput, ValueError, KeyError, TypeError) as error:
            place = f"{file.path} at {entry.offset}"
            self.findings.add("journal-damaged", place, str(error))
            return lost + len(entry.body)
        return 0 if entry.kind == wal.BATCH else lost


def _header(source: File, ulid: str, report: Report) -> wal.FileHeader | None:
    try:
        header = read_header(source)
    except UnsupportedVersion as error:
        report(str(error))
        return None
    except Damaged as error:
        report(str(error))
        return salvage_header(source, ulid)
    if header.file != ulid:
        report(f"it is a copy of {header.file}{wal.SUFFIX}")
        return None
    return header


def _copies(file: JournalFile, below: int) -> Iterator[Copies]:
    blocks = select(file.index.blocks(), 0, below)
    rows = np.concatenate(blocks) if blocks else np.empty(0, BATCH)
    owner = np.zeros(len(rows), np.int32)
    batches = JournalBatches(file.node, rows, [file], owner, file.index.runs, file.index.connectors)
    for number in np.unique(rows["run"]).tolist():
        of_run = np.flatnonzero(rows["run"] == number)
        for part in _stretches(rows, of_run):
            yield file.index.runs[number], _records(batches, part)


def _stretches(rows: Rows, indexes: Indexes) -> Iterator[Indexes]:
    ends = np.cumsum(rows["size"][indexes], dtype=np.int64)
    low = 0
    while low < len(indexes):
        base = int(ends[low - 1]) if low else 0
        high = max(int(np.searchsorted(ends, base + _STRETCH, "right")), low + 1)
        yield indexes[low:high]
        low = high


def _records(batches: JournalBatches, indexes: Indexes) -> pa.Table:
    text = batches.text(indexes)
    blocks = blocks_of(batches, indexes, text)
    # Of each block the place of the one that begins its batch.
    begins = np.maximum.accumulate(np.where(blocks["first"] == 1, np.arange(len(blocks)), 0))
    table = records(blocks, text, blocks["pos"].astype(np.int64)[begins])
    return table.append_column("writer", pa.array([batches.node] * len(table), pa.string()))
