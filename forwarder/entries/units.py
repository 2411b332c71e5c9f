"""Splits decoded text into units: lines, what patterns delimit, or blocks of a size.

A unit that is longer than `max_log_size` is cut. If its end is not there yet, its first pieces are
units all the same, and the rest goes on `inside` of it: no entry needs more memory than one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from forwarder.entries.codec import Codec
from forwarder.entries.overwritten import last_begin
from logstore.patterns import LinearRegex

_OVERWRITTEN = 64 << 10
"""So many characters of states that are not seen any more are passed over at once."""
Bounds = tuple[int, int, int]
"""Begin and end of the content, and where the next unit begins; indices of characters."""
Splitter = Callable[[str, bool], Iterator[Bounds]]


class Units(NamedTuple):
    """The units of a text: what each has, and the index of the character behind each.

    `marks` has those that are no whole unit, by their number.
    """

    texts: list[str]
    nexts: list[int]
    marks: dict[int, Unit]


class Unit(NamedTuple):
    """A unit, or a piece of one; indices of characters."""

    begin: int
    end: int
    next: int
    inside: int = 0
    """Pieces of the unit up to `next`, if it goes on there."""
    part: int = 0
    """Which piece it is, from 2; 0: a whole unit, or the first piece of one."""
    truncated: bool = False
    dropped: bool = False
    """It is what was cut off: no record."""


def lines(text: str, final: bool) -> Iterator[Bounds]:
    """What newlines end; one carriage return before a newline belongs to it."""
    at = 0
    while (end := text.find("\n", at)) >= 0:
        yield at, end - (end > at and text[end - 1] == "\r"), end + 1
        at = end + 1
    if final and at < len(text):
        yield at, len(text), len(text)


def started(pattern: LinearRegex, *, omit: bool) -> Splitter:
    """Units that begin where the pattern matches; what is before the first match is one too."""
    spans = LinearRegex(pattern.pattern, multiline=True).spans

    def split(text: str, final: bool) -> Iterator[Bounds]:
        at = behind = 0
        began = False  # whether the unit at `at` begins with a match, that ends at `behind`
        for begin, end in spans(text):
            if not final and end == len(text):
                break  # it may match otherwise when more is there
            if began and begin <= behind:
                continue
            if begin > at:
                yield behind if omit else at, begin, begin
            at, behind, began = begin, end, True
        if final and at < len(text):
            yield behind if omit else at, len(text), len(text)

    return split


def ended(pattern: LinearRegex, *, omit: bool) -> Splitter:
    """Units that end behind what the pattern matches."""
    spans = LinearRegex(pattern.pattern, multiline=True).spans

    def split(text: str, final: bool) -> Iterator[Bounds]:
        at = 0
        for begin, end in spans(text):
            if not final and end == len(text):
                break
            if end > at:
                yield at, max(begin, at) if omit else end, end
                at = end
        if final and at < len(text):
            yield at, len(text), len(text)

    return split


def whole(text: str, final: bool) -> Iterator[Bounds]:
    """All that is there, to be cut into blocks."""
    if final and text:
        yield 0, len(text), len(text)


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts what is longer than `most` bytes into pieces, or leaves the rest of it out.

    Whether a first piece goes on is not known to whoever has this piece alone, so it has no mark;
    the pieces behind it have a number.
    """

    codec: Codec
    most: int
    truncate: bool = False
    blocks: bool = False
    """Each piece is a unit of its own: a file without lines."""
    rejoins: bool = False
    """Units are lines: one that was sent before its newline came goes on as a piece of it."""
    last_states: bool = False
    """Units are lines, of which the last state counts: what was overwritten needs no piece."""

    def cut(self, split: Splitter, text: str, final: bool, inside: int) -> Units:
        """The units of a text that begins behind `inside` pieces of one."""
        if split is lines and not inside and self._short_lines(text):
            return self._lines(text, final)
        texts: list[str] = []
        nexts: list[int] = []
        marks: dict[int, Unit] = {}
        for unit in self.units(split, text, final, inside):
            if unit.inside or unit.part or unit.truncated or unit.dropped:
                marks[len(texts)] = unit
            texts.append(text[unit.begin : unit.end])
            nexts.append(unit.next)
        return Units(texts, nexts, marks)

    def _short_lines(self, text: str) -> bool:
        """Whether no line, nor what is behind the last, is too long; it looks at few of them."""
        at, size, most = 0, len(text), self.most // 4
        while size - at > most:
            newline = text.rfind("\n", at, at + most + 1)
            if newline < 0:
                return False
            at = newline + 1
        return True

    def _lines(self, text: str, final: bool) -> Units:
        """The same of lines none of which is too long, by column."""
        texts = text.split("\n")
        rest = texts.pop()
        nexts = list(accumulate([len(one) + 1 for one in texts]))
        if "\r" in text:
            texts = [one[:-1] if one[-1:] == "\r" else one for one in texts]
        marks: dict[int, Unit] = {}
        if rest and final:
            if self.rejoins:
                marks[len(texts)] = Unit(len(text) - len(rest), len(text), len(text), inside=1)
            texts.append(rest)
            nexts.append(len(text))
        return Units(texts, nexts, marks)

    def units(self, split: Splitter, text: str, final: bool, inside: int) -> Iterator[Unit]:
        """The same, one by one."""
        at = 0
        for begin, end, following in split(text, final):
            longer = self._longer(text, begin, end)
            if longer and self.last_states:
                begin = last_begin(text, begin, end)  # noqa: PLW2901
                longer = self._longer(text, begin, end)
            if inside or longer:
                yield from self._pieces(text, begin, end, following, inside)
            else:
                yield Unit(begin, end, following, inside=int(self.rejoins and following == end))
            at, inside = following, 0
        if at < len(text) and not final:
            yield from self._unfinished(text, at, inside)

    def _longer(self, text: str, begin: int, end: int) -> bool:
        """Characters are at most four bytes, so that few are counted."""
        if end - begin > self.most:
            return True
        return (end - begin) * 4 > self.most and self.codec.size(text[begin:end]) > self.most

    def _pieces(
        self, text: str, begin: int, end: int, following: int, inside: int
    ) -> Iterator[Unit]:
        """The pieces of a unit whose end is there."""
        if begin == end or (inside and self.truncate):
            yield Unit(begin, end, following, dropped=True)  # what is behind the last piece
            return
        while begin < end:
            stop = begin + self.codec.cut(text[begin:end], self.most)
            if self.truncate:
                yield Unit(begin, stop, following, truncated=True)
                return
            last = stop == end and (following > end or not self.rejoins)
            yield self._piece(begin, stop, following if stop == end else stop, inside, ends=last)
            begin, inside = stop, inside + 1

    def _piece(self, begin: int, stop: int, following: int, inside: int, *, ends: bool) -> Unit:
        if self.blocks:
            return Unit(begin, stop, following)
        part = inside + 1 if inside else 0
        return Unit(begin, stop, following, inside=0 if ends else inside + 1, part=part)

    def _unfinished(self, text: str, at: int, inside: int) -> Iterator[Unit]:
        """Full pieces of a unit whose end is not there."""
        if inside and self.truncate:
            yield Unit(at, len(text), len(text), inside=1, dropped=True)
            return
        if self.last_states and (state := last_begin(text, at, len(text))) > at:
            if state - at < _OVERWRITTEN and not self._longer(text, at, len(text)):
                return
            if at == 0:  # a range of its own, without a record: it need not be made again
                yield Unit(state, state, state, inside=inside, dropped=True)
            return
        while self._longer(text, at, len(text)):
            stop = at + self.codec.cut(text[at:], self.most)
            if self.truncate:
                yield Unit(at, stop, len(text), inside=1, truncated=True)
                return
            yield self._piece(at, stop, stop, inside, ends=False)
            at, inside = stop, inside + 1
