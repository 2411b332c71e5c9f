"""An undo log: takes files back to a checkpoint, whatever was done to them since.

    DIR/.tailrace/{name}/
      lock             held (flock) by whoever writes these files
      saved            the newest checkpoint that is known to be saved: a line as below, ["saved",
                       number]. A start with an older one, of a copy of the store that was put
                       back, is refused: these files already have what it would write again
      {number}.undo    what was done since checkpoint `number` was prepared, a line each:
                       CRC-32 in hex, a space, a JSON list: ["cut", path, size] the file had that
                       size; ["made", path] there was no file; ["moved", path, new path]

A line is synced before what it speaks of is done. So a last line that is torn speaks of nothing
that happened. A bad line that has its end is damage, and so is a log that is gone while its folder
is there: the files cannot be taken back, and the appender does not start. Paths are relative to
DIR.

A checkpoint ends the log: its files are synced, the next log is begun, and its number is saved in
the store. When that is certain, the older logs are removed. Whoever starts undoes all logs from
the saved number on, the newest first, each from its end to its beginning. Undoing may break off
and begin again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from logstore.errors import Damaged
from logstore.filesystem import File, FileSystem, Lock
from pipelines.appenders.contract import AppenderFailed
from pipelines.appenders.rolling.lines import has_damage, line_of, read_lines

_FOLDER: Final = ".tailrace"
_SUFFIX: Final = ".undo"
_SAVED: Final = "saved"


def older_checkpoint(number: int | None, newest: int) -> str:
    """What is wrong if an appender starts with an older checkpoint than was saved for it."""
    begins = f"begins at checkpoint {number}" if number else "has no checkpoint"
    return (
        f"it {begins}, and checkpoint {newest} was saved for what it has written: an older copy of"
        " the store was put back"
    )


def hint_to_begin(mark: str) -> str:
    """What to do then."""
    return (
        "Put the newer checkpoints back. Or move away what was written since, and remove"
        f" {mark}: what is left there comes twice."
    )


class UndoLog:
    """The undo log of one writer of files below `folder`. All calls block; they raise `OSError`."""

    def __init__(self, fs: FileSystem, folder: str, name: str) -> None:
        self._fs = fs
        self._folder = folder
        self._logs = os.path.join(folder, _FOLDER, name)
        self._lock: Lock | None = None
        self._file: File | None = None
        self._known: set[str] = set()
        self.number = 0

    def start(self, number: int | None) -> None:
        """Takes the files back to the checkpoint that saved `number`; None: there was none.

        Raises `AppenderFailed` if another process writes these files, or if a later checkpoint was
        saved for them.
        """
        fs = self._fs
        known_here = fs.stat(os.path.join(self._logs, "lock")) is not None
        fs.make_folders(self._logs)
        self._lock = fs.lock(os.path.join(self._logs, "lock"), wait=False)
        if self._lock is None:
            raise AppenderFailed(
                f"another process writes the files that {self._logs} belongs to",
                hint="If it hangs: it lets go when it notices that its lease is over.",
            )
        newest = self._newest_saved()
        if newest > (number or 0):
            self.stop()
            raise AppenderFailed(older_checkpoint(number, newest), hint=hint_to_begin(self._logs))
        known = self._numbers()
        gone = known_here and number is not None and max(known, default=-1) < number
        if gone or any(has_damage(fs, self._path(one)) for one in known):
            self.stop()
            raise AppenderFailed(
                f"an undo log in {self._logs} is {'gone' if gone else 'damaged'}",
                hint="Put an intact version back. Or remove the folder: lines since the last"
                " checkpoint may then be in the files twice.",
            )
        for one in reversed(known):
            if number is None or one >= number:
                self._undo(one)
        self._begin(max([number or 0, *known]) + 1)
        self._remove_before(self.number)

    @property
    def folder(self) -> str:
        """Where the logs are, and what else belongs to this writer alone."""
        return self._logs

    def note(self, entries: Sequence[Sequence[str | int]]) -> None:
        """Writes down what is about to be done, and syncs it."""
        if entries and self._file is not None:
            self._file.write([line_of(entry) for entry in entries])
            self._file.sync()

    def touch(self, paths: Sequence[str]) -> None:
        """Writes down how large these files are before they grow, once after each checkpoint."""
        entries: list[Sequence[str | int]] = []
        for path in paths:
            if path not in self._known:
                found = self._fs.stat(os.path.join(self._folder, path))
                entries.append(["made", path] if found is None else ["cut", path, found.size])
        self.note(entries)
        self._known.update(paths)

    def move(self, path: str, target: str) -> None:
        """Renames a file; the target must not be there."""
        self.note([["moved", path, target]])
        self._rename(path, target)
        self._known.discard(path)

    def prepare(self) -> int:
        """Begins the next log; its number is to be saved. The files are synced already."""
        assert self._file is not None
        self._file.close()
        self._begin(self.number + 1)
        return self.number

    def saved(self) -> None:
        """The number of the last `prepare` is saved: nobody goes back behind it."""
        self._remember_saved()
        self._remove_before(self.number)

    def stop(self) -> None:
        """Lets another process write the files."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _remember_saved(self) -> None:
        # Each line is as long as the last. It is not synced: at worst an older number is found.
        line = line_of([_SAVED, f"{self.number:012d}"])
        path = os.path.join(self._logs, _SAVED)
        if self._fs.stat(path) is None:
            file = self._fs.open(path, "create")
            file.write([line])
        else:
            file = self._fs.open(path, "update")
            file.write_at([line], 0)
        file.close()

    def _newest_saved(self) -> int:
        """The newest checkpoint that is known to be saved, or 0."""
        path = os.path.join(self._logs, _SAVED)
        if self._fs.stat(path) is None:
            return 0
        numbers = [int(one[1]) for one in read_lines(self._fs, path)[0] if one[0] == _SAVED]
        return max(numbers, default=0)

    # --- logs --------------------------------------------------------------------------

    def _numbers(self) -> list[int]:
        found = [name for name, is_folder in self._fs.scan(self._logs) if not is_folder]
        stems = [name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX)]
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def _path(self, number: int) -> str:
        return os.path.join(self._logs, f"{number:012d}{_SUFFIX}")

    def _begin(self, number: int) -> None:
        self._file = self._fs.open(self._path(number), "create")
        self._fs.sync_folder(self._logs)
        self.number = number
        self._known = set()

    def _remove_before(self, number: int) -> None:
        for one in self._numbers():
            if one < number:
                self._fs.unlink(self._path(one))

    def _undo(self, number: int) -> None:
        entries, _ = read_lines(self._fs, self._path(number))
        for entry in reversed(entries):
            self._undo_one(entry)

    def _undo_one(self, entry: Sequence[str | int]) -> None:
        match entry:
            case ["cut", str(path), int(size)]:
                self._cut(os.path.join(self._folder, path), size)
            case ["made", str(path)]:
                with suppress(FileNotFoundError):
                    self._fs.unlink(os.path.join(self._folder, path))
                    self._sync_folder_of(path)
            case ["moved", str(path), str(target)]:
                self._move_back(path, target)
            case _:
                raise Damaged(f"{self._logs} has an entry that is not known: {entry!r}")

    def _cut(self, path: str, size: int) -> None:
        found = self._fs.stat(path)
        if found is None or found.size <= size:
            return
        file = self._fs.open(path, "append")
        try:
            file.truncate(size)
            file.sync()
        finally:
            file.close()

    def _move_back(self, path: str, target: str) -> None:
        old, new = (self._fs.stat(os.path.join(self._folder, one)) for one in (path, target))
        if new is not None and old is None:
            self._rename(target, path)
        elif new is not None and old is not None and new.inode == old.inode:
            # A power cut in the middle of a rename: the file has both names.
            self._fs.unlink(os.path.join(self._folder, target))
            self._sync_folder_of(target)

    def _rename(self, path: str, target: str) -> None:
        source, goal = (os.path.join(self._folder, one) for one in (path, target))
        self._fs.rename(source, goal)
        self._sync_folder_of(path)
        if os.path.dirname(goal) != os.path.dirname(source):
            self._sync_folder_of(target)

    def _sync_folder_of(self, path: str) -> None:
        self._fs.sync_folder(os.path.dirname(os.path.join(self._folder, path)))
