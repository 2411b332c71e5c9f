"""What runs the heavy jobs: the seam between deciding what is to be done and Spark doing it.

A job is plain values in and a folder of Parquet files out, so whatever can read and write
those may stand behind it. `session.py` is the one that ships; tests that go through
thousands of histories have one that starts in no time. All calls block, and belong in a
thread.

What a merge or a rewriting job is given are plain values, so planning one needs no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from logstore.runs.deletion import Deletion


@dataclass(frozen=True, slots=True)
class RewriteInput:
    """Table files of one hour, bytes by address, to be written anew as `parts` files.

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
    """What a merge has written, as the tasks counted it whose attempts were committed.

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
        """How many tasks run at once; starts what is not running. Raises `Unavailable`."""
        ...

    def merge(self, work: MergeInput, folder: str) -> Written:
        """Writes the merged lines below `folder`, each once, sorted by (fqn, run_id, ulid).

        One file `part-{bucket:05d}-….parquet` for each of `work.bounds`, or
        `bucket={bucket}/part-….parquet`; of those without lines there may be one or none. What
        `work.held` has is left out, and what is deleted. Raises `Unavailable`; then nothing but
        files in `folder` came of it.
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
        """Gives back what it holds. The next call starts it again."""
        ...
