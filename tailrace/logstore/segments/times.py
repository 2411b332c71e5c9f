"""Finds the event time of each record in its text.

The main format is `YYYY-MM-DD[T ]HH:MM:SS[.,fraction][Z|±hh[:]mm]`; the date may be written with
`/`. The time of a record is the first one in its prefix (`[2024-…`, `{"ts":"2024-…`,
`INFO 2024-…`). A time without a zone is in UTC, and digits below a microsecond are cut. Invalid
dates (month 13) are not times, nor are years outside 1900–9999, about which readers of Parquet
disagree. Formats with two digits of a year are not guessed. The second half of this module reads
formats without a year, and numbers.

The search works on all records at once: `_candidates` finds positions by their separators, and
`_parse` decodes a matrix with a column for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np

from tailrace.logstore.segments.levels import (
    WIDTH,
    Bools,
    Bytes,
    Ints,
    Prefixes,
    first_of_rows,
    is_word,
)

NO_TIME: Final = np.iinfo(np.int64).min
EARLIEST_US: Final = -2_208_988_800_000_000  # 1900-01-01
LATEST_US: Final = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999

_SIZE = 36  # the longest time, with nine digits of a fraction and a zone
_DATE = 19  # YYYY-MM-DD HH:MM:SS
_DIGITS = [0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18]
MONTH_DAYS = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_SECOND = 1_000_000


def find_times(prefixes: Prefixes) -> Ints:
    """Microseconds since the epoch for each record, `NO_TIME` where none is found."""
    times = np.full(len(prefixes.lengths), NO_TIME, dtype=np.int64)
    found = _candidates(prefixes)
    if len(found) == 0:
        return times
    row, column = prefixes.place(found)
    texts = _cut(prefixes.flat, found)
    value = _parse(texts)
    previous = prefixes.flat[found - 1] - np.uint8(48)
    good = (value != NO_TIME) & (previous > 9) & (column + _DATE - 1 <= prefixes.lengths[row])
    row, value = row[good], value[good]
    first = first_of_rows(row)
    times[row[first]] = value[first]
    return times


def in_range(times: Ints) -> Bools:
    """Which times are in the range that every reader of Parquet can show."""
    return (times >= EARLIEST_US) & (times <= LATEST_US)


def _candidates(prefixes: Prefixes) -> Ints:
    """The positions in columns 1 and up at which the separators of a date and time match."""
    flat = prefixes.flat
    if flat.size == 0:
        return np.empty(0, dtype=np.int64)
    colon = flat == 58
    dash = (flat & 253) == 45  # `-`, and `/`, which is one bit away
    size = flat.size - _DATE
    mask = colon[13 : 13 + size] & colon[16 : 16 + size]
    mask &= dash[4 : 4 + size]
    mask &= dash[7 : 7 + size]
    found = np.flatnonzero(mask)
    column = found % WIDTH
    return found[(column > 0) & (column <= WIDTH - _SIZE)]


def _cut(flat: Bytes, found: Ints) -> Bytes:
    """`_SIZE` bytes from each position, as the columns of a matrix (byte, record)."""
    windows = np.ndarray(
        (flat.size - _SIZE + 1,), dtype=f"V{_SIZE}", buffer=flat.data, strides=(1,)
    )
    rows = windows[found].view(np.uint8).reshape(len(found), _SIZE)
    return np.ascontiguousarray(rows.T)


def _parse(texts: Bytes) -> Ints:
    """The time in each column of `texts`, in microseconds; `NO_TIME` if it is invalid."""
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
    offset = _offset(texts, digits, _DATE + width)
    value = np.where(good, minutes, 0) * (60 * _SECOND) + seconds * _SECOND + fraction - offset
    return np.where(good & in_range(value), value, NO_TIME)


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


def _offset(texts: Bytes, digits: Bytes, place: Ints) -> Ints:
    """Microseconds by which the zone at byte `place` is ahead of UTC; 0 if there is none."""
    offset = np.zeros(texts.shape[1], dtype=np.int64)
    sign = texts[place, np.arange(texts.shape[1])]
    which = np.flatnonzero((sign == 43) | (sign == 45))
    if len(which) == 0:
        return offset
    at = place[which]
    colon = (texts[at + 3, which] == 58).astype(np.int64)
    zone = [digits[at + k + (colon if k > 2 else 0), which].astype(np.int64) for k in (1, 2, 3, 4)]
    hours, minutes = zone[0] * 10 + zone[1], zone[2] * 10 + zone[3]
    good = (np.max(zone, axis=0) <= 9) & (hours < 24) & (minutes < 60)
    ahead = np.where(good, (hours * 60 + minutes) * 60 * _SECOND, 0)
    offset[which] = np.where(sign[which] == 45, -ahead, ahead)
    return offset


# Times in records without a date of the form YYYY-MM-DD; many of these formats say less.
#
#   Nov 29 10:00:00, <30>Nov  9 10:00:00     syslog: the year that puts it nearest to arrival
#   Sun Nov 29 10:00:00 2026                 the year after the time
#   11-29 10:00:00.123, E1129 10:00:00.12    logcat, klog: the nearest year
#   20261129 10:00:00                        glog
#   [29/Nov/2026:10:00:00 +0100]             web servers
#   29-Nov-2026 10:00:00, 29 Nov 2026 10:00:00, Nov 29, 2026 10:00:00 AM
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
_CLOCK_BYTES: Final = 8  # HH:MM:SS
_BEFORE: Final = 16  # bytes before a clock that may have its date
_AFTER: Final = 13  # bytes behind it that may have a fraction and a year, or a zone
_SHORT_DIGITS: Final = 6  # of a fraction
_CENTURIES: Final = np.frombuffer(b"1920", ">u2")  # of a year behind a clock
_HALF_DAY: Final = 43_200 * 1_000_000
_LAST_COLUMN: Final = 64
_OUTSIDE: Final = np.arange(_BEFORE) < (_BEFORE + 1 - np.arange(_LAST_COLUMN + 1))[:, np.newaxis]
"""Of the bytes before a clock in each column, which ones stand before the record."""
_MONTHS: Final = (
    "jan",
    "feb",
    "mar",
    "apr",
    "may",
    "jun",
    "jul",
    "aug",
    "sep",
    "oct",
    "nov",
    "dec",
)
_CODES: Final = np.array([int.from_bytes(name.encode(), "big") for name in _MONTHS])
_ORDER: Final = np.argsort(_CODES)
_EPOCH: Final = re.compile(
    rb'(?:(?:^|[\s,{"])(?:ts|time|timestamp|@timestamp)"?[=:]\s*"?|^(?:- )?)'
    rb"(1[0-9]{9})([0-9]{3})?(?:\.([0-9]{1,6})[0-9]*)?(?![0-9.])"
)
_UPTIME: Final = re.compile(rb"(?:<[0-9]{1,3}>)?\[ *([0-9]{1,9})\.([0-9]{6})\]")


def find_short_times(look: Prefixes, which: Ints, arrivals: Ints) -> Ints:
    """Microseconds since the epoch of the records `which`, `NO_TIME` where none is found.

    `arrivals` are those of these records.
    """
    rows, lengths = look.rows[which], look.lengths[which]
    times = _clock_times(rows, lengths, arrivals)
    missing = np.flatnonzero(times == NO_TIME)
    for row in missing[_may_have_epoch(rows[missing])].tolist():
        found = _EPOCH.search(rows[row, 1 : int(lengths[row])].tobytes())
        if found is not None:
            whole, milliseconds, fraction = found.groups()
            times[row] = int(whole) * _SECOND + int(milliseconds or 0) * 1_000
            times[row] += int((fraction or b"").ljust(6, b"0"))
    return times


def find_uptimes(look: Prefixes, which: Ints) -> Ints:
    """Microseconds since the start of the machine in lines of dmesg, `NO_TIME` for others."""
    rows = look.rows[which]
    uptimes = np.full(len(which), NO_TIME, dtype=np.int64)
    begins = (rows[:, 1] == ord("[")) | (rows[:, 1] == ord("<"))
    for row in np.flatnonzero(begins).tolist():
        found = _UPTIME.match(rows[row, 1:].tobytes())
        if found is not None:
            uptimes[row] = int(found[1]) * _SECOND + int(found[2])
    return uptimes


def times_of_uptimes(uptimes: Ints, batches: Ints, arrivals: Ints) -> Ints:
    """The times of dmesg's lines, if the newest of each batch was written at its arrival."""
    known = uptimes != NO_TIME
    newest = np.full(int(batches.max(initial=0)) + 1, NO_TIME, dtype=np.int64)
    np.maximum.at(newest, batches[known], uptimes[known])
    return np.where(known, arrivals - newest[batches] + np.where(known, uptimes, 0), NO_TIME)


