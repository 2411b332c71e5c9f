"""Finds the lines that continue the record before them: the rest of a traceback, wrapped text.

A line continues the record before it if it

- is indented, and begins with neither a level nor a time;
- belongs to a stack trace by its form: `Caused by:`, `... 12 more`, `goroutine 1 [running]:`;
- is a traceback or an exception after a record of WARN or above, or the exception after its frames;
- is a frame without indentation, a closing bracket or a blank line within a trace;
- joins two tracebacks: `During handling of the above exception, …` and the blank line before it.

Any other line begins a record, so one ERROR does not colour the lines that follow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.logstore.segments.file_format import LEVELS
from tailrace.logstore.segments.levels import (
    NO_LEVEL,
    FirstWords,
    FoundLevels,
    TextRecords,
    matches,
)

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
_WARN, _FATAL = LEVELS.index("WARN"), LEVELS.index("FATAL")


class _Form(IntEnum):
    """The form of a line; a later form wins where several match."""

    RECORD = 0
    NAMED = 1  # `KeyError: 'total'`, or any name and a colon
    LOOSE = 2  # a frame without indentation, a closing bracket: part of a trace that is open
    BLANK = 3
    EXCEPTION = 4
    TRACEBACK = 5
    PANIC = 6  # of Go
    PANICKED = 7  # of Rust: its message is the next line
    JOINT = 8
    CONTINUATION = 9
    HEADED = 10  # indented, and begins with a level
    GROUP = 11  # the traceback of an exception group, all of it indented


_NOTE: Final = b"n"[0]
_SPACES: Final = np.zeros(256, np.bool_)
_SPACES[list(b" \t\r\n")] = True
_MARKS: Final = np.zeros(256, np.bool_)
_MARKS[list(b".-#")] = True
_TRACE: Final = (
    r"^(?:Caused by: |Wrapped by: |Suppressed: |\.\.\. \d+ |at [\w.$<>]+\(|--- End of "
    r"|goroutine \d+ \[|created by |stack backtrace:|Stack trace:"
    r"|note: (?:Some details are omitted, )?run with `RUST_BACKTRACE"
    r"|#\d+ (?:/|\{main\}|\[internal))"
)
_NAMED: Final = (
    (
        _Form.EXCEPTION,
        r"^(?:[\w$]+\.)*[A-Z][\w$]*(?:Error|Exception|Throwable)(?: \[[A-Z_]+\])?(?::|$)",
    ),
    (_Form.TRACEBACK, r"^Traceback \(most recent call last\):"),
    (_Form.PANIC, r"^(?:panic: |fatal error: )"),
    (_Form.PANICKED, r"^thread '.*'.* panicked at .*:\d+:\r?$"),
    (
        _Form.JOINT,
        r"^(?:During handling of the above exception|The above exception was the direct)",
    ),
    (_Form.CONTINUATION, _TRACE),
)
"""Forms of lines without indentation, wherever they stand."""
_ANY_NAMED: Final = "|".join(pattern for _, pattern in _NAMED)
_FOLLOWING: Final = (
    (_Form.NAMED, r"^[A-Za-z_][\w.$]*(?::\s|$)"),
    (
        _Form.LOOSE,
        r"^(?:[\w./-]+\.[\w.()*\[\]-]+\(.*\)$|[\])}]+[;,)]*\s*$|\[signal |\[SQL: |\d+ +\| )",
    ),
)
"""Forms that a line has only if it follows an indented one, or one of `_NAMED`."""
_TIME: Final = (
    r"\d{4}[-/.]\d\d[-/.]\d\d|\d\d?:\d\d:\d\d|\d\d[-/]\d\d[ T]\d\d:|[A-Z][a-z][a-z] +\d+ \d\d:"
)
_GROUP: Final = r"^ +\+ Exception Group Traceback \(most recent call last\):"  # of Python
_TIMED: Final = rf"^[ \t]+[\[(]?(?:{_TIME})"  # an indented record


_OPEN: Final = 15  # of a state: the form of the trace that is open
_BITS: Final = (16, 32, 64)
_FOLLOWED: Final = 128  # the last line has a form whatever stands before it
_TRACEBACKS: Final = (_Form.TRACEBACK, _Form.GROUP)
_OPENING: Final = (_Form.TRACEBACK, _Form.GROUP, _Form.PANIC, _Form.PANICKED)


class Continuations:
    """Finds continuations slice by slice; knows where the batches that were cut go on."""

    def __init__(self) -> None:
        self._cut: dict[int, tuple[int, int]] = {}

    def find(
        self, lines: TextRecords, words: FirstWords, found: FoundLevels, place: BatchPlaces
    ) -> Continued:
        """Which lines continue the record before them; `found` is what `find_levels` found in them.

        A batch goes on where the batch before it in its run ended, wherever that was.
        """
        cut, self._cut = self._cut, {}
        begins = _Begins(place, found, cut)
        forms, follows_form = _find_forms(lines, words, found, place, begins)
        continued: Bools = forms == _Form.CONTINUATION
        special = np.flatnonzero(forms)
        # Within continuations nothing changes from line to line.
        inner = continued[special] & ~place.starts[special]
        inner[1:] &= continued[special[:-1]] & (special[1:] == special[:-1] + 1)
        inner[:1] = False
        inner &= ~np.isin(special, place.lasts)
        follows = np.zeros(len(special), np.bool_)
        follows[1:] = special[1:] == special[:-1] + 1
        special, follows = special[~inner], follows[~inner]
        batches = np.searchsorted(place.lasts, special)
        last = place.lasts[batches] == special
        columns = (column[special].tolist() for column in (forms, found.levels, place.starts))
        marks = (column.tolist() for column in (follows, batches, last))
        walk = _Walk()
        for row, form, level, start, follow, batch, ends in zip(
            special.tolist(), *columns, *marks, strict=True
        ):
            if start:
                walk = _Walk.of(*begins.at(row, batch))
            elif not follow:
                walk = _Walk(int(found.levels[row - 1]))
            continued[row] = walk.take(form, level)
            if ends:
                state = walk.state | (_FOLLOWED if follows_form[row] else 0)
                begins.ended[batch] = state, walk.level
        for index, row in place.cut.items():
            self._cut[index] = begins.after(int(np.searchsorted(place.lasts, row)))
        traces = np.zeros(len(place.lasts), np.int64)
        traces[list(begins.ended)] = [state for state, _ in begins.ended.values()]
        return Continued(continued, traces)


class Continued(NamedTuple):
    """Which lines continue others, and for each batch the trace in which it ends, 0 for none."""

    lines: Bools
    traces: Ints


class BatchPlaces(NamedTuple):
    """Where the batches of a slice begin and end.

    `starts` says which lines are the first of a batch in this slice, `lasts` has the row of each
    batch's last line. `resumed` gives the batch of the first line of each batch that began in an
    earlier slice, `cut` the last line of each batch that goes on in a later one. `whole` are lines
    that a client sent as records: they neither continue others nor belong to a trace.

    `runs` has the run of each batch. What was before the first one of a run in this slice, and
    before each that is `apart`, is in `levels` and `traces`, by batch.
    """

    starts: Bools
    lasts: Ints
    resumed: Mapping[int, int]
    cut: Mapping[int, int]
    whole: Bools | None
    runs: Ints
    apart: Bools
    levels: Ints
    traces: Ints


class _Begins:
    """The state, trace and level, with which each batch of a slice begins."""

    def __init__(
        self, place: BatchPlaces, found: FoundLevels, cut: Mapping[int, tuple[int, int]]
    ) -> None:
        self._place = place
        self._levels = found.levels
        self._cut = cut
        self.ended: dict[int, tuple[int, int]] = {}
        """By the batch's number in the slice, if its last line is not a plain record."""

    def at(self, row: int, batch: int) -> tuple[int, int]:
        """That of a batch, whose first line this is."""
        state = self._cut.get(self._place.resumed.get(row, -1))
        if state is not None:
            return state
        before = int(self._previous[batch])
        if before >= 0:
            return self.after(before)
        level = max(int(self._place.levels[batch]), NO_LEVEL)
        return int(self._place.traces[batch]), level

    def after(self, batch: int) -> tuple[int, int]:
        """That behind the last line of a batch."""
        return self.ended.get(batch) or (0, int(self._levels[self._place.lasts[batch]]))

    def followed(self, primary: Bools) -> Ints:
        """First rows of batches before which a line with a form stands; `primary` have one."""
        place = self._place
        opened = (place.traces & _FOLLOWED) > 0
        if opened.any() or primary[place.lasts].any():
            before = self._previous
            opened = np.where(before >= 0, primary[place.lasts[before]], opened)
        for row, index in place.resumed.items():
            known = index in self._cut and self._cut[index][0] & _FOLLOWED > 0
            opened[np.searchsorted(place.lasts, row)] = known
        rows: Ints = np.flatnonzero(place.starts)[opened]
        return rows

    def opened(self, rows: Ints, forms: NDArray[np.int8]) -> Ints:
        """For first rows of batches, the form with which the batch before them ended."""
        place = self._place
        batches = np.searchsorted(place.lasts, rows)
        before = self._previous[batches]
        known: Ints = np.where(
            before >= 0, forms[place.lasts[before]], np.maximum(place.traces[batches], 0) & _OPEN
        )
        return known

    @cached_property
    def _previous(self) -> Ints:
        """For each batch the one before it in its run, -1 if that is not in this slice."""
        runs = self._place.runs
        order = np.argsort(runs, kind="stable")
        before = np.full(len(runs), -1)
        same = runs[order][1:] == runs[order][:-1]
        before[order[1:][same]] = order[:-1][same]
        before[self._place.apart] = -1
        return before


