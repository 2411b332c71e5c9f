"""Times without a year, clocks, epochs and dmesg: what they mean beside a batch's arrival."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from tailrace.logstore import ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import record_batches
from tests.batches import make_batches

ARRIVAL = datetime(2026, 1, 2, 3, 0, tzinfo=UTC)


def times_of(*batches: str, arrival: datetime = ARRIVAL) -> list[datetime]:
    """The times of all lines; one without any has the arrival or that of the line before it."""
    first = ulid.lowest_at(int(arrival.timestamp() * 1000))
    entries = [
        (RunKey("p", "r"), first + (n << ulid.LINE_BITS), text.encode())
        for n, text in enumerate(batches)
    ]
    found = pa.Table.from_batches(record_batches(make_batches("n", entries), Carry()))
    times: list[datetime] = found.column("ts").to_pylist()
    return times


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Nov 29 10:00:00 host app[17]: x", "2025-11-29T10:00:00"),
        ("<30>Nov  9 10:00:00 host x", "2025-11-09T10:00:00"),
        ("Jan  3 00:00:01 host x", "2026-01-03T00:00:01"),
        ("11-29 10:00:00.123  1  2 I x", "2025-11-29T10:00:00.123"),
        ("E1129 10:00:00.120000  1 c.go:1] x", "2025-11-29T10:00:00.120"),
        ('10.0.0.1 - - [29/Nov/2024:10:00:00 +0100] "GET /"', "2024-11-29T09:00:00"),
        ("02:59:59 [main] WARN x", "2026-01-02T02:59:59"),
        ("[23:00:00,123] x", "2026-01-01T23:00:00.123"),
        ("1767000000 x", "2025-12-29T09:20:00"),
        ("ts=1767000000.25 level=info", "2025-12-29T09:20:00.250"),
        ('{"level":30,"time":1767000000123,"msg":"x"}', "2025-12-29T09:20:00.123"),
        ("Sun Nov 29 10:00:00 2009 x", "2009-11-29T10:00:00"),
        ("[Thu Feb 29 10:00:00.123456 2024] [core:error] x", "2024-02-29T10:00:00.123456"),
        ("Nov 29 10:00:00 2001host x", "2025-11-29T10:00:00"),
        ("Nov 29 10:00:00 2048.example.com x", "2025-11-29T10:00:00"),
        ("29-Nov-2019 10:00:00.123 INFO [main] x", "2019-11-29T10:00:00.123"),
        ("17:M 29 Nov 2019 10:00:00.123 * Ready", "2019-11-29T10:00:00.123"),
        ('[29/Nov/2019 10:00:00] "GET / HTTP/1.1" 200 17', "2019-11-29T10:00:00"),
        ("Nov 9, 2019 10:00:00 AM c.e.Foo bar", "2019-11-09T10:00:00"),
        ("Nov 29, 2019 1:00:00 x", "2026-01-02T03:00:00"),
        ("Nov 29, 2019 01:00:00 PM c.e.Foo bar", "2019-11-29T13:00:00"),
        ("Nov 29, 2019 12:00:00 AM c.e.Foo bar", "2019-11-29T00:00:00"),
        ("Nov 29, 2019 12:00:00 PM", "2019-11-29T12:00:00"),
        ("02:00:00 PMA x", "2026-01-02T02:00:00"),
        ("20191129 10:00:00 x", "2019-11-29T10:00:00"),
        ("I20191129 10:00:00.500000 17 a.cc:1] x", "2019-11-29T10:00:00.500"),
        ("19/11/29 10:00:00 INFO a year of two digits has three readings", "2026-01-02T03:00:00"),
        ("29.11.2019 10:00:00.123 INFO x", "2019-11-29T10:00:00.123"),
        ("29.11.2019T10:00:00 x", "2019-11-29T10:00:00"),
        ("[05.06.2019, 10:00:00,5] the day comes first", "2019-06-05T10:00:00.5"),
        ("INFO 2019.06.05 10:00:00 x", "2019-06-05T10:00:00"),
        ("11/29/2019 10:00:00 x", "2019-11-29T10:00:00"),
        ("29/11/2019 10:00:00,123 x", "2019-11-29T10:00:00.123"),
        ("11/29/2019, 10:00:00 PM x", "2019-11-29T22:00:00"),
        ("29-11-2019T10:00:00.123456 x", "2019-11-29T10:00:00.123456"),
        ("01/03/2026 10:00:00 either is a date, and 3 January nearer", "2026-01-03T10:00:00"),
        ("03/01/2026 10:00:00 so it is here", "2026-01-03T10:00:00"),
        ("12/11/2025 10:00:00 x", "2025-12-11T10:00:00"),
        ("02/03/1999 10:00:00 x", "1999-03-02T10:00:00"),
        ("- 1117838570 2005.06.03 R02 x", "2005-06-03T22:42:50"),
        ("\x1b[32mNov 29 10:00:00\x1b[0m host x", "2025-11-29T10:00:00"),
    ],
)
def test_a_time_is_what_puts_it_nearest_to_the_arrival(line: str, expected: str) -> None:
    [time] = times_of(f"{line}\n")
    assert time == datetime.fromisoformat(f"{expected}+00:00")


@pytest.mark.parametrize(
    "line",
    ["00:11:22:33:44:55 is a MAC", "took 10:00:00 of it", "Feb 30 10:00:00", "25:00:00 x",
     "id=1767000000", "1767000000123456 x", "[29/Foo/2026:10:00:00 +0100]", "Nov 29 10:00:0",
     "29.02.2019 10:00:00", "13/13/2019 10:00:00", "129.11.2019 10:00:00", "1/29/11/2019 10:00:00",
     "11.29.2019 10:00:00", "29.11/2019 10:00:00", "12:00:60 x", "2015 10:00:00 x", ""],
)  # fmt: skip
def test_what_is_no_time_is_the_arrival(line: str) -> None:
    assert times_of(f"{line}\n") == [ARRIVAL]


def test_a_year_is_found_on_both_sides_of_its_end_and_on_a_leap_day() -> None:
    after = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert times_of("Jan  1 00:00:01 x\n", arrival=after)[0].year == 2027
    leap = datetime(2028, 3, 1, tzinfo=UTC)
    assert times_of("Feb 29 10:00:00 x\n", arrival=leap) == [datetime(2028, 2, 29, 10, tzinfo=UTC)]


def test_the_newest_line_of_dmesg_in_a_batch_is_its_arrival() -> None:
    text = "[    0.000000] Linux\n[   10.500000] usb\n continued\n<6>[   12.000000] x\n"
    seconds = [(ARRIVAL - time).total_seconds() for time in times_of(text)]
    assert seconds == [12.0, 1.5, 1.5, 0.0]


def test_a_time_is_not_put_together_from_two_lines() -> None:
    found = times_of("Nov 29 \n10:00:00 x\nid 17670\n00000 x\n")
    clock = ARRIVAL.replace(hour=10)
    assert found == [ARRIVAL, clock, clock, clock]
