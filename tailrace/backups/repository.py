"""A folder of backups: contents by their checksums, and a list of them for each backup.

    {folder}/objects/{2 hex digits}/{SHA-256}    bytes of an object or a file, once for all backups
    {folder}/backups/{ULID}.jsonl.gz             a backup: what it holds, line by line

The list is written last, under its name only when it is whole and synced. A backup that was killed
therefore leaves contents that nobody names, and no backup. The next backup uses them again.

A list is JSON lines: a header, an entry for each object and file, and an end with the number of
entries and the SHA-256 of all lines before it.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias

import orjson

from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import Conflict, Damaged, InvalidInput, UnsupportedVersion
from tailrace.logstore.filesystem import File, FileSystem, translated
from tailrace.logstore.objects.local import in_thread

FORMAT: Final = 1
PIECE_BYTES: Final = 1 << 22
_SUFFIX: Final = ".jsonl.gz"
_UNFINISHED: Final = ".new"
_FAULTS: Final = 20

Part: TypeAlias = Literal["data", "store"]


@dataclass(frozen=True, slots=True)
class BackupEntry:
    """An object of the store, or a file of a data folder: its key, or its path in the folder."""

    part: Part
    key: str
    size: int
    sha256: str
    etag: str = ""
    modified_ms: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Backup:
    """The contents of one backup. `absent` are keys that the store itself named and did not have.

    `nodes` are those whose data folders are in it, `registered` all that shared the store.
    """

    id: str
    created_ms: int
    version: str
    store: str
    prefix: str
    nodes: tuple[str, ...] = ()
    registered: tuple[str, ...] = ()
    entries: tuple[BackupEntry, ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all that it holds."""
        return sum([entry.size for entry in self.entries])

    def of(self, part: Part) -> list[BackupEntry]:
        """What it holds of the store, or of data folders."""
        return [entry for entry in self.entries if entry.part == part]


