"""Packing is a pure function: a range alone gives the same body, however it was found."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.forwarder.model import FileFacts
from tests.forwarder.entries.packing import FILE, NAMED, read

PIECES = [
    b"",
    b" ",
    b"\t",
    b"\r",
    b"\n",
    b"\r\n",
    b"\n\n",
    b"x",
    b"word ",
    b"line of text\n",
    b"  at a.b.C(D.java:1)\n",
    b"Caused by: x\n",
    b"Traceback (most recent call last):\n",
    b'  File "a.py", line 1\n',
    b"ValueError: no\n",
    b"During handling of the above exception, another exception occurred:\n",
    b"panic: no\n",
    b"goroutine 1 [running]:\n",
    b"START 1 ",
    b" END",
    b'{"a": 1, "level": "warn"}\n',
    b"# key: value\n",
    b"2023-06-22T10:27:25.813799277Z stdout F whole\n",
    b"2023-06-22T10:27:25.813799277Z stdout P part \n",
    b"2023-06-22T10:27:25.813799277Z stderr F other\n",
    b"2023-06-22T10:27:25.813799277Z stderr P \xc3\xa9\n",
    b"2023-06-22T10:27:25.813799277Z stdout P 1%\r2%\n",
    b'{"log":"line\\n","stream":"stdout","time":"2024-03-30T08:31:20.545192187Z"}\n',
    b'{"log":"part","stream":"stdout","time":"2024-03-30T08:31:20.545192187Z"}\n',
    "äöü€😀".encode(),
    b"\xff\xfe",
    b"\xc3",
    b"\x7f",
    b"\xc2\x80\x00",
    b'\\n"',
    "zwölf\n".encode("utf-16-le"),
    "\n".encode("utf-16-be"),
]
KEYS: list[dict[str, Any]] = [
    {},
    {"preserve_leading_whitespaces": True},
    {"preserve_trailing_whitespaces": True},
    {"preserve_leading_whitespaces": True, "preserve_trailing_whitespaces": True},
    {"overwritten": "all"},
    {"encoding": "utf-16le"},
    {"encoding": "utf-16be"},
    {"encoding": "big5"},
    {"encoding": "latin-1"},
    {"encoding": "nop"},
    {"include_file_record_number": True, "include_file_record_offset": True},
    {"multiline": {"line_start_pattern": r"START \d"}},
    {"multiline": {"line_start_pattern": r"^\S"}},
    {"multiline": {"line_start_pattern": r"x.*END"}},
    {"multiline": {"line_start_pattern": r"START", "omit_pattern": True}},
    {"multiline": {"line_end_pattern": r"END"}},
    {"multiline": {"line_end_pattern": r"x$", "omit_pattern": True}},
    {"multiline": {"line_end_pattern": r"END"}, "encoding": "utf-16le"},
    {"multiline": {"continuation_pattern": r"\s"}},
    {"multiline": {"builtin": ["python", "java", "go"], "max_lines": 3}},
    {"operators": [{"type": "container"}]},
    {"operators": [{"type": "container"}], "multiline": {"line_start_pattern": "whole"}},
    {"operators": [{"type": "container", "on_error": "drop"}], "multiline": {"builtin": "java"}},
    {"operators": [{"type": "json_parser", "severity": {"parse_from": "attributes.level"}}]},
    {
        "operators": [
            {"type": "recombine", "combine_field": "body", "is_first_entry": 'body matches "^x"'}
        ]
    },
    {
        "operators": [
            {"type": "recombine", "combine_field": "body", "is_last_entry": "body == 'word'"}
        ]
    },
    {
        "header": {
            "pattern": "^#",
            "metadata_operators": [{"type": "regex_parser", "regex": r"# (?P<k>\w+)"}],
        },
        "start_at": "beginning",
    },
]
LARGE = FileFacts("/var/log/app.log", {"log.file.name": "ü" * 2000})
FILES = [
    FILE,
    NAMED,
    LARGE,
    FileFacts("/var/log/pods/a_b_0-1/main/0.log", {"log.file.name": "0.log"}),
]


@settings(max_examples=300, deadline=None)
@given(
    data=st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join),
    keys=st.sampled_from(KEYS),
    behaviour=st.sampled_from(["split", "truncate"]),
    longest=st.sampled_from([1, 5, 16, 64, 1 << 20]),
    file=st.sampled_from(FILES),
    step=st.integers(1, 400),
    most=st.sampled_from([1, 30, 200, 5000]),
)
def test_a_range_alone_gives_the_same_body(
    data: bytes,
    keys: dict[str, Any],
    behaviour: str,
    longest: int,
    file: FileFacts,
    step: int,
    most: int,
) -> None:
    sizes = {"max_log_size": longest, "max_log_size_behavior": behaviour}
    found = read(data, step=step, most=most, file=file, **sizes, **keys)
    assert all(isinstance(record["message"], str) for record in found)


@settings(max_examples=200, deadline=None)
@given(
    lines=st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]))),
    file=st.sampled_from(FILES),
    step=st.integers(1, 400),
    most=st.sampled_from([1, 30, 200, 5000]),
    numbered=st.booleans(),
)
def test_every_line_is_there_once_and_in_order(
    lines: list[str], file: FileFacts, step: int, most: int, numbered: bool
) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    found = read(
        data,
        step=step,
        most=most,
        file=file,
        preserve_leading_whitespaces=True,
        preserve_trailing_whitespaces=True,
        include_file_record_number=numbered,
    )
    assert [record["message"] for record in found] == lines
    if numbered:
        numbers = [record["attributes"]["log.file.record_number"] for record in found]
        assert numbers == [str(number + 1) for number in range(len(lines))]


JSON: dict[str, Any] = {
    "type": "json_parser",
    "timestamp": {"parse_from": "attributes.at", "layout": "%Y-%m-%dT%H:%M:%S.%L%z"},
    "severity": {"parse_from": "attributes.level"},
}


@settings(max_examples=300, deadline=None)
@given(
    lines=st.lists(
        st.sampled_from(
            [
                "line",
                " indented",
                "",
                "Traceback (most recent call last):",
                "ValueError: no",
                "\tat a.b.C(D.java:1)",
                "panic: no",
                "goroutine 1 [running]:",
                "2023-06-22T10:27:25.813799277Z stdout F whole ",
                "2023-06-22T10:27:25.5Z stdout F",
                "2023-06-22T10:27:25.813799277Z stderr P part ",
                "2023-13-22T10:27:25.813799277Z stdout F no time",
                "mark \x7f",
                '{"a": 1, "level": "warn", "at": "2026-01-31T12:00:00.5Z"}',
                '{"a": {"b": [1]}, "level": 5, "at": "2026-01-31T12:00:00"}',
                '{"level": true, "at": "0000-01-31T12:00:00"}',
                '{"at": "2026-13-31T12:00:00"}',
                '{"a": "\\ud800", "b": 1e999}',
                '{"a": 123456789012345678901234567890}',
                "{}",
                "[1]",
            ]
        ),
        max_size=60,
    ),
    keys=st.sampled_from(
        [
            {"multiline": {"builtin": ["python", "java", "go"]}},
            {"operators": [{"type": "container"}]},
            {"operators": [{"type": "json_parser"}]},
            {"operators": [{"type": "json_parser", "parse_to": "body", "on_error": "drop"}]},
            {"operators": [JSON, {"type": "regex_parser", "regex": r"(?P<first>\w)"}]},
            {"operators": [{**JSON, "on_error": "drop", "if": 'body matches "level"'}]},
        ]
    ),
    file=st.sampled_from(FILES),
    most=st.sampled_from([1, 200, 1 << 20]),
)
def test_calm_lines_are_the_same_records_as_one_by_one(
    lines: list[str], keys: dict[str, Any], file: FileFacts, most: int
) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    numbered = read(data, file=file, include_file_record_number=True, **keys)
    for record in numbered:  # numbers are for one record alone, so none of these is calm
        del record["attributes"]["log.file.record_number"]
    expected = [{k: v for k, v in record.items() if v != {}} for record in numbered]
    assert read(data, file=file, most=most, **keys) == expected
