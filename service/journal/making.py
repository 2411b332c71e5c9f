"""How a new journal file comes about: header and state, synced, then its name.

Invariants:

- It is written over a spare if there is one, which is gone in any case.
- Until it is whole it has another name, so a failure leaves nothing that a later start could
  take for a journal file.
- Once it has its name nothing is opened any more: a name that may or may not outlast a power cut
  could not be taken back. So the folder is held open from the start.
"""

from __future__ import annotations

from collections.abc import Sequence

from logstore import ulid as ulids
from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.filesystem import File, FileSystem, OpenFolder
from service.journal import format as wal
from service.journal.failures import FULL, translated
from service.journal.file import JournalFile, discard
from service.journal.handles import ReadHandles
from service.journal.spares import Spares
from service.journal.state import JournalState

_FILE_CHAIN = 1000


class FileMaker:
    """Makes the files of one folder, which exists. Raises `JournalFailed`, `NodeNotReady`."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        clock: Clock,
        entropy: Entropy,
        spares: Spares,
        handles: ReadHandles,
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._clock = clock
        self._entropy = entropy
        self._spares = spares
        self._handles = handles
        with translated(f"the journal's folder {folder} could not be opened"):
            self._held: OpenFolder = fs.open_folder(folder)

    def make(
        self, state: JournalState, pos: int, older: Sequence[JournalFile]
    ) -> tuple[JournalFile, File]:
        """A new file behind `older`, the last in `state.files` from now on; `pos` is its first.

        Raises `JournalFull` or `NodeNotReady`, which leave everything as it was, or
        `JournalFailed`.
        """
        ulid = ulids.encode(self._next_ulid([*state.files[-1:], *[f.ulid for f in older[-1:]]]))
        files = [*state.files, ulid][-_FILE_CHAIN:]
        secret = self._entropy.getrandbits(64).to_bytes(8, "big")
        header = wal.FileHeader(ulid, secret, pos, state.node, size=0)
        value = state.encoded(pos=pos, secret=secret) | {"files": files}
        entry = wal.sealed(wal.encode_json(wal.STATE, value), wal.NO_SECRET)
        with translated("a new journal file could not be begun"):
            file, out = self._make(header, entry)
        with translated(f"the journal's folder {self._folder} could not be synced"):
            self._held.sync()
        state.files = files
        return file, out

    def close(self) -> None:
        """Lets the folder go."""
        self._held.close()

    def _next_ulid(self, known: Sequence[str]) -> int:
        """Above every older file's, so that order of names is order of files."""
        fresh = ulids.fresh(self._clock, self._entropy)
        return max([fresh, *[ulids.decode(ulid) + 1 for ulid in known]])

    def _make(self, header: wal.FileHeader, entry: bytes) -> tuple[JournalFile, File]:
        path = f"{self._folder}/{header.file}{wal.SUFFIX}"
        making = f"{self._folder}/{header.file}{wal.MAKING_SUFFIX}"
        spare = self._spares.take()
        out: File | None = None
        try:
            if spare is not None:
                self._take_over(spare, making)
            out = self._fs.open(making, "update")
            size, space = _begin(out, header, entry)
            out.sync()
            self._fs.rename(making, path)
        except OSError as error:
            if out is not None:
                out.close()
            for left in (making, spare):
                if left is not None:
                    discard(self._fs, left)
            if error.errno in FULL:
                self._spares.drop()
            raise
        made = JournalFile(
            self._fs, path, header=header, size=size, space=space, handles=self._handles
        )
        return made, out

    def _take_over(self, spare: str, making: str) -> None:
        """Synced before the first byte changes: the names that the file had in its earlier
        life must not come back with the bytes of the new one.
        """
        self._fs.rename(spare, making)
        self._held.sync()


def _begin(out: File, header: wal.FileHeader, state: bytes) -> tuple[int, int]:
    """Writes header and state; where they end, and the file."""
    head = wal.encode_header(
        file=header.file, secret=header.secret, first_pos=header.first_pos, node=header.node
    )
    size, space = len(head) + len(state), out.size()
    out.write_at([head, state, wal.END] if size < space else [head, state], 0)
    return size, max(size, space)
