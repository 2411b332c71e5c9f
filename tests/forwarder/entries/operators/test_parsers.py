"""Parsers, and what becomes of their times, levels and fields; those that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.forwarder.entries.entry import Entry
from tailrace.forwarder.model import EntryCursor, FileFacts
from tailrace.forwarder.operators.build import stages_of
from tailrace.forwarder.operators.expression import holds, parse_expression, parse_field
from tailrace.forwarder.operators.times import time_parser
from tailrace.logstore.errors import InvalidInput
from tests.forwarder.entries.packing import FILE, HUGE, packer, read, source


def one(line: str, *operators: dict[str, Any]) -> dict[str, Any]:
    found = read(line.encode() + b"\n", operators=list(operators))
    assert len(found) == 1
    return found[0]


def test_json_with_time_and_level() -> None:
    record = one(
        '{"msg": "hi", "lvl": "warning", "t": "2026-01-02T03:04:05.678Z", "n": {"a": [1]}}',
        {
            "type": "json_parser", "timestamp": {"parse_from": "attributes.t", "layout":
            "%Y-%m-%dT%H:%M:%S.%LZ", "location": "UTC"}, "severity": {"parse_from":
            "attributes.lvl"},
        },
    )  # fmt: skip
    assert (record["ts"], record["level"]) == (1767323045.678, "WARN")
    assert record["attributes"]["n"] == {"a": [1]}


def test_a_field_may_become_the_message() -> None:
    operators: list[dict[str, Any]] = [
        {"type": "json_parser", "parse_to": "body"},
        {"type": "regex_parser", "parse_from": "body.msg", "regex": "^(?<first>\\w+)"},
        {"type": "severity_parser", "parse_from": "body.level", "mapping": {"error": "oops"}},
        {"type": "time_parser", "parse_from": "body.s", "layout_type": "epoch", "layout": "s"},
    ]
    record = one('{"msg": "hello you", "level": "Oops", "s": 1136214245}', *operators)
    assert (record["ts"], record["level"]) == (1136214245.0, "ERROR")
    assert record["attributes"] == {"first": "hello"}
    assert record["message"] == '{"msg":"hello you","level":"Oops","s":1136214245}'


@pytest.mark.parametrize(
    ("on_error", "messages"), [("send", ["{", "{}"]), ("send_quiet", ["{", "{}"]), ("drop", ["{}"])]
)
def test_what_cannot_be_parsed(on_error: str, messages: list[str]) -> None:
    operator = {"type": "json_parser", "on_error": on_error}
    assert [r["message"] for r in read(b"{\n{}\n", operators=[operator])] == messages
    packed = packer(operators=[operator]).pack(
        b"{\n{}\n", EntryCursor(), FILE, final=True, most=HUGE
    )
    assert packed is not None
    assert packed.failed == len(messages) - 1


@pytest.mark.parametrize(
    ("value", "level"),
    [("ERROR", "ERROR"), ("err", "ERROR"), ("17", "ERROR"), ("info3", "INFO"), ("404", "FATAL"),
     ("500", "DEBUG"), ("nooo", "TRACE"), ("what", None)],
)  # fmt: skip
def test_levels(value: str, level: str | None) -> None:
    mapping = {"fatal": "4xx", "debug2": [{"min": 500, "max": 505}], "trace": ["nooo"]}
    operators: list[dict[str, Any]] = [
        {"type": "regex_parser", "regex": "(?P<l>.*)"},
        {"type": "severity_parser", "parse_from": "attributes.l", "mapping": mapping},
    ]
    assert one(value, *operators).get("level") == level


@pytest.mark.parametrize(
    ("kind", "layout", "text", "location", "microseconds"),
    [
        ("strptime", "%Y-%m-%d %H:%M:%S,%L", "2026-01-02 03:04:05,678", "UTC", 1767323045678000),
        ("strptime", "%d/%b/%Y:%H:%M:%S %z", "02/Jan/2026:03:04:05 +0100", "", 1767319445000000),
        ("strptime", "%a %b %e %H:%M:%S %Z %Y", "Fri Jan  2 03:04:05 UTC 2026", "",
        1767323045000000), ("strptime", "%m/%d/%y %I:%M %p", "01/02/26 03:04 PM", "UTC",
        1767366240000000), ("strptime", "%F %T", "2026-07-01 12:00:00", "Europe/Berlin",
        1782900000000000), ("gotime", "2006-01-02T15:04:05.999Z07:00", "2026-01-02T03:04:05.5Z", "",
        1767323045500000), ("gotime", "Jan 2 15:04:05 MST 2006", "Jan 2 03:04:05 GMT 2026", "",
        1767323045000000), ("epoch", "ms", "1136214245123", "", 1136214245123000), ("epoch", "s.us",
        "1136214245.123456", "", 1136214245123456), ("epoch", "ns", "1136214245123456789", "",
        1136214245123456),
    ],
)  # fmt: skip
def test_times(kind: str, layout: str, text: str, location: str, microseconds: int) -> None:
    assert time_parser(kind, layout, location)(text) == microseconds
    assert time_parser(kind, layout, location)("yesterday") is None


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ("%Y-%m-%d %H:%M:%S", "0000-01-02 03:04:05"),
        ("%Y-%m-%d %H:%M:%S", "2026-02-30 03:04:05"),
        ("%Y-%m-%d %H:%M:%S%z", "2026-01-02 03:04:05+99:99"),
        ("%Y-%m-%d %H:%M:%S", "1969-12-31 23:59:59"),
        ("%d %b %Y", "01 Jan 0000"),
        ("%d %b %Y", "01 Foo 2026"),
    ],
)
def test_what_looks_like_a_time_and_is_none(layout: str, text: str) -> None:
    assert time_parser("strptime", layout, "UTC")(text) is None


@pytest.mark.parametrize(
    ("expression", "holding"),
    [
        ('body matches "^a.c$"', True),
        ("body == 'abc' and attributes.n == 1", True),
        ("not (body == 'abc') or attributes.n != 1", False),
        ('attributes["x.y"] contains "z" && body startsWith "a"', True),
        ("attributes.gone == nil", True),
        ("attributes.gone == 'x' || body in ['x', 'abc']", True),
        ("!(body endsWith `c`)", False),
    ],
)
def test_expressions(expression: str, holding: bool) -> None:
    entry = Entry("abc", 0, 0)
    entry.attributes = {"n": 1, "x.y": "wxyz"}
    assert holds(parse_expression(expression), entry) is holding


@pytest.mark.parametrize(
    "text",
    [
        *("", "body ==", "body matches x", "len(body) > 1", "(body", "body body"),
        "(" * 3000 + "body" + ")" * 3000,
        "not " * 2000 + "body",
        "body in " + "[" * 2000 + "'a'" + "]" * 2000,
        "body or " * 2000 + "body",
    ],
)
def test_an_expression_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expression"):
        parse_expression(text)


@pytest.mark.parametrize("word", ["and", "or"])
def test_an_expression_of_many_parts_is_evaluated(word: str) -> None:
    entry = Entry("a", 0, 0)
    text = f" {word} ".join(["body"] * 1000)
    assert holds(parse_expression(text), entry)


def test_fields_are_set_where_they_are_named() -> None:
    entry = Entry("text", 0, 0)
    parse_field('attributes["a.b"].c').set(entry, 1)
    parse_field("resource.r").set(entry, 2)
    assert (entry.attributes, entry.resource) == ({"a.b": {"c": 1}}, {"r": 2})
    with pytest.raises(ValueError, match="field"):
        parse_field("nowhere.x")


@pytest.mark.parametrize(
    ("operator", "lines", "expected"),
    [
        ({"is_first_entry": 'body matches "^[^ ]"'}, ["a", " b", "c"], ["a\n b", "c"]),
        ({"is_last_entry": "body == '.'", "combine_with": ""}, ["a", "b", ".", "c"], ["ab.", "c"]),
        (
            {"is_first_entry": "body == '1'", "max_unmatched_batch_size": 1},
            ["2", "3", "1", "4", "5"],
            ["2", "3", "1\n4\n5"],
        ),
        (
            {"is_first_entry": "body == '1'", "max_batch_size": 2},
            ["1", "2", "3", "4"],
            ["1\n2", "3\n4"],
        ),
    ],
)
@pytest.mark.parametrize("step", [1, 1000])
def test_recombine(
    operator: dict[str, Any], lines: list[str], expected: list[str], step: int
) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    recombine = {"type": "recombine", "combine_field": "body", **operator}
    keys: dict[str, Any] = {"preserve_leading_whitespaces": True, "operators": [recombine]}
    assert [r["message"] for r in read(data, step=step, **keys)] == expected


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        ({"max_sources": 10}, [f"{number} x" for number in range(40)]),
        ({}, [f"{number} {'x' * 900}" for number in range(40)]),
        ({"max_batch_size": 0, "combine_with": "-" * 1000}, [""] * 300),
    ],
    ids=["sources", "bytes of all", "what is put between"],
)
def test_what_waits_to_be_joined_is_bounded(more: dict[str, Any], lines: list[str]) -> None:
    recombine = {
        "type": "recombine",
        "combine_field": "body",
        "is_last_entry": "body == 'end'",
        "source_identifier": "attributes.source",
        "max_unmatched_batch_size": 0,
        **more,
    }
    sources = {"type": "regex_parser", "regex": r"^(?P<source>\d*)"}
    made = source(max_log_size=1000, operators=[sources, recombine])
    makers = stages_of(made.operators, max_log_size=made.max_log_size)
    parse, join = (make(FileFacts("a.log")) for make in makers)
    out: list[Entry] = []
    waiting = 0
    for number, line in enumerate(lines):
        parse.feed(Entry(line, number, number), lambda entry: join.feed(entry, out.append))
        oldest = join.oldest()
        waiting = max(waiting, 0 if oldest is None else number + 1 - oldest)
    join.flush(out.append)
    assert waiting < len(lines) - 10
    assert [entry.first for entry in out] == sorted(entry.first for entry in out)
    text = "".join(entry.body for entry in out)
    assert text.replace("-", "") == "".join(lines)
    assert max(len(entry.body) for entry in out) < 3000


def test_an_operator_passes_over_what_its_condition_is_not_true_of() -> None:
    operator = {"type": "regex_parser", "regex": "(?P<all>.*)", "if": 'body contains "x"'}
    found = read(b"ax\nb\n", operators=[operator])
    assert [record.get("attributes") for record in found] == [{"all": "ax"}, None]


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        ({"type": "router"}, "'router' is not supported; use one of container, json"),
        ({"type": "csv_parser"}, "csv_parser"), ({}, "needs a type"), ({"type": "regex_parser",
        "regex": "no groups"}, "named group"), ({"type": "json_parser", "parse_form": "body"},
        "parse_from"), ({"type": "json_parser", "parse_from": "elsewhere"}, "a field is"), ({"type":
        "time_parser", "parse_from": "body", "layout": "%b %e %H:%M:%S"}, "needs a year"), ({"type":
        "time_parser", "parse_from": "body", "layout": "%Y%Q"}, "%Q"), ({"type": "time_parser",
        "parse_from": "body", "layout": "%Y", "location": "X"}, "time zone"), (
        {"type": "severity_parser", "parse_from": "body", "mapping": {"bad": 1}}, "not a severity"),
        ({"type": "recombine", "combine_field": "body"}, "exactly one"),
        ({"type": "json_parser", "if": "len(body)"}, "expression"),
    ],
)  # fmt: skip
def test_what_it_has_not_is_refused_by_name(operator: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        source(operators=[operator])
    assert says in f"{raised.value} {raised.value.hint}"
    assert str(raised.value.field).startswith("operators")
