"""One journal after another on the same folder, in one process, which happens at a fork.

Readers of the earlier journal still hold its files, which the later journal has as files of
its own. It must not release them to be overwritten while somebody still reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from logstore.errors import NodeNotReady
from service.journal.file import JournalFile


class Succession:
    """Files of one journal that readers may hold when it ends, and whether it has ended."""

    def __init__(self) -> None:
        self._leaving: list[JournalFile] = []
        self._over = False

    def let_go(self, file: JournalFile, give: Callable[[str, int], None]) -> None:
        """Releases a file, and remembers it for as long as somebody reads it."""
        self._leaving = [other for other in [*self._leaving, file] if other.pins]
        file.release(give)

    def hand_over(self, earlier: Sequence[JournalFile], later: Sequence[JournalFile]) -> None:
        """The folder of the closed journal, with its files `earlier`, was opened again."""
        held = {file.path: file for file in [*self._leaving, *earlier]}
        for file in later:
            file.after = held.get(file.path)
        self._over = True

    def check(self) -> None:
        """Refuses to begin reading a journal that has ended. Raises `NodeNotReady`."""
        if self._over:
            raise NodeNotReady(
                "the node goes on under another name since this was begun",
                hint="Ask again from the beginning.",
            )
