"""Entries of several lines: patterns, continuation, tracebacks; headers of files."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.forwarder.model import EntryCursor
from tailrace.logstore.errors import InvalidInput
from tests.forwarder.entries.packing import FILE, HUGE, packer, read, records, source

PYTHON = """\
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    f()
ValueError: no

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in g
KeyError: 1
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in <module>
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: 1
    +------------------------------------
"""
JAVA = """\
Exception in thread "main" java.lang.IllegalStateException: no
\tat com.example.Main.main(Main.java:5)
Caused by: java.io.IOException: disk
\tat com.example.Disk.read(Disk.java:7)
\t... 1 more
"""
GO = """\
panic: runtime error: index out of range [5] with length 3

goroutine 1 [running]:
main.main()
\t/src/main.go:9 +0x1d
exit status 2
"""


def entries(text: str, step: int = HUGE, **multiline: Any) -> list[str]:
    found = read(text.encode(), step=step, multiline=multiline)
    return [record["message"] for record in found]


@pytest.mark.parametrize("step", [1, 5, 1000])
@pytest.mark.parametrize(
    ("multiline", "text", "expected"),
    [
        (
            {"line_start_pattern": r"LOGSTART \d+ "},
            "file begin LOGSTART 1 a\nb LOGSTART 2 c\n",
            ["file begin", "LOGSTART 1 a\nb", "LOGSTART 2 c"],
        ),
        (
            {"line_start_pattern": r"^\d{4}-"},
            "2026-01-01 a\n  at b\n2026-01-02 c\n",
            ["2026-01-01 a\n  at b", "2026-01-02 c"],
        ),
        (
            {"line_start_pattern": r"LOGSTART \d+ ", "omit_pattern": True},
            "LOGSTART 1 a LOGSTART 2 b",
            ["a", "b"],
        ),
        (
            {"line_end_pattern": r"LOGEND \d+"},
            "a LOGEND 1\nb\nc LOGEND 2\nrest",
            ["a LOGEND 1", "b\nc LOGEND 2", "rest"],
        ),
        ({"line_end_pattern": r"\.\n", "omit_pattern": True}, "a\nb.\nc.\n", ["a\nb", "c"]),
        (
            {"continuation_pattern": r"\s"},
            "a\n  b\n\tc\nd\n",
            ["a\n  b\n\tc", "d"],
        ),
    ],
)
def test_patterns(multiline: dict[str, Any], text: str, expected: list[str], step: int) -> None:
    assert entries(text, step, **multiline) == expected


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "big5"])
def test_patterns_match_text_and_not_bytes(encoding: str) -> None:
    data = "開始 1 中\n文 開始 2 b".encode(encoding)
    found = read(data, encoding=encoding, multiline={"line_start_pattern": "開始"}, step=3)
    assert [record["message"] for record in found] == ["開始 1 中\n文", "開始 2 b"]


@pytest.mark.parametrize("step", [1, 50, 10_000])
@pytest.mark.parametrize("traceback", [PYTHON, GROUP, JAVA, GO])
def test_a_traceback_is_one_entry(traceback: str, step: int) -> None:
    text = f"INFO before\n{traceback}INFO after\n\nINFO last\n"
    found = entries(text, step, builtin=["python", "java", "go"])
    assert found == ["INFO before", traceback.strip(), "INFO after", "", "INFO last"]


def test_lines_that_only_look_like_tracebacks_stay_apart() -> None:
    text = "at noon\nno panic here\n\n  indented\nCaused it\n"
    assert entries(text, builtin=["python", "java", "go"]) == [
        "at noon", "no panic here", "", "indented", "Caused it",
    ]  # fmt: skip


def test_an_entry_ends_at_its_limits() -> None:
    text = "a\n" + " b\n" * 5
    assert entries(text, continuation_pattern=r"\s", max_lines=3) == ["a\n b\n b", "b\n b\n b"]
    found = read(text.encode(), max_log_size=6, multiline={"continuation_pattern": r"\s"})
    assert len(found) > 1


def test_an_open_entry_waits_until_nothing_came_for_long() -> None:
    one = packer(multiline={"line_start_pattern": "^START"})
    data = b"START a\nb\n"
    assert one.pack(data, EntryCursor(), FILE, final=False, most=HUGE) is None
    flushed = one.pack(data, EntryCursor(), FILE, final=True, most=HUGE)
    assert [r["message"] for r in records(flushed)] == ["START a\nb"]


HEADER = {
    "pattern": "^#",
    "metadata_operators": [{"type": "regex_parser", "regex": r"^#(?P<key>\w+): (?P<value>.*)"}],
}


@pytest.mark.parametrize("step", [1, 9, 1000])
def test_a_header_gives_attributes_and_no_records(step: int) -> None:
    found = read(
        b"#host: a\n#x\none\n#two\n",
        step=step,
        start_at="beginning",
        header=HEADER,
        include_file_record_number=True,
    )
    shared = {"key": "host", "value": "a"}
    assert [record["message"] for record in found] == ["one", "#two"]
    assert [record["attributes"] for record in found] == [
        {**shared, "log.file.record_number": "1"},
        {**shared, "log.file.record_number": "2"},
    ]


def test_a_header_goes_on_after_a_restart_in_its_middle() -> None:
    one = packer(start_at="beginning", header=HEADER)
    first = one.pack(b"#host: a\n", EntryCursor(), FILE, final=True, most=HUGE)
    assert first is not None
    assert (first.body, first.records) == (b"", 0)
    changed = {**HEADER, "metadata_operators": [{"type": "regex_parser", "regex": "^#(?P<b>.*)"}]}
    other = packer(start_at="beginning", header=changed)
    rest = other.pack(b"#more\nline\n", first.end, FILE, final=False, most=HUGE)
    assert records(rest) == [
        {"attributes": {"key": "host", "value": "a", "b": "more"}, "message": "line"}
    ]


def test_half_a_character_is_all_of_a_file_with_a_header() -> None:
    for encoding, data in (("utf-8", b"\xc3"), ("utf-16le", b"#")):
        found = read(data, start_at="beginning", header=HEADER, encoding=encoding)
        assert len(found) <= 1


def test_a_file_without_the_header_is_read_from_its_begin() -> None:
    found = read(b"one\n#two\n", start_at="beginning", header=HEADER)
    assert found == [{"message": "one"}, {"message": "#two"}]


def test_a_file_without_lines_has_no_multiline() -> None:
    with pytest.raises(InvalidInput, match="nop"):
        source(encoding="nop", multiline={"line_end_pattern": "a"})
