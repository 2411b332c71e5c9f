"""The sound parts of an earlier verification, in a file, so that the next one reads only changes.

    {"format": 1}
    ["tile", stamp]                     of some hours of the table, or a segment, in any order
    ["run", manifest's key, stamp, fqn, run]      in order of the keys
    {"check": hash of all bytes before}

A stamp is a hash of the keys, sizes, ETags and times of all objects of a run, or of the table files
of a range and their skip indexes, as they were listed before they were read. A run or range with
another stamp is read again. If the file is damaged, or has another format, everything is.

A segment is remembered once its lines are in their runs' logs, and only by a verification without
any fault.

A part of the unchanged data is read again as well: the sample. It finds bits that changed on a
disk, in a file whose size and time did not change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson
import xxhash

from service.query.duckdb import Database
from service.query.sql import literal
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.filesystem import File, FileSystem
from tailrace.logstore.keys import encode
from tailrace.logstore.objects.store import ObjectInfo, ObjectStore
from tailrace.logstore.runs.report import Watermark
from tailrace.logstore.table.snapshot import TableFile, TableSnapshot
from tailrace.verification.findings import Findings
from tailrace.verification.segments import Whole, settled
from tailrace.verification.table import HourRange, hour_ranges

FORMAT: Final = 1
_PIECE_BYTES: Final = 1 << 20
_BITS: Final = 32


class SoundRun(NamedTuple):
    """A run whose text was whole, and stored line by line."""

    stamp: str
    key: RunKey


def stamp_of(objects: Iterable[ObjectInfo]) -> str:
    """The stamp of objects that were listed; their order does not matter."""
    rows = sorted([one.key, one.size, one.etag, one.modified_ms] for one in objects)
    return xxhash.xxh3_128_hexdigest(orjson.dumps(rows))


class Remembered:
    """The memory of one verification: the parts it may pass over, and those it found sound itself.

    `sample` is the share of the unchanged parts that is read again, from 0 to 1. Runs are requested
    and kept in order of their manifests' keys.
    """

    def __init__(
        self, fs: FileSystem, path: str, clock: Clock, entropy: Entropy, sample: float
    ) -> None:
        self._fs = fs
        self._path = os.path.abspath(path)
        self._entropy = entropy
        self._sample = sample
        self._ranges = set[str]()
        self._runs: Iterator[list[Any]] = iter(())
        self._next: list[Any] | None = None
        self.vanished = 0
        """Runs that were sound and have no manifest any more."""
        self._made = f"{self._path}.{ulids.fresh_text(clock, entropy)}"
        self._file: File | None = None
        self._check = xxhash.xxh3_128()
        self._held: list[bytes] = []
        self._held_bytes = 0

    def open(self) -> str:
        """Reads the file, and begins the next one; says why nothing is known, if so.

        Raises `InvalidInput` if it cannot begin the next one, `OSError` if the file does not read.
        """
        try:
            self._file = self._fs.open(self._made, "create")
        except OSError as error:
            hint = "Its folder must be there, and be writable."
            raise InvalidInput(f"{self._path} cannot be written: {error}", hint=hint) from error
        self._line({"format": FORMAT})
        try:
            known = self._fs.open(self._path, "read")
        except FileNotFoundError:
            return f"{self._path} does not exist yet: everything is read"
        if not self._is_whole(known):
            known.close()
            self._ranges.clear()
            return f"{self._path} is damaged or of another version: everything is read"
        self._runs = (row for row in _rows(known) if isinstance(row, list) and row[0] == "run")
        self._next = next(self._runs, None)
        return ""

    def run(self, manifest: str) -> SoundRun | None:
        """The stored entry of the run with that manifest; None also if it is in the sample."""
        self._pass_over(manifest)
        if self._next is None or self._next[1] != manifest:
            return None
        _, _, stamp, fqn, run = self._next
        self._next = next(self._runs, None)
        return None if self._is_sampled() else SoundRun(stamp, RunKey(fqn, run))

    def end_runs(self) -> None:
        """Records that no further run is asked for."""
        self._pass_over(None)

    def _pass_over(self, manifest: str | None) -> None:
        while self._next is not None and (manifest is None or self._next[1] < manifest):
            self.vanished += 1
            self._next = next(self._runs, None)

    def has_part(self, stamp: str) -> bool:
        """Whether the range or segment was sound, and is not in the sample."""
        return stamp in self._ranges and not self._is_sampled()

    def keep_run(self, manifest: str, run: SoundRun) -> None:
        """Takes a run into the next file."""
        self._line(["run", manifest, run.stamp, *run.key])

    def keep_part(self, stamp: str) -> None:
        """Takes a range or segment into the next file."""
        self._line(["tile", stamp])

    def finish(self) -> None:
        """Puts the next file in the place of the one that was read. Raises `OSError`."""
        assert self._file is not None
        self._line({"check": self._check.hexdigest()})
        self._write()
        self._file.sync()
        self._file.close()
        self._file = None
        self._fs.rename(self._made, self._path)
        self._fs.sync_folder(os.path.dirname(self._path))

    def abandon(self) -> None:
        """Removes the next file, unless it is finished."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._fs.unlink(self._made)

    def _is_sampled(self) -> bool:
        return self._entropy.getrandbits(_BITS) < self._sample * (1 << _BITS)

    def _line(self, value: object) -> None:
        line = orjson.dumps(value) + b"\n"
        self._check.update(line)
        self._held.append(line)
        self._held_bytes += len(line)
        if self._held_bytes >= _PIECE_BYTES:
            self._write()

    def _write(self) -> None:
        assert self._file is not None
        self._file.write([b"".join(self._held)])
        self._held, self._held_bytes = [], 0

    def _is_whole(self, file: File) -> bool:
        """Whether the file is as it was written; takes its ranges."""
        check, last, first = xxhash.xxh3_128(), b"", True
        try:
            for line in _lines(file):
                if first and orjson.loads(line)["format"] != FORMAT:
                    return False
                first = False
                check.update(last)
                last = line
                if line.startswith(b'["tile"'):
                    self._ranges.add(orjson.loads(line)[1])
            return bool(orjson.loads(last)["check"] == check.hexdigest())
        except (ValueError, KeyError, TypeError, IndexError):
            return False


