"""The summary: a line of JSON on standard output for a pass that did something, or for each."""

from __future__ import annotations

from typing import TextIO

from compactor.report import Report


class Summary:
    """Writes the line when a pass is over: of `every` pass, or if there is something to tell."""

    every_seconds = None

    def __init__(self, out: TextIO, *, every: bool = True) -> None:
        self._out = out
        self._every = every

    async def look(self, report: Report) -> None:
        """Nothing is said before the end."""

    async def over(self, report: Report) -> None:
        """Says all of it."""
        if not (self._every or report.told):
            return
        self._out.write(report.line() + "\n")
        self._out.flush()
