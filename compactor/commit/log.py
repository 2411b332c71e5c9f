"""Makes the table's log in a folder durable after each commit, and repairs it after a power cut.

delta-rs writes an entry beside its name and links it there, and syncs nothing. Therefore

- **a commit counts once it is settled**: its entry and its checkpoint are synced, then the log's
  folder and its parents. All earlier commits are settled first (another driver may have been killed
  before it did so), so only the newest may be missing on the disk;
- **a power cut before that** may truncate the newest entry. Its commit was never reported: an
  entry that is not whole, and is the newest, is renamed to `….json.torn`, and its change is
  made again. Our entries have their number of actions, so one that ends between two lines is
  recognised too. The same applies to checkpoints, which hold nothing that entries do not.

Only files that are a while old are judged, for a folder that several machines share shows a new
file before its bytes. All drivers that quarantine files hold one lock, and check again once they
have it. A truncated entry below a whole one is not the effect of a power cut; a person must decide.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from logstore.errors import Damaged, StoreUnavailable
from logstore.filesystem import FileSystem
from logstore.table.schema import ACTIONS

LOG: Final = "_delta_log"
TORN: Final = ".torn"
SETTLED_MS: Final = 120_000
_ENTRY: Final = re.compile(r"([0-9]{20})\.json$")
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint\.parquet$")
_LAST: Final = "_last_checkpoint"
_LOCK: Final = ".mending"


@dataclass(slots=True)
class FolderLog:
    """The log of the table in the folder `table`. All calls block, and none raises `OSError`."""

    fs: FileSystem
    table: str
    _durable: int = field(default=-1, init=False)
    _checked: bool = field(default=False, init=False)

    @property
    def _folder(self) -> str:
        return os.path.join(self.table, LOG)

    def settle(self, last: int) -> None:
        """Makes the log durable up to this version. Raises `StoreUnavailable`."""
        try:
            if last > self._durable:
                self._settle(last)
        except OSError as error:
            raise StoreUnavailable(f"the table's log cannot be synced: {error}") from error

    def quarantine_torn(self, now_ms: int) -> list[str]:
        """Renames files that a power cut truncated, and returns alarms; once in a process.

        Raises `StoreUnavailable`, and `Damaged` for a fault that no power cut explains.
        """
        if self._checked:
            return []
        try:
            alarms = self._quarantine_torn(now_ms) if _names(self.fs, self._folder) else []
        except OSError as error:
            raise StoreUnavailable(f"the table's log cannot be read: {error}") from error
        self._checked = True
        return alarms

    def _settle(self, last: int) -> None:
        names = self._unsettled(last)
        for name in names:
            self._sync(name)
        self.fs.sync_folder(self._folder)
        if self._durable < 0:  # delta-rs may have made it, and the table's folder
            self.fs.sync_folder(self.table)
            self.fs.sync_folder(os.path.dirname(self.table))
        self._durable = max(self._durable, last)

    def _unsettled(self, last: int) -> list[str]:
        """Files that may not be on the disk: at first all that an opening reads, then new ones."""
        if self._durable < 0:
            found = _names(self.fs, self._folder)
            checkpoints, entries = _numbered(_CHECKPOINT, found), _numbered(_ENTRY, found)
            base = max(checkpoints, default=-1)
            return [
                *(checkpoints[n] for n in checkpoints if n == base),
                *(entries[n] for n in sorted(entries) if base <= n <= last),
                _LAST,
            ]
        new = range(self._durable + 1, last + 1)
        return [n for v in new for n in (f"{v:020d}.json", f"{v:020d}.checkpoint.parquet")] + [
            _LAST
        ]

    def _sync(self, name: str) -> None:
        try:
            file = self.fs.open(os.path.join(self._folder, name), "read")
        except FileNotFoundError:
            return  # not every version has a checkpoint, and old entries are cleaned away
        try:
            file.sync()
        finally:
            file.close()

    def _quarantine_torn(self, now_ms: int) -> list[str]:
        if not self._torn():
            return []
        lock = self.fs.lock(os.path.join(self._folder, _LOCK), wait=True)
        try:
            return [self._quarantine(name, now_ms) for name in self._torn()]
        finally:
            if lock is not None:
                lock.release()

    def _torn(self) -> list[str]:
        """Names of files that are not whole, highest version first, checkpoints before entries."""
        found = _names(self.fs, self._folder)
        checkpoints = _numbered(_CHECKPOINT, found)
        torn = []
        base = max(checkpoints, default=-1)
        while base >= 0 and not _is_parquet(self._read(checkpoints[base])):
            torn.append(checkpoints.pop(base))
            base = max(checkpoints, default=-1)
        return torn + self._torn_entries(_numbered(_ENTRY, found), base)

    def _torn_entries(self, entries: Mapping[int, str], base: int) -> list[str]:
        torn, whole = [], False
        for version in range(max(entries, default=-1), base, -1):
            name = entries.get(version)
            if name is not None and is_whole(self._read(name)):
                whole = True
            elif whole:
                raise Damaged(
                    f"entry {version} of the table's log is damaged or gone, later ones are not",
                    hint="Restore table/_delta_log from a copy (docs/operations.md, Power cuts).",
                )
            elif name is not None:
                torn.append(name)
        return torn

    def _quarantine(self, name: str, now_ms: int) -> str:
        path = os.path.join(self._folder, name)
        stat = self.fs.stat(path)
        if stat is not None and now_ms - stat.modified_ns // 1_000_000 < SETTLED_MS:
            raise StoreUnavailable(f"{path} is not whole, and is looked at again when it is older")
        self._forget_last()
        self.fs.rename(path, path + TORN)
        self.fs.sync_folder(self._folder)
        return (
            f"{name} of the table's log was not whole, as a power cut leaves it: it is renamed to"
            f" {name}{TORN}, and its change is made again"
        )

    def _forget_last(self) -> None:
        """Removes the pointer to a checkpoint that may be gone: without it the log is listed."""
        path = os.path.join(self._folder, _LAST)
        if self.fs.stat(path) is not None:
            self.fs.unlink(path)

    def _read(self, name: str) -> bytes:
        file = self.fs.open(os.path.join(self._folder, name), "read")
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()


def is_whole(entry: bytes) -> bool:
    """Whether the log's entry has all its lines, as far as it has their number."""
    try:
        actions = [orjson.loads(line) for line in entry.splitlines()]
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
    except (ValueError, TypeError):
        return False
    if not infos:
        return False
    info: dict[str, Any] = infos[0]
    if ACTIONS in info:
        return len(actions) - 1 == int(info[ACTIONS])
    made = info.get("operation") == "CREATE TABLE"
    return not made or any("metaData" in action for action in actions)


def _is_parquet(body: bytes) -> bool:
    try:
        pq.read_table(pa.BufferReader(body))
    except (OSError, pa.ArrowException):
        return False
    return True


def _names(fs: FileSystem, folder: str) -> list[str]:
    return [name for name, is_folder in list(fs.scan(folder)) if not is_folder]


def _numbered(pattern: re.Pattern[str], names: list[str]) -> dict[int, str]:
    """Names that match the pattern, by their version."""
    found = ((pattern.match(name), name) for name in names)
    return {int(match[1]): name for match, name in found if match}
