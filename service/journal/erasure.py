"""Ends journal files that hold deleted lines, so that their bytes leave the disk.

A deletion hides lines at once. Their bytes stay in the newest journal file until others fill it,
which takes months on a quiet node. Some time after a deletion the journal therefore begins a new
file. The file before it goes as every file does: when its lines are in confirmed segments and in
their runs' logs (`Journal.release`). Nothing else about the order of the journal changes.

Deletions come in bursts, and a run that expires is one, too. All deletions of
`journal.erase_seconds` share one new file, and no file is begun for runs that the newest one does
not have.

Files that are let go are overwritten later, and hold their old bytes until then (`recycling.py`).
Files from before a deletion are removed instead.
"""

from __future__ import annotations

import asyncio

from logstore.clock import Clock
from logstore.errors import JournalFull, NodeNotReady
from service.journal.journal import Journal


class JournalEraser:
    """Erases deleted lines from one journal; `note` is called with each deletion."""

    def __init__(self, journal: Journal, clock: Clock, seconds: float) -> None:
        self._journal = journal
        self._clock = clock
        self._seconds = seconds
        self._noted: set[tuple[str, str | None]] = set()
        self._wake = asyncio.Event()

    def note(self, fqn: str, run: str | None) -> None:
        """Lines of a run, or of a pipeline's runs, are deleted."""
        self._noted.add((fqn, run))
        self._wake.set()

    def is_due(self, fqn: str, run: str | None) -> bool:
        """Whether old bytes of the journal may hold lines of a run, or of a pipeline's runs."""
        return self._journal.succession.is_read or any(
            name == fqn and (run is None or other in (None, run)) for name, other in self._noted
        )

    async def run(self) -> None:
        """Ends the newest file some time after deletions, until cancelled."""
        while True:
            await self._wake.wait()
            await self._clock.sleep(self._seconds)
            self._wake.clear()
            await self._erase()

    async def _erase(self) -> None:
        noted = self._noted.copy()
        try:
            await self._journal.end_file_of(noted)
        except (JournalFull, NodeNotReady):  # no room or no descriptor: the next try is in a while
            self._wake.set()
        else:
            self._noted -= noted