class BackupFolder:
    """The folder at `path`. Raises `StoreUnavailable` for what its disk does not do."""

    def __init__(self, fs: FileSystem, path: str, clock: Clock, entropy: Entropy) -> None:
        self.path = path
        self._fs = fs
        self._clock = clock
        self._entropy = entropy
        self._made: set[str] = set()
        self.written_bytes = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Makes the folder, and keeps other backups out of it. Raises `Conflict`."""
        with translated(f"the folder {self.path}"):
            self._fs.make_folders(self._lists)
            lock = self._fs.lock(f"{self.path}/lock", wait=False)
        if lock is None:
            raise Conflict(
                f"another backup is writing to {self.path}", hint="Wait until it finishes."
            )
        try:
            yield
        finally:
            lock.release()

    # --- backups ---------------------------------------------------------------------

    def ids(self) -> list[str]:
        """The backups, the oldest first."""
        with translated(f"the folder {self.path}"):
            names = [name for name, is_folder in self._fs.scan(self._lists) if not is_folder]
        return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))

    def fresh_id(self) -> str:
        """The id of a new backup."""
        return ulids.fresh_text(self._clock, self._entropy)

    def newest(self) -> Backup | None:
        """The newest backup of a store that reads; None without one."""
        for known in reversed(self.ids()):
            try:
                backup = self.read(known)
            except Damaged:
                continue
            if backup.of("store"):
                return backup
        return None

    def chosen(self, wanted: str | None, parts: Sequence[Part] = ()) -> Backup:
        """The backup of that id, or the newest that has all these parts.

        Raises `InvalidInput` if there is none, `Damaged`.
        """
        ids = self.ids()
        if not ids:
            raise InvalidInput(
                f"{self.path} holds no backup",
                hint="An interrupted backup does not count. Name the folder that `tailrace "
                "backup` wrote to.",
            )
        if wanted is not None and wanted not in ids:
            raise InvalidInput(f"{self.path} holds no backup {wanted}", hint="See --list.")
        for known in reversed(ids) if wanted is None else [wanted]:
            backup = self.read(known)
            if all(backup.of(part) for part in parts):
                return backup
        what = " and ".join([_SPELLED[part] for part in parts])
        raise InvalidInput(
            f"no backup in {self.path} holds {what}"
            if wanted is None
            else f"the backup {wanted} does not hold {what}",
            hint="Restore them one after another, with --only store and --only data, and --backup.",
        )

    def read(self, wanted: str) -> Backup:
        """A backup. Raises `Damaged`, `UnsupportedVersion`."""
        path = f"{self._lists}/{wanted}{_SUFFIX}"
        with translated(path):
            body = self._read(path)
        try:
            lines = gzip.decompress(body).splitlines(keepends=True)
            end = orjson.loads(lines[-1])
            if end["sha256"] != hashlib.sha256(b"".join(lines[:-1])).hexdigest():
                raise ValueError("its checksum does not match")
            header = orjson.loads(lines[0])
            if header["format"] > FORMAT:
                raise UnsupportedVersion(f"{path} has format {header['format']}")
            entries = tuple([BackupEntry(**orjson.loads(line)) for line in lines[1:-1]])
            if (len(entries), header["id"]) != (end["entries"], wanted):
                raise ValueError("it is truncated, or it belongs to another backup")
            return _backup(header, entries, tuple(end["absent"]))
        except (
            OSError,
            EOFError,
            zlib.error,
            ValueError,
            KeyError,
            TypeError,
            IndexError,
        ) as error:
            raise Damaged(
                f"the backup {path} is damaged: {error}",
                hint="Restore an older backup (--list, --backup), or get the file from a copy.",
            ) from error

    def write(self, backup: Backup) -> None:
        """Makes a backup of what was kept; it is there from then on, or not at all."""
        header = {name: getattr(backup, name) for name in _HEADER}
        lines = [{"format": FORMAT, **header}, *[asdict(entry) for entry in backup.entries]]
        text = b"".join([orjson.dumps(line) + b"\n" for line in lines])
        check = hashlib.sha256(text).hexdigest()
        end = {"entries": len(backup.entries), "absent": backup.absent, "sha256": check}
        path = f"{self._lists}/{backup.id}{_SUFFIX}"
        with translated(path):
            # Of all that it names: a backup that was killed may have left contents without a sync.
            folders = {f"{self._objects}/{entry.sha256[:2]}" for entry in backup.entries}
            for folder in (*sorted(folders), self._objects):
                self._fs.sync_folder(folder)
            self._put(path, gzip.compress(text + orjson.dumps(end) + b"\n", mtime=0))
            self._fs.sync_folder(self._lists)

    def remove_older(self, keep: int) -> int:
        """Leaves the newest `keep` backups that read, and what they hold; gives how many went."""
        ids = self.ids()
        kept = [self.read(known) for known in ids[-keep:]]
        names = {entry.sha256 for backup in kept for entry in backup.entries}
        with translated(f"the folder {self.path}"):
            for old in ids[:-keep]:
                self._fs.unlink(f"{self._lists}/{old}{_SUFFIX}")
            self._fs.sync_folder(self._lists)
            for folder, is_folder in list(self._fs.scan(self._objects)):
                place = f"{self._objects}/{folder}"
                if not is_folder:
                    self._fs.unlink(place)  # of a backup that was killed
                    continue
                for name, _ in list(self._fs.scan(place)):
                    if name not in names:
                        self._fs.unlink(f"{place}/{name}")
        return len(ids) - len(kept)

    # --- contents --------------------------------------------------------------------

    def has(self, sha256: str, size: int) -> bool:
        """Whether contents of that checksum, and of that size, are there."""
        found = self._fs.stat(self._place(sha256))
        return found is not None and found.size == size

    async def keep(self, pieces: AsyncIterator[bytes]) -> tuple[str, int]:
        """Keeps contents; their checksum and size. Raises what `pieces` raises."""
        digest, size = hashlib.sha256(), 0
        name = f"{self._objects}/{self.fresh_id()}{_UNFINISHED}"
        with translated(name):
            file = await in_thread(lambda: self._begin(name))
        try:
            async for piece in pieces:
                digest.update(piece)
                size += len(piece)
                with translated(name):
                    await in_thread(lambda piece=piece: file.write([piece]))  # type: ignore[misc]
            sha256 = digest.hexdigest()
            with translated(name):
                await in_thread(lambda: self._finish(file, name, sha256, size))
        except BaseException:
            self._fs.unlink(name)
            raise
        finally:
            file.close()
        return sha256, size

    def open(self, entry: BackupEntry) -> Iterator[bytes]:
        """The contents of an entry, in pieces. Raises `Damaged` if they are not as they were."""
        path, digest, size = self._place(entry.sha256), hashlib.sha256(), 0
        with translated(path):
            if self._fs.stat(path) is None:
                raise Damaged(f"{entry.key}: {path} is missing")
            file = self._fs.open(path, "read")
            try:
                while piece := file.pread(PIECE_BYTES, size):
                    digest.update(piece)
                    size += len(piece)
                    yield piece
            finally:
                file.close()
        if size != entry.size:
            raise Damaged(f"{entry.key}: {path} has {size} of {entry.size} bytes")
        if digest.hexdigest() != entry.sha256:
            raise Damaged(f"{entry.key}: the bytes of {path} have changed")

    async def check(self, entries: Sequence[BackupEntry]) -> None:
        """Reads all contents. Raises `Damaged`, which names the first that are not as they were."""
        faults: list[str] = []

        def check_one(entry: BackupEntry) -> None:
            try:
                for _ in self.open(entry):
                    pass
            except Damaged as error:
                faults.append(str(error))

        for entry in {entry.sha256: entry for entry in entries}.values():
            await in_thread(lambda entry=entry: check_one(entry))  # type: ignore[misc]
        if faults:
            more = f"; and {len(faults) - _FAULTS} more" if len(faults) > _FAULTS else ""
            raise Damaged(
                f"the backup is damaged, and nothing was restored: {'; '.join(faults[:_FAULTS])}"
                f"{more}",
                hint="Restore an older backup (--list, --backup), or get the files from a copy.",
            )

    # --- files -----------------------------------------------------------------------

    @property
    def _lists(self) -> str:
        return f"{self.path}/backups"

    @property
    def _objects(self) -> str:
        return f"{self.path}/objects"

    def _place(self, sha256: str) -> str:
        return f"{self._objects}/{sha256[:2]}/{sha256}"

    def _begin(self, name: str) -> File:
        if self._objects not in self._made:
            self._fs.make_folders(self._objects)
            self._made.add(self._objects)
        return self._fs.open(name, "create")

    def _finish(self, file: File, name: str, sha256: str, size: int) -> None:
        if self.has(sha256, size):
            self._fs.unlink(name)
            return
        folder = f"{self._objects}/{sha256[:2]}"
        file.sync()
        if folder not in self._made:
            self._fs.make_folders(folder)
            self._made.add(folder)
        self._fs.rename(name, self._place(sha256))
        self.written_bytes += size

    def _read(self, path: str) -> bytes:
        file = self._fs.open(path, "read")
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def _put(self, path: str, body: bytes) -> None:
        new = path + _UNFINISHED
        if self._fs.stat(new) is not None:
            self._fs.unlink(new)
        file = self._fs.open(new, "create")
        try:
            file.write([body])
            file.sync()
        finally:
            file.close()
        self._fs.rename(new, path)


_SPELLED: Final[Mapping[Part, str]] = {"data": "a data folder", "store": "a store"}
_HEADER: Final = ("id", "created_ms", "version", "store", "prefix", "nodes", "registered")


def _backup(
    header: Mapping[str, Any], entries: tuple[BackupEntry, ...], absent: tuple[str, ...]
) -> Backup:
    return Backup(
        str(header["id"]),
        int(header["created_ms"]),
        str(header["version"]),
        str(header["store"]),
        str(header["prefix"]),
        tuple(header["nodes"]),
        tuple(header["registered"]),
        entries,
        absent,
    )