class ChangesSince:
    """The changes in one store since the last verification.

    A run is read again if an object of it changed, or if a changed file of the table, or a changed
    segment, has a line of it. So a new line that is in no text is found. A segment counts as
    changed until a sound verification saw it settled: until then its lines may be in no text.
    """

    def __init__(
        self, store: ObjectStore, prefix: str, remembered: Remembered, findings: Findings
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._remembered = remembered
        self._findings = findings
        self._table: dict[str, list[ObjectInfo]] = {}
        self._unchanged = set[str]()
        self._passed = set[str]()
        self._sound = dict[str, None]()
        self._active = set[RunKey]()
        self._settled: list[str] = []
        self._pipeline = ""
        self._texts: dict[str, str] = {}
        self._manifest: ObjectInfo | None = None
        self._read: list[tuple[str, SoundRun, bool]] = []
        self.changed: list[TableFile] = []

    # --- the table -------------------------------------------------------------------

    async def list_table(self, snapshot: TableSnapshot) -> list[TableFile]:
        """Lists the table's objects; gives the files of ranges that did not change."""
        async for info in self._store.list(f"{keys.TABLE}/"):
            path = info.key.removeprefix(f"{keys.TABLE}/")
            if info.key.startswith(keys.SKIP_INDEXES):
                path = keys.indexed_file(info.key).removeprefix(f"{keys.TABLE}/")
            if not path.startswith("_delta_log/"):
                self._table.setdefault(path, []).append(info)
        unchanged: list[TableFile] = []
        for hours in hour_ranges(snapshot.files):
            stamp = self._range_stamp(hours)
            if stamp is not None and self._remembered.has_part(stamp):
                self._unchanged.add(stamp)
                unchanged += hours.files
            else:
                self.changed += hours.files
        return unchanged

    def changed_segments(
        self, segments: Sequence[Whole], marks: Mapping[str, Watermark]
    ) -> list[str]:
        """The URIs of the segments whose lines were not all compared with settled texts before."""
        known = set[str]()
        for segment in settled(segments, marks):
            stamp = _segment_stamp(segment)
            self._settled.append(stamp)
            if self._remembered.has_part(stamp):
                known.add(segment.uri)
        if known:
            self._findings.count("unchanged segments", len(known))
        return [segment.uri for segment in segments if segment.uri not in known]

    def keep_segments(self) -> None:
        """No fault was found in the whole store, so the lines of settled segments are in texts."""
        for stamp in self._settled:
            self._remembered.keep_part(stamp)

    def add_runs(self, database: Database, table: Iterable[str], segments: Iterable[str]) -> None:
        """Takes the runs with lines in these files as changed. Raises `Damaged`."""
        for uris in (table, segments):
            files = [literal(uri) for uri in uris]
            if not files:
                continue
            statement = (
                "SELECT DISTINCT fqn, run_id FROM read_parquet($files, hive_partitioning = false)"
            )
            for batch in database.run(statement, {"files": files}):
                columns = [column.to_pylist() for column in batch.columns]
                self._active.update(RunKey(*row) for row in zip(*columns, strict=True))

    def is_unchanged_range(self, hours: HourRange) -> bool:
        """Whether the range was sound and did not change, and no run has vanished since."""
        stamp = self._range_stamp(hours)
        if self._remembered.vanished or stamp not in self._unchanged:
            return False
        self._passed.update(file.path for file in hours.files)
        if hours.files:
            self._findings.count("unchanged table files", len(hours.files))
        self._remembered.keep_part(str(stamp))
        return True

    def passed(self, file: TableFile) -> bool:
        """Whether the file is in a range that was passed over."""
        return file.path in self._passed

    def take_range(self, hours: HourRange) -> None:
        """The lines of a range are sound; its skip indexes are yet to be checked."""
        if (stamp := self._range_stamp(hours)) is not None:
            self._sound[stamp] = None

    def keep_ranges(self) -> None:
        """The skip indexes of all ranges that were read are sound as well."""
        for stamp in self._sound:
            self._remembered.keep_part(stamp)

    def _range_stamp(self, hours: HourRange) -> str | None:
        """None if a file was not there yet, or is not there."""
        if not all(file.path in self._table for file in hours.files):
            return None
        objects = [info for file in hours.files for info in self._table[file.path]]
        return stamp_of(objects) + hours.low + hours.high

    # --- runs ------------------------------------------------------------------------

    async def is_unchanged(self, manifest: ObjectInfo) -> bool:
        """Whether the run with that manifest was sound, and did not change since."""
        self._manifest = manifest
        pipeline = manifest.key.removeprefix(keys.RUNS).partition("/")[0]
        if pipeline != self._pipeline:
            self._pipeline, self._texts = pipeline, await self._list_texts(pipeline)
        known = self._remembered.run(manifest.key)
        if known is None or known.key in self._active or known.stamp != self._stamp(known.key):
            return False
        self._read.append((manifest.key, known, False))
        self._findings.count("unchanged runs")
        return True

    def read(self, manifest: str, key: RunKey) -> None:
        """The run reads without a fault; its lines are yet to be compared."""
        self._read.append((manifest, SoundRun(self._stamp(key), key), True))

    def compared(self, *, sound: bool) -> None:
        """All runs since the last call were compared; whether no fault was found."""
        for manifest, run, is_new in self._read:
            if sound or not is_new:
                self._remembered.keep_run(manifest, run)
        self._read.clear()

    async def _list_texts(self, pipeline: str) -> dict[str, str]:
        """Stamps of the objects of each run of a pipeline, by the names of their folders."""
        found, folder, objects = dict[str, str](), "", list[ObjectInfo]()
        prefix = f"{self._prefix}/{pipeline}/"
        async for info in self._store.list(prefix):
            name = info.key.removeprefix(prefix).partition("/")[0]
            if name != folder and objects:
                found[folder] = stamp_of(objects)
                objects = []
            folder = name
            objects.append(info)
        if objects:
            found[folder] = stamp_of(objects)
        return found

    def _stamp(self, key: RunKey) -> str:
        assert self._manifest is not None
        return stamp_of([self._manifest]) + self._texts.get(encode(key.run), "")


def _segment_stamp(segment: Whole) -> str:
    row = [segment.uri, segment.rows, segment.low, segment.high]
    return f"segment {xxhash.xxh3_128_hexdigest(orjson.dumps(row))}"


def _rows(file: File) -> Iterator[Any]:
    for line in _lines(file):
        yield orjson.loads(line)
    file.close()


def _lines(file: File) -> Iterator[bytes]:
    offset, rest = 0, b""
    while piece := file.pread(_PIECE_BYTES, offset):
        offset += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        yield from [line + b"\n" for line in lines]
    if rest:
        yield rest
