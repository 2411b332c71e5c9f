"""Output for people: the progress of long work on a terminal, and log lines.

    line = Line(sys.stderr)
    with ProgressLine(line, lambda: f"{done} of {all_of_them} files", clock, say=print):
        …

On a terminal the line has the text as it is every half second, and goes when the work ends.
Whatever else is written there goes through `Line`, which clears it first. Where the output is a
file or a pipe, `say` gets the text once a minute, if it is another one: a log has no lines that
overwrite each other, and work that is over soon has none at all.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self, TextIO

_DRAWN_SECONDS: Final = 0.5
_SAID_SECONDS: Final = 60.0
_CLEAR: Final = "\r\x1b[2K"
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


class Running(Protocol):
    """The part of a clock that progress needs."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        ...


class Line:
    """An output whose last line may be drawn over; also a stream, for what stays."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._drawn = False
        self.terminal = out.isatty() and os.environ.get("TERM") != "dumb"

    def draw(self, text: str) -> None:
        """Shows a text in place of the one before, cut to the width of the terminal."""
        with self._lock:
            self._out.write(f"{_CLEAR}{text[: _columns(self._out) - 1]}\r")
            self._out.flush()
            self._drawn = True

    def clear(self) -> None:
        """Erases what was drawn."""
        with self._lock:
            self._erase()
            self._out.flush()

    def write(self, text: str) -> int:
        """Writes what stays, in place of what was drawn."""
        with self._lock:
            self._erase()
            return self._out.write(text)

    def flush(self) -> None:
        """Passes on what was written."""
        self._out.flush()

    def _erase(self) -> None:
        if self._drawn:
            self._out.write(_CLEAR)
            self._drawn = False


class ProgressLine:
    """Shows `text()` while the block runs, unless that is empty."""

    def __init__(
        self, line: Line, text: Callable[[], str], clock: Running, say: Callable[[str], None]
    ) -> None:
        self._line = line
        self._text = text
        self._clock = clock
        self._say = say
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._said = ""
        self._due = clock.monotonic() + _SAID_SECONDS

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._line.clear()

    def look(self) -> None:
        """Shows how it stands; elsewhere than on a terminal once a minute, if it is news."""
        if self._line.terminal:
            if text := self._text():
                self._line.draw(text)
        elif self._clock.monotonic() >= self._due:
            self._due = self._clock.monotonic() + _SAID_SECONDS
            text = self._text()
            if text and text != self._said:
                self._said = text
                self._say(text)

    def _run(self) -> None:
        while not self._ended.wait(_DRAWN_SECONDS):
            self.look()


class Pace:
    """The increase per second, over the last few looks."""

    def __init__(self, clock: Running) -> None:
        self._clock = clock
        self._looks: list[tuple[float, float]] = []

    def of(self, amount: float) -> float:
        """The pace, now that it is so many."""
        self._looks = [*self._looks[-9:], (self._clock.monotonic(), amount)]
        (then, before), (now, _) = self._looks[0], self._looks[-1]
        return (amount - before) / (now - then) if now > then else 0.0


def size(amount: float) -> str:
    """Bytes for people, as in `1.4 GB`."""
    unit = 0
    while amount >= 999.5 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    digits = 1 if unit and amount < 9.95 else 0
    return f"{amount:.{digits}f} {_UNITS[unit]}"


def _columns(out: TextIO) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


# --- Log lines ----------------------------------------------------------------------------------
#
# A record of a log is one line, whatever names its message quotes: paths, keys, answers of other
# programs. Any of them may hold line ends and control sequences of terminals. They are shown as
# escapes. A traceback keeps its lines.


class LineFormatter(logging.Formatter):
    """Formats a record whose message is one printable line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- the base's name
        record.message = escaped(record.message)
        return super().formatMessage(record)


def escaped(text: str) -> str:
    """The text with escapes in place of everything that is not printed; tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        [
            one if one.isprintable() or one == "\t" else one.encode("unicode_escape").decode()
            for one in text
        ]
    )


def log_to(out: TextIO | Line, form: str) -> None:
    """Logs go to `out` in this form, from INFO on, unless they go somewhere already."""
    handler: logging.StreamHandler[TextIO | Line] = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
