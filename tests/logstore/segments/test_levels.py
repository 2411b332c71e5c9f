"""The level that a line states, in the formats that programs write."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.segments.levels import find_levels_of
from logstore.segments.schema import LEVELS
from tests.logstore.segments.model import continued as continued_of

STATED = [
    row.split("\t", 1)
    for row in Path(__file__).with_name("levels.tsv").read_text().splitlines()
    if not row.startswith("#")
]
CASES = [
    *((line, None if level == "-" else level) for level, line in STATED),
    ("\x1b[32mINFO\x1b[0m started", "INFO"),
    ("\x1b[1;31mERROR\x1b[0m no", "ERROR"),
    ("[\x1b[31m\x1b[1merror    \x1b[0m] structlog in colours", "ERROR"),
    ("\x1b[2m2024-05-06 07:08:09\x1b[0m [\x1b[33mwarning  \x1b[0m]", "WARN"),
    ("\x1b[38;5;196mlevel\x1b[0m=\x1b[35mdebug\x1b[0m", "DEBUG"),
    ("\x1b INFO of a lone escape", "INFO"),
    ("\x1b[INFO", None),
    ("x" * 80 + " INFO", "INFO"),
]


def levels(*lines: str) -> list[str | None]:
    found = find_levels_of([line.encode() for line in lines]).levels
    return [None if level < 0 else LEVELS[level] for level in found.tolist()]


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_a_line_states_its_level(line: str, expected: str | None) -> None:
    assert levels(line) == [expected]


def test_a_line_among_others_states_what_it_states_alone() -> None:
    assert levels(*(line for line, _ in CASES)) == [expected for _, expected in CASES]


def test_the_last_line_states_what_it_states_before_others() -> None:
    for words in range(5):
        for dots in range(80):
            line = "10:00:00 UTC " * words + "." * dots + "ERROR x"
            assert levels(line) == levels(line, "INFO or not, a line of some length")[:1], line


def test_rules_for_text_look_at_the_beginning_of_a_line() -> None:
    assert levels("x" * 300 + " INFO") == [None]
    assert levels("\x1b[32m" * 60 + "INFO") == ["INFO"]


def test_a_level_key_counts_wherever_it_stands() -> None:
    message = "no ERROR in " + "x" * 5_000
    assert levels(f'{{"message":"{message}","level":"warn"}}') == ["WARN"]
    assert levels(f'msg="{message}" level=warn') == ["WARN"]


def test_bytes_that_are_no_text_state_nothing() -> None:
    lines = [bytes([number, 0, 255]) * 9 for number in range(256) if number != 10]
    assert set(find_levels_of(lines).levels.tolist()) == {-1}


SEQUENCES = {
    "plain lines after an error": ["ERROR: one file skipped", "|copied file 1", "|copied file 2"],
    "a traceback of Python": [
        "2026-11-29 10:00:00 ERROR job failed",
        "Traceback (most recent call last):",
        '  File "job.py", line 3, in <module>',
        '    raise KeyError("ERROR")',
        "KeyError: 'total'",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "job.py", line 5, in <module>',
        "shop.Unsold: nothing",
        "|done with cleaning up",
    ],
    "a traceback after an INFO record": [
        "2026-11-29 10:00:00 INFO started",
        "|Traceback (most recent call last):",
        '  File "job.py", line 3, in <module>',
        "ValueError",
        "|Traceback (most recent call last):",
        "  File x",
    ],
    "a stack trace of Java": [
        "2026-11-29 10:00:00 ERROR query failed",
        "java.sql.SQLException: no such table",
        "\tat com.example.Dao.find(Dao.java:7)",
        "Caused by: java.io.IOException: closed",
        "\t... 12 more",
        "|2026-11-29 10:00:01 INFO retried",
    ],
    "indented records": [
        "  ERROR [orders] 2026-11-21 12:00:02 no such column",
        "|  INFO  [orders] 2026-11-21 12:00:03 retried",
        "|  2026-11-21 12:00:04 a time, indented",
        "    wrapped text",
    ],
    "times in other forms": [
        "Nov 29 10:00:00 host app[1]: ERROR cannot open",
        "|Nov 29 10:00:07 host app[1]: opened",
        "|[    3.141592] usb 1-1: new device",
    ],
    "blank lines": ["ERROR x", "|", "|y"],
    "a panic of Go": [
        "2026/11/29 10:00:00 started",
        "|panic: runtime error: index out of range [3] with length 3",
        "[signal SIGSEGV: segmentation violation]",
        "",
        "goroutine 1 [running]:",
        "main.(*Job).Run(0xc000012345, {0x1, 0x2})",
        "\t/app/main.go:7 +0x1d",
        "main.main()",
        "\t/app/main.go:3 +0x11",
        "|exit status 2",
    ],
    "a panic of Rust": [
        "thread 'main' panicked at src/main.rs:3:5:",
        "called `Option::unwrap()` on a `None` value",
        "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
        "|next",
    ],
    "an error of JavaScript": [
        "TypeError: Cannot read properties of undefined (reading 'x')",
        "    at run (/app/index.js:3:5) {",
        "  code: 'E_NONE'",
        "}",
        "|Listening on 3000",
    ],
    "exceptions of .NET": [
        "fail: Contoso.App[0]",
        "      Unhandled",
        "      System.InvalidOperationException: x",
        "         at Contoso.App.Run() in /app/App.cs:line 7",
        "--- End of stack trace from previous location ---",
        "         at Contoso.App.Main()",
        "|info: Contoso.App[0]",
    ],
    "a fatal error of PHP": [
        "PHP Fatal error:  Uncaught Exception: x in /app/x.php:3",
        "Stack trace:",
        "#0 /app/y.php(7): f()",
        "#1 {main}",
        "  thrown in /app/x.php on line 3",
        "|done",
    ],
    "an error of rustc": [
        "error[E0308]: mismatched types",
        " --> src/main.rs:3:9",
        "  |",
        "3 |     size = 1;",
        "  |     ^^^^",
        "|error: aborting due to previous error",
    ],
    "frames that begin with a level's name": [
        "2026-11-29 10:00:00 ERROR job failed",
        "Traceback (most recent call last):",
        '  File "job.py", line 3, in <module>',
        "    ERROR = load()",
        "ValueError: 3",
        "|copied",
    ],
    "indented lines in colours": ["\x1b[31mERROR\x1b[0m x", "\x1b[2m    at f()\x1b[0m", "|y"],
    "lines with a carriage return": ["ERROR x\r", "\tat f()\r", "|done\r"],
    "prose after an error": ["ERROR: x", "|Note: this is prose", "|- a list", "|#1 [build 3/7]"],
}


@pytest.mark.parametrize("lines", SEQUENCES.values(), ids=SEQUENCES)
def test_only_a_continuation_belongs_to_the_record_before_it(lines: list[str]) -> None:
    """A line with `|` before it begins a record, and so does the first."""
    continued = continued_of([line.removeprefix("|").encode() + b"\n" for line in lines])
    assert continued == [
        number > 0 and not line.startswith("|") for number, line in enumerate(lines)
    ]
