"""Compares lines with the copies in segments and table: one statement for many lines.

`copies` are the records of some runs' texts, or of a journal file, as (fqn, run_id, ulid, pos,
hash of the message, writer). `stored` are the records of the same runs in the table, and in
segments above its marks. Both are temporary tables of DuckDB, which keeps them within its memory
limit and spills the rest.

A line is deleted if its ULID is at or below the deletion of its run or pipeline, or the
generation of its manifest. Positions are compared only in runs that one node wrote: of a
line that two nodes received, the table keeps one copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from service.query.duckdb import Database
from service.query.sql import literal
from service.run_log.openmetadata import WRITER
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.runs.deletions import Deletion
from tailrace.logstore.runs.manifest import Manifest
from tailrace.verification.findings import Findings, Kind, run_place

_RUNS: Final = pa.schema(
    [
        ("fqn", pa.string()),
        ("run_id", pa.string()),
        ("generation", pa.string()),
        ("single", pa.bool_()),
        ("whole", pa.bool_()),
    ]
)
_TAKEN_BYTES: Final = 8 << 20
_TAKEN_PIECES: Final = 1000
_DELETED_RUNS: Final = pa.schema([(n, pa.string()) for n in ("fqn", "run_id", "t")])
_DELETED_PIPELINES: Final = pa.schema([(n, pa.string()) for n in ("fqn", "t")])
LIVE: Final = (
    "NOT EXISTS (SELECT 1 FROM deleted_runs d"
    " WHERE d.fqn = r.fqn AND d.run_id = r.run_id AND r.ulid <= d.t)"
    " AND NOT EXISTS (SELECT 1 FROM deleted_pipelines d WHERE d.fqn = r.fqn AND r.ulid <= d.t)"
)
_SAME: Final = "{0}.fqn = {1}.fqn AND {0}.run_id = {1}.run_id AND {0}.ulid = {1}.ulid"
# Each statement returns for each run the number of lines and their lowest ULID.
_PER_RUN: Final = "SELECT r.fqn, r.run_id, count(*), min(r.ulid) FROM {} GROUP BY ALL ORDER BY ALL"
_NOT_STORED: Final = _PER_RUN.format(
    f"copies r WHERE r.writer <> '{WRITER}' AND r.ulid >= $kept AND {LIVE} AND NOT EXISTS"  # noqa: S608
    f" (SELECT 1 FROM stored s WHERE {_SAME.format('s', 'r')})"
)
_DIFFERS: Final = _PER_RUN.format(
    f"copies r JOIN stored s ON {_SAME.format('s', 'r')} JOIN names n ON n.fqn = r.fqn"
    " AND n.run_id = r.run_id WHERE (s.h <> r.h"
    f" OR (n.single AND s.pos <> r.pos AND r.writer <> '{WRITER}')) AND {LIVE}"
)
_TWICE: Final = (
    "SELECT fqn, run_id, count(*), min(ulid) FROM (SELECT fqn, run_id, ulid FROM copies"
    " GROUP BY ALL HAVING count(*) > 1) GROUP BY ALL ORDER BY ALL"
)
_NOT_IN_TEXT: Final = (
    "SELECT fqn, run_id, count(DISTINCT ulid), min(ulid) FROM"  # noqa: S608
    " (SELECT r.fqn, r.run_id, r.ulid FROM stored r"
    " JOIN names n ON n.fqn = r.fqn AND n.run_id = r.run_id"
    f" WHERE n.whole AND r.ulid > n.generation AND NOT r.fresh AND {LIVE}"
    f" AND NOT EXISTS (SELECT 1 FROM copies c WHERE {_SAME.format('c', 'r')})"
    f" AND NOT EXISTS (SELECT 1 FROM stored f WHERE f.fresh AND {_SAME.format('f', 'r')}))"
    " GROUP BY ALL ORDER BY ALL"
)


@dataclass(frozen=True, slots=True)
class StoredLines:
    """The places of the lines: addresses of table files, and of segments above the table's marks.

    `fresh` segments are above the watermarks, so their lines need not be in texts yet. Below the
    ULID `kept` the retention took the table's hours.
    """

    table: Sequence[str]
    settled: Sequence[str]
    fresh: Sequence[str]
    kept: str = ""


@dataclass(slots=True)
class Comparison:
    """The runs of one group, their copies, and the result of comparing them."""

    database: Database
    findings: Findings
    copies: str  # what they are copies of: "text", or a file of the journal
    _names: dict[RunKey, tuple[str, bool, bool]] = field(default_factory=dict)
    _taken: list[pa.Table] = field(default_factory=list)
    _taken_bytes: int = 0
    _kept: str = ""

    def begin(self) -> None:
        """Forgets the group before."""
        self._names.clear()
        self._taken.clear()
        self._taken_bytes = 0
        self._do(
            "CREATE OR REPLACE TEMP TABLE copies"
            " (fqn VARCHAR, run_id VARCHAR, ulid VARCHAR, pos BIGINT, h UBIGINT, writer VARCHAR)"
        )

    def name(self, key: RunKey, manifest: Manifest | None = None, *, whole: bool = False) -> None:
        """Takes a run into the group; `whole`: its text must have every line that is stored."""
        generation = ulids.encode(manifest.generation) if manifest else ""
        single = manifest is not None and len(manifest.writers) == 1
        self._names[key] = (generation, single, whole)

    def take(self, key: RunKey, records: pa.Table) -> None:
        """Adds copies: `ulid`, `pos`, `message` in binary, `writer`."""
        # A statement for each small run would cost more than all else.
        for name, value in (("fqn", key.fqn), ("run_id", key.run)):
            numbers = pa.repeat(pa.scalar(0, pa.int32()), records.num_rows)
            column = pa.DictionaryArray.from_arrays(numbers, pa.array([value]))
            records = records.append_column(name, column)
        self._taken.append(records)
        self._taken_bytes += records.nbytes
        if self._taken_bytes >= _TAKEN_BYTES or len(self._taken) >= _TAKEN_PIECES:
            self._insert()

    def _insert(self) -> None:
        if self._taken:
            self.database.hold("piece", pa.concat_tables(self._taken))
            self._do(
                "INSERT INTO copies SELECT fqn, run_id, ulid, pos, hash(message), writer FROM piece"
            )
        self._taken.clear()
        self._taken_bytes = 0

    @property
    def bounds(self) -> tuple[str, str]:
        """The lowest and highest pipeline of the group."""
        fqns = [key.fqn for key in self._names]
        return min(fqns), max(fqns)

    @property
    def empty(self) -> bool:
        """Whether the group has no run."""
        return not self._names

    def load(self, stored: StoredLines, deletions: Iterable[Deletion]) -> None:
        """Reads the stored records of the runs. Raises `Damaged` for a file that cannot be read."""
        self._insert()
        rows = [(*key, *flags) for key, flags in self._names.items()]
        self.database.hold("names", _table(_RUNS, rows))
        hold_deletions(self.database, deletions)
        self._kept = stored.kept
        self._load(stored)

    def compare(self) -> None:
        """Reports every run that differs."""
        what = self.copies
        detail = f"in the {what}, not in segments or table"
        self._report("line-not-stored", _NOT_STORED, detail, kept=self._kept)
        self._report("line-differs", _DIFFERS, f"in the {what} differ from the stored ones")
        self._report("line-twice-in-text", _TWICE, f"twice in the {what}")
        self._report("line-not-in-text", _NOT_IN_TEXT, f"stored, but not in the {what}")

    def _load(self, stored: StoredLines) -> None:
        low, high = self.bounds
        parts = [
            f"SELECT fqn, run_id, ulid, pos, hash(message) AS h, {fresh} AS fresh"  # noqa: S608
            f" FROM read_parquet(${name}, hive_partitioning = false)"
            " SEMI JOIN names USING (fqn, run_id) WHERE fqn >= $low AND fqn <= $high"
            for name, fresh in (("table", False), ("settled", False), ("fresh", True))
            if getattr(stored, name)
        ]
        if not parts:
            parts = ["SELECT fqn, run_id, ulid, pos, h, false AS fresh FROM copies WHERE false"]
        files = {
            name: [literal(uri) for uri in uris]
            for name in ("table", "settled", "fresh")
            if (uris := getattr(stored, name))
        }
        values: dict[str, Any] = {**files, "low": low, "high": high} if files else {}
        self._do(f"CREATE OR REPLACE TEMP TABLE stored AS {' UNION ALL '.join(parts)}", **values)

    def _report(self, kind: Kind, statement: str, detail: str, **values: str) -> None:
        for batch in self.database.run(statement, values):
            for fqn, run, count, first in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                text = f"{count} lines {detail}, the first {first}"
                self.findings.add(kind, run_place(fqn, run), text, lines=count)

    def _do(self, statement: str, **values: Any) -> None:
        for _ in self.database.run(statement, values):
            pass


def hold_deletions(database: Database, deletions: Iterable[Deletion]) -> None:
    """Makes them known to statements that use `LIVE`."""
    runs, pipelines = [], []
    for deletion in deletions:
        t = ulids.encode(deletion.t)
        if deletion.run is None:
            pipelines.append((deletion.fqn, t))
        else:
            runs.append((deletion.fqn, deletion.run, t))
    database.hold("deleted_runs", _table(_DELETED_RUNS, runs))
    database.hold("deleted_pipelines", _table(_DELETED_PIPELINES, pipelines))


def _table(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    arrays = [pa.array([row[n] for row in rows], f.type) for n, f in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=schema)
