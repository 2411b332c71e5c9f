"""The summary: a line of JSON on standard output for each pass."""

from __future__ import annotations

from typing import TextIO

from compactor.report import Report


class Summary:
    """Writes the line when a pass is over."""

    every_seconds = None

    def __init__(self, out: TextIO) -> None:
        self._out = out

    async def look(self, report: Report) -> None:
        """Nothing is said before the end."""

    async def over(self, report: Report) -> None:
        """Says all of it."""
        self._out.write(report.line() + "\n")
        self._out.flush()
