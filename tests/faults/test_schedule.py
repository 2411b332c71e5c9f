"""The schedule: the same seed the same faults, only lawful ones, and never too many in a row."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.faults.http1 import Head
from tests.faults.kinds import HIDDEN, Kind
from tests.faults.requests import Request
from tests.faults.schedule import Schedule, evenly


def request(line: str, **headers: str) -> Request:
    spelled = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Request.of(Head(b"", f"{line} HTTP/1.1", spelled))


PUT = request("PUT /b/k")
PUT_ABSENT = request("PUT /b/k", if_none_match="*")
PUT_MATCH = request("PUT /b/k", if_match='"etag"')
PART = request("PUT /b/k?partNumber=1&uploadId=2")
COPY = request("PUT /b/k", x_amz_copy_source="/b/s", x_amz_copy_source_if_match='"etag"')
BEGIN = request("POST /b/k?uploads")
COMPLETE = request("POST /b/k?uploadId=2")
COMPLETE_ABSENT = request("POST /b/k?uploadId=2", if_none_match="*")
GET_MATCH = request("GET /b/k", if_match='"etag"')
DELETE = request("POST /b?delete")
EVERY = (
    PUT, PUT_ABSENT, PUT_MATCH, PART, COPY, BEGIN, COMPLETE, COMPLETE_ABSENT, GET_MATCH, DELETE,
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "may_meet"),
    [
        (Kind.CONFLICT, {PUT_ABSENT, PUT_MATCH, COMPLETE_ABSENT}),
        (Kind.ERROR_IN_200, {COPY, COMPLETE, COMPLETE_ABSENT, DELETE}),
        (Kind.RETRIED, set(EVERY) - {GET_MATCH}),
        (Kind.DROPPED, set(EVERY)),
        (Kind.SLOW_DOWN, set(EVERY)),
    ],
)
def test_only_lawful_faults(kind: Kind, may_meet: set[Request]) -> None:
    assert {one.name for one in EVERY if kind.lawful(one)} == {one.name for one in may_meet}
    schedule = Schedule(rates={kind: 1.0}, most_in_a_row=1000)
    schedule.refuse(kind)
    schedule.plan(kind, times=1000)
    for one in EVERY:
        assert schedule.next(one) is (kind if one in may_meet else None)
    schedule.relent()
    for one in EVERY:
        assert schedule.next(one) is (kind if one in may_meet else None)


def met(seed: int, requests: list[Request]) -> Counter[tuple[str, Kind]]:
    schedule = Schedule(seed, evenly(0.5), most_in_a_row=1000)
    return Counter((one.name, kind) for one in requests if (kind := schedule.next(one)))


def test_a_seed_gives_each_request_the_same_faults_in_whatever_order_they_come() -> None:
    requests = [request(f"GET /b/{n % 20}") for n in range(400)]
    shuffled = requests[:]
    Random(1).shuffle(shuffled)
    assert met(7, requests) == met(7, shuffled)
    assert met(7, requests) != met(8, requests)


def test_rates_are_kept_and_every_kind_comes() -> None:
    requests = [request(f"POST /b/{n}?uploadId=1", if_match="*") for n in range(6000)]
    kinds = Counter[Kind]()
    for (_, kind), count in met(1, requests).items():
        kinds[kind] += count
    assert set(kinds) == set(HIDDEN)
    assert 2700 < kinds.total() < 3300


def test_no_request_meets_more_faults_in_a_row_than_allowed() -> None:
    schedule = Schedule(1, evenly(1.0), most_in_a_row=2)
    other = request("GET /b/other")
    row = []
    for _ in range(12):
        schedule.next(other)
        row.append(schedule.next(PUT_ABSENT) is not None)
    assert max(map(len, "".join("x" if hit else " " for hit in row).split())) == 2
    assert row.count(True) >= 6


def test_tries_of_one_request_are_known_by_its_name() -> None:
    first, again = request("POST /b/k?uploadId=1"), request("POST /other/k?uploadId=2")
    assert first.name == again.name
    assert PART.name != request("PUT /b/k?partNumber=2&uploadId=2").name


def test_planned_faults_come_first_in_order_and_only_where_they_apply() -> None:
    schedule = Schedule()
    schedule.plan(Kind.DROPPED, times=2, applies=lambda one: one.conditional_write)
    schedule.plan(Kind.DELAY)
    met_kinds = [schedule.next(one) for one in (PUT_ABSENT, GET_MATCH, PUT_MATCH, PUT_ABSENT)]
    assert met_kinds == [Kind.DROPPED, Kind.DELAY, Kind.DROPPED, None]
    assert (schedule.requests, schedule.injected) == (4, {Kind.DROPPED: 2, Kind.DELAY: 1})


def test_calm_ends_everything() -> None:
    schedule = Schedule(1, {Kind.RESET: 1.0})
    schedule.plan(Kind.DROPPED, times=9)
    schedule.refuse()
    schedule.calm()
    assert [schedule.next(PUT) for _ in range(9)] == [None] * 9


def test_deletions_of_other_keys_are_counted_apart() -> None:
    schedule = Schedule(rates={Kind.SLOW_DOWN: 1.0}, most_in_a_row=1)
    some = request("POST /b?delete", x_amz_checksum_crc32="AAAAAA==")
    others = request("POST /b?delete", content_md5="1B2M2Y8AsgTpgAmY7PhCfg==")
    for one in (some, others):
        assert schedule.next(one) is Kind.SLOW_DOWN
    for one in (some, others):
        assert schedule.next(one) is None
