"""What a message quotes makes no line of its own in a log, and moves no cursor."""

from __future__ import annotations

import io
import logging

import pytest

from tailrace.logstore.progress import LineFormatter, escaped


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ü\t1", "plain ü\t1"),
        ("a\nWARNING forged", r"a\nWARNING forged"),
        ("\x1b[2J\x9b2J\x7f", r"\x1b[2J\x9b2J\x7f"),
        ("\u202e\u2028\ud800", r"\u202e\u2028\ud800"),
    ],
)
def test_a_message_is_one_printable_line(text: str, expected: str) -> None:
    assert escaped(text) == expected


def test_a_traceback_keeps_its_lines() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    log = logging.getLogger("tests.quotes")
    log.addHandler(handler)
    log.propagate = False
    try:
        raise ValueError
    except ValueError:
        log.exception("of %s", "a\nb")
    first, *rest = out.getvalue().splitlines()
    assert first == r"ERROR of a\nb"
    assert rest[0] == "Traceback (most recent call last):"
