"""Finds the time and level of every record: its own, or those that it carries.

A record without a time carries the time of the record before it. A record with neither time nor
level carries the level, too. A record with a time of its own begins something new, and has no level
if it names none. If a client gives a level that is not one of ours, the record carries no other
level either.

Slices come in order of ULID, but a line carries the values of the line before it in order of `pos`.
Almost always the two orders are the same within a run, and the carried values of a batch are known
when its turn comes. For the other runs `Detection` first reads their text once, and keeps the
values with which each of their batches begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.logstore.batch import Batches, Indexes, RunKey, has_record_meta
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.segments.continuations import BatchPlaces, Continuations
from tailrace.logstore.segments.file_format import made_ms
from tailrace.logstore.segments.levels import (
    NO_LEVEL,
    TextRecords,
    find_first_words,
    find_levels,
    join_words,
    level_of_value,
    prefixes,
)
from tailrace.logstore.segments.slices import RecordSlice, out_of_order, slices
from tailrace.logstore.segments.times import (
    NO_TIME,
    find_short_times,
    find_times,
    find_uptimes,
    in_range,
    times_of_uptimes,
)

# Times and levels of lines that have none of their own, and traces that go on.
#
# A traceback's lines carry the time and level of the line before them from the same writer and run.
# `Carry` remembers the last ones of each run from segment to segment, and whether it was within a
# traceback, for at most `limit` runs (the least recently written are forgotten; their next line
# without a time then has its ULID's). Its state is lost with the process, and nothing else depends
# on it.
#
# Within slices everything is a forward fill over arrays: first from line to line of a batch, then
# from batch to batch of a run.


Ints = NDArray[np.int64]


class Carry:
    """The last time and level of each run, for one writer."""

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._last: BoundedCache[RunKey, tuple[int, int, int]] = BoundedCache(limit)

    def copy(self) -> Carry:
        """The same state, on its own from now on."""
        other = Carry(self._limit)
        other._last = self._last.copy()
        return other

    def load(self, runs: Sequence[RunKey]) -> Last:
        """The state of these runs as arrays, which the caller may change."""
        known = [self._last.peek(run) or (NO_TIME, NO_LEVEL, 0) for run in runs]
        array = np.array(known, dtype=np.int64).reshape(len(known), 3)
        return Last(array[:, 0].copy(), array[:, 1].copy(), array[:, 2].copy())

    def save(self, runs: Sequence[RunKey], last: Last) -> None:
        """Stores the state of these runs."""
        columns = (column.tolist() for column in (last.times, last.levels, last.traces))
        for run, *state in zip(runs, *columns, strict=True):
            time, level, trace = state
            if time == NO_TIME and level == NO_LEVEL and trace == 0:
                continue
            self._last.put(run, (time, level, trace))


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


Bools = NDArray[np.bool_]
_UNSAID = NO_LEVEL - 1  # no level, and none is carried
_AT_ONCE = 1 << 12  # records whose prefixes are searched together: they fit the CPU's cache
_FIELDS = ((0, NO_TIME), (1, NO_LEVEL))
_TRACE = 2  # behind them in what batches begin with
_UNKNOWN = -1  # no trace


class Detection:
    """Finds times and levels slice by slice; call `save` after the last slice."""

    def __init__(self, batches: Batches, order: Indexes, carry: Carry) -> None:
        self._batches = batches
        self._carry = carry
        self._continuations = Continuations()
        self._last = self._ends = carry.load(batches.runs)
        self._ahead = np.empty(0, dtype=np.int64)  # the runs that were looked through
        self._known = np.zeros(len(batches.rows), dtype=np.bool_)
        self._begins = np.zeros((3, len(batches.rows)), dtype=np.int64)
        self._look_ahead(order)

    def of(self, piece: RecordSlice) -> tuple[Ints, Ints, Bools]:
        """Microseconds since the epoch and level (`NO_LEVEL` for none) of each record.

        The last is whether it continues the record before it. Where nothing is known of one before
        it, it is a record.
        """
        before = self._before(piece)
        found, continued, traces = own(self._batches, piece, self._continuations, before)
        self._chain_traces(piece, traces)
        known = self._known[piece.batches]
        for field, none in _FIELDS:
            last = last_of_batches(found[field], none, piece.counts)
            begins = np.where(
                known,
                self._begins[field, piece.batches],
                chain(last, none, self._runs(piece), self._state(field)),
            )
            found[field] = fill(found[field], none, piece.counts, begins)
            # A known batch may go on in the next slice, where it begins with what it has now.
            self._begins[field, piece.batches] = np.where(last == none, begins, last)
        times, levels = self._with_ulid_times(piece, found[0]), found[1]
        return times, np.maximum(levels, NO_LEVEL), continued & (levels != NO_LEVEL)

    def _before(self, piece: RecordSlice) -> Before:
        runs, known = self._runs(piece), self._known[piece.batches]
        _, levels, traces = self._begins[:, piece.batches]
        return Before(
            runs,
            known,
            np.where(known, levels, self._last.levels[runs]),
            np.where(known, traces, self._last.traces[runs]),
        )

    def _chain_traces(self, piece: RecordSlice, traces: Ints) -> Ints:
        """The trace that each batch begins in; the runs' are those behind the slice from now on."""
        if not traces.any() and not self._last.traces.any():
            return traces
        return chain(traces, _UNKNOWN, self._runs(piece), self._last.traces)

    def save(self) -> None:
        """Stores in the carry what the runs ended with."""
        ahead = self._ahead
        self._last.times[ahead] = self._ends.times[ahead]
        self._last.levels[ahead] = self._ends.levels[ahead]
        self._last.traces[ahead] = self._ends.traces[ahead]
        self._carry.save(self._batches.runs, self._last)

    def _runs(self, piece: RecordSlice) -> Ints:
        runs: Ints = self._batches.rows["run"][piece.batches].astype(np.int64)
        return runs

    def _state(self, field: int) -> Ints:
        return self._last.levels if field else self._last.times

    def _with_ulid_times(self, piece: RecordSlice, times: Ints) -> Ints:
        """Fills times that are still missing with the time at which the ULID was made."""
        if not (times == NO_TIME).any():
            return times
        minted = made_ms(self._batches.rows[piece.batches]) * 1000
        return np.where(times == NO_TIME, np.repeat(minted, piece.counts), times)

    def _look_ahead(self, order: Indexes) -> None:
        """Fills `_begins` for the batches of runs whose order is not that of `pos`."""
        rows = self._batches.rows
        if len(order) == 0:
            return
        marks = out_of_order(rows, order)
        chosen = np.sort(order[marks[rows["run"][order]]])
        if len(chosen) == 0:
            return
        before, continuations = self._carry.load(self._batches.runs), Continuations()
        for piece in slices(self._batches, chosen):
            found, _, traces = own(self._batches, piece, continuations, self._before(piece))
            heads = piece.firsts == 0
            begins = self._chain_traces(piece, traces)
            self._begins[_TRACE, piece.batches[heads]] = begins[heads]
            for field, none in _FIELDS:
                last = last_of_batches(found[field], none, piece.counts)
                begins = chain(last, none, self._runs(piece), self._state(field))
                self._begins[field, piece.batches[heads]] = begins[heads]
        self._known[chosen] = True
        self._ahead = np.flatnonzero(marks)
        self._ends = self._last
        self._last = before


