"""A pager for what has an end: `$PAGER`, else `less`, and only between a terminal and a person.

`less` gets the options that git gives it, unless `$LESS` has others: colours are shown (R), what
fits on the screen is printed (F), and the text stays there afterwards (X).
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final, TextIO

_DEFAULT: Final = "less"
_LESS: Final = "FRX"


def add_pager(parser: argparse.ArgumentParser) -> None:
    """The flag that leaves the pager out."""
    parser.add_argument(
        "--no-pager",
        action="store_true",
        help="print straight to the terminal (default: through $PAGER, else less, what has an end)",
    )


class _Paged:
    """The pager's input, which counts as the terminal behind it."""

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
