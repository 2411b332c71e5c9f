"""The line that long work draws on a terminal, and what a file gets in its place."""

from __future__ import annotations

import io

from tailrace.logstore.progress import Line, Pace, ProgressLine, size
from tests.simulation.clocks import ManualClock


class Terminal(io.StringIO):
    """An output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_is_drawn_over() -> None:
    out = Terminal()
    line = Line(out)
    line.draw("1 of 3")
    line.draw("2 of 3" + "x" * 200)
    first, second = out.getvalue().split("\r\x1b[2K")[1:]
    assert first == "1 of 3\r"
    assert second.startswith("2 of 3xx")
    assert len(second) == 80, "79 characters, then back to the line's start"


def test_what_others_write_stays_and_the_line_goes() -> None:
    out = Terminal()
    line = Line(out)
    line.draw("half")
    line.write("a warning\n")
    line.draw("more")
    line.clear()
    line.write("the end\n")
    assert out.getvalue() == (
        "\r\x1b[2Khalf\r\r\x1b[2Ka warning\n\r\x1b[2Kmore\r\r\x1b[2Kthe end\n"
    )


def test_a_file_gets_a_sentence_a_minute_if_it_is_another_one() -> None:
    clock = ManualClock()
    said: list[str] = []
    texts = iter(["one", "one", "two"])
    out = io.StringIO()
    progress = ProgressLine(Line(out), lambda: next(texts), clock, said.append)
    for _ in range(10):
        progress.look()
        clock.pass_seconds(29)
    assert said == ["one", "two"]
    assert out.getvalue() == ""


def test_the_line_goes_with_the_work() -> None:
    out = Terminal()
    with ProgressLine(Line(out), lambda: "at work", ManualClock(), print) as progress:
        progress.look()
    assert out.getvalue().endswith("at work\r\r\x1b[2K")


def test_the_pace_is_of_the_last_looks() -> None:
    clock = ManualClock()
    pace = Pace(clock)
    assert pace.of(100) == 0
    for at in range(1, 40):
        clock.pass_seconds(2)
        assert pace.of(100 + 10 * at) == 5


def test_sizes_have_two_digits() -> None:
    assert [size(n) for n in (0, 999, 1000, 9_940_000, 25e9)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "9.9 MB",
        "25 GB",
    ]
