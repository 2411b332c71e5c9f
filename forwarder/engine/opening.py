"""Opens files, and says whether they hold what they should."""

from __future__ import annotations

import fcntl
from enum import Enum, auto

from forwarder.engine.parts import Shared, SourceParts
from forwarder.engine.tracked import Tracked
from forwarder.files.content import Content, open_content
from forwarder.files.handles import Handle, NoHandle, Rank
from forwarder.files.identity import holds, read_window
from logstore.errors import Damaged

_RETRY_SECONDS = 1.0


class Opened(Enum):
    """What came of opening a file."""

    READY = auto()
    ELSEWHERE = auto()
    """Another file, or none, is where it was."""
    REPLACED = auto()
    """The same inode, with another content."""
    LATER = auto()
    """It cannot be opened now; `retry_at` says when to try again."""
    FULL = auto()
    """It could be opened, but no handle can be closed for it now; `retry_at` as above."""


class Opener:
    """Opens tracked files, within the limit of handles."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def open(self, file: Tracked) -> Opened:
        """Makes sure that `handle` and `content` are there, and that the content is the file's."""
        if file.handle is not None:
            self._shared.handles.touch(file.handle)
            return Opened.READY
        try:
            handle = self._shared.handles.open(file.path, file.rank, file.forget_handle)
        except (FileNotFoundError, NotADirectoryError):
            return Opened.ELSEWHERE
        except NoHandle:
            self._later(file)
            return Opened.FULL
        except OSError as error:
            return self._failed(file, error)
        try:
            self._shared.sources[file.source].confines.check_open(handle.descriptor, file.path)
        except OSError as error:
            self._shared.handles.close(handle)
            return self._failed(file, error)
        if (handle.device, handle.inode) != file.place:
            self._shared.handles.close(handle)
            return Opened.ELSEWHERE
        return self._check(file, handle)

    def transient(self, path: str, source: SourceParts) -> tuple[Handle, Content | None]:
        """A file that is looked at once, as the source reads it: the caller closes the handle.

        Raises `OSError`, `NoHandle`.
        """
        handle = self._shared.handles.open(path, lambda: Rank.UNLINKED, lambda: None)
        try:
            source.confines.check_open(handle.descriptor, path)
            return handle, open_content(handle.descriptor, compression=source.compression)
        except OSError:
            self._shared.handles.close(handle)
            raise

    def _check(self, file: Tracked, handle: Handle) -> Opened:
        source = self._shared.sources[file.source]
        outcome = Opened.LATER
        try:
            content = open_content(handle.descriptor, compression=source.compression)
            if source.config.acquire_fs_lock and not _lock(handle):
                content = None
            if content is None:
                file.retry_at = self._shared.clock.monotonic() + _RETRY_SECONDS
            elif holds(content, file.known):
                if file.tail is None:
                    file.tail = read_window(content, file.read.offset)
                file.handle, file.content = handle, content
                return Opened.READY
            else:
                outcome = Opened.REPLACED
        except Damaged as error:
            self.damaged(file, error)
        except OSError as error:
            outcome = self._failed(file, error)
        self._shared.handles.close(handle)
        return outcome

    def damaged(self, file: Tracked, error: Damaged) -> None:
        """A compressed file that is not what was written: it is read again if it changes."""
        self._shared.tallies[file.source].damaged += 1
        self._shared.say(f"{file.path}: {error}; what is in front of that was read")
        file.dirty = False
        file.at_end = True

    def _failed(self, file: Tracked, error: OSError) -> Opened:
        self._shared.tallies[file.source].open_errors += 1
        if file.retry_at <= 0:
            self._shared.say(f"{file.path} cannot be read: {error.strerror}; it is tried again")
        return self._later(file)

    def _later(self, file: Tracked) -> Opened:
        file.retry_at = self._shared.clock.monotonic() + _RETRY_SECONDS
        return Opened.LATER


def _lock(handle: Handle) -> bool:
    try:
        fcntl.flock(handle.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