def _find_forms(
    lines: TextRecords, words: FirstWords, found: FoundLevels, place: BatchPlaces, begins: _Begins
) -> tuple[NDArray[np.int8], Bools]:
    """The form of each line, and which lines have one whatever line precedes them."""
    forms = np.zeros(len(words.firsts), np.int8)
    indented = np.flatnonzero(_SPACES[words.firsts])
    named = (words.columns == 1) | _MARKS[words.firsts]
    # `panic:` and Rust's `note:` are levels, too.
    named &= ~found.leading | (found.levels == _FATAL) | (words.firsts == _NOTE)
    if len(indented):
        forms[indented] = _forms_of_indented(lines, indented, found)
    rows = np.flatnonzero(named)
    if len(rows):
        window = lines.take_window(rows)
        some = np.flatnonzero(matches(window, _ANY_NAMED))
        _put_forms(window.take(some), rows[some], _NAMED, forms)
    if place.whole is not None:
        forms[place.whole] = _Form.RECORD
    primary: Bools = forms != _Form.RECORD
    following = np.zeros(len(forms), np.bool_)
    following[1:] = primary[:-1]
    following[place.starts] = False
    following[begins.followed(primary)] = True
    if place.whole is not None:
        following &= ~place.whole
    rows = np.flatnonzero(following & (forms == _Form.RECORD) & ~found.leading)
    if len(rows):
        _put_forms(lines.take_window(rows), rows, _FOLLOWING, forms)
        said = rows[~place.starts[rows] & (forms[rows - 1] == _Form.PANICKED)]
        forms[said] = _Form.LOOSE
        heads = rows[place.starts[rows]]
        forms[heads[begins.opened(heads, forms) == _Form.PANICKED]] = _Form.LOOSE
    return forms, primary


