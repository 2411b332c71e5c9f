"""Reads the forms of times that few programs write, each date once.

    2026-11-29 9:05:01, 2026-11-29, 10:00:00        a date and a clock with any joint between them
    11/29/2026 9:05:01 PM, 29/11/26 10:00:00        numbers in the order that is a date
    Nov 29 9:05:01, November 29, 2026 10:00:00      names of months
    261129 10:00:00, 2026-W48-7T10:00:00            six digits, and ISO's week
    2026-11-29 10:00, 20261129T100000Z              without seconds or signs, at the beginning
    9:05:01 PM, 3:04PM, INFO 10:00:00.123           at the beginning: the day nearest to arrival

`times` reads all common forms, and takes from here what follows a clock:
`PM`, ` +0100`, ` CET`. A form with several readings is a time only if one of them alone is near the
arrival: no time is better than a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final

import numpy as np

from tailrace.logstore.segments.levels import WIDTH, Bools, Bytes, Ints, Prefixes, first_of_rows

SUFFIX_BYTES: Final = 10
"""Bytes after a clock that `shift_of` looks at: ` PM +01:00`."""
MICROSECONDS: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEAR: Final = timedelta(days=2)
_MINUTE: Final = 60_000_000
_HOUR: Final = 60 * _MINUTE
_NOON: Final = 12
_CLOCK_BYTES: Final = 19  # of `HH:MM:SS`, nine digits of a fraction and the byte after it
_REST: Final = SUFFIX_BYTES + 6  # bytes after a clock, in which a year may follow
_FURTHEST_ZONE: Final = 14  # hours
_LAST_START: Final = 60  # of a date in its line

_AHEAD: Final = (
    *((0, "Z UT UTC GMT WET"), (60, "WEST CET"), (120, "CEST EET SAST"), (180, "EEST MSK")),
    *((-240, "EDT"), (-300, "EST CDT"), (-360, "MDT"), (-420, "MST PDT"), (-480, "PST AKDT")),
    *((-540, "AKST"), (-600, "HST"), (480, "HKT SGT AWST"), (540, "JST KST"), (570, "ACST")),
    *((600, "AEST"), (630, "ACDT"), (660, "AEDT"), (720, "NZST"), (780, "NZDT")),
    (None, "AST BST CST IST"),
)
MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
)
ZONES: Final = {name: ahead for ahead, names in _AHEAD for name in names.split()}
"""Minutes by which each zone is ahead of UTC; None for names of several zones."""

_SUFFIX: Final = re.compile(
    rb"(?: ?(?P<half>[AaPp])[Mm](?!\w))?"
    rb"(?: ?(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d)(?!\w)"
    rb"|(?P<near>[+-])(?P<whole>\d\d)(?![\w:])| (?P<far>[+-])(?P<alone>\d\d)(?= \[|\]|$)"
    rb"| (?P<zone>[A-Z]{2,4})(?!\w))?"
)
_NAME: Final = rb"(?i:%s)[a-z]{0,6}\.?" % "|".join(MONTHS).encode()
_CLOCK: Final = (
    rb"(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d):(?P<second>[0-5]\d)"
    rb"(?:(?:[.,]|:(?=\d{3}(?!\d)))(?P<fraction>\d{1,9}))?(?![\d:])"
)
_DATED: Final = re.compile(
    rb"(?<![\w./:-])(?:(?P<year>\d{4})(?P<one>[-/.])(?P<month>\d\d?)(?P=one)(?P<day>\d\d?)"
    rb"|(?P<a>\d\d?)(?P<two>[-/.])(?P<b>\d\d?)(?P=two)(?P<c>\d{4}|\d\d)"
    rb"|(?P<day_first>\d\d?)[-/ ](?P<of>" + _NAME + rb")[-/ ](?P<of_year>\d{4})"
    rb"|(?P<name>" + _NAME + rb") {1,2}(?P<named_day>\d\d?)(?:,? (?P<named_year>\d{4}))?"
    rb"|(?P<week_year>\d{4})-W(?P<week>\d\d)-(?P<week_day>[1-7]))"
    rb"(?:[T_|-]|,? {1,2}|::?| at )" + _CLOCK + rb"(?:(?: [A-Z]{3,4})? (?P<late>\d{4})(?![\w.-]))?"
)
_DENSE: Final = re.compile(
    rb"(?:\[?[A-Z] ?)?(?P<dense>\d{6}|\d{8})(?: {1,2}|(?<=\d{8})[T_-])" + _CLOCK
)
_ALONE: Final = re.compile(
    rb"\W{0,2}(?:(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL|[DIWEC])\W{1,3})?" + _CLOCK
)
_KITCHEN: Final = re.compile(rb"\W?(?P<hour>0?[1-9]|1[0-2]):(?P<minute>[0-5]\d)(?=[AaPp][Mm]\b)")
# Names of files, columns and spans of time begin so, too: what follows must be the end of a time.
_OFFSET: Final = rb"[+-]\d\d:?\d\d"
_BEHIND: Final = rb"(?:[\])|]|\s|: )"
_NO_SPAN: Final = (
    rb"(?! ?(?:Z|UTC|[AaPp][Mm]|" + _OFFSET + rb")?\s+(?:-|to|\xe2\x80[\x93\x94]) ?"
    rb"(?:\d\d?:\d\d|\d{4}[-/]\d|\d{8}T))"
)
_MINUTE_STAMP: Final = re.compile(
    rb"[\[(]?(?P<year>[12]\d{3})(?P<sign>[-/])(?P<month>\d\d)(?P=sign)(?P<day>\d\d)[T ]"
    rb"(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d)"
    rb"(?= ?(?:Z|UTC|[AaPp][Mm])?(?:$|" + _BEHIND + rb")"
    rb"|(?<=T.....)" + _OFFSET + _BEHIND + rb")" + _NO_SPAN
)
_BASIC_STAMP: Final = re.compile(
    rb"[\[(]?(?P<year>[12]\d{3})(?P<month>\d\d)(?P<day>\d\d)T(?P<hour>[01]\d|2[0-3])"
    rb"(?P<minute>[0-5]\d)(?P<second>[0-5]\d)(?:[.,](?P<fraction>\d{1,9}))?"
    rb"(?=(?:Z|" + _OFFSET + rb")?" + _BEHIND + rb")" + _NO_SPAN
)
_STAMP_BYTES: Final = 48  # of the longer one, a zone, and the beginning of the end of a span


_SIGNS: Final = np.zeros(256, np.bool_)
_SIGNS[list(b"+-")] = True
_PAIRS: Final = np.zeros((256, 256), np.bool_)
for _name in ("AM", "PM", "am", "pm", *(name for name, ahead in ZONES.items() if ahead != 0)):
    _PAIRS[ord(_name[0]), ord(_name[1])] = True
"""The first two letters of what moves a clock."""


def may_shift(flat: Bytes, ends: Ints) -> Bools:
    """Whether `shift_of` may find something in `flat` at each of `ends`."""
    one, two, three = (flat[np.minimum(ends + more, flat.size - 1)] for more in range(3))
    found: Bools = _SIGNS[one] & (two - np.uint8(48) <= 9)
    found |= _PAIRS[one, two]
    later: Bools = _PAIRS[two, three] | (_SIGNS[two] & (three - np.uint8(48) <= 9))
    found |= (one == ord(" ")) & later
    return found


def put_rare_times(look: Prefixes, which: Ints, arrivals: Ints, times: Ints) -> None:
    """Puts the times of records of rare forms into `times`, if their texts have some.

    `which` are the records, `arrivals` and `times` are those of all, in microseconds.
    """
    flat, data = look.flat, look.flat.tobytes()
    wanted = np.zeros(len(look.lengths), np.bool_)
    wanted[which] = True
    found = _clocks(look, wanted)
    rows, columns = look.place(found)
    of_day, ends = _times_of_day(flat, found)
    year = flat[np.minimum(ends + 1, flat.size - 1)] - np.uint8(48) <= 9
    whole = may_shift(flat, ends) | ((flat[np.minimum(ends, flat.size - 1)] == ord(" ")) & year)
    numbers = look.rows[rows] - np.uint8(48) <= 9
    whole |= ~(numbers & (np.arange(WIDTH) < columns[:, np.newaxis])).any(axis=1)
    single = flat[found] - np.uint8(48) > 9
    known: dict[tuple[bytes, int], int | None] = {}
    values = (rows, found, single, ends, whole, of_day, arrivals[rows])
    for row, clock, short, end, all_, time, arrival in zip(
        *map(np.ndarray.tolist, values), strict=True
    ):
        # Most lines have the date of a line before them: what only follows from it is read once.
        if all_:
            line = data[row * WIDTH + 1 : end + _REST].partition(b"\n")[0]
        else:
            line = data[row * WIDTH + 1 : clock + short] + b"00:00:00"[short:]
        key = (line, arrival)
        if key not in known:
            known[key] = read_rare_time(line, arrival)
        found_time = known[key]
        if found_time is not None:
            times[row] = found_time if all_ else found_time + time
    wanted[rows] = False
    kitchen = ((look.rows[:, 6:8] | np.uint8(32)) == ord("m")).any(axis=1) & wanted
    for row in np.flatnonzero(kitchen & (look.rows[:, 1] <= ord("9"))).tolist():
        time = read_rare_time(data[row * WIDTH + 1 : row * WIDTH + 10], int(arrivals[row]))
        if time is not None:
            times[row] = time
    for row in _begin_with_stamps(flat, which):
        time = _read_stamp(data[row * WIDTH + 1 : row * WIDTH + 1 + _STAMP_BYTES])
        if time is not None:
            times[row] = time


def _begin_with_stamps(flat: Bytes, which: Ints) -> list[int]:
    """The records of `which` that may begin with `YYYY-MM-DD HH:MM` or `YYYYMMDDTHHMMSS`."""
    starts = which * WIDTH + 1
    starts += (flat[starts] == ord("[")) | (flat[starts] == ord("("))
    starts = starts[flat[starts] - np.uint8(ord("1")) <= 1]
    signs = (flat[starts + 4] & 253 == ord("-")) & (flat[starts + 13] == ord(":"))
    found: list[int] = (starts[signs | (flat[starts + 8] == ord("T"))] // WIDTH).tolist()
    return found


def _clocks(look: Prefixes, wanted: Bools) -> Ints:
    """The first position of `HH:MM:SS` or ` H:MM:SS` in each of the wanted rows that has one."""
    found = look.clocks
    row, column = look.place(found)
    near = wanted[row] & (column <= _LAST_START) & (column + 8 <= look.lengths[row])
    found = found[near]
    places = np.minimum(found + np.array([[1], [3], [4], [6], [7]]), look.flat.size - 1)
    digits = look.flat[places] - np.uint8(48)
    good = (digits.max(axis=0, initial=0) <= 9) & (digits[1] <= 5) & (digits[3] <= 5)
    tens = look.flat[found] - np.uint8(48)
    hour = (tens < 2) | ((tens == 2) & (digits[0] < 4))
    good &= (tens > 9) | (hour & (look.flat[found - 1] - np.uint8(48) > 9))
    found = found[good]
    first: Ints = found[first_of_rows(found // WIDTH)]
    before = look.flat[first - np.array([[4], [7], [10], [11], [1]])]
    dashes = (before[:2] & 253 == ord("-")).all(axis=0)  # and `/`, which is one bit away
    dashes &= (before[2:4] - np.uint8(48) <= 9).all(axis=0)
    dashes &= ((before[4] == ord(" ")) | (before[4] == ord("T"))) & (look.flat[first] > ord(" "))
    first = first[~dashes]  # `YYYY-MM-DD HH:MM:SS` without a time is no other form
    _, ends = _times_of_day(look.flat, first)
    after = look.flat[np.minimum(ends, look.flat.size - 1)]
    return first[after - np.uint8(48) > 10]  # no digit, no colon


def _times_of_day(flat: Bytes, clocks: Ints) -> tuple[Ints, Ints]:
    """Microseconds since midnight of each clock, and where it ends in `flat`."""
    texts = flat[np.minimum(clocks + np.arange(_CLOCK_BYTES)[:, np.newaxis], flat.size - 1)]
    digits = texts - np.uint8(48)
    hours = np.where(digits[0] <= 9, digits[0], np.uint8(0)) * np.int64(10) + digits[1]
    minutes = hours * 60 + digits[3] * np.int64(10) + digits[4]
    value = (minutes * 60 + digits[6] * np.int64(10) + digits[7]) * 1_000_000
    going = (texts[8] == ord(".")) | (texts[8] == ord(","))
    going |= (texts[8] == ord(":")) & (digits[9:12] <= 9).all(axis=0) & (digits[12] > 9)
    width, unit = np.full(len(clocks), 8), 1_000_000
    for place in range(9, _CLOCK_BYTES - 1):
        going = going & (digits[place] <= 9)
        unit //= 10
        value += (digits[place] * going) * np.int64(unit)
        width[going] = place + 1
    return value, clocks + width


def shift_of(suffix: bytes, hour: int) -> int | None:
    """Microseconds to add to a clock that was read as one of 24 hours in UTC.

    `suffix` is the text after the clock and its fraction, at least its first `SUFFIX_BYTES`. None
    if it names a zone that is not known for sure.
    """
    found = _SUFFIX.match(suffix)
    if found is None:
        return 0
    shift = 0
    if found["half"] is not None and hour <= _NOON:
        afternoon = found["half"] in b"Pp"
        shift = (afternoon - (hour == _NOON)) * _NOON * _HOUR
    if found["zone"] is not None:
        ahead = ZONES.get(found["zone"].decode(), 0)
        return None if ahead is None else shift - ahead * _MINUTE
    sign = found["sign"] or found["near"] or found["far"]
    if sign is None:
        return shift
    hours = int(found["hours"] or found["whole"] or found["alone"])
    minutes = int(found["minutes"] or 0)
    if hours > _FURTHEST_ZONE or minutes % 15 or minutes >= 60:
        return shift
    ahead = hours * 60 + minutes
    return shift + (ahead if sign == b"-" else -ahead) * _MINUTE


def read_rare_time(line: bytes, arrival: int) -> int | None:
    """Microseconds since the epoch of the first such time of a line, None without one.

    `arrival` is in microseconds, too.
    """
    arrived = _EPOCH + arrival * MICROSECONDS
    found = _DENSE.match(line) or _DATED.search(line)
    if found is not None and found.start() <= _LAST_START:
        on = _date_of(found, line, arrived)
        return None if on is None else _at(found, line, on)
    found = _ALONE.match(line)
    if found is not None:
        half = _SUFFIX.match(line, found.end("fraction" if found["fraction"] else "second"))
        if len(found["hour"]) == 1 and (half is None or half["half"] is None):
            return None
    else:
        found = _KITCHEN.match(line)
    return None if found is None else _nearest_day(found, line, arrived)


def _read_stamp(line: bytes) -> int | None:
    line = line.partition(b"\n")[0].rstrip()
    found = _MINUTE_STAMP.match(line) or _BASIC_STAMP.match(line)
    if found is None:
        return None
    on = _date(*(found[name].decode() for name in ("year", "month", "day")))
    return None if on is None else _at(found, line, on)


def _at(found: re.Match[bytes], line: bytes, on: date) -> int | None:
    """The time of a clock on a date."""
    of = found.groupdict()
    second, fraction = int(of.get("second") or 0), of.get("fraction") or b""
    hour = int(found["hour"])
    end = next(found.end(name) for name in ("fraction", "second", "minute") if of.get(name))
    shift = shift_of(line[end : end + SUFFIX_BYTES], hour)
    if shift is None:
        return None
    days = on.toordinal() - _EPOCH.toordinal()
    seconds = ((days * 24 + hour) * 60 + int(found["minute"])) * 60 + second
    return seconds * 1_000_000 + int(fraction[:6].ljust(6, b"0")) + shift


def _nearest_day(found: re.Match[bytes], line: bytes, arrived: datetime) -> int | None:
    today = arrived.date()
    times = [_at(found, line, today + timedelta(days)) for days in (-1, 0, 1)]
    arrival = (arrived - _EPOCH) // MICROSECONDS
    return min(
        (time for time in times if time is not None), key=lambda t: abs(t - arrival), default=None
    )


def _date_of(found: re.Match[bytes], line: bytes, arrived: datetime) -> date | None:
    of = {name: text.decode() for name, text in found.groupdict().items() if text is not None}
    if "year" in of:
        return _only([(of["year"], of["month"], of["day"])], arrived)
    if "a" in of:
        half = _SUFFIX.match(line, found.end("fraction" if "fraction" in of else "second"))
        american = of["two"] == "/" and half is not None and half["half"] is not None
        return _only(_readings(of["a"], of["b"], of["c"], of["two"], american=american), arrived)
    if "day_first" in of:
        return _only([(of["of_year"], _month(of["of"]), of["day_first"])], arrived)
    if "dense" in of:
        first, month, day = of["dense"][:-4], of["dense"][-4:-2], of["dense"][-2:]
        whole = len(first) == 4
        return _only([(first, month, day)] if whole else _readings(first, month, day, ""), arrived)
    if "week" in of:
        return _week_day(int(of["week_year"]), int(of["week"]), int(of["week_day"]))
    year = of.get("named_year") or of.get("late")
    years = [year] if year else [str(arrived.year + more) for more in (0, -1, 1)]
    month = _month(of["name"])
    dates = [_date(one, month, of["named_day"]) for one in years]
    today = arrived.date()
    return min(filter(None, dates), key=lambda one: abs(one - today), default=None)


def _readings(
    a: str, b: str, c: str, sign: str, *, american: bool = False
) -> list[tuple[str, str, str]]:
    """The possible years, months and days of three numbers."""
    day_first, month_first = (c, b, a), (c, a, b)
    if american:
        return [month_first]
    if len(c) == 4:
        return [day_first] if sign == "." else [day_first, month_first]
    return [(a, b, c), day_first, *([] if sign == "." else [month_first])]


def _only(readings: Sequence[tuple[str, str, str]], arrived: datetime) -> date | None:
    """The one reading that is a date, or of several dates the one that is near the arrival."""
    dates = {found for one in readings if (found := _date(*one)) is not None}
    if len(readings) > 1:
        dates = {one for one in dates if one <= (arrived + _NEAR).date()}
    if len(dates) > 1:
        dates = {one for one in dates if abs(one - arrived.date()) <= _NEAR}
    return dates.pop() if len(dates) == 1 else None


def _date(year: str, month: str, day: str) -> date | None:
    try:
        return date(int(year) + (2000 if len(year) == 2 else 0), int(month), int(day))
    except ValueError:
        return None


def _week_day(year: int, week: int, day: int) -> date | None:
    try:
        return date.fromisocalendar(year, week, day)
    except ValueError:
        return None


def _month(name: str) -> str:
    return str(MONTHS.index(name[:3].lower()) + 1)
