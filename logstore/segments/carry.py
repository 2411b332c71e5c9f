"""Times and levels of lines that have none of their own, and traces that go on.

A traceback's lines carry the time and level of the line before them from the same
writer and run. `Carry` remembers the last ones of each run from segment to segment, and whether it
was within a traceback, for at most `limit` runs (the least recently written are forgotten; their
next line without a time then has its ULID's). Its state is lost with the process, and nothing else
depends on it.

Within slices everything is a forward fill over arrays: first from line to line of a
batch, then from batch to batch of a run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from logstore.batch import RunKey
from logstore.segments.spellings import NO_LEVEL
from logstore.segments.times import NO_TIME

Ints = NDArray[np.int64]


class Carry:
    """The last time and level of each run, for one writer."""

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._last: OrderedDict[RunKey, tuple[int, int, int]] = OrderedDict()

    def copy(self) -> Carry:
        """The same state, on its own from now on."""
        other = Carry(self._limit)
        other._last = self._last.copy()
        return other

    def load(self, runs: Sequence[RunKey]) -> Last:
        """The state of these runs as arrays, which the caller may change."""
        known = [self._last.get(run, (NO_TIME, NO_LEVEL, 0)) for run in runs]
        array = np.array(known, dtype=np.int64).reshape(len(known), 3)
        return Last(array[:, 0].copy(), array[:, 1].copy(), array[:, 2].copy())

    def save(self, runs: Sequence[RunKey], last: Last) -> None:
        """Stores the state of these runs."""
        columns = (column.tolist() for column in (last.times, last.levels, last.traces))
        for run, *state in zip(runs, *columns, strict=True):
            time, level, trace = state
            if time == NO_TIME and level == NO_LEVEL and trace == 0:
                continue
            self._last[run] = (time, level, trace)
            self._last.move_to_end(run)
        while len(self._last) > self._limit:
            self._last.popitem(last=False)


@dataclass(slots=True)
class Last:
    """The last time, level and trace (`continuations`) of each run, by its index."""

    times: Ints
    levels: Ints
    traces: Ints


def last_of_batches(values: Ints, none: int, counts: Ints) -> Ints:
    """The last value that is not `none` in each batch of `counts` lines."""
    ends = np.cumsum(counts)
    latest = np.maximum.accumulate(np.where(values != none, np.arange(len(values)), -1))
    last = latest[ends - 1]
    return np.where(last >= ends - counts, values[np.maximum(last, 0)], none)


def chain(last: Ints, none: int, runs: Ints, state: Ints) -> Ints:
    """The value that each batch begins with: the last one of the batch before it in its run.

    `last` is each batch's own last value, `runs` its run, `state` the values of the runs
    before the first batch; `state` is updated to the values after the last batch.
    """
    order = np.argsort(runs, kind="stable")
    run, value = runs[order], last[order]
    head = np.ones(len(run), dtype=np.bool_)
    head[1:] = run[1:] != run[:-1]
    first = np.maximum.accumulate(np.where(head, np.arange(len(run)), 0))
    latest = np.maximum.accumulate(np.where(value != none, np.arange(len(run)), -1))
    after = np.where(latest >= first, value[np.maximum(latest, 0)], state[run])
    before = np.empty_like(after)
    before[1:] = after[:-1]
    before[head] = state[run[head]]
    tail = np.append(head[1:], True)
    state[run[tail]] = after[tail]
    result = np.empty_like(before)
    result[order] = before
    return result


def fill(values: Ints, none: int, counts: Ints, before: Ints) -> Ints:
    """`values` with gaps filled by the previous line of the batch, or else by `before`."""
    if not (values == none).any():
        return values
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    latest = np.maximum.accumulate(np.where(values != none, np.arange(len(values)), -1))
    own = latest >= starts
    return np.where(own, values[np.maximum(latest, 0)], np.repeat(before, counts))