def _forms_of_indented(lines: TextRecords, rows: Ints, found: FoundLevels) -> NDArray[np.int8]:
    window = lines.take_window(rows)
    forms = np.where(found.leading[rows], _Form.HEADED, _Form.CONTINUATION).astype(np.int8)
    forms[matches(window, r"^\s*$")] = _Form.BLANK
    forms[matches(window, _TIMED)] = _Form.RECORD
    forms[matches(window, _GROUP)] = _Form.GROUP
    return forms


def _put_forms(
    window: pa.Array, rows: Ints, patterns: Sequence[tuple[_Form, str]], forms: NDArray[np.int8]
) -> None:
    for form, pattern in patterns:
        forms[rows[matches(window, pattern)]] = form


class _Walk:
    """Goes from line to line: knows the record's level, and the trace in it."""

    def __init__(self, level: int = NO_LEVEL) -> None:
        self.level = level
        self._enter()

    @classmethod
    def of(cls, state: int, level: int) -> _Walk:
        """The one that had this state."""
        walk = cls(level)
        walk._open = state & _OPEN
        walk._frames, walk._ended, walk._joined = (bool(state & bit) for bit in _BITS)
        return walk

    @property
    def state(self) -> int:
        """All but the level, as a number; 0 behind a plain record."""
        flags = (self._frames, self._ended, self._joined)
        return self._open + sum(bit for bit, flag in zip(_BITS, flags, strict=True) if flag)

    def take(self, form: int, level: int) -> bool:
        """Whether the next line continues the record; `level` is its own."""
        if form == _Form.CONTINUATION or (form == _Form.HEADED and self._open):
            self._enter(opened=self._open, frames=True)
        elif form in _TRACEBACKS and self._continues_with_traceback():
            self._enter(opened=form)
        elif self._is_exception(form):
            self._enter(ended=True)
        elif form == _Form.JOINT and self._ended:
            self._joined = True
        elif not self._is_inside(form):
            self.level = level
            self._enter(opened=form if form in _OPENING else _Form.RECORD)
            return False
        return True

    def _continues_with_traceback(self) -> bool:
        return self._joined or (self.level >= _WARN and not self._ended)

    def _is_exception(self, form: int) -> bool:
        """Whether the line names the exception of this record, after its frames or before them."""
        if self._open == _Form.TRACEBACK and self._frames:
            return form in (_Form.NAMED, _Form.EXCEPTION)
        return form == _Form.EXCEPTION and self.level >= _WARN and not self._ended

    def _is_inside(self, form: int) -> bool:
        """Whether a blank line, or a loose one, stands within a trace."""
        if form == _Form.BLANK:
            return self._ended or self._open != _Form.RECORD
        return form == _Form.LOOSE and (self._ended or self._frames or self._open != _Form.RECORD)

    def _enter(
        self, *, opened: int = _Form.RECORD, frames: bool = False, ended: bool = False
    ) -> None:
        self._open = opened  # a trace of this form began, its end is still to come
        self._frames = frames  # the line is a frame, or other indented text
        self._ended = ended  # the line is the traceback's exception, or blank and after it
        self._joined = False  # a sentence says that another traceback follows
