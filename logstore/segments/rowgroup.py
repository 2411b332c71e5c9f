"""One row group of a segment, divided into stretches: consecutive rows of one batch.

Mostly a stretch is a batch. A large batch has one in each of several row groups, and
batches that share an id alternate row by row.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logstore.batch import RecordMeta, RunKey
from logstore.errors import Damaged
from logstore.segments.ulids import LINE_CHARACTERS, parse

STRETCH: Final = np.dtype(
    [
        ("run", "<u4"),  # indexes into `Names`
        ("connector", "<u4"),
        ("hi", "<u8"),  # the batch's ULID, upper and lower 64 bits
        ("lo", "<u8"),
        ("pos", "<u8"),  # of the batch's first record, wherever that stands
        ("group", "<u4"),
        ("row", "<u4"),  # the first row in the row group
        ("offset", "<u8"),  # in the row group's text, bytes
        ("size", "<u8"),
        ("records", "<u4"),
        ("lines", "<u4"),
        ("meta", "<u4"),  # records with attributes or newlines
    ]
)
Stretches = NDArray[np.void]
Ints = NDArray[np.int64]


class Names:
    """Numbers for the runs and connectors of all row groups, in order of appearance."""

    def __init__(self) -> None:
        self.runs: list[RunKey] = []
        self.connectors: list[str | None] = []
        self._numbers: dict[RunKey | str | None, int] = {}

    def run(self, key: RunKey) -> int:
        """The number of a run."""
        return self._number(key, self.runs)

    def connector(self, name: str | None) -> int:
        """The number of a connector."""
        return self._number(name, self.connectors)

    def _number(self, name: RunKey | str | None, names: list[RunKey] | list[str | None]) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(names)
            names.append(name)  # type: ignore[arg-type]
        return number


class RowGroup:
    """The rows of a row group (of one run, if it is given) and their text."""

    def __init__(self, table: pa.Table, run: RunKey | None = None) -> None:
        if run is not None:
            ours = pc.and_(pc.equal(table["fqn"], run.fqn), pc.equal(table["run_id"], run.run))
            table = table.filter(ours)
        self._table = table.combine_chunks()
        self._messages = self._column("message")
        bounds = np.zeros(table.num_rows + 1, dtype=np.int64)
        bounds[1:] = np.cumsum(pc.binary_length(self._messages).to_numpy().astype(np.int64) + 1)
        self._bounds = bounds
        self.text = _joined(self._messages)

    def stretches(self, group: int, names: Names) -> Stretches:
        """The stretches in order of row; `group` is the number that they get."""
        count = self._table.num_rows
        if count == 0:
            return np.empty(0, dtype=STRETCH)
        ulids = self._ulids()
        runs, connectors = self._runs(names), self._connectors(names)
        heads = np.flatnonzero(_changes(ulids, runs))
        high, low, number = parse(ulids[heads])
        part = np.zeros(len(heads), dtype=STRETCH)
        part["run"], part["connector"] = runs[heads], connectors[heads]
        part["hi"], part["lo"], part["group"], part["row"] = high, low, group, heads
        part["pos"] = self._column("pos").to_numpy()[heads] - number
        ends = np.append(heads[1:], count)
        part["offset"], part["records"] = self._bounds[heads], ends - heads
        part["size"] = self._bounds[ends] - self._bounds[heads]
        newlines = self._newlines()
        part["lines"] = part["records"] + np.add.reduceat(newlines, heads)
        part["meta"] = np.add.reduceat((newlines > 0) | self._has_attributes(), heads)
        return part

    def add_meta(self, stretch: np.void, meta: RecordMeta) -> None:
        """Appends what the records of a stretch carry to the lists of `meta`."""
        row, count = int(stretch["row"]), int(stretch["records"])
        bounds = self._bounds[row : row + count + 1]
        behind = meta.ends[-1] if meta.ends else 0
        rows = self._table.slice(row, count)
        times = rows["ts"].cast(pa.int64()).to_pylist()
        values = [None if a is None else dict(a) for a in rows["attributes"].to_pylist()]
        for have, more in (
            (meta.ends, (bounds[1:] - bounds[0] + behind).tolist()),
            (meta.ts, times),
            (meta.levels, rows["level"].to_pylist()),
            (meta.attributes, values),
        ):
            assert isinstance(have, list)
            have.extend(more)

    def _column(self, name: str) -> pa.Array:
        column = self._table[name]
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)

    def _ulids(self) -> NDArray[np.uint8]:
        column = self._column("ulid")
        if not pc.all(pc.equal(pc.binary_length(column), 26)).as_py():
            raise Damaged("a ULID of the segment has not 26 characters")
        data = np.frombuffer(column.buffers()[2], dtype=np.uint8)
        return data[column.offset * 26 : (column.offset + len(column)) * 26].reshape(-1, 26)

    def _runs(self, names: Names) -> Ints:
        fqn, run = self._column("fqn"), self._column("run_id")
        fqns, runs = fqn.dictionary.to_pylist(), run.dictionary.to_pylist()
        pair = fqn.indices.to_numpy().astype(np.int64) * len(runs) + run.indices.to_numpy()
        used, inverse = np.unique(pair, return_inverse=True)
        keys = [RunKey(fqns[code // len(runs)], runs[code % len(runs)]) for code in used.tolist()]
        return np.array([names.run(key) for key in keys], dtype=np.int64)[inverse]

    def _connectors(self, names: Names) -> Ints:
        column = self._column("connector_id")
        code = pc.fill_null(column.indices, -1).to_numpy()
        used, inverse = np.unique(code, return_inverse=True)
        texts = column.dictionary.to_pylist()
        numbers = [names.connector(None if c < 0 else texts[c]) for c in used.tolist()]
        return np.array(numbers, dtype=np.int64)[inverse]

    def _newlines(self) -> Ints:
        count: Ints = pc.count_substring(self._messages, "\n").to_numpy().astype(np.int64)
        return count

    def _has_attributes(self) -> NDArray[np.bool_]:
        valid = self._column("attributes").is_valid().to_numpy(zero_copy_only=False)
        return np.asarray(valid, dtype=np.bool_)


def _changes(ulids: NDArray[np.uint8], runs: Ints) -> NDArray[np.bool_]:
    """Which rows belong to another batch than the row before them."""
    batch = np.ascontiguousarray(ulids[:, :-LINE_CHARACTERS])
    change = np.ones(len(runs), dtype=np.bool_)
    change[1:] = (batch[1:] != batch[:-1]).any(axis=1) | (runs[1:] != runs[:-1])
    return change


def _joined(messages: pa.StringArray) -> memoryview:
    """Each message and a newline, as one text."""
    if len(messages) == 0:
        return memoryview(b"")
    lists = pa.ListArray.from_arrays(pa.array([0, len(messages)], pa.int32()), messages)
    joined = pc.binary_join(lists, "\n")[0].as_buffer()
    return memoryview(b"".join((joined, b"\n")))
