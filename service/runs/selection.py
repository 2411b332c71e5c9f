"""Selects the batches of a run that are not in its chunks yet.

It leaves out batches that the manifest says are flushed, deleted ones, those that the chunks
have under another position (another node's copy, a retry), and those that came twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from logstore.batch import (
    Batches,
    Indexes,
    Rows,
    RunKey,
    lowest_and_highest,
    of_run,
    ulid_of,
)
from logstore.runs.manifest import Copy, Manifest
from service.runs.chunks import Chunks, repeated


@dataclass(frozen=True, slots=True)
class Source:
    """Batches of one node that may have new lines of a run, at positions below `end`."""

    batches: Batches
    end: int

    @property
    def node(self) -> str:
        """The writer."""
        return self.batches.node


def in_range(source: Source, key: RunKey, start: int) -> Indexes:
    """Rows of the run from position `start` to the source's end."""
    indexes = of_run(source.batches, key)
    pos = source.batches.rows["pos"][indexes]
    return indexes[(pos >= start) & (pos < source.end)]


def above(rows: Rows, ulid: int) -> NDArray[np.bool_]:
    """Which rows have a batch ULID above `ulid`."""
    high, low = ulid >> 64, ulid & (1 << 64) - 1
    same = (rows["ulid_hi"] == high) & (rows["ulid_lo"] > low)
    exceeds: NDArray[np.bool_] = (rows["ulid_hi"] > high) | same
    return exceeds


async def news(
    sources: Sequence[Source],
    chosen: Sequence[Indexes],
    manifest: Manifest,
    chunks: Chunks,
    horizon: int,
) -> list[Indexes]:
    """The `chosen` rows without those to be left out. Raises `Moved`, `StoreUnavailable`."""
    kept = []
    for source, indexes in zip(sources, chosen, strict=True):
        rows = source.batches.rows[indexes]
        fresh = above(rows, max(horizon, manifest.generation))
        known = fresh & ~above(rows, manifest.last)
        if known.any():
            fresh[known] = ~await chunks.listed(manifest, rows[known])
        kept.append(indexes[fresh])
    parts = [source.batches.rows[i] for source, i in zip(sources, kept, strict=True)]
    if _rising(parts):
        return kept
    return [indexes[~again] for indexes, again in zip(kept, repeated(parts), strict=True)]


def left_out(
    sources: Sequence[Source], chosen: Sequence[Indexes], kept: Sequence[Indexes], horizon: int
) -> list[Copy]:
    """The `chosen` batches that `news` left out because the run's log has them otherwise."""
    found: list[Copy] = []
    for source, before, after in zip(sources, chosen, kept, strict=True):
        if len(before) == len(after):
            continue
        rows = source.batches.rows[before[~np.isin(before, after)]]
        rows = rows[above(rows, horizon)]
        found += [
            Copy(ulid_of(row), source.node, int(row["pos"]), int(row["records"])) for row in rows
        ]
    return found


def _rising(parts: Sequence[Rows]) -> bool:
    """Whether every ULID is above the one before it, so that none occurs twice."""
    last = 0
    for rows in parts:
        if len(rows) == 0:
            continue
        high, low = rows["ulid_hi"], rows["ulid_lo"]
        up = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
        least, most = lowest_and_highest(rows)
        if not up.all() or least <= last:
            return False
        last = most
    return True
