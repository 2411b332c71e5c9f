"""What a URL may ask: moments, cursors, parameters, and the refusal of everything else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.query import request
from service.query.request import QueryRequest, RecordKey
from tailrace.logstore import ulid
from tailrace.logstore.errors import InvalidCursor, InvalidInput
from tailrace.logstore.position import Cursor, Position
from tailrace.logstore.search.conditions import All, Contains, Matches, parse_moment, parse_span

NOW = 1_795_255_200_000


def moment(text: str) -> int:
    return parse_moment(text, now_ms=NOW, field="from")


def parse(**parameters: str) -> QueryRequest:
    start = {"from": parameters.pop("start")} if "start" in parameters else {}
    return QueryRequest.parse(parameters | start, now_ms=NOW)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1795255200", NOW),
        ("1795255200.25", NOW + 250),
        ("1795255200000", NOW),
        ("now", NOW),
        ("now-1h", NOW - 3_600_000),
        ("now-1d+30m", NOW - 86_400_000 + 1_800_000),
        ("now+10ms", NOW + 10),
        ("now 2w", NOW + 1_209_600_000),  # a `+` that nobody quoted
        ("2026-11-21T10:00:00Z", NOW),
        ("2026-11-21t10:00:00z", NOW),
        ("2026-11-21T11:00:00+01:00", NOW),
        ("2026-11-21T11:00:00 01:00", NOW),
        ("2026-11-21T04:30:00.1239-05:30", NOW + 123),
        ("2026-11-21", NOW - 36_000_000),
        ("2026-11-21 10:00", NOW),
        ("2026-11-21T10:00:00", NOW),
        ("2026/11/21 10:00:00.5", NOW + 500),
        ("2026-11-21 11:00 +0100", NOW),
        ("2026-11-21 10", NOW),
        ("20261121T100000Z", NOW),
        ("20261121t100000z", NOW),
        ("20261121T110000.5+0100", NOW + 500),
        ("20261121T110000 01:00", NOW),
        ("20261121T1000", NOW),
        ("20261121T10", NOW),
        ("20261121T0430-05:30", NOW),
        ("10:00", NOW),
        ("5m", NOW - 300_000),
        ("1h30m", NOW - 5_400_000),
        ("-5m", NOW - 300_000),
        ("5m ago", NOW - 300_000),
        ("today", NOW - 36_000_000),
        ("yesterday", NOW - 122_400_000),
        ("yesterday 10:00", NOW - 86_400_000),
        ("now/d", NOW - 36_000_000),
        ("now-1d/d+8h", NOW - 122_400_000 + 28_800_000),
        ("now/w", NOW - 36_000_000 - 5 * 86_400_000),
        ("now/M", NOW - 36_000_000 - 20 * 86_400_000),
        ("now/y", 1_767_225_600_000),
        ("0001-01-01", 0),
        ("now-99999999999w", 0),
        ("now+99999999999w", ulid.MAX_TIME_MS),
        (ulid.encode(NOW << 80 | 12345), NOW),
        (ulid.encode(NOW << 80).lower(), NOW),
    ],
)
def test_moments(text: str, expected: int) -> None:
    assert moment(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "x", "-5", "1e9", "tomorrow", "24:00", "5x", "now/x", "2026-11/21",
     "now-1", "now-1y", "now--1h", "2026-13-01", "2026-02-30",
     "2026-11-21T24:00:00Z", "2026-11-21T10:00:60Z", "now-1M",
     "20261121T2400Z", "20261321T10", "20261121T1", "20261121T100", "20261121T10:00", "20261121T",
     "2026-11-21T10:00:00+99:00", "01KAJ", "8" * 26, "٣", "2026-11-21T10:00:00Z\n1"],
)  # fmt: skip
def test_what_is_no_moment_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        moment(text)
    assert caught.value.field == "from"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("yesterday", NOW - 122_400_000, NOW - 36_000_000),
        ("2026-11-21", NOW - 36_000_000, NOW + 50_400_000),
        ("2026-11-21 10:00", NOW, NOW + 60_000),
        ("2026-11-21T10Z", NOW, NOW + 3_600_000),
        ("2026-11-21 10:00:00", NOW, NOW + 1),
        ("20261121T10Z", NOW, NOW + 3_600_000),
        ("20261121T1000Z", NOW, NOW + 60_000),
        ("20261121T100000Z", NOW, NOW + 1),
        ("5m", NOW - 300_000, NOW - 299_999),
    ],
)
def test_a_day_an_hour_and_a_minute_are_spans(text: str, start: int, end: int) -> None:
    assert parse_span(text, now_ms=NOW, field="q") == (start, end)


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(9999, 1, 1)),  # noqa: DTZ001 -- as it wants them
    st.integers(-23 * 60, 23 * 60),
)
def test_rfc3339_is_what_python_writes(naive: datetime, minutes: int) -> None:
    written = naive.replace(tzinfo=UTC).astimezone(timezone(timedelta(minutes=minutes)))
    passed = written - datetime(1970, 1, 1, tzinfo=UTC)
    assert moment(written.isoformat()) == passed // timedelta(milliseconds=1)


@given(st.text(max_size=30))
def test_any_text_is_a_moment_or_invalid_input(text: str) -> None:
    try:
        assert 0 <= moment(text) <= ulid.MAX_TIME_MS
    except InvalidInput as error:
        assert error.field == "from"  # noqa: PT017 -- either outcome is right


@given(st.integers(0, (1 << 128) - 1), st.text(), st.text())
def test_a_cursor_comes_back(value: int, fqn: str, run: str) -> None:
    key = RecordKey(ulid.encode(value), fqn, run)
    assert request.decode(key.encode()) == key


@pytest.mark.parametrize(
    "text",
    ["q1.", "q1.AAAA", "q1.W10", "q1.é", "5", "null", Cursor({"n": Position("f", 3)}).encode(),
     RecordKey("nonsense", "a", "b").encode(), RecordKey("0" * 26, "a", "b").encode()[:-6]],
)  # fmt: skip
def test_a_bad_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor) as caught:
        parse(after=text)
    assert caught.value.field == "after"
    assert caught.value.hint


def test_without_parameters_the_last_hour_newest_first() -> None:
    asked = parse()
    assert asked.low == ulid.lowest_at(NOW - 3_600_000)
    assert asked.high == (1 << 128) - 1  # ULIDs may lawfully be ahead of now
    assert asked.descending
    assert asked.limit is None


def test_both_ends_are_inclusive() -> None:
    asked = parse(start="1795255199999", to="1795255199999")
    assert (asked.low, asked.high) == (ulid.lowest_at(NOW - 1), ulid.highest_at(NOW - 1))


def test_what_goes_up_to_now_has_ids_that_are_ahead_of_the_clock_too() -> None:
    for to in ("now", "1795255200000", "now+1s", ""):
        assert parse(to=to).high == QueryRequest().high
    assert parse(to="now-1ms").high == ulid.highest_at(NOW - 1)


def test_all_parameters() -> None:
    key = RecordKey("0" * 26, "a", "b")
    asked = parse(
        start="0", q="(a+)+$", regex="true", fqn="svc/../p", run="r\0", level="error, fatal",
        limit="7", order="asc", after=key.encode(), format="text", stats_only="1",
    )  # fmt: skip
    assert asked == QueryRequest(
        condition=Matches("(a+)+$"), fqn="svc/../p", run="r\0",
        levels=("ERROR", "FATAL"), limit=7, descending=False, after=key, stats_only=True,
    )  # fmt: skip
    assert parse(q="a b", regex="").condition == Matches("a b")  # bare, as in OK Log
    assert parse(q="a b", regex="false").condition == All((Contains("a"), Contains("b")))


def test_a_run_that_the_search_names_is_the_one_that_is_read() -> None:
    asked = parse(q="fqn:svc.p run:7 timeout")
    assert (asked.fqn, asked.run) == ("svc.p", "7")
    asked = parse(q="fqn:svc.p OR run:7")
    assert (asked.fqn, asked.run) == (None, None)
    asked = parse(q="fqn:svc.p run:7", fqn="svc.q", run="8")
    assert (asked.fqn, asked.run) == ("svc.q", "8")


@pytest.mark.parametrize(
    ("name", "value"),
    [("level", "LOUD"), ("level", "INFO,"), ("limit", "0"), ("limit", "-1"), ("limit", "x"),
     ("limit", "9" * 40), ("limit", "²"), ("order", "up"), ("regex", "maybe"), ("fqn", ""),
     ("run", "x" * 5_000), ("fqn", "\ud800"), ("q", "\udfff"), ("q", "x" * 20_000),
     ("stats_only", "2"), ("lvl", "INFO")],
)  # fmt: skip
def test_bad_values_are_refused_with_field_and_hint(name: str, value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(**{name: value})
    assert caught.value.field == name
    assert caught.value.hint


def test_from_after_to_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(start="now", to="now-1ms")
    assert caught.value.field == "from"
    assert caught.value.hint
