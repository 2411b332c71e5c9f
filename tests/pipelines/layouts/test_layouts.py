"""Layouts: what a line of each looks like."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tailrace.pipelines.events import ORDER
from tailrace.pipelines.layouts import Json, Logfmt, Pattern, Raw
from tests.pipelines.events import BASE_MS, events

ONE = events(
    ['a "b"\nc'],
    fqn="sales.load",
    run="r1",
    at_ms=BASE_MS + 123,
    attributes={"logger": "com.acme.jobs.Loader", "thread": "main", "k": "v w"},
)


def lines(layout: Raw | Json | Logfmt | Pattern, table: pa.Table = ONE) -> list[str]:
    found: list[str] = layout.lines(table).to_pylist()
    return found


def test_raw_is_the_message() -> None:
    assert lines(Raw()) == ['a "b"\nc\n']


def test_json_is_an_object_a_line() -> None:
    (line,) = lines(Json())
    assert line.endswith("}\n")
    assert json.loads(line) == {
        "ulid": ONE.column("ulid")[0].as_py(),
        "ts": "2023-11-14T22:13:20.123000Z",
        "fqn": "sales.load",
        "run": "r1",
        "level": "INFO",
        "message": 'a "b"\nc',
        "attributes": {"logger": "com.acme.jobs.Loader", "thread": "main", "k": "v w"},
    }


def test_what_is_out_of_order_says_so() -> None:
    table = pa.concat_tables([ONE, ONE]).append_column(ORDER, pa.array(["late", None]))
    first, second = lines(Json(), table)
    assert json.loads(first)["order"] == "late"
    assert "order" not in json.loads(second)
    first, second = lines(Logfmt(), table)
    assert " order=late msg=" in first
    assert "order" not in second
    assert lines(Pattern(pattern="[%order]"), table) == ["[late]\n", "[]\n"]
    assert lines(Pattern(pattern="[%order]")) == ["[]\n"]


def test_logfmt_quotes_what_needs_it() -> None:
    (line,) = lines(Logfmt())
    assert line.partition(" ")[2] == (
        "ts=2023-11-14T22:13:20.123000Z fqn=sales.load run=r1 level=INFO"
        ' msg="a \\"b\\"\\nc" logger=com.acme.jobs.Loader thread=main k="v w"\n'
    )


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("%msg%n", 'a "b"\nc\n'),
        ("%m", 'a "b"\nc\n'),  # a newline is added
        ("%d %p", "2023-11-14 22:13:20,123 INFO\n"),
        ("%date{HH:mm:ss.SSS}", "22:13:20.123\n"),
        ("%d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX, Europe/Berlin}", "2023-11-14T23:13:20.123+01:00\n"),
        ('%d{"HH:mm:ss,SSS", UTC}', "22:13:20,123\n"),
        ("%d{HH:mm:ss,SSS}", "22:13:20,123\n"),
        ("[%-7level] [%7p]", "[INFO   ] [   INFO]\n"),
        ("%.2p %.-2p", "FO IN\n"),
        ("%logger %logger{20} %c{0}", "com.acme.jobs.Loader com.acme.jobs.Loader Loader\n"),
        ("%lo{15}", "c.a.jobs.Loader\n"),
        ("%lo{18}|%lo{17}|%lo{1}", "c.acme.jobs.Loader|c.a.jobs.Loader|c.a.j.Loader\n"),
        ("%thread %X{k} %X{none:-no} %mdc{none}", "main v w no \n"),
        ("%X", "logger=com.acme.jobs.Loader, thread=main, k=v w\n"),
        ("%fqn/%run %ulid", f"sales.load/r1 {ONE.column('ulid')[0].as_py()}\n"),
        ("100%% \\% \\t|", "100% % \t|\n"),
    ],
)
def test_logbacks_words(pattern: str, line: str) -> None:
    assert lines(Pattern(pattern=pattern)) == [line]


def test_a_record_without_attributes_has_the_pipelines_name_for_a_logger() -> None:
    plain = events(["x"], fqn="sales.load", level=None)
    assert lines(Pattern(pattern="%logger %p|%X{k:-none}|%X|"), plain) == ["sales.load |none||\n"]


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("%caller", "the word %caller"),
        ("%d{QQ}", "'QQ' is not supported"),
        ("%d{HH, Mars/Olympus}", "'Mars/Olympus', which is not known"),
        ("50%", "'%' at character 3"),
        ("%logger{x}", "a number of characters"),
        ("%-999999999msg", "widths of more than 1000 characters"),
        ("%600msg %500fqn", "widths of more than 1000 characters in sum"),
        (f"%.{'9' * 5000}msg", "more than 1000000 characters of a word"),
        ("%msg" * 51, "more than 50 words"),
    ],
)
def test_a_pattern_that_cannot_be_names_what_is_wrong(pattern: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Pattern(pattern=pattern)
