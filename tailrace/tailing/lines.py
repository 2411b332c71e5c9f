"""What `tailrace tail` prints of a record: its lines, each with its run's name in front."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, TextIO

from tailrace.console.terminal import (
    Names,
    coloured,
    fitting,
    in_json,
    last_states,
    say,
    wants_colour,
)

PREFIXES: Final = ("auto", "none", "run", "full")
_TAKE_AWAY: Final = "\r\x1b[K"


class Lines:
    """Writes records; on a terminal it says on `notes` which run it sees for the first time."""

    def __init__(self, out: TextIO, notes: TextIO, *, whole: bool, prefix: str, many: bool) -> None:
        self._out = out
        self._whole = whole
        self._terminal = out.isatty()
        self._colour = wants_colour(out)
        self._names = Names(colour=self._colour)
        self._prefix = ("full" if many else "none") if prefix == "auto" else prefix
        self._notes = notes if many and notes.isatty() and not whole else None
        self._seen: set[str] = set()
        self._unfinished = ""

    @property
    def shows_unfinished(self) -> bool:
        """Whether lines that are not finished are shown below the others."""
        return self._terminal and not self._whole

    def write(self, text: str) -> None:
        """Writes at once, above the line that is not finished."""
        if self._unfinished:
            text = f"{_TAKE_AWAY}{text}{self._unfinished}"
        self._out.write(text)
        self._out.flush()

    def show(self, text: str) -> None:
        """Replaces the unfinished line below all others; empty: there is none."""
        line = fitting(text)
        if line == self._unfinished:
            return
        self._out.write(f"{_TAKE_AWAY}{line}" if self._unfinished else line)
        self._unfinished = line
        self._out.flush()

    def of_one(self, fqn: str, run: str) -> Callable[[str], str] | None:
        """What makes text of a record's JSON; None where the text is wanted as it was received."""
        if not (self._whole or self._terminal or self._prefix != "none"):
            return None
        return lambda data: self._text(data, fqn, run)

    def of_any(self, data: str) -> str:
        """The text of a record's JSON, which names its run."""
        record = json.loads(data)
        return self._text(data, record["fqn"], record["run_id"])

    def _text(self, data: str, fqn: str, run: str) -> str:
        if self._whole:
            return f"{in_json(data) if self._terminal else data}\n"
        record = json.loads(data)
        text = str(record["message"])
        if self._terminal:
            text = last_states(text)
            text = coloured(text, record.get("level"), colour=self._colour)
        if self._notes is not None and (name := f"{fqn}/{run}") not in self._seen:
            self._seen.add(name)
            say(f"+ {name}", self._notes)
        if self._prefix == "none":
            return f"{text}\n"
        name = f"{fqn}/{run}" if self._prefix == "full" else run
        begin = self._names.of(name) if self._terminal else name
        return "".join([f"{begin}: {line}\n" for line in text.split("\n")])
