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

import numpy as np
from numpy.typing import NDArray

from logstore.batch import Batches, Indexes, RecordMeta
from logstore.segments import carry as carrying
from logstore.segments.carry import Carry
from logstore.segments.levels import NAMES, NO_LEVEL, find_levels
from logstore.segments.prefixes import prefixes
from logstore.segments.slices import Slice, out_of_order, slices
from logstore.segments.times import NO_TIME, find_times, in_range
from logstore.segments.ulids import made_ms

Ints = NDArray[np.int64]
_UNSAID = NO_LEVEL - 1  # no level, and none is carried
_AT_ONCE = 1 << 12  # records whose prefixes are searched together: they fit the CPU's cache
_FIELDS = ((0, NO_TIME), (1, NO_LEVEL))


class Detection:
    """Finds times and levels slice by slice; call `save` after the last slice."""

    def __init__(self, batches: Batches, order: Indexes, carry: Carry) -> None:
        self._batches = batches
        self._carry = carry
        self._last = self._ends = carry.load(batches.runs)
        self._ahead = np.empty(0, dtype=np.int64)  # the runs that were looked through
        self._known = np.zeros(len(batches.rows), dtype=np.bool_)
        self._begins = np.zeros((2, len(batches.rows)), dtype=np.int64)
        self._look_ahead(order)

    def of(self, piece: Slice) -> tuple[Ints, Ints]:
        """Microseconds since the epoch and level (`NO_LEVEL` for none) of each record."""
        found = own(self._batches, piece)
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
        return self._with_ulid_times(piece, found[0]), np.maximum(found[1], NO_LEVEL)

    def save(self) -> None:
        """Stores in the carry what the runs ended with."""
        ahead = self._ahead
        self._last.times[ahead] = self._ends.times[ahead]
        self._last.levels[ahead] = self._ends.levels[ahead]
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
        before = self._carry.load(self._batches.runs)
        for piece in slices(self._batches, chosen):
            found, heads = own(self._batches, piece), piece.firsts == 0
            for field, none in _FIELDS:
                last = carrying.last_of_batches(found[field], none, piece.counts)
                begins = carrying.chain(last, none, self._runs(piece), self._state(field))
                self._begins[field, piece.batches[heads]] = begins[heads]
        self._known[chosen] = True
        self._ahead = np.flatnonzero(marks)
        self._ends = self._last
        self._last = before


def own(batches: Batches, piece: Slice) -> list[Ints]:
    """The times and levels that the records themselves have: given, or found in their text."""
    count = len(piece.ends)
    times, levels = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for start in range(0, count, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        look = prefixes(piece.text, piece.ends, part)
        times[part], levels[part] = find_times(look), find_levels(look)
    if not piece.plain:
        _put_given(batches, piece, times, levels)
    levels[(levels == NO_LEVEL) & (times != NO_TIME)] = _UNSAID
    return [times, levels]


def _put_given(batches: Batches, piece: Slice, times: Ints, levels: Ints) -> None:
    """Replaces what was found in the text by what the records give."""
    stop = 0
    for index, count, first in zip(piece.batches, piece.counts, piece.firsts, strict=True):
        start, stop = stop, stop + int(count)
        meta = batches.meta(int(index)) if batches.rows["meta"][index] else None
        if meta is not None:
            part = slice(int(first), int(first + count))
            _given_times(meta, part, times[start:stop])
            _given_levels(meta, part, levels[start:stop])


def _given_times(meta: RecordMeta, part: slice, times: Ints) -> None:
    given = np.array([NO_TIME if t is None else t for t in meta.ts[part]], dtype=np.int64)
    good = in_range(given)
    times[good] = given[good]


def _given_levels(meta: RecordMeta, part: slice, levels: Ints) -> None:
    names = [NO_LEVEL if n is None else NAMES.get(n.upper(), _UNSAID) for n in meta.levels[part]]
    given = np.array(names, dtype=np.int64)
    known = given >= 0
    levels[known] = given[known]
    levels[(given == _UNSAID) & (levels == NO_LEVEL)] = _UNSAID
