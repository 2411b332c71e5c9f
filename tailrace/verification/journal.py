"""Verifies the journal of a data folder that no service holds; reads it and changes nothing.

Faults are judged as at a start (`service.journal.recovery`): damage, files that are no journal,
and gaps in positions of lines that are in no segment. A range that no sync is known to have
covered is a note. Lines of confirmed segments are given file by file and run by run, to be compared
with their copies in the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from service.journal import format as wal
from service.journal.file import JournalFile, select
from service.journal.reader import JournalBatches
from service.journal.recovery import DamagedRange, JournalReading, header_of, missing_newest
from service.journal.state import JournalState
from tailrace.logstore.batch import BATCH, Indexes, Rows, RunKey
from tailrace.logstore.errors import UnsupportedVersion
from tailrace.logstore.filesystem import File, FileSystem
from tailrace.logstore.runs.chunk_index import blocks_of
from tailrace.verification.findings import Findings, Kind, records

_STRETCH = 8 << 20  # bytes of text
Copies = tuple[RunKey, pa.Table]


@dataclass(slots=True)
class JournalCheck:
    """Reads the files below `folder`, oldest first, one at a time."""

    fs: FileSystem
    folder: str
    findings: Findings
    _reading: JournalReading = field(default_factory=JournalReading)

    def confirmed(self) -> int | None:
        """Reads all files: below which position lines are in segments; None without a journal.

        Raises `OSError` if the disk does not give them.
        """
        names = self._names()
        for name in names:
            self._read(name, newest=name == names[-1])
        reading = self._reading
        missing = missing_newest(self.fs, self.folder, names)
        if missing is not None:
            reading.found.append(missing)
        reading.settle()
        for found in reading.found:
            kind: Kind = "journal-damaged" if found.size else "journal-gap"
            place = f"{found.file} at {found.offset}" if found.size else found.file
            what = f"{found.size} bytes: {found.reason}" if found.size else found.reason
            detail = f"{what}; {found.loss()}"
            self.findings.add(kind, place, detail, lines=found.lines)
        for torn in reading.torn:
            self.findings.note(
                f"{torn.file}: {torn.size} bytes at {torn.offset} {torn.reason}: a crash broke off "
                "a write, or these bytes are damaged"
            )
        if reading.unfinished:
            self.findings.note(
                f"{reading.unfinished} does not end like the file of an idle or closed journal: "
                "its process ended right after a write, or the file was cut"
            )
        state = reading.replay.state
        return None if state is None else state.confirmed.end

    @property
    def state(self) -> JournalState | None:
        """The state of segments according to the files, once they were read."""
        return self._reading.replay.state

    @property
    def first_pos(self) -> int:
        """The first position that they hold, once they were read."""
        return self._reading.replay.low_pos

    def files(self, below: int) -> Iterator[tuple[str, Iterator[Copies]]]:
        """Each file's name, and its records below a position, run by run."""
        for name in self._names():
            path = f"{self.folder}/{name}"
            source = self.fs.open(path, "read")
            try:
                header, _ = _header(source, name)
                if header is None:
                    continue
                file = self._file(path, header, source)
                # Its faults were reported when it was read first.
                JournalReading().read(source, header, file, newest=False)
            finally:
                source.close()
            yield name, _copies(file, below)
            file.close()

    def _names(self) -> list[str]:
        listed = sorted(name for name, folder in self.fs.scan(self.folder) if not folder)
        return [name for name in listed if name.endswith(wal.SUFFIX)]

    def _read(self, name: str, *, newest: bool) -> None:
        path = f"{self.folder}/{name}"
        self.findings.count("journal files")
        source = self.fs.open(path, "read")
        try:
            header, reason = _header(source, name)
            if header is None:
                self._reading.lose(DamagedRange(path, 0, max(source.size(), 1), "", reason))
                return
            if reason:
                self._reading.note(DamagedRange(path, 0, header.size, "", reason))
            file = self._file(path, header, source)
            self._reading.admit(file)
            self._reading.read(source, header, file, newest=newest)
        finally:
            source.close()
        rows = sum(int(block["records"].sum()) for block in file.index.blocks())
        self.findings.count("journal lines", rows)
        file.close()

    def _file(self, path: str, header: wal.FileHeader, source: File) -> JournalFile:
        size = source.size()
        return JournalFile(self.fs, path, header=header, size=size, space=size)


def _header(source: File, name: str) -> tuple[wal.FileHeader | None, str]:
    try:
        return header_of(source, name.removesuffix(wal.SUFFIX))
    except UnsupportedVersion as error:
        return None, str(error)


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
