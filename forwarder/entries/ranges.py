"""Takes units through the stages of a source until there are enough for one body."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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


class Range:
    """Units on their way."""

    def __init__(
        self,
        units: Units,
        chain: Chain,
        encoder: Encoder,
        trim: Callable[[str], str],
        own: Own | None,
    ) -> None:
        self._units = units
        self._chain = chain
        self._encoder = encoder
        self._trim = trim
        self._own = own
        self._rows: list[bytes] = []
        self._best: tuple[int, int] | None = None

    def run(self, most: int, *, final: bool) -> Taken | None:
        """The range of about `most` bytes of records; None if it may end nowhere.

        `final`: it may end behind the last unit, whatever the stages hold.
        """
        texts, nexts, marks = self._units
        chain, trim, rows = self._chain, self._trim, self._rows
        entries, feed = chain.entries, chain.feed
        size = at = 0
        number = -1
        for number, text in enumerate(texts):
            if marks and number in marks:
                self._feed_marked(marks[number], text, number, nexts[number] - at)
            else:
                feed(Entry(trim(text), number, number, nexts[number] - at))
            at = nexts[number]
            if len(entries) > len(rows):
                size += self._encode()
                if size > most and self._best is not None:
                    return self._taken()
            if not chain.joins:
                self._best = number + 1, len(rows)
            elif number < _EACH or number % _NOW_AND_THEN == 0:
                self._look(number)
        if final and texts:
            chain.flush()
            self._encode()
            self._best = len(texts), len(rows)
        elif number >= 0:
            self._look(number)
        return self._taken() if self._best is not None else None

    def _taken(self) -> Taken:
        assert self._best is not None
        units, records = self._best
        return Taken(units, self._rows[:records])

    def _look(self, number: int) -> None:
        border = self._chain.border(number)
        if border:
            self._best = border, len(self._rows)

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
        for entry in self._chain.entries[len(rows) :]:
            own = None if self._own is None else self._own(entry, len(rows))
            row = self._encoder.row(entry, own)
            rows.append(row)
            size += len(row)
        return size
