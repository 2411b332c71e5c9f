"""A stored segment as batches again, for flushing run logs and for readers of other nodes.

The rows of a run with one batch ULID are one batch, in order of line number; batches are
in order of `pos`. Text is each message and a newline, so it is the bytes that the journal
held. Only the columns of `BATCH` and the place of each batch are kept in memory. Texts are
read again, one row group at a time; the last one is kept because batches of neighbouring `pos`
are mostly in the same row group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from logstore.batch import BATCH, Indexes, RecordMeta, Rows, RunKey
from logstore.segments.reader import SegmentFile
from logstore.segments.rowgroup import STRETCH, Names, RowGroup

Stretches = NDArray[np.void]


class SegmentBatches:
    """The batches of a segment, or of one run of it; an implementation of `Batches`.

    Reads every row group (of the run) once when it is made. Raises `Damaged`.
    """

    def __init__(self, segment: SegmentFile, run: RunKey | None = None) -> None:
        self.node = segment.footer.node
        self._segment = segment
        self._run = run
        self._names = Names()
        self._loaded: _Loaded | None = None
        self._stretches, self._bounds, self.rows = self._read()

    @property
    def runs(self) -> Sequence[RunKey]:
        """The run keys that the column `run` indexes."""
        return self._names.runs

    @property
    def connectors(self) -> Sequence[str | None]:
        """The connector names that the column `connector` indexes."""
        return self._names.connectors

    def text(self, indexes: Indexes) -> bytes:
        """The texts of the rows at `indexes`, one after another, in that order."""
        pieces: list[bytes | memoryview] = []
        for index in np.asarray(indexes).tolist():
            for stretch in self._of_batch(index):
                group = self._group(int(stretch["group"]))
                start = int(stretch["offset"])
                pieces.append(group.text[start : start + int(stretch["size"])])
        return b"".join(pieces)

    def slice(self, index: int, low: int, high: int) -> bytes:
        """The bytes of one row's text from `low` to before `high`."""
        pieces: list[bytes | memoryview] = []
        begin = 0
        for stretch in self._of_batch(index):
            size, start = int(stretch["size"]), int(stretch["offset"])
            first, last = max(low - begin, 0), min(high - begin, size)
            if first < last:
                group = self._group(int(stretch["group"]))
                pieces.append(group.text[start + first : start + last])
            begin += size
        return b"".join(pieces)

    def meta(self, index: int) -> RecordMeta | None:
        """The metadata of batches with newlines or attributes in their records; None for others."""
        if not self.rows["meta"][index]:
            return None
        meta = RecordMeta([], [], [], [])
        for stretch in self._of_batch(index):
            self._group(int(stretch["group"])).add_meta(stretch, meta)
        return meta

    def constant_attributes(self, index: int) -> Mapping[str, str] | None:  # noqa: ARG002
        """None: here each record has attributes of its own."""
        return None

    def _of_batch(self, index: int) -> Stretches:
        return self._stretches[self._bounds[index] : self._bounds[index + 1]]

    def _group(self, index: int) -> RowGroup:
        if self._loaded is None or self._loaded.index != index:
            self._loaded = _Loaded(index, RowGroup(self._segment.group(index), self._run))
        return self._loaded.group

    def _groups(self) -> Sequence[int]:
        if self._run is None:
            return range(len(self._segment.footer.checksums))
        share = self._segment.footer.run(self._run)
        return () if share is None else share.groups

    def _read(self) -> tuple[Stretches, Indexes, Rows]:
        """All stretches in order of their batch, where each batch's begin, and the rows."""
        parts, digests = [np.empty(0, dtype=STRETCH)], _Digests()
        for index in self._groups():
            part = self._group(index).stretches(index, self._names)
            digests.add(part, self._group(index).text)
            parts.append(part)
        stretches = np.concatenate(parts)
        order = np.lexsort(
            (np.arange(len(stretches)), stretches["lo"], stretches["hi"], stretches["run"])
        )
        stretches = stretches[order]
        heads = np.flatnonzero(_changes(stretches))
        rows = _rows(stretches, heads, digests)
        return _by_pos(stretches, heads, rows)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The row group that was read last."""

    index: int
    group: RowGroup


class _Digests:
    """The digest of each batch, of which one stretch comes after another."""

    def __init__(self) -> None:
        self._states: dict[tuple[int, int, int], xxhash.xxh3_64] = {}

    def add(self, stretches: Stretches, text: memoryview) -> None:
        """Takes the stretches of the next row group."""
        heads = stretches[["run", "hi", "lo", "offset", "size"]].tolist()
        for run, high, low, start, size in heads:
            state = self._states.get((run, high, low))
            if state is None:
                state = self._states[run, high, low] = xxhash.xxh3_64()
            state.update(text[start : start + size])

    def of(self, run: int, high: int, low: int) -> int:
        """The digest of a batch's whole text."""
        return int(self._states[run, high, low].intdigest())


def _changes(stretches: Stretches) -> NDArray[np.bool_]:
    """Which stretches belong to another batch than the one before them."""
    change = np.ones(len(stretches), dtype=np.bool_)
    for column in ("run", "hi", "lo"):
        part = stretches[column][1:] != stretches[column][:-1]
        change[1:] = part if column == "run" else change[1:] | part
    return change


def _rows(stretches: Stretches, heads: Indexes, digests: _Digests) -> Rows:
    """The columns of `BATCH` for the batches that begin at `heads`."""
    rows = np.zeros(len(heads), dtype=BATCH)
    if len(heads) == 0:
        return rows
    first = stretches[heads]
    names = {"ulid_hi": "hi", "ulid_lo": "lo", "run": "run", "connector": "connector"}
    for name, source in {**names, "offset": "offset", "pos": "pos"}.items():
        rows[name] = first[source]
    for name in ("size", "records", "lines", "meta"):
        rows[name] = np.add.reduceat(stretches[name], heads)
    keys = first[["run", "hi", "lo"]].tolist()
    rows["digest"] = [digests.of(*key) for key in keys]
    return rows


def _by_pos(stretches: Stretches, heads: Indexes, rows: Rows) -> tuple[Stretches, Indexes, Rows]:
    """All in order of `pos`, with the bounds of each batch's stretches."""
    order = np.argsort(rows["pos"], kind="stable")
    counts = np.diff(heads, append=len(stretches))
    bounds = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts[order])))
    places = np.repeat(heads[order] - bounds[:-1], counts[order]) + np.arange(len(stretches))
    return stretches[places], bounds, rows[order]
