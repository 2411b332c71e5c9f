"""`ordering_criteria`: OpenTelemetry's cases, and the files that are left out."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.forwarder.config.source import OrderingCriteria
from tailrace.forwarder.files.finder import FoundFile, Ordering

RUN = r"run_(?P<number>\d+)_(?P<name>[a-z]+)"


def _order(names: list[str], **criteria: Any) -> tuple[list[str], list[str]]:
    left_out: list[str] = []
    files = [FoundFile(name, 1, number, 1, number) for number, name in enumerate(names)]
    order = Ordering(OrderingCriteria(**criteria), left_out.append)
    result = [file.path for file in order(files)]
    order(files)
    return result, left_out


NUMERIC = {"sort_type": "numeric", "regex_key": "number"}
NAMES = {"sort_type": "alphabetical", "regex_key": "name"}
FILES = ["run_1_b", "run_10_a", "run_2_c", "run_2_a"]


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        ({"sort_by": [NUMERIC]}, ["run_10_a"]),
        ({"sort_by": [{**NUMERIC, "ascending": True}]}, ["run_1_b"]),
        ({"sort_by": [NUMERIC], "top_n": 2}, ["run_10_a", "run_2_c"]),
        ({"sort_by": [NUMERIC], "top_n": 4}, ["run_10_a", "run_2_c", "run_2_a", "run_1_b"]),
        ({"sort_by": [NUMERIC], "top_n": 0}, ["run_10_a", "run_2_c", "run_2_a", "run_1_b"]),
        ({"sort_by": [NUMERIC], "top_n": 9}, ["run_10_a", "run_2_c", "run_2_a", "run_1_b"]),
        ({"sort_by": [NAMES], "top_n": 2}, ["run_2_c", "run_1_b"]),
        ({"sort_by": [NAMES, NUMERIC], "top_n": 3}, ["run_10_a", "run_2_c", "run_2_a"]),
        ({"sort_by": [NUMERIC, NAMES], "top_n": 4}, ["run_2_c", "run_1_b", "run_10_a", "run_2_a"]),
        ({"sort_by": [NUMERIC], "group_by": r"_([a-z])$"}, ["run_1_b", "run_10_a", "run_2_c"]),
        ({"sort_by": [{"sort_type": "mtime"}], "top_n": 2}, ["run_2_a", "run_2_c"]),
        ({"top_n": 2}, ["run_1_b", "run_10_a"]),
    ],
)
def test_sorted_and_cut(criteria: dict[str, Any], expected: list[str]) -> None:
    assert _order(FILES, regex=RUN, **criteria) == (expected, [])


def test_timestamps() -> None:
    by = {"sort_type": "timestamp", "regex_key": "day", "layout": "%Y%m%d", "location": "UTC"}
    names = ["a.20260131.log", "a.20260201.log", "a.20251231.log"]
    result, _ = _order(names, regex=r"\.(?P<day>\d{8})\.", sort_by=[by], top_n=2)
    assert result == ["a.20260201.log", "a.20260131.log"]


def test_what_has_no_such_part_is_left_out_and_reported_once() -> None:
    names = ["run_x_a", "run_1_b", "other"]
    pattern = r"run_(?P<number>[a-z0-9]+)_"
    result, left_out = _order(names, regex=pattern, sort_by=[NUMERIC], top_n=0)
    assert result == ["run_1_b"]
    assert len(left_out) == 2