class Own(NamedTuple):
    """The times and levels that records themselves have, and which ones continue others.

    The level of a record that begins something new and states none is `_UNSAID`. `traces` are those
    in which batches end.
    """

    fields: list[Ints]
    continued: Bools
    traces: Ints


class Before(NamedTuple):
    """The run of each batch of a slice, and the state before it.

    That is the state before the first batch of the run in the slice, and before each that is
    `apart`.
    """

    runs: Ints
    apart: Bools
    levels: Ints
    traces: Ints


def own(batches: Batches, piece: RecordSlice, continuations: Continuations, before: Before) -> Own:
    """The times, levels and traces of the records themselves: given, or read from their text."""
    count = len(piece.ends)
    given = None if piece.plain else _given(batches, piece)
    times = np.full(count, NO_TIME, dtype=np.int64)
    parts = []
    arrivals = np.repeat(made_ms(batches.rows[piece.batches]) * 1000, piece.counts)
    uptimes = np.full(count, NO_TIME, dtype=np.int64)
    for start in range(0, count, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        look = prefixes(piece.text, piece.ends, part)
        if given is None or (given.times[part] == NO_TIME).any():
            times[part] = find_times(look)
            missing = np.flatnonzero(times[part] == NO_TIME)
            if len(missing):
                short = find_short_times(look, missing, arrivals[part][missing])
                times[part][missing] = short
                rest = missing[short == NO_TIME]
                uptimes[part][rest] = find_uptimes(look, rest)
        parts.append(find_first_words(look))
    if (uptimes != NO_TIME).any():
        places = np.repeat(np.arange(len(piece.counts)), piece.counts)
        times = np.where(times == NO_TIME, times_of_uptimes(uptimes, places, arrivals), times)
    lines, words = TextRecords(piece.text, piece.ends), join_words(parts)
    found = find_levels(lines, words)
    stated, whole = found.levels.astype(np.int64), None
    if given is not None:
        given.put(times, stated, arrivals)
        whole = given.whole
    place = _place(batches, piece, whole, before)
    continued, traces = continuations.find(
        lines, words, found._replace(levels=stated.astype(np.int8)), place
    )
    levels = np.where(stated == NO_LEVEL, _UNSAID, stated)
    levels[continued] = NO_LEVEL
    return Own([times, levels], continued, traces)


def _place(
    batches: Batches, piece: RecordSlice, whole: Bools | None, before: Before
) -> BatchPlaces:
    stops = np.cumsum(piece.counts)
    first_lines = stops - piece.counts
    starts = np.zeros(len(piece.ends), dtype=np.bool_)
    starts[first_lines] = True
    resumed = np.flatnonzero(piece.firsts > 0)
    cut = np.flatnonzero(piece.firsts + piece.counts < batches.rows["records"][piece.batches])
    return BatchPlaces(
        starts,
        stops - 1,
        dict(zip(first_lines[resumed].tolist(), piece.batches[resumed].tolist(), strict=True)),
        dict(zip(piece.batches[cut].tolist(), (stops[cut] - 1).tolist(), strict=True)),
        whole,
        *before,
    )


class _Given(NamedTuple):
    """What the records of a client give: they carry nothing from one another.

    `whole` says which records are a client's; the others have `NO_TIME` and `NO_LEVEL`.
    """

    times: Ints
    levels: Ints
    whole: Bools

    def put(self, times: Ints, levels: Ints, minted: Ints) -> None:
        """Puts it in for what the texts state; a client's record without a time has `minted`."""
        np.copyto(times, self.times, where=self.times != NO_TIME)
        np.copyto(times, minted, where=self.whole & (times == NO_TIME))
        np.copyto(levels, self.levels, where=self.levels != NO_LEVEL)


def _given(batches: Batches, piece: RecordSlice) -> _Given:
    count = len(piece.ends)
    found = _Given(np.full(count, NO_TIME), np.full(count, NO_LEVEL), np.zeros(count, np.bool_))
    own_meta = has_record_meta(batches.rows[piece.batches]).tolist()
    stop = 0
    for place, (index, size, first) in enumerate(
        zip(piece.batches.tolist(), piece.counts.tolist(), piece.firsts.tolist(), strict=True)
    ):
        start, stop = stop, stop + size
        meta = batches.meta(index) if own_meta[place] else None
        if meta is None:
            continue
        part = slice(first, first + size)
        times = np.array([NO_TIME if t is None else t for t in meta.ts[part]], dtype=np.int64)
        found.times[start:stop] = np.where(in_range(times), times, NO_TIME)
        levels = meta.levels[part]
        known = {one: NO_LEVEL if one is None else level_of_value(one) for one in {*levels}}
        found.levels[start:stop] = [known[one] for one in levels]
        found.whole[start:stop] = True
    return found
