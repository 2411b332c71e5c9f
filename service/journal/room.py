"""Whether the disk of the journal has room: what is asked before a batch is taken.

While less than `JournalLimits.min_free_bytes` is free no batch is taken, so that there is
room for the cuts without which nothing could be shipped and let go. Spares go first.

To ask the disk costs a system call, so batches ask it once a MiB, and each of them while
the disk is scarce.
"""

from __future__ import annotations

from logstore.errors import JournalFailed, JournalFull
from logstore.filesystem import FileSystem
from service.journal.spares import Spares

_CHECK_BYTES = 1 << 20


class DiskRoom:
    """The room of one folder's disk."""

    def __init__(self, fs: FileSystem, folder: str, spares: Spares, *, min_free_bytes: int) -> None:
        self._fs = fs
        self._folder = folder
        self._spares = spares
        self._min_free_bytes = min_free_bytes
        self._unchecked_bytes = 0
        self._scarce = False

    def take(self, size: int) -> None:
        """Before a batch of `size` bytes is written. Raises `JournalFull` or `JournalFailed`."""
        self._unchecked_bytes += size
        if self._scarce or self._unchecked_bytes >= _CHECK_BYTES:
            self._unchecked_bytes = 0
            shortage = self._shortage(size)
            self._scarce = shortage is not None
            if shortage is not None:
                raise JournalFull(shortage)

    def left_bytes(self) -> int:
        """What is free now beyond what is kept free, or less than 0 if that is not left.

        The room of spares, which batches are written to, is not in it. Raises `JournalFailed`.
        """
        try:
            return self._fs.free_bytes(self._folder) - self._min_free_bytes
        except OSError as error:
            raise JournalFailed(f"the disk of the journal does not answer: {error}") from error

    def shortage(self) -> str | None:
        """Why no batch is taken, however small, as a sentence; None if some are.

        Asks the disk now, and holds the next batch to the answer.
        """
        try:
            found = self._shortage(0)
        except JournalFailed as error:
            return str(error)
        self._scarce = self._scarce or found is not None
        return found

    def _shortage(self, size: int) -> str | None:
        if self.left_bytes() >= size:
            return None
        self._spares.drop()
        if self.left_bytes() >= size:
            return None
        # The same words each time, for they are a problem that lasts or is over.
        return (
            "the disk of the journal is full: batches have no room beside "
            f"the {self._min_free_bytes} bytes that are kept free"
        )
