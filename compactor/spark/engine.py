"""The interface to the heavy jobs, between planning them and Spark, which runs them.

A job is plain values in and a folder of Parquet files out, so any program that reads and writes
those may implement it. `session.py` is the one that ships; tests that run
thousands of histories have one that starts in no time. All calls block, and belong in a
thread.

The inputs of merges and rewriting jobs are plain values, so planning one needs no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from logstore.runs.deletions import Deletion


@dataclass(frozen=True, slots=True)
class RewriteInput:
    """Table files of one hour, bytes by address, to be rewritten as `parts` files.

    `rows` is their number of lines as far as is known. `deletions` say which to leave out.
    """

    files: Mapping[str, int]
    rows: int
    parts: int
    deletions: Sequence[Deletion]


@dataclass(frozen=True, slots=True)
class MergeInput:
    """One merge.

    `segments` are bytes of segments by address, `held` of table files that may hold the same
    records, `bounds` the lowest ULID of each bucket, `tasks` the task of each, from 0 on and
    rising, `low` and `high` the input's ULIDs.
    """

    segments: Mapping[str, int]
    held: Mapping[str, int]
    bounds: Sequence[int]
    tasks: Sequence[int]
    deletions: Sequence[Deletion]
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Written:
    """The row counts of a merge, from the task attempts that were committed.

    `rows` are lines that are in its files, `deleted` lines that were left out as deleted.
    """

    rows: int
    deleted: int = 0


class Engine(Protocol):
    """Runs jobs, one at a time."""

    @property
    def running(self) -> bool:
        """Whether there is something to stop."""
        ...

    def cores(self) -> int:
        """The number of tasks that run at once; starts the engine if needed.

        Raises `Unavailable`.
        """
        ...

    def merge(self, work: MergeInput, folder: str) -> Written:
        """Writes the merged lines below `folder`, each once, sorted by (fqn, run_id, ulid).

        Makes one file `part-{bucket:05d}-….parquet` for each of `work.bounds`, or
        `bucket={bucket}/part-….parquet`; for one without lines a file may exist or not. Lines that
        `work.held` has are left out, and deleted ones. Raises `Unavailable`; then the only effect
        is files in `folder`.
        """
        ...

    def rewrite(self, work: RewriteInput, folder: str) -> int:
        """Writes the lines of `work.files` below `folder`, each once, none that is deleted.

        At most `work.parts` files `part-{part:05d}-….parquet`, each sorted by (fqn, run_id,
        ulid) and with a range of that key to itself. Gives the number of lines written. Raises
        `Unavailable`, as `merge`.
        """
        ...

    def share_batches(self, some: Mapping[str, int], others: Mapping[str, int]) -> bool:
        """Whether a batch of a run has lines in `some` and in `others`: bytes by table file.

        Raises `Unavailable`.
        """
        ...

    def stop(self) -> None:
        """Releases its resources. The next call starts it again."""
        ...
