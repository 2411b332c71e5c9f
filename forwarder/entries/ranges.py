"""Takes units through the stages of a source until there are enough for one body."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

from forwarder.entries.calm import Calm
from forwarder.entries.entry import Encoder, Entry
from forwarder.entries.stages import Chain
from forwarder.entries.units import Unit, Units

PART = "log.record.part"
"""Of a piece of an entry longer than `max_log_size`: its number, from 2."""
TRUNCATED = "log.record.truncated"
"""`true`, of an entry that was cut at `max_log_size`."""
Own = Callable[[Entry, int], dict[str, str]]
"""Attributes that are of one record, by its entry and how many records are before it."""
# Where stages hold entries back, it is looked at each of the first units whether the range may end
# there, and then now and then.
_EACH = 64
_NOW_AND_THEN = 16


class Taken(NamedTuple):
    """How many units the range has, and the records that they give."""

    units: int
    rows: list[bytes]
    failed: int
    """Records of entries that an operator could not parse."""


class Range:
    """Units on their way."""

    def __init__(
        self,
        units: Units,
        chain: Chain,
        encoder: Encoder,
        trim: Callable[[str], str],
        own: Own | None,
        calm: Calm | None = None,
    ) -> None:
        self._units = units
        self._chain = chain
        self._encoder = encoder
        self._trim = trim
        self._own = own
        self._calm = calm if own is None else None
        self._rows: list[bytes] = []
        self._encoded = self._failed = 0
        self._best: tuple[int, int, int] | None = None

    def run(self, most: int, *, final: bool) -> Taken | None:
        """The range of about `most` bytes of records; None if it may end nowhere.

        `final`: it may end behind the last unit, whatever the stages hold.
        """
        texts, nexts, marks = self._units
        chain, trim = self._chain, self._trim
        entries, feed = chain.entries, chain.feed
        size = at = number = 0
        while number < len(texts):
            if self._calm is not None and not marks and chain.settles(number):
                some, more = self._take_calm(number, most - size)
                number, size = number + some, size + more
                at = nexts[number - 1] if number else 0
            if marks and number in marks:
                self._feed_marked(marks[number], texts[number], number, nexts[number] - at)
            else:
                feed(Entry(trim(texts[number]), number, number, nexts[number] - at))
            at = nexts[number]
            if len(entries) > self._encoded:
                size += self._encode()
                if size > most and self._best is not None:
                    return self._taken()
            if not chain.joins:
                self._best = number + 1, len(self._rows), self._failed
            elif number < _EACH or number % _NOW_AND_THEN == 0:
                self._look(number)
            number += 1
        if final and texts:
            chain.flush()
            self._encode()
            self._best = len(texts), len(self._rows), self._failed
        elif texts:
            self._look(number - 1)
        return self._taken() if self._best is not None else None

    def _take_calm(self, at: int, most: int) -> tuple[int, int]:
        """Takes units from `at` on at once: how many, never the last one, and their bytes."""
        assert self._calm is not None
        total = 0
        number = at
        while self._calm is not None and number < len(self._units.texts) - 1:
            rows = self._calm.rows(self._units.texts, number, self._encoder)
            rows = rows[: len(self._units.texts) - 1 - number]
            sizes = list(accumulate(map(len, rows), initial=total))
            fitting = bisect_right(sizes, most) - 1
            if fitting < len(rows):
                rows, self._calm = rows[: max(fitting, 0)], None  # enough
            if not rows:
                break
            size = sizes[len(rows)] - total
            if number == at:  # what stages hold ends before it
                self._chain.flush()
                total += self._encode()
            self._rows += rows
            number, total = number + len(rows), total + size
            self._best = number, len(self._rows), self._failed
        if number > at:
            self._chain.newest = number - 1
        return number - at, total

    def _taken(self) -> Taken:
        assert self._best is not None
        units, records, failed = self._best
        return Taken(units, self._rows[:records], failed)

    def _look(self, number: int) -> None:
        border = self._chain.border(number)
        if border:
            self._best = border, len(self._rows), self._failed

    def _feed_marked(self, unit: Unit, text: str, number: int, size: int) -> None:
        if unit.dropped:
            return
        entry = Entry(self._trim(text), number, number, size)
        if unit.part:
            entry.attributes[PART] = str(unit.part)
        if unit.truncated:
            entry.attributes[TRUNCATED] = "true"
        self._chain.feed(entry)

    def _encode(self) -> int:
        size, rows = 0, self._rows
        for entry in self._chain.entries[self._encoded :]:
            own = None if self._own is None else self._own(entry, len(rows))
            row = self._encoder.row(entry, own)
            rows.append(row)
            size += len(row)
            self._failed += entry.failed
        self._encoded = len(self._chain.entries)
        return size
