"""The level that a line states, in the formats that programs write."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.logstore import ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.file_format import LEVELS
from tailrace.logstore.segments.levels import find_levels_of
from tailrace.logstore.segments.writer import record_batches
from tests.batches import make_batches
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


@pytest.mark.parametrize("times", [1, 4], ids=["line by line", "as a column"])
def test_a_line_among_others_states_what_it_states_alone(times: int) -> None:
    found = levels(*(line for line, _ in CASES * times))
    assert found == [expected for _, expected in CASES] * times


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
    "an exception group under its record": [
        "2026-11-29 10:00:00 ERROR job failed",
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "a.py", line 3, in <module>',
        '  |     raise ExceptionGroup("x", es)',
        "  | ExceptionGroup: x (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------",
        "    | ValueError: 1",
        "    +---------------- 2 ----------------",
        "    | TypeError: 2",
        "    +------------------------------------",
        "|next line",
    ],
    "an exception group of its own": [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "a.py", line 3, in <module>',
        "  | ExceptionGroup: x (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------",
        "    | ValueError: 1",
        "    +------------------------------------",
        "|done",
    ],
    "a traceback and a blank line": [
        "Traceback (most recent call last):",
        '  File "a.py", line 3, in <module>',
        "    main()",
        "    ^^^^^^",
        "ZeroDivisionError: division by zero",
        "",
        "|after",
    ],
    "an exception during another": [
        "Traceback (most recent call last):",
        '  File "a.py", line 3, in <module>',
        "KeyError: 'a'",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "a.py", line 5, in <module>',
        "Exception: boom",
        "|done",
    ],
    "an interrupted program": [
        "Traceback (most recent call last):",
        '  File "a.py", line 3, in <module>',
        "KeyboardInterrupt",
        "|done",
    ],
    "causes and suppressed ones": [
        "2026-11-29 10:00:00,1 ERROR [main] c.e.Job: failed",
        "java.lang.IllegalStateException: closed",
        "\tat com.example.Job.run(Job.java:7) ~[app.jar:1.0]",
        "\tat java.base/java.lang.Thread.run(Thread.java:829)",
        "Caused by: java.io.IOException: x",
        "\tat com.example.A.b(A.java:1)",
        "\t... 3 common frames omitted",
        "\tSuppressed: java.lang.RuntimeException: y",
        "\t\tat a.b.c(D.java:1)",
        "|2026-11-29 10:00:01,1 INFO [main] c.e.Job: again",
    ],
    "an uncaught exception of Java": [
        'Exception in thread "main" java.lang.NullPointerException: no total',
        "\tat com.example.Job.main(Job.java:7)",
        "|shutting down",
    ],
    "a panic and the exit": [
        "panic: runtime error: index out of range [3] with length 3",
        "",
        "goroutine 1 [running]:",
        "main.main()",
        "\t/app/main.go:8 +0x1d",
        "|exit status 2",
    ],
    "a panic in a method": [
        "panic: boom",
        "",
        "goroutine 17 [running]:",
        "main.(*Server).handle(0xc000012345, {0x1, 0x2})",
        "\t/app/main.go:8 +0x1d",
        "created by main.run in goroutine 1",
        "\t/app/main.go:20 +0x55",
        "|2026/11/29 10:00:00 next",
    ],
    "a deadlock of Go": [
        "fatal error: all goroutines are asleep - deadlock!",
        "",
        "goroutine 1 [chan receive]:",
        "main.main()",
        "\t/app/main.go:8 +0x1d",
    ],
    "a panic and a note": [
        "thread 'main' panicked at src/main.rs:4:5:",
        "index out of bounds: the len is 3 but the index is 99",
        "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
        "|done",
    ],
    "a backtrace of Rust": [
        "thread 'main' panicked at src/main.rs:4:5:",
        "explicit panic",
        "stack backtrace:",
        "   0: rust_begin_unwind",
        "             at /rustc/x/library/std/src/panicking.rs:645:5",
        "   1: core::panicking::panic_fmt",
        "note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.",
        "|done",
    ],
    "an uncaught error of Node": [
        "TypeError: x is not a function",
        "    at Object.<anonymous> (/app/index.js:3:7)",
        "    at Module._compile (node:internal/modules/cjs/loader:1105:14)",
        "|",
        "|Node.js v18.0.0",
    ],
    "an uncaught error of a page": [
        "Uncaught TypeError: Cannot read properties of undefined",
        "    at foo (app.js:3:5)",
        "|GET / 200",
    ],
    "JSON between lines": [
        "ERROR: one",
        '|{"level":"info","msg":"x"}',
        "|plain",
    ],
    "a line after JSON": [
        '{"level":"error","msg":"x"}',
        "|plain",
    ],
    "indented text after JSON": [
        '{"level":"error","msg":"x"}',
        "  indented text",
    ],
    "logfmt and a clock": [
        'level=error msg="x"',
        '|level=info msg="y"',
        "|10:00:00 clock only",
        "   wrapped",
    ],
    "times after an error": [
        "ERROR 10:00:00 a",
        "|10:00:01 b",
        "|[    3.14] usb",
        "|1796000000 c",
        "|Nov 29 10:00:00 host x: y",
        "|2026-11-29T10:00:00Z z",
    ],
    "more times after an error": [
        "ERROR a",
        "|Nov 29 10:00:00 host x: y",
        "|ERROR a",
        "|1796000000123 c",
        "|ERROR a",
        "|29/Nov/2026:10:00:00 +0000 c",
        "|ERROR a",
        "|Sun Nov 29 10:00:00 2026 c",
        "|ERROR a",
        "|2026/11/29 10:00:00 c",
        "|ERROR a",
        "|11-29 10:00:00.123 c",
        "|ERROR a",
        "|[2026-11-29 10:00:00] c",
        "|ERROR a",
        "| 2026-11-29 10:00:00 indented with time",
        "|ERROR a",
        "|  10:00:00 indented clock",
        "|ERROR a",
        "|\tINFO indented level",
        "|ERROR a",
        "|- item",
        "|ERROR a",
        "|* item",
        "|ERROR a",
        "|}",
        "|ERROR a",
        "|",
        "|ERROR a",
        "|x = 3",
        "|ERROR a",
        "Caused by: y",
        "|ERROR a",
        "... 12 more",
        "|ERROR a",
        "at com.example.Foo.bar(Foo.java:3)",
    ],
    "a logger of .NET": [
        "fail: Contoso.App[0]",
        "      An unhandled exception has occurred",
        "      System.NullReferenceException: x",
        "         at Contoso.App.Main() in /a.cs:line 3",
        "|info: Contoso.App[0]",
        "      started",
    ],
    "an unhandled exception of .NET": [
        "Unhandled exception. System.InvalidOperationException: x",
        " ---> System.IO.IOException: y",
        "   at A.B() in /a.cs:line 1",
        "   --- End of inner exception stack trace ---",
        "   at A.C()",
        "|bye",
    ],
    "a statement of Postgres": [
        '2026-11-29 10:00:00.123 UTC [17] ERROR:  syntax error at or near "x"',
        "|2026-11-29 10:00:00.123 UTC [17] STATEMENT:  select x",
        "\tfrom y",
    ],
    "a fatal error and its trace": [
        "PHP Fatal error:  Uncaught Error: x in /a.php:3",
        "Stack trace:",
        "#0 /a.php(7): f()",
        "#1 {main}",
        "  thrown in /a.php on line 3",
        "|ok",
    ],
    "lines of npm": [
        "npm ERR! code ELIFECYCLE",
        "|npm ERR! errno 1",
        "|> build",
    ],
    "messages of a C compiler": [
        "main.c:3:5: error: unknown type name 'size'",
        "    3 |     size x;",
        "      |     ^~~~",
        "|main.c:4:5: warning: unused",
        "|make: *** [all] Error 1",
        "|cc -c x.c",
    ],
    "an error and a warning of rustc": [
        "error[E0425]: cannot find value `x` in this scope",
        " --> src/main.rs:3:5",
        "  |",
        "3 |     x",
        "  |     ^ not found",
        "|",
        "|warning: unused",
    ],
    "access logs": [
        '10.0.0.1 - - [29/Nov/2026:10:00:02 +0000] "GET / HTTP/1.1" 500 17',
        "|ERROR a",
        '|10.0.0.1 - - [29/Nov/2026:10:00:02 +0000] "GET / HTTP/1.1" 500 17',
    ],
    "an exception after a warning": [
        "WARN slow",
        "ValueError: x",
        "|done",
    ],
    "an exception after nothing": [
        "INFO ok",
        "|ValueError: x",
        "|done",
    ],
    "wrapped text after INFO": [
        "INFO ok",
        "  more",
        "|done",
    ],
    "a logger of Ruby": [
        "E, [2026-11-29T10:00:00.123456 #17] ERROR -- : failed",
        "|app.rb:3:in `foo': boom (RuntimeError)",
        "\tfrom app.rb:7:in `<main>'",
        "|done",
    ],
    "an exception of Elixir": [
        "** (RuntimeError) boom",
        "    (app 0.1.0) lib/app.ex:3: App.run/0",
        "|done",
    ],
    "lines of Maven": [
        "[ERROR] Failed to execute goal",
        "|[ERROR] ",
        "|[INFO] done",
    ],
    "logrus and wrapped text": [
        'time="2026-11-29T10:00:00Z" level=error msg="x"',
        "\tcontinued",
        '|time="2026-11-29T10:00:01Z" level=info msg="y"',
    ],
    "an assertion of Node": [
        "AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:",
        "    at Object.<anonymous> (/a.js:3:8) {",
        "  generatedMessage: true,",
        "  code: 'ERR_ASSERTION'",
        "}",
        "|ok",
    ],
    "a list in brackets": [
        "ERROR a",
        "|-----BEGIN-----",
        "|ERROR failed: [",
        "  1,",
        "]",
        "|next",
    ],
    "prose after an error": ["ERROR: x", "|Note: this is prose", "|- a list", "|#1 [build 3/7]"],
}


@pytest.mark.parametrize("lines", SEQUENCES.values(), ids=SEQUENCES)
def test_only_a_continuation_belongs_to_the_record_before_it(lines: list[str]) -> None:
    """A line with `|` before it begins a record, and so does the first."""
    continued = continued_of([line.removeprefix("|").encode() + b"\n" for line in lines])
    assert continued == [
        number > 0 and not line.startswith("|") for number, line in enumerate(lines)
    ]


@pytest.mark.parametrize("lines", SEQUENCES.values(), ids=SEQUENCES)
def test_it_belongs_to_it_also_if_each_line_is_a_batch(lines: list[str]) -> None:
    texts = [line.removeprefix("|").encode() + b"\n" for line in lines]
    run, start = RunKey("shop.orders", "1"), ulid.lowest_at(1_796_000_000_000)
    entries = [(run, start + (number << 80), text) for number, text in enumerate(texts)]
    found = pa.Table.from_batches(record_batches(make_batches("n", entries), Carry()))
    marks = found.column("carried").to_pylist()
    assert [bool(mark) for mark in marks] == [
        number > 0 and not line.startswith("|") for number, line in enumerate(lines)
    ]
