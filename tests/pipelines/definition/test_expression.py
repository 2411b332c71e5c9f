"""Filters in the language of searches: they mean what a search does, and say what is wrong."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.search.language import parse as parse_search
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.definition import parse
from tailrace.pipelines.selection import Selection
from tests.logstore.search.evaluate import holds
from tests.pipelines.events import BASE_MS, events

SEARCHES = [
    "timeout",
    '"connection refused"i OR level>=ERROR',
    "NOT level:INFO",
    "level:(WARN OR ERROR) fqn:shop.*",
    "attributes.region:eu",
    "NOT attributes.region:eu",
    "attributes.region:*",
    "json.user.id>=7",
    'logfmt.status>=500 AND NOT run:"r 2"',
    r"/id=\d+$/",
    "connector:c",
    "ts>=2023-11-14T22:13:20.002Z",
    "message=timeout",
    '(timeout OR refused) "-x"',
]


def records() -> pa.Table:
    return pa.concat_tables(
        [
            events(["timeout", "id=7", "Connection Refused"], fqn="shop.a", step_ms=1),
            events(['{"user":{"id":7}}', '{"user":{"id":6}}'], fqn="hr", level=None),
            events(["status=503 x", "status=200"], run="r 2", level="ERROR"),
            events(["status=503 -x timeout"], attributes={"region": "eu"}, level="WARN"),
            events(["late"], at_ms=BASE_MS + 5000, attributes={"region": "us"}),
        ]
    )


@pytest.mark.parametrize("text", SEARCHES)
def test_an_expression_takes_what_a_search_finds(text: str) -> None:
    table = records()
    condition = parse_search(text, now_ms=0)
    assert condition is not None
    rows = table.to_pylist()
    for row in rows:
        row["attributes"] = dict(row["attributes"] or {})
        row["ts"] = round(row["ts"].timestamp() * 1_000_000)
    wanted = [row["message"] for row in rows if holds(condition, row)]
    taken = Selection(where=text).of(table)
    assert taken.column("message").to_pylist() == wanted
    assert taken.schema == table.schema


def test_it_is_one_of_all_that_must_hold() -> None:
    both = Selection(where="timeout", level="WARN").of(records())
    assert both.column("message").to_pylist() == ["status=503 -x timeout"]
    nothing = Selection(where="timeout").of(records().slice(0, 0))
    assert nothing.num_rows == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a AND level:LOUD", r"filter\.where: character 13: there is no level 'LOUD'"),
        ("a (b", r"filter\.where: character 5: "),
        ("colour:red", r"filter\.where: character 1: there is no field 'colour'"),
        ("/(/", r"filter\.where: has an invalid regular expression: .*RE2"),
        ("ts>now-5m", r"filter\.where: has a time that moves with the clock"),
        ("pos:5", r"filter\.where: asks for pos"),
        ("  ", r"filter\.where: is empty"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, says: str) -> None:
    content: dict[str, Any] = {"name": "p", "filter": {"where": text}}
    content["appenders"] = [{"type": "stdout", "name": "out"}]
    with pytest.raises(InvalidInput, match=says):
        parse(content, AppenderRegistry())
