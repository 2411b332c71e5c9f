"""Finds the event time of each record in its text.

The main format is `YYYY-MM-DD[T ]HH:MM:SS[.,fraction][Z|±hh[:]mm]`; the date may be written with
`/`. The time of a record is the first one in its prefix (`[2024-…`, `{"ts":"2024-…`,
`INFO 2024-…`). A time without a zone is in UTC, and digits below a microsecond are cut. Invalid
dates (month 13) are not times, nor are years outside 1900–9999, about which readers of Parquet
disagree. What follows a clock (`PM`, ` CET`) moves it. The second half of this module reads formats
without a year, and numbers; `rare_times` the others.

The search works on all records at once: `_candidates` finds positions by their separators, and
`_parse` decodes a matrix with a column for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.logstore.segments.levels import (
    WIDTH,
    Bools,
    Bytes,
    Ints,
    Prefixes,
    first_of_rows,
    is_word,
)
from tailrace.logstore.segments.rare_times import (
    MONTHS,
    SUFFIX_BYTES,
    may_shift,
    put_rare_times,
    shift_of,
)

NO_TIME: Final = np.iinfo(np.int64).min
EARLIEST_US: Final = -2_208_988_800_000_000  # 1900-01-01
LATEST_US: Final = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999

_SIZE = 36  # the longest time, with nine digits of a fraction and a zone
_DATE = 19  # YYYY-MM-DD HH:MM:SS
_CLOCK = 11  # where its clock begins
_DIGITS = [0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18]
MONTH_DAYS = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_SECOND = 1_000_000
_MINUTE = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE


def find_times(prefixes: Prefixes) -> Ints:
    """Microseconds since the epoch for each record, `NO_TIME` where none is found."""
    times = np.full(len(prefixes.lengths), NO_TIME, dtype=np.int64)
    found = _candidates(prefixes)
    if len(found) == 0:
        return times
    row, column = prefixes.place(found)
    texts = _cut(prefixes.flat, found)
    value, width = _parse(texts)
    previous = prefixes.flat[found - 1] - np.uint8(48)
    good = (value != NO_TIME) & (previous > 9) & (column + _DATE - 1 <= prefixes.lengths[row])
    first = np.flatnonzero(good)[first_of_rows(row[good])]
    hours = _number(texts[:, first], range(_CLOCK, _CLOCK + 2))
    ends = found[first] + _DATE + width[first]
    value = _shifted(value[first], hours, prefixes.flat, ends)
    times[row[first]] = np.where(in_range(value), value, NO_TIME)
    return times


def in_range(times: Ints) -> Bools:
    """Which times are in the range that every reader of Parquet can show."""
    return (times >= EARLIEST_US) & (times <= LATEST_US)


def _candidates(prefixes: Prefixes) -> Ints:
    """The positions in columns 1 and up at which the separators of a date and time match."""
    found = prefixes.clocks - _CLOCK
    _, column = prefixes.place(found)
    found = found[(column > 0) & (column <= WIDTH - _SIZE) & (found > 0)]
    # `-`, and `/`, which is one bit away
    dash = (prefixes.flat[found + 4] & 253 == 45) & (prefixes.flat[found + 7] & 253 == 45)
    dated: Ints = found[dash]
    return dated


def _cut(flat: Bytes, found: Ints, size: int = _SIZE) -> Bytes:
    """The bytes from each position, as the columns of a matrix (byte, record)."""
    windows = np.ndarray((flat.size - size + 1,), dtype=f"V{size}", buffer=flat.data, strides=(1,))
    rows = windows[found].view(np.uint8).reshape(len(found), size)
    return np.ascontiguousarray(rows.T)


def _parse(texts: Bytes) -> tuple[Ints, Ints]:
    """The time in each column of `texts`, in microseconds; `NO_TIME` if it is invalid.

    The other is the bytes of its fraction.
    """
    digits = texts - np.uint8(48)
    good = digits[_DIGITS].max(axis=0) <= 9
    good &= (texts[4] == texts[7]) & ((texts[10] == 32) | (texts[10] == 84))
    # Most lines have the minute of the line before them, so each minute is computed once.
    change = np.ones(texts.shape[1], dtype=np.bool_)
    change[1:] = (texts[:16, 1:] != texts[:16, :-1]).any(axis=0)
    minutes = _minutes(digits[:16, change].astype(np.int64))[np.cumsum(change) - 1]
    seconds = digits[17].astype(np.int64) * 10 + digits[18]
    good &= (minutes != NO_TIME) & (seconds < 60)
    fraction, width = _fraction(texts, digits)
    value = np.where(good, minutes, 0) * _MINUTE + seconds * _SECOND + fraction
    return np.where(good & in_range(value), value, NO_TIME), width


def _minutes(digits: Ints) -> Ints:
    """Minutes since the epoch of `YYYY-MM-DD HH:MM`, `NO_TIME` for invalid ones."""
    year = digits[0] * 1000 + digits[1] * 100 + digits[2] * 10 + digits[3]
    month = digits[5] * 10 + digits[6]
    day = digits[8] * 10 + digits[9]
    hour = digits[11] * 10 + digits[12]
    minute = digits[14] * 10 + digits[15]
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    limit = MONTH_DAYS[np.where((month >= 1) & (month <= 12), month, 0)]
    limit = limit - ((month == 2) & ~leap)
    good = (day >= 1) & (day <= limit) & (hour < 24) & (minute < 60) & (year >= 1)
    value = (days_of(year, month, day) * 24 + hour) * 60 + minute
    return np.where(good, value, NO_TIME)


def days_of(year: Ints, month: Ints, day: Ints) -> Ints:
    """Days since the epoch (howardhinnant.github.io/date_algorithms, `days_from_civil`)."""
    y = year - (month <= 2)
    era = y // 400
    yoe = y - era * 400
    doy = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    days: Ints = era * 146097 + yoe * 365 + yoe // 4 - yoe // 100 + doy - 719468
    return days


def _fraction(texts: Bytes, digits: Bytes) -> tuple[Ints, Ints]:
    """The fraction after `.` or `,` in microseconds, and its bytes with the separator."""
    going = (texts[_DATE] == 46) | (texts[_DATE] == 44)
    value = np.zeros(texts.shape[1], dtype=np.int64)
    width = np.zeros(texts.shape[1], dtype=np.int64)
    unit = _SECOND
    for place in range(_DATE + 1, _DATE + 10):
        going = going & (digits[place] <= 9)
        if not going.any():
            break
        unit //= 10
        value += np.where(going, digits[place].astype(np.int64) * unit, 0)
        width += going
    return value, width + (width > 0)


def _shifted(values: Ints, hours: Ints, flat: Bytes, ends: Ints) -> Ints:
    """The times `values` moved by what follows their clocks: a zone, or the half of a day.

    `hours` are those of the clocks, which end in `flat` at `ends`. `NO_TIME` where a zone is not
    known for sure.
    """
    which = np.flatnonzero(may_shift(flat, ends))
    if len(which) == 0:
        return values
    places = np.minimum(ends[which] + np.arange(SUFFIX_BYTES)[:, np.newaxis], flat.size - 1)
    texts = np.vstack((flat[places], hours[which].astype(np.uint8)))
    # Most lines have the zone of the line before them.
    change = np.ones(len(which), dtype=np.bool_)
    change[1:] = _differ(texts).any(axis=0)
    known: dict[bytes, int] = {}
    moves = []
    for text in np.ascontiguousarray(texts[:, change].T):
        key = text.tobytes()
        if key not in known:
            move = shift_of(key[:-1], key[-1])
            known[key] = NO_TIME if move is None else move
        moves.append(known[key])
    move = np.array(moves)[np.cumsum(change) - 1]
    values = values.copy()
    values[which] = np.where(move == NO_TIME, NO_TIME, values[which] + move)
    return values


# Times in records without a date of the form YYYY-MM-DD; many of these formats say less.
#
#   Nov 29 10:00:00, <30>Nov  9 10:00:00     syslog: the year that puts it nearest to arrival
#   Sun Nov 29 10:00:00 2026                 the year after the time
#   11-29 10:00:00.123, E1129 10:00:00.12    logcat, klog: the nearest year
#   20261129 10:00:00                        glog
#   [29/Nov/2026:10:00:00 +0100]             web servers
#   29-Nov-2026 10:00:00, 29 Nov 2026 10:00:00, Nov 29, 2026 10:00:00 AM
#   29.11.2026 10:00:00, 2026.11.29T10:00:00 the day first, or the year
#   11/29/2026, 10:00:00 29-11-2026 10:00:00 the order that is a date, or alone is near arrival
#   10:00:00, [10:00:00,123]                 at the beginning: the day nearest to arrival
#   1796000000, ts=1796000000.1              epoch seconds or milliseconds, at the beginning or
#   {"time":1796000000000}                   after a key `ts`, `time` or `timestamp`
#   [12345.678901]                           dmesg: seconds since an unknown start. The newest of
#                                            a batch is taken for its arrival
#
# Times without a zone are UTC. The arrival is the time of the batch's ULID. Most of the work is
# done for all records at once; the text of a record is looked at only where a key or `[` promises a
# time.


_DAY: Final = 86_400 * _SECOND
_HALF_YEAR: Final = 182 * _DAY
_NEAR: Final = 3 * _DAY  # to the arrival, of the midnight before a time of day
_CLOCK_BYTES: Final = 8  # HH:MM:SS
_BEFORE: Final = 16  # bytes before a clock that may have its date
_AFTER: Final = 13  # bytes behind it that may have a fraction and a year, or a zone
_SHORT_DIGITS: Final = 6  # of a fraction
_UPTIME_BYTES: Final = 40  # in which an uptime ends, with the priority and blanks before it
_CLOCK_DIGITS: Final = np.array([[0], [1], [3], [4], [6], [7]])
_PLACES_OF_YEARS: Final = (
    *(_CLOCK_BYTES, _CLOCK_BYTES + 1 + _SHORT_DIGITS),
    *(_CLOCK_BYTES + 4, _CLOCK_BYTES + 5),
)
_LAST_COLUMN: Final = 64
_PLACES: Final = np.arange(_BEFORE, dtype=np.uint8)[:, np.newaxis]
_ENDS_OF_YEAR: Final = np.array(
    [not is_word(np.array(byte)) and chr(byte) not in ".-" for byte in range(256)]
)
"""Which bytes may stand after a year."""
_CODES: Final = np.array([int.from_bytes(name.encode(), "big") for name in MONTHS])
_ORDER: Final = np.argsort(_CODES)
_EPOCH: Final = re.compile(
    rb'(?:(?:^|[\s,{"])(?:ts|t|time|timestamp|@timestamp|timeMillis|epochSecond'
    rb'|__REALTIME_TIMESTAMP)"?[=:]\s*"?(?P<keyed>)|^(?:- |\[)?)'
    rb"(1[0-9]{9})([0-9]{3}|(?(keyed)[0-9]{6}|[0-9]{3})|(?(keyed)[0-9]{9}|[0-9]{3}))?"
    rb"(?:\.([0-9]{1,6})[0-9]*)?(?![0-9.])"
)
_UPTIME: Final = re.compile(rb"(?:<[0-9]{1,3}>)?\[ *([0-9]{1,9})\.([0-9]{6})\]")


def find_short_times(look: Prefixes, which: Ints, arrivals: Ints) -> Ints:
    """Microseconds since the epoch of the records `which`, `NO_TIME` where none is found.

    `arrivals` are those of these records.
    """
    times = _clock_times(look, which, arrivals)
    missing = np.flatnonzero(times == NO_TIME)
    for place in missing[_may_have_epoch(look.rows[which[missing]])].tolist():
        row = which[place]
        found = _EPOCH.search(look.rows[row, 1 : int(look.lengths[row])].tobytes())
        if found is not None:
            _, whole, more, fraction = found.groups()
            digits = (more or b"") + (fraction or b"")
            times[place] = int(whole) * _SECOND + int(digits[:6].ljust(6, b"0"))
    missing = which[times == NO_TIME]
    if len(missing):
        rare, arrived = np.full((2, len(look.lengths)), NO_TIME)
        arrived[which] = arrivals
        put_rare_times(look, missing, arrived, rare)
        times = np.where((times == NO_TIME) & in_range(rare[which]), rare[which], times)
    return times


def find_uptimes(look: Prefixes, which: Ints) -> Ints:
    """Microseconds since the start of the machine in lines of dmesg, `NO_TIME` for others."""
    uptimes = np.full(len(which), NO_TIME, dtype=np.int64)
    first = look.rows[which, 1]
    begins = np.flatnonzero((first == ord("[")) | (first == ord("<")))
    heads = look.rows[which[begins], 1 : 1 + _UPTIME_BYTES]
    point = (heads[:, :-7] == ord(".")) & (heads[:, 7:] == ord("]"))
    for place in begins[point.any(axis=1)].tolist():
        found = _UPTIME.match(look.rows[which[place], 1:].tobytes())
        if found is not None:
            uptimes[place] = int(found[1]) * _SECOND + int(found[2])
    return uptimes


def times_of_uptimes(uptimes: Ints, batches: Ints, arrivals: Ints) -> Ints:
    """The times of dmesg's lines, if the newest of each batch was written at its arrival."""
    known = uptimes != NO_TIME
    newest = np.full(int(batches.max(initial=0)) + 1, NO_TIME, dtype=np.int64)
    np.maximum.at(newest, batches[known], uptimes[known])
    return np.where(known, arrivals - newest[batches] + np.where(known, uptimes, 0), NO_TIME)