def _may_have_epoch(rows: Bytes) -> Bools:
    """Which rows have ten digits in a row, and begin as lines with a time since the epoch do.

    That is with a 1, with JSON, with a key, or with the sign of BGL's logs.
    """
    first = rows[:, 1]
    begins: Bools = (first == ord("1")) | (first == ord("{")) | (first == ord("-"))
    begins |= (rows[:, 1:24] == ord("=")).any(axis=1)
    some = np.flatnonzero(begins)
    one = rows[some] - np.uint8(48) <= 9
    two = one[:, :-1] & one[:, 1:]
    four = two[:, :-2] & two[:, 2:]
    eight = four[:, :-4] & four[:, 4:]
    begins[some] = (eight[:, :-2] & two[:, 8:]).any(axis=1)
    return begins


def _clock_times(rows: Bytes, lengths: Ints, arrivals: Ints) -> Ints:
    times = np.full(len(rows), NO_TIME, dtype=np.int64)
    padded = np.pad(rows.reshape(-1), (_BEFORE, _CLOCK_BYTES + _AFTER), constant_values=10)
    found = _clocks(padded, lengths)
    if len(found) == 0:
        return times
    row, column = found // WIDTH, found % WIDTH
    texts = np.lib.stride_tricks.sliding_window_view(padded, _BEFORE + _CLOCK_BYTES + _AFTER)[found]
    arrived = arrivals[row]
    # No byte of the record before counts.
    before = np.where(_OUTSIDE[column], np.uint8(10), texts[:, :_BEFORE])
    value = _dates(before, column, arrived, _time_of_day(texts[:, _BEFORE:]), texts[:, _BEFORE:])
    web = np.flatnonzero((before[:, -1] == ord(":")) & (value != NO_TIME))
    value[web] -= _zones(texts[web, _BEFORE:])
    times[row] = np.where(in_range(value), value, NO_TIME)
    return times


