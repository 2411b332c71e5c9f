from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from tailrace.logstore.segments.levels import prefixes
from tailrace.logstore.segments.times import NO_TIME, find_times


def time(line: str) -> str | None:
    text = line.encode() + b"\n"
    found = int(find_times(prefixes(text, np.array([len(text)])))[0])
    if found == NO_TIME:
        return None
    seconds, micros = divmod(found, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{micros:06}"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2015-10-18 18:01:47,978 INFO", "2015-10-18 18:01:47.978000"),
        ("2024-02-29T00:00:00Z", "2024-02-29 00:00:00.000000"),
        ("[2024-05-06 07:08:09] x", "2024-05-06 07:08:09.000000"),
        ("2024/05/06 07:08:09 nginx", "2024-05-06 07:08:09.000000"),
        ('{"ts":"2024-05-06T07:08:09.123456789+02:00"}', "2024-05-06 05:08:09.123456"),
        ("2024-05-06T07:08:09.1-0530 x", "2024-05-06 12:38:09.100000"),
        ("2024-05-06T07:08:09+99:00", "2024-05-06 07:08:09.000000"),
        ("INFO 2024-05-06 07:08:09, Info", "2024-05-06 07:08:09.000000"),
        ("2024-13-06 07:08:09 2024-12-06 07:08:09", "2024-12-06 07:08:09.000000"),
        ("2023-02-29 00:00:00", None),
        ("1900-02-29 00:00:00", None),
        ("0000-01-01 00:00:00", None),
        ("1899-12-31 23:59:59", None),
        ("9999-12-31 23:59:59-01:00", None),
        ("9999-12-31 23:59:59.999999999", "9999-12-31 23:59:59.999999"),
        ("2024-05-06 24:00:00", None),
        ("2024-05-06 07:60:00", None),
        ("2024-05-06 07:08:60", None),
        ("12024-05-06 07:08:09", None),
        ("2024-05/06 07:08:09", None),
        ("2024-05-06 07:08", None),
        ("", None),
        ("x" * 100 + "2024-05-06 07:08:09", None),
    ],
)
def test_time(line: str, expected: str | None) -> None:
    assert time(line) == expected


def test_a_time_is_not_put_together_from_two_lines() -> None:
    text = b"2024-05-06\n07:08:09\n2024-05-06 07:08:09\n.5+01:00\n"
    found = find_times(prefixes(text, np.array([11, 20, 40, 49]))).tolist()
    assert found == [NO_TIME, NO_TIME, 1_714_979_289_000_000, NO_TIME]
