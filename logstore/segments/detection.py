"""Finds the time and level of every record: its own, or those that it carries.

A record without a time carries the time of the record before it. A record with neither
time nor level carries the level, too. A record with a time of its own begins something new, and
has no level if it names none. A client may give a level that is none of ours; the record then
carries no other level either.

Slices come in order of ULID, but a line carries what the line before it in order of `pos`
had. Almost always the two orders are the same within a run, and what a batch begins with is
known when its turn comes. For the other runs `Detection` first reads their text
once, and keeps what each of their batches begins with.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from logstore.batch import Batches, Indexes, RecordMeta, has_record_meta
from logstore.segments import carry as carrying
from logstore.segments.carry import Carry
from logstore.segments.continuations import Continuations, Place
from logstore.segments.first_words import find_first_words, join_words
from logstore.segments.levels import Lines, find_levels
from logstore.segments.prefixes import prefixes
from logstore.segments.short_times import find_short_times, find_uptimes, times_of_uptimes
from logstore.segments.slices import Slice, out_of_order, slices
from logstore.segments.spellings import NO_LEVEL, level_of_value
from logstore.segments.times import NO_TIME, find_times, in_range
from logstore.segments.ulids import made_ms

Ints = NDArray[np.int64]
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

    def of(self, piece: Slice) -> tuple[Ints, Ints, Bools]:
        """Microseconds since the epoch and level (`NO_LEVEL` for none) of each record.

        The last is whether it continues the record before it. Where nothing is known of one before
        it, it is a record.
        """
        before = self._before(piece)
        found, continued, traces = own(self._batches, piece, self._continuations, before)
        self._chain_traces(piece, traces)
        known = self._known[piece.batches]
        for field, none in _FIELDS:
            last = carrying.last_of_batches(found[field], none, piece.counts)
            begins = np.where(
                known,
                self._begins[field, piece.batches],
                carrying.chain(last, none, self._runs(piece), self._state(field)),
            )
            found[field] = carrying.fill(found[field], none, piece.counts, begins)
            # A known batch may go on in the next slice, where it begins with what it has now.
            self._begins[field, piece.batches] = np.where(last == none, begins, last)
        times, levels = self._with_ulid_times(piece, found[0]), found[1]
        return times, np.maximum(levels, NO_LEVEL), continued & (levels != NO_LEVEL)

    def _before(self, piece: Slice) -> Before:
        runs, known = self._runs(piece), self._known[piece.batches]
        _, levels, traces = self._begins[:, piece.batches]
        return Before(
            runs,
            known,
            np.where(known, levels, self._last.levels[runs]),
            np.where(known, traces, self._last.traces[runs]),
        )

    def _chain_traces(self, piece: Slice, traces: Ints) -> Ints:
        """The trace that each batch begins in; the runs' are those behind the slice from now on."""
        if not traces.any() and not self._last.traces.any():
            return traces
        return carrying.chain(traces, _UNKNOWN, self._runs(piece), self._last.traces)

    def save(self) -> None:
        """Stores in the carry what the runs ended with."""
        ahead = self._ahead
        self._last.times[ahead] = self._ends.times[ahead]
        self._last.levels[ahead] = self._ends.levels[ahead]
        self._last.traces[ahead] = self._ends.traces[ahead]
        self._carry.save(self._batches.runs, self._last)

    def _runs(self, piece: Slice) -> Ints:
        runs: Ints = self._batches.rows["run"][piece.batches].astype(np.int64)
        return runs

    def _state(self, field: int) -> Ints:
        return self._last.levels if field else self._last.times

    def _with_ulid_times(self, piece: Slice, times: Ints) -> Ints:
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
                last = carrying.last_of_batches(found[field], none, piece.counts)
                begins = carrying.chain(last, none, self._runs(piece), self._state(field))
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
    """The run of each batch of a slice, and what was before it.

    That is before the first batch of the run in the slice, and before each that is `apart`.
    """

    runs: Ints
    apart: Bools
    levels: Ints
    traces: Ints


def own(batches: Batches, piece: Slice, continuations: Continuations, before: Before) -> Own:
    """What the records themselves have: given, or found in their text."""
    count = len(piece.ends)
    times = np.empty(count, dtype=np.int64)
    parts = []
    arrivals = np.repeat(made_ms(batches.rows[piece.batches]) * 1000, piece.counts)
    uptimes = np.full(count, NO_TIME, dtype=np.int64)
    for start in range(0, count, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        look = prefixes(piece.text, piece.ends, part)
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
    lines, words = Lines(piece.text, piece.ends), join_words(parts)
    found = find_levels(lines, words)
    stated, whole = found.levels.astype(np.int64), None
    if not piece.plain:
        whole = _put_given(batches, piece, times, stated)
    place = _place(batches, piece, whole, before)
    continued, traces = continuations.find(
        lines, words, found._replace(levels=stated.astype(np.int8)), place
    )
    levels = np.where(stated == NO_LEVEL, _UNSAID, stated)
    levels[continued] = NO_LEVEL
    return Own([times, levels], continued, traces)


def _place(batches: Batches, piece: Slice, whole: Bools | None, before: Before) -> Place:
    stops = np.cumsum(piece.counts)
    first_lines = stops - piece.counts
    starts = np.zeros(len(piece.ends), dtype=np.bool_)
    starts[first_lines] = True
    resumed = np.flatnonzero(piece.firsts > 0)
    cut = np.flatnonzero(piece.firsts + piece.counts < batches.rows["records"][piece.batches])
    return Place(
        starts,
        stops - 1,
        dict(zip(first_lines[resumed].tolist(), piece.batches[resumed].tolist(), strict=True)),
        dict(zip(piece.batches[cut].tolist(), (stops[cut] - 1).tolist(), strict=True)),
        whole,
        *before,
    )


def _put_given(batches: Batches, piece: Slice, times: Ints, levels: Ints) -> Bools:
    """Puts in what the records of a client give; they carry nothing from one another.

    `levels` are those that the texts state. Gives which records are a client's.
    """
    whole = np.zeros(len(times), np.bool_)
    minted = made_ms(batches.rows[piece.batches]) * 1000
    own_meta = has_record_meta(batches.rows[piece.batches]).tolist()
    stop = 0
    for place, (index, count, first) in enumerate(
        zip(piece.batches.tolist(), piece.counts.tolist(), piece.firsts.tolist(), strict=True)
    ):
        start, stop = stop, stop + count
        meta = batches.meta(index) if own_meta[place] else None
        if meta is None:
            continue
        part = slice(first, first + count)
        _given_times(meta, part, times[start:stop])
        levels[start:stop] = _given_levels(meta, part, levels[start:stop])
        whole[start:stop] = True
        missing = times[start:stop] == NO_TIME
        times[start:stop][missing] = minted[place]
    return whole


def _given_times(meta: RecordMeta, part: slice, times: Ints) -> None:
    given = np.array([NO_TIME if t is None else t for t in meta.ts[part]], dtype=np.int64)
    good = in_range(given)
    times[good] = given[good]


def _given_levels(meta: RecordMeta, part: slice, in_text: Ints) -> Ints:
    given = np.array(
        [NO_LEVEL if name is None else level_of_value(name) for name in meta.levels[part]],
        dtype=np.int64,
    )
    return np.where(given == NO_LEVEL, in_text, given)
