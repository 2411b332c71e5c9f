"""Output to a person: safe text of logs, colours, and a pager."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final, TextIO

# Text of logs on a terminal: its own colours stay, every other escape is removed.
#
# A line of a log may hold sequences that move the cursor, clear the screen, set the title or write
# to the clipboard. Selections of colour and weight (SGR) and tabs are kept; they end with their
# line. Other control characters, and those that turn the direction of writing, are shown as
# symbols, in JSON as its escapes. Names and errors are foreign text as much as lines are: every
# command prints by `say` and `say_json`, or by a printer that calls `shown` itself.


_SEQUENCE: Final = re.compile(
    r"(?P<sgr>\x1b\[[0-9;:]*m)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # of the cursor, the screen, modes
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # strings
    r"|\x1b[ -/]*[0-~]?"
    r"|(?P<control>[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])"
)
_IN_JSON: Final = re.compile(r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_RESET: Final = "\x1b[0m"
_UNSEEN: Final = "\ufffd"
_PICTURES: Final = 0x2400
_DELETE: Final = 0x7F
_COLOURS: Final = {
    "TRACE": "\x1b[2m",
    "DEBUG": "\x1b[2m",
    "WARN": "\x1b[33m",
    "ERROR": "\x1b[31m",
    "FATAL": "\x1b[1;31m",
}
_NAMES: Final = tuple(f"\x1b[{code}m" for code in (36, 32, 35, 34, 33, 96, 92, 95, 94, 93))
_MOST_NAMES: Final = 10_000


def shown(text: str) -> str:
    """The text without escapes but SGR, which do not reach beyond their line."""
    if text.isprintable():
        return text
    return "\n".join(map(_line, text.split("\n")))


def last_states(text: str) -> str:
    """The text as a terminal shows it in the end: of overwritten lines, the last state."""
    if "\r" not in text:
        return text
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def fitting(text: str) -> str:
    """One line without escapes, cut to the width of the terminal, so that it can be taken away."""
    plain = "".join([c for c in _SEQUENCE.sub("", last_states(text)) if c.isprintable()])
    return plain[: max(shutil.get_terminal_size().columns - 1, 1)]


def coloured(text: str, level: str | None, *, colour: bool) -> str:
    """The text as `shown`; with `colour`, in that of its level if it has none of its own."""
    safe = shown(text)
    begin = _COLOURS.get(level or "") if colour else None
    if begin is None or "\x1b" in safe:
        return safe
    return "\n".join(f"{begin}{line}{_RESET}" if line else line for line in safe.split("\n"))


class RunColours:
    """Names of runs before their lines: as they come, each is given the next colour of ten."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour
        self._given: dict[str, str] = {}

    def of(self, text: str) -> str:
        """The name as a terminal shows it."""
        if not self._colour:
            return shown(text)
        begin = self._given.get(text)
        if begin is None:
            if len(self._given) == _MOST_NAMES:
                self._given.clear()
            begin = self._given[text] = _NAMES[len(self._given) % len(_NAMES)]
        return f"{begin}{shown(text)}{_RESET}"


def in_json(text: str) -> str:
    """JSON that means the same, without the control characters that JSON need not escape."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def say(text: str, out: TextIO | None = None, *, end: str = "\n") -> None:
    """Prints a text at once, to standard output unless `out` is given; to a terminal as `shown`."""
    out = sys.stdout if out is None else out
    print(shown(text) if out.isatty() else text, file=out, end=end, flush=True)


def say_json(text: str, out: TextIO | None = None) -> None:
    """Prints a line of JSON at once; to a terminal as `in_json`."""
    out = sys.stdout if out is None else out
    print(in_json(text) if out.isatty() else text, file=out, flush=True)


def note(text: str) -> None:
    """Says something to a person; a file of errors would only grow by it."""
    if sys.stderr.isatty():
        say(text, sys.stderr)


def wants_colour(out: TextIO) -> bool:
    """Returns whether to use colours: a terminal, and NO_COLOR is not set."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _line(line: str) -> str:
    # `\r` before the `\n` that was split off is part of the line's end.
    found = _SEQUENCE.sub(_kept, line.removesuffix("\r"))
    return f"{found}{_RESET}" if "\x1b" in found else found


def _kept(match: re.Match[str]) -> str:
    if match["sgr"]:
        return match["sgr"]
    control = match["control"]
    if not control:
        return ""
    code = ord(control)
    if code == _DELETE:
        return "\u2421"
    return chr(_PICTURES + code) if code < 0x20 else _UNSEEN


# A pager for output that has an end: `$PAGER`, else `less`, and only between a terminal and a
# person.
#
# `less` gets the options that git gives it, unless `$LESS` has others: colours are shown (R),
# output that fits on the screen is printed (F), and the text stays on it afterwards (X).


_DEFAULT: Final = "less"
_LESS: Final = "FRX"


def add_json(parser: argparse.ArgumentParser, text: str = "print one JSON object per line") -> None:
    """The flag that prints JSON for programs instead of text for people."""
    parser.add_argument("--json", action="store_true", help=text)


def add_pager(parser: argparse.ArgumentParser) -> None:
    """The flag that leaves the pager out."""
    parser.add_argument(
        "--no-pager",
        action="store_true",
        help="do not use a pager (default: finite output goes through $PAGER, else less)",
    )


class _Paged:
    """The pager's input, which counts as the terminal that it writes to."""

    def __init__(self, pipe: IO[str]) -> None:
        self._pipe = pipe
        self.write = pipe.write
        self.flush = pipe.flush

    def isatty(self) -> bool:
        return True


@contextmanager
def paged(out: TextIO, *, wanted: bool) -> Iterator[TextIO]:
    """`out`, or the input of a pager before it, whose end is waited for.

    Somebody who leaves the pager has seen enough: the rest is dropped without an error.
    """
    command = _command() if wanted and out.isatty() and sys.stdin.isatty() else None
    if command is None:
        yield out
        return
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=out,
        encoding="utf-8",
        errors="backslashreplace",
        env={"LESS": _LESS, **os.environ},
    )
    assert process.stdin is not None
    try:
        yield _Paged(process.stdin)  # type: ignore[misc]
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    finally:
        with suppress(BrokenPipeError):
            process.stdin.close()
        _wait(process)


def _wait(process: subprocess.Popen[str]) -> None:
    # Ctrl-C is the pager's: it goes back to its prompt.
    while True:
        try:
            process.wait()
        except KeyboardInterrupt:
            continue
        return


def _command() -> list[str] | None:
    if os.environ.get("TERM", "dumb") == "dumb":
        return None
    words = shlex.split(os.environ.get("PAGER", _DEFAULT))
    if not words or words == ["cat"] or shutil.which(words[0]) is None:
        return None
    return words