def _may_have_epoch(rows: Bytes) -> Bools:
    """Which rows have ten digits where lines with a time since the epoch have them.

    That is at the beginning, or anywhere in JSON, with keys, and behind the sign of BGL's logs.
    """
    first = rows[:, 1]
    begins: Bools = (first == ord("1")) & ((rows[:, 2:11] - np.uint8(48)).max(axis=1) <= 9)
    keyed = (
        (first == ord("{"))
        | (first == ord("-"))
        | (first == ord("["))
        | (rows[:, 1:24] == ord("=")).any(axis=1)
    )
    some = np.flatnonzero(keyed & ~begins)
    one = rows[some] - np.uint8(48) <= 9
    two = one[:, :-1] & one[:, 1:]
    four = two[:, :-2] & two[:, 2:]
    eight = four[:, :-4] & four[:, 4:]
    begins[some] = (eight[:, :-2] & two[:, 8:]).any(axis=1)
    return begins


def _clock_times(look: Prefixes, which: Ints, arrivals: Ints) -> Ints:
    """The times of the records `which` by the first clock in each of them."""
    times = np.full(len(which), NO_TIME, dtype=np.int64)
    places = np.full(len(look.lengths), -1)
    places[which] = np.arange(len(which))
    found = _first_clocks(look, places >= 0)
    if len(found) == 0:
        return times
    row, column = look.place(found)
    arrived = arrivals[places[row]]
    padded = np.concatenate((np.full(_BEFORE, 10, np.uint8), look.flat))
    texts = _cut(padded, found, _BEFORE + _CLOCK_BYTES + _AFTER)
    before, texts = texts[:_BEFORE], texts[_BEFORE:]
    # No byte of the record before counts.
    outside = np.maximum(_BEFORE + 1 - column, 0).astype(np.uint8)
    np.copyto(before, 10, where=outside > _PLACES)
    (of_day, width), years = _time_of_day(texts), _years_behind(texts)
    # Most lines have the date of the line before them, so each date is read once.
    change = np.ones(len(found), np.bool_)
    change[1:] = _differ(before).any(axis=0) | _differ(arrived) | _differ(years)
    dates = _Dates(before[:, change], arrived[change], years[change])
    value = dates.midnights()[np.cumsum(change) - 1]
    opened = (column == 2) & ((before[-1] == ord("[")) | (before[-1] == ord("(")))
    alone = np.flatnonzero((value == NO_TIME) & ((column == 1) | opened))
    shifted = _shifted(of_day, of_day // _HOUR, look.flat, found + width)
    known = (value != NO_TIME) & (shifted != NO_TIME)
    value = np.where(known, value + shifted, NO_TIME)
    alone = alone[shifted[alone] != NO_TIME]
    value[alone] = _nearest_day(arrived[alone], shifted[alone])
    times[places[row]] = np.where(in_range(value), value, NO_TIME)
    return times


def _differ(values: NDArray[Any]) -> Bools:
    """Whether each value, or each column, differs from the one before it."""
    differ: Bools = values[..., 1:] != values[..., :-1]
    return differ


def _first_clocks(look: Prefixes, wanted: Bools) -> Ints:
    """The position of the first `HH:MM:SS` in each of the wanted rows."""
    flat, found = look.flat, look.clocks
    row, column = look.place(found)
    near = wanted[row] & (column > 0) & (column <= _LAST_COLUMN)
    near &= column + _CLOCK_BYTES <= look.lengths[row]
    found = found[near]
    digits = flat[found + _CLOCK_DIGITS] - np.uint8(48)
    good = digits.max(axis=0, initial=0) <= 9
    good &= (digits[2] <= 5) & (digits[4] <= 5)
    good &= (digits[0] < 2) | ((digits[0] == 2) & (digits[1] < 4))
    before, behind = flat[found - 1], flat[found + _CLOCK_BYTES]
    alone = (before - np.uint8(48) > 10) & (behind - np.uint8(48) > 10)  # no digit, no colon
    web = (before == ord(":")) & (behind == ord(" "))  # 29/Nov/2026:10:00:00
    found = found[good & (alone | web)]
    first: Ints = found[first_of_rows(found // WIDTH)]
    return first


def _time_of_day(texts: Bytes) -> tuple[Ints, Ints]:
    """Microseconds since midnight of `HH:MM:SS`, with a fraction of up to six digits; its bytes."""
    digits = texts - np.uint8(48)
    minutes = (digits[0] * np.int64(10) + digits[1]) * 60 + (digits[3] * np.uint8(10) + digits[4])
    value: Ints = (minutes * 60 + (digits[6] * np.uint8(10) + digits[7])) * _SECOND
    width = np.full(texts.shape[1], _CLOCK_BYTES)
    going = (texts[_CLOCK_BYTES] == ord(".")) | (texts[_CLOCK_BYTES] == ord(","))
    unit = _SECOND
    for place in range(_CLOCK_BYTES + 1, _CLOCK_BYTES + 1 + _SHORT_DIGITS):
        going &= digits[place] <= 9
        if not going.any():
            break
        unit //= 10
        value += (digits[place] * going) * np.int64(unit)
        width[going] = place + 1
    return value, width


def _number(texts: Bytes, places: Sequence[int]) -> Ints:
    """The number of the digits at these places; a byte that is no digit counts as 0."""
    value = np.zeros(texts.shape[1], dtype=np.int64)
    for place in places:
        digit = texts[place] - np.uint8(48)
        value = value * 10 + np.where(digit <= 9, digit, np.uint8(0))
    return value


@dataclass(frozen=True)
class _Dates:
    """The texts that end where clocks begin (byte, record): `-1` is the byte before the clock.

    `years` are those that stand after the clock, 0 without one.
    """

    before: Bytes
    arrived: Ints
    years: Ints

    def midnights(self) -> Ints:
        """The beginning of each date in microseconds, `NO_TIME` where the text has none."""
        value = np.full(len(self.arrived), NO_TIME, dtype=np.int64)
        forms = (*self._named(), *self._of_two_numbers(), *self._whole(), *self._of_numbers())
        for form, days_of_rows in forms:
            rows = np.flatnonzero(form & (value == NO_TIME))
            if len(rows):
                value[rows] = days_of_rows(rows, self.before[:, rows])
        return value

    @cached_property
    def _is_digit(self) -> Bools:
        digits: Bools = self.before - np.uint8(48) <= 9
        return digits

    @cached_property
    def _ends(self) -> Bools:
        return self._is(-1, " ")

    def _is(self, place: int, signs: str) -> Bools:
        found: Bools = self.before[place] == ord(signs[0])
        for sign in signs[1:]:
            found |= self.before[place] == ord(sign)
        return found

    def _are_digits(self, *places: int) -> Bools:
        found: Bools = np.logical_and.reduce([self._is_digit[place] for place in places])
        return found

    def _near(self, month: _Part, day: _Part) -> _Days:
        """Dates without a year, in the year that puts them nearest to their arrival."""
        return lambda rows, dates: _nearest_year(month(dates), day(dates), self.arrived[rows])

    def _named(self) -> Iterator[_Form]:
        """`Nov 29 `, and the year after the clock if it stands there."""
        named = self._ends & self._is(-4, " ") & self._is_digit[-2]
        named &= self._is_digit[-3] | self._is(-3, " ")
        month, day = _month(-7), _digits(-3, -2)
        yield (
            named & (self.years > 0),
            lambda rows, dates: _on(self.years[rows], month(dates), day(dates)),
        )
        yield named, self._near(month, day)

    def _of_two_numbers(self) -> Iterator[_Form]:
        """`11-29 ` and `1129 `."""
        for places, sign in (((-6, -5, -3, -2), -4), ((-5, -4, -3, -2), None)):
            first = min(places) - 1
            dated = self._ends & self._are_digits(*places)
            dated &= ~self._is_digit[first] & ~self._is(first, "-")
            if sign is not None:
                dated &= self._is(sign, "-")
            yield dated, self._near(_digits(*places[:2]), _digits(*places[2:]))

    def _whole(self) -> Iterator[_Form]:
        """Dates that have a year."""
        sign, behind = self.before[-6], _digits(-5, -4, -3, -2)
        year = self._are_digits(-5, -4, -3, -2)
        signed = self._is(-6, "/- ") & (self.before[-10] == sign)
        signed &= (self._ends | self._is(-1, ":")) & year & self._are_digits(-12, -11)
        yield signed, _whole(behind, _month(-9), _digits(-12, -11))
        comma = self._is(-7, ",") & year & self._ends & self._is(-6, " ") & self._is_digit[-8]
        for blank, place in ((self._is_digit[-9], -13), (self._is(-9, " "), -12)):
            yield comma & blank, _whole(behind, _month(place), _digits(-9, -8))
        dense = year & self._ends & self._are_digits(-9, -8, -7, -6) & ~self._is_digit[-10]
        yield dense, _whole(_digits(-9, -8, -7, -6), _digits(-5, -4), _digits(-3, -2))

    def _of_numbers(self) -> Iterator[_Form]:
        """`29.11.2026 `, `11/29/2026, `, `29-11-2026T` and `2026.11.29 `."""
        comma = self._is(-1, " ") & self._is(-2, ",")
        for end, ends in ((-1, self._is(-1, " T")), (-2, comma)):
            places = range(end - 10, end)
            first, second, year = places[:2], places[3:5], places[6:]
            sign = self.before[places[2]]
            numbers = ends & self._are_digits(*first, *second, *year)
            numbers &= (sign == self.before[places[5]]) & ~self._is_digit[places[0] - 1]
            numbers &= self.before[places[0] - 1] != sign
            dotted = sign == ord(".")
            yield numbers & dotted, _whole(_digits(*year), _digits(*second), _digits(*first))
            either = numbers & ((sign == ord("/")) | (sign == ord("-")))
            yield either, self._either(_digits(*year), _digits(*first), _digits(*second))
            year, month, day = places[:4], places[5:7], places[8:]
            dotted = ends & self._are_digits(*year, *month, *day) & ~self._is_digit[places[0] - 1]
            dotted &= self._is(places[4], ".") & self._is(places[7], ".")
            yield dotted, _whole(_digits(*year), _digits(*month), _digits(*day))

    def _either(self, year: _Part, one: _Part, other: _Part) -> _Days:
        """Day and month in either order: the one that is a date, or that alone is near arrival."""
        return lambda rows, dates: _only(
            _on(year(dates), other(dates), one(dates)),
            _on(year(dates), one(dates), other(dates)),
            self.arrived[rows],
        )


_Part = Callable[[Bytes], Ints]  # a number in dates
_Days = Callable[[Ints, Bytes], Ints]  # the midnights of rows and of their dates
_Form = tuple[Bools, _Days]  # which rows have a form of a date


def _whole(year: _Part, month: _Part, day: _Part) -> _Days:
    return lambda _, dates: _on(year(dates), month(dates), day(dates))


def _digits(*places: int) -> _Part:
    return partial(_number, places=places)


def _month(place: int) -> _Part:
    return lambda dates: _months(dates[place : place + 3])


def _years_behind(texts: Bytes) -> Ints:
    """The years behind clocks, as in `Sun Nov 29 10:00:00 2026`, 0 without one."""
    years = np.zeros(texts.shape[1], np.int64)
    zoned = (texts[_CLOCK_BYTES + 1 : _CLOCK_BYTES + 4] - np.uint8(65) < 26).all(axis=0)  # UTC
    for place, may in zip(_PLACES_OF_YEARS, (True, True, zoned, zoned), strict=True):
        first = texts[place + 1]
        dated = (texts[place] == ord(" ")) & ((first == ord("1")) | (first == ord("2"))) & may
        rows = np.flatnonzero(dated)
        if len(rows) == 0:
            continue
        *digits, _ = texts[place + 1 : place + 6, rows] - np.uint8(48)
        century = digits[0] * np.uint8(10) + digits[1]
        good = (np.maximum(digits[2], digits[3]) <= 9) & ((century == 19) | (century == 20))
        good &= (digits[1] <= 9) & _ENDS_OF_YEAR[texts[place + 5, rows]]
        rows = rows[good]
        years[rows] = _number(texts[:, rows], range(place + 1, place + 5))
    return years


def _months(letters: Bytes) -> Ints:
    """The number of each month by its first three letters, 0 for other letters."""
    lowered = (letters | 32).astype(np.int64)
    codes = (lowered[0] << 16) | (lowered[1] << 8) | lowered[2]
    place = np.searchsorted(_CODES, codes, sorter=_ORDER).clip(max=len(MONTHS) - 1)
    number = _ORDER[place]
    return np.where(_CODES[number] == codes, number + 1, 0)


def _on(year: Ints, month: Ints, day: Ints) -> Ints:
    """The midnight of a date, `NO_TIME` where it does not exist."""
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    limit = MONTH_DAYS[np.where(month <= 12, month, 0)] - ((month == 2) & ~leap)
    good = (month >= 1) & (day >= 1) & (day <= limit)
    return np.where(good, days_of(year, month, day) * _DAY, NO_TIME)


def _nearest_year(month: Ints, day: Ints, arrived: Ints) -> Ints:
    year = arrived.astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
    times = _on(year, month, day)
    # Other years are further away than half of one.
    far = np.flatnonzero((times == NO_TIME) | (np.abs(times - arrived) > _HALF_YEAR))
    if len(far):
        others = [_on(year[far] + more, month[far], day[far]) for more in (-1, 1)]
        times[far] = _nearest([times[far], *others], arrived[far])
    return times


def _nearest_day(arrived: Ints, of_day: Ints) -> Ints:
    midnight = arrived // _DAY * _DAY
    return _nearest([midnight + of_day + more for more in (0, -_DAY, _DAY)], arrived)


def _only(one: Ints, other: Ints, arrived: Ints) -> Ints:
    """Of two midnights the one that is a date; of two dates the one near the arrival."""
    near, far = (np.abs(time - arrived) < _NEAR for time in (one, other))
    single = (one == NO_TIME) | (other == NO_TIME) | (one == other)
    chosen = np.where(near, one, np.where(far, other, NO_TIME))
    return np.where(single, np.maximum(one, other), np.where(near & far, NO_TIME, chosen))


def _nearest(times: list[Ints], arrived: Ints) -> Ints:
    """Of some possible times of each record the one that is nearest to its arrival."""
    best = times[0]
    for one in times[1:]:
        nearer = (best == NO_TIME) | (np.abs(one - arrived) < np.abs(best - arrived))
        best = np.where((one != NO_TIME) & nearer, one, best)
    return best
