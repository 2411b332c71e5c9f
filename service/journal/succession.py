"""One journal after another on the same folder, in one process: what a fork makes.

Readers of the earlier journal still hold files of it, which the later one has as files of
its own. It may let them go, and then they would be written over under those who read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from logstore.errors import NodeNotReady
from service.journal.file import JournalFile


class Succession:
    """Of one journal: which files somebody may hold when it is over, and whether it is."""

    def __init__(self) -> None:
        self._leaving: list[JournalFile] = []
        self._over = False

    def let_go(self, file: JournalFile, give: Callable[[str, int], None]) -> None:
        """Releases a file; it is remembered for as long as somebody reads it."""
        self._leaving = [other for other in [*self._leaving, file] if other.pins]
        file.release(give)

    def hand_over(self, earlier: Sequence[JournalFile], later: Sequence[JournalFile]) -> None:
        """The folder of the closed journal, with its files `earlier`, was opened anew."""
        held = {file.path: file for file in [*self._leaving, *earlier]}
        for file in later:
            file.after = held.get(file.path)
        self._over = True

    def check(self) -> None:
        """Nobody begins to read a journal that is over. Raises `NodeNotReady`."""
        if self._over:
            raise NodeNotReady(
                "the node goes on under another name since this was begun",
                hint="Ask again from the beginning.",
            )
