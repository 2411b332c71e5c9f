"""Finds times that say less than a date with a year, in records without such a date.

    Nov 29 10:00:00, <30>Nov  9 10:00:00     syslog: the year that puts it nearest to arrival
    11-29 10:00:00.123, E1129 10:00:00.12    logcat, klog: the same
    [29/Nov/2026:10:00:00 +0100]             web servers
    10:00:00, [10:00:00,123]                 at the beginning: the day nearest to arrival
    1796000000, ts=1796000000.1              epoch seconds or milliseconds, at the beginning or
    {"time":1796000000000}                   behind a key `ts`, `time` or `timestamp`
    [12345.678901]                           dmesg: seconds since a start that is not known. The
                                             newest of a batch is taken for its arrival

Times without a zone are UTC. The arrival is the time of the batch's ULID. Most of the work is done
for all records at once; the text of a record is looked at only where a key or `[` promises a time.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from logstore.segments.prefixes import WIDTH, Bools, Bytes, Ints, Prefixes, first_of_rows
from logstore.segments.times import MONTH_DAYS, NO_TIME, days_of, in_range

_SECOND: Final = 1_000_000
_DAY: Final = 86_400 * _SECOND
_CLOCK_BYTES: Final = 8  # HH:MM:SS
_BEFORE: Final = 16  # bytes before a clock that may have its date
_AFTER: Final = 7  # bytes behind it that may have a fraction or a zone
_LAST_COLUMN: Final = 64
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
    """When lines of dmesg were written, if the newest of each batch was at its arrival."""
    known = uptimes != NO_TIME
    newest = np.full(int(batches.max(initial=0)) + 1, NO_TIME, dtype=np.int64)
    np.maximum.at(newest, batches[known], uptimes[known])
    return np.where(known, arrivals - newest[batches] + np.where(known, uptimes, 0), NO_TIME)


def _may_have_epoch(rows: Bytes) -> Bools:
    """Which rows begin with a 1, with JSON, with a key, or with the sign of BGL's logs."""
    first = rows[:, 1]
    begins: Bools = (first == ord("1")) | (first == ord("{")) | (first == ord("-"))
    begins |= (rows[:, 1:24] == ord("=")).any(axis=1)
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
    outside = np.arange(_BEFORE) < (_BEFORE - column + 1)[:, np.newaxis]
    before = np.where(outside, 10, texts[:, :_BEFORE])
    value = _dates(before, column, arrived, _time_of_day(texts[:, _BEFORE:]))
    value -= np.where(value == NO_TIME, 0, _zones(before, texts[:, _BEFORE:]))
    value = np.where(in_range(value), value, NO_TIME)
    times[row] = value
    return times


def _clocks(padded: Bytes, lengths: Ints) -> Ints:
    """Where `HH:MM:SS` begins, the first in each row."""
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
    digits = (texts - np.uint8(48)).astype(np.int64)
    clock = digits[:, [0, 3, 6]] * 10 + digits[:, [1, 4, 7]]
    value: Ints = clock @ np.array([3600, 60, 1]) * _SECOND
    going = (texts[:, _CLOCK_BYTES] == ord(".")) | (texts[:, _CLOCK_BYTES] == ord(","))
    unit = _SECOND
    for place in range(_CLOCK_BYTES + 1, _CLOCK_BYTES + _AFTER):
        going = going & (digits[:, place] >= 0) & (digits[:, place] <= 9)
        unit //= 10
        value += np.where(going, digits[:, place] * unit, 0)
    return value


def _dates(before: Bytes, column: Ints, arrived: Ints, of_day: Ints) -> Ints:
    """The clock's time on the date before it; alone at the beginning, on the nearest day."""
    digit = (before - np.uint8(48)).astype(np.int64)
    is_digit = (before - np.uint8(48)) <= 9
    ends = before[:, -1] == ord(" ")

    def number(*places: int) -> Ints:
        value = np.zeros(len(before), dtype=np.int64)
        for place in places:
            value = value * 10 + np.where(is_digit[:, place], digit[:, place], 0)
        return value

    value = np.full(len(before), NO_TIME, dtype=np.int64)

    def put(where: Bools, month: Ints, day: Ints) -> None:
        chosen = np.flatnonzero(where & (value == NO_TIME))
        if len(chosen):
            date = month[chosen], day[chosen]
            value[chosen] = _nearest_year(*date, arrived[chosen], of_day[chosen])

    named = ends & (before[:, -4] == ord(" ")) & is_digit[:, -2]
    named &= is_digit[:, -3] | (before[:, -3] == ord(" "))
    put(named, _months(before[:, -7:-4]), number(-3, -2))
    for places, sign in (((-6, -5, -3, -2), -4), ((-5, -4, -3, -2), None)):
        dated = ends & is_digit[:, list(places)].all(axis=1)
        dated &= ~is_digit[:, min(places) - 1] & (before[:, min(places) - 1] != ord("-"))
        if sign is not None:
            dated &= before[:, sign] == ord("-")
        put(dated, number(*places[:2]), number(*places[2:]))
    web = (before[:, -1] == ord(":")) & (before[:, -6] == ord("/")) & (before[:, -10] == ord("/"))
    web &= is_digit[:, [-12, -11, -5, -4, -3, -2]].all(axis=1)
    if web.any():
        month, year = _months(before[:, -9:-6]), number(-5, -4, -3, -2)
        value = np.where(web, _on(year, month, number(-12, -11), of_day), value)
    opened = (column == 2) & ((before[:, -1] == ord("[")) | (before[:, -1] == ord("(")))
    alone = (value == NO_TIME) & ((column == 1) | opened)
    return np.where(alone, _nearest_day(arrived, of_day), value) if alone.any() else value


def _zones(before: Bytes, texts: Bytes) -> Ints:
    """Microseconds by which ` +hhmm` behind a web server's time is ahead of UTC."""
    digits = (texts[:, -5:-1] - np.uint8(48)).astype(np.int64)
    sign = texts[:, _CLOCK_BYTES + 1]
    zoned = (before[:, -1] == ord(":")) & ((sign == ord("+")) | (sign == ord("-")))
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
    return _nearest([_on(year + more, month, day, of_day) for more in (0, -1, 1)], arrived)


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
