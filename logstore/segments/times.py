"""Finds the event time of each record in its text.

The format is `YYYY-MM-DD[T ]HH:MM:SS[.,fraction][Z|±hh[:]mm]`; the date may be written with `/`.
The time of a record is the first one in its prefix (`[2024-…`, `{"ts":"2024-…`, `INFO 2024-…`). A
time without a zone is in UTC, and digits below a microsecond are cut. Invalid dates (month 13) are
not times, nor are years outside 1900–9999, about which readers of Parquet disagree. Formats with
two digits of a year are not guessed; those without a year, and numbers, are for `short_times`.

The search works on all records at once: `_candidates` finds positions by their separators, and
`_parse` decodes a matrix with a column for each.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from logstore.segments.prefixes import WIDTH, Bools, Bytes, Ints, Prefixes, first_of_rows

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