def _clocks(padded: Bytes, lengths: Ints) -> Ints:
    """The position of the first `HH:MM:SS` in each row."""
    size = len(lengths) * WIDTH
    flat = padded[_BEFORE:]
    colon = flat == ord(":")
    found = np.flatnonzero(colon[2 : 2 + size] & colon[5 : 5 + size])
    column = found % WIDTH
    found = found[(column > 0) & (column <= _LAST_COLUMN)]
    found = found[found % WIDTH + _CLOCK_BYTES - 1 < lengths[found // WIDTH]]
    digits = flat[found[:, np.newaxis] + np.array([0, 1, 3, 4, 6, 7])] - np.uint8(48)
    good = digits.max(axis=1, initial=0) <= 9
    good &= (digits[:, 0] <= 2) & (digits[:, 2] <= 5) & (digits[:, 4] <= 5)
    good &= digits[:, 0].astype(np.int64) * 10 + digits[:, 1] < 24
    before, behind = padded[found + _BEFORE - 1], flat[found + _CLOCK_BYTES]
    alone = (before - np.uint8(48) > 10) & (behind - np.uint8(48) > 10)  # no digit, no colon
    web = (before == ord(":")) & (behind == ord(" "))  # 29/Nov/2026:10:00:00
    found = found[good & (alone | web)]
    first: Ints = found[first_of_rows(found // WIDTH)]
    return first


def _time_of_day(texts: Bytes) -> Ints:
    """Microseconds since midnight of `HH:MM:SS`, with a fraction of up to six digits."""
    value = np.zeros(len(texts), dtype=np.int64)
    for places, seconds in (((0, 1), 3600), ((3, 4), 60), ((6, 7), 1)):
        value += _number(texts, places) * (seconds * _SECOND)
    sign = texts[:, _CLOCK_BYTES]
    half = np.flatnonzero((sign == ord(" ")) & (texts[:, _CLOCK_BYTES + 2] == ord("M")))
    if len(half):
        _put_halves(texts, half, value)
    rows = np.flatnonzero((sign == ord(".")) | (sign == ord(",")))
    unit = _SECOND
    for place in range(_CLOCK_BYTES + 1, _CLOCK_BYTES + 1 + _SHORT_DIGITS):
        rows = rows[texts[rows, place] - np.uint8(48) <= 9]
        unit //= 10
        value[rows] += _number(texts[rows], (place,)) * unit
    return value


def _put_halves(texts: Bytes, rows: Ints, value: Ints) -> None:
    """Adds half a day to the times of `rows` that are followed by ` PM`; 12 AM is midnight."""
    letter, behind = texts[rows, _CLOCK_BYTES + 1], texts[rows, _CLOCK_BYTES + 3]
    alone = ~is_word(behind)
    of_half = value[rows] % _HALF_DAY
    for sign, more in ((ord("A"), 0), (ord("P"), _HALF_DAY)):
        chosen = alone & (letter == sign) & (value[rows] < _HALF_DAY + 3_600 * _SECOND)
        value[rows[chosen]] = of_half[chosen] + more


def _number(texts: Bytes, places: Sequence[int]) -> Ints:
    """The number of the digits at these places; a byte that is no digit counts as 0."""
    value = np.zeros(len(texts), dtype=np.int64)
    for place in places:
        digit = texts[:, place] - np.uint8(48)
        value = value * 10 + np.where(digit <= 9, digit, np.uint8(0))
    return value


def _dates(before: Bytes, column: Ints, arrived: Ints, of_day: Ints, texts: Bytes) -> Ints:
    """The clock's time on the date before it; alone at the beginning, on the nearest day.

    `texts` begin with the clocks.
    """
    is_digit = (before - np.uint8(48)) <= 9
    ends = before[:, -1] == ord(" ")
    value = np.full(len(before), NO_TIME, dtype=np.int64)

    def put(where: Bools, month_of: Callable[[Bytes], Ints], day: Sequence[int]) -> None:
        chosen = np.flatnonzero(where & (value == NO_TIME))
        if len(chosen):
            dates = before[chosen]
            date = month_of(dates), _number(dates, day)
            value[chosen] = _nearest_year(*date, arrived[chosen], of_day[chosen])

    named = ends & (before[:, -4] == ord(" ")) & is_digit[:, -2]
    named &= is_digit[:, -3] | (before[:, -3] == ord(" "))
    _put_years_behind(np.flatnonzero(named), before, texts, of_day, value)
    put(named, lambda dates: _months(dates[:, -7:-4]), (-3, -2))
    for places, sign in (((-6, -5, -3, -2), -4), ((-5, -4, -3, -2), None)):
        dated = ends & ~is_digit[:, min(places) - 1] & (before[:, min(places) - 1] != ord("-"))
        for place in places:
            dated &= is_digit[:, place]
        if sign is not None:
            dated &= before[:, sign] == ord("-")
        put(dated, partial(_number, places=places[:2]), places[2:])
    for where, date_of in _whole_dates(before, is_digit, ends):
        chosen = np.flatnonzero(where & (value == NO_TIME))
        if len(chosen):
            value[chosen] = _on(*date_of(before[chosen]), of_day[chosen])
    opened = (column == 2) & ((before[:, -1] == ord("[")) | (before[:, -1] == ord("(")))
    alone = (value == NO_TIME) & ((column == 1) | opened)
    return np.where(alone, _nearest_day(arrived, of_day), value) if alone.any() else value


_DateOf = Callable[[Bytes], tuple[Ints, Ints, Ints]]


def _whole_dates(before: Bytes, digit: Bools, ends: Bools) -> Iterator[tuple[Bools, _DateOf]]:
    """Which rows have which form of a date with a year, and how that gives year, month and day.

    `digit` says which bytes are digits, `ends` which rows end in a blank.
    """
    sign, comma = before[:, -6], before[:, -7] == ord(",")
    year = digit[:, -5] & digit[:, -4] & digit[:, -3] & digit[:, -2]
    signed = (sign == ord("/")) | (sign == ord("-")) | (sign == ord(" "))
    signed &= (before[:, -10] == sign) & (ends | (before[:, -1] == ord(":")))
    signed &= year & digit[:, -12] & digit[:, -11]
    yield signed, lambda dates: (_year(dates), _months(dates[:, -9:-6]), _number(dates, (-12, -11)))
    comma &= year & ends & (sign == ord(" ")) & digit[:, -8]
    for blank, months in ((digit[:, -9], (-13, -10)), (before[:, -9] == ord(" "), (-12, -9))):
        yield (
            comma & blank,
            lambda dates, months=months: (  # type: ignore[misc]
                _year(dates),
                _months(dates[:, slice(*months)]),
                _number(dates, (-9, -8)),
            ),
        )
    dense = year & ends & digit[:, -9] & digit[:, -8] & digit[:, -7] & digit[:, -6]
    yield (
        dense & ~digit[:, -10],
        lambda dates: (
            _number(dates, (-9, -8, -7, -6)),
            _number(dates, (-5, -4)),
            _number(dates, (-3, -2)),
        ),
    )


def _year(dates: Bytes) -> Ints:
    return _number(dates, (-5, -4, -3, -2))


def _put_years_behind(rows: Ints, before: Bytes, texts: Bytes, of_day: Ints, value: Ints) -> None:
    """Sets the times of rows that have the year after the clock: `Sun Nov 29 10:00:00 2026`."""
    for place in (_CLOCK_BYTES, _CLOCK_BYTES + 1 + _SHORT_DIGITS):
        behind = texts[rows, place : place + 6]
        century = behind[:, 1] * np.uint16(256) + behind[:, 2]
        dated = (behind[:, 0] == ord(" ")) & np.isin(century, _CENTURIES)
        for digit in (3, 4):
            dated &= behind[:, digit] - np.uint8(48) <= 9
        dated &= ~is_word(behind[:, 5]) & (behind[:, 5] != ord(".")) & (behind[:, 5] != ord("-"))
        chosen = rows[dated]
        if len(chosen):
            years = _number(texts[chosen], range(place + 1, place + 5))
            date = _months(before[chosen, -7:-4]), _number(before[chosen], (-3, -2))
            value[chosen] = _on(years, *date, of_day[chosen])


def _zones(texts: Bytes) -> Ints:
    """Microseconds by which ` +hhmm` after a web server's time is ahead of UTC."""
    digits = (texts[:, _CLOCK_BYTES + 2 : _CLOCK_BYTES + 6] - np.uint8(48)).astype(np.int64)
    sign = texts[:, _CLOCK_BYTES + 1]
    zoned = (sign == ord("+")) | (sign == ord("-"))
    zoned &= (digits >= 0).all(axis=1) & (digits <= 9).all(axis=1)
    minutes = (digits[:, 0] * 10 + digits[:, 1]) * 60 + digits[:, 2] * 10 + digits[:, 3]
    return np.where(zoned, np.where(sign == ord("-"), -minutes, minutes) * 60 * _SECOND, 0)


def _months(letters: Bytes) -> Ints:
    """The number of each month by its first three letters, 0 for other letters."""
    lowered = (letters | 32).astype(np.int64)
    codes = (lowered[:, 0] << 16) | (lowered[:, 1] << 8) | lowered[:, 2]
    place = np.searchsorted(_CODES, codes, sorter=_ORDER).clip(max=len(_MONTHS) - 1)
    number = _ORDER[place]
    return np.where(_CODES[number] == codes, number + 1, 0)


def _on(year: Ints, month: Ints, day: Ints, of_day: Ints) -> Ints:
    """The time on a date, `NO_TIME` where there is no such date."""
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    limit = MONTH_DAYS[np.where(month <= 12, month, 0)] - ((month == 2) & ~leap)
    good = (month >= 1) & (day >= 1) & (day <= limit)
    return np.where(good, days_of(year, month, day) * _DAY + of_day, NO_TIME)


def _nearest_year(month: Ints, day: Ints, arrived: Ints, of_day: Ints) -> Ints:
    year = arrived.astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
    times = _on(year, month, day, of_day)
    # Other years are further away than half of one.
    far = np.flatnonzero((times == NO_TIME) | (np.abs(times - arrived) > _HALF_YEAR))
    if len(far):
        year, date, of_day = year[far], (month[far], day[far]), of_day[far]
        others = [_on(year + more, *date, of_day) for more in (-1, 1)]
        times[far] = _nearest([times[far], *others], arrived[far])
    return times


def _nearest_day(arrived: Ints, of_day: Ints) -> Ints:
    midnight = arrived // _DAY * _DAY
    return _nearest([midnight + of_day + more for more in (0, -_DAY, _DAY)], arrived)


def _nearest(times: list[Ints], arrived: Ints) -> Ints:
    """Of some possible times of each record the one that is nearest to its arrival."""
    best = times[0]
    for one in times[1:]:
        nearer = (best == NO_TIME) | (np.abs(one - arrived) < np.abs(best - arrived))
        best = np.where((one != NO_TIME) & nearer, one, best)
    return best
