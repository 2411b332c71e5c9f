"""Copies a store and journals into a backup while services and compactors work on them.

    journals ─► progress of consumers ─► segments ─► watermarks ─► manifests, texts ─► table ─► rest

Lines move from the journal to segments, and from segments to run logs and table. A copy in that
order has each line at least once. Objects that only record progress are copied before the objects
that they are about: a consumer's progress before segments, a watermark before manifests. So in a
restored store some steps are repeated, and no step counts as done whose result is missing.

A deletion is recorded before the manifest says it, so records are copied after manifests. An object
that is listed and gone was removed by its owner; the end of the backup checks whether another
object still names it (`absent`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, TypeAlias

from service.journal import format as wal
from service.journal.file import Damage, JournalEntry, Torn, Unused, scan
from service.journal.recovery import header_of, recover
from service.run_log.chunks import Chunks
from service.runtime.identity import DataFolder, read_identity
from tailrace.backups.repository import PIECE_BYTES, Backup, BackupEntry, BackupFolder
from tailrace.logstore import keys
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    Conflict,
    Damaged,
    NotFound,
    PreconditionFailed,
    StoreUnavailable,
    UnsupportedVersion,
)
from tailrace.logstore.filesystem import File, FileSystem, translated
from tailrace.logstore.objects.local import in_thread
from tailrace.logstore.objects.store import ObjectInfo, ObjectStore
from tailrace.logstore.runs.manifest import Manifest, decode_manifest
from tailrace.logstore.table.table import LOG, Table

LEFT_OUT: Final = (keys.PEERS, keys.LEASES, keys.SHEDDING, ".probe/")
"""What holds for processes of now alone: a restored one must not wait for them, nor ask them."""

_CLAIMS: Final = (keys.GROUPS, keys.PARTITIONS, keys.PIPELINES)
_AT_ONCE: Final = 16
_TRIES: Final = 8
_LOG: Final = f"{keys.TABLE}/{LOG}/"
_HINT: Final = f"{_LOG}_last_checkpoint"
_VERSION_DIGITS: Final = 20

Wanted: TypeAlias = Callable[[str], bool]


class EarlierBackup:
    """An earlier backup: an object with the same ETag, size and time is not read again."""

    def __init__(self, backup: Backup | None) -> None:
        self._entries: dict[bytes, BackupEntry] = {}
        for entry in () if backup is None else backup.of("store"):
            name = _name(entry.key, entry.etag, entry.size, entry.modified_ms)
            self._entries[name] = entry

    def find(self, info: ObjectInfo) -> BackupEntry | None:
        """The entry of the object as it is listed; None if it is new or has changed."""
        return self._entries.get(_name(info.key, info.etag, info.size, info.modified_ms))


def _name(key: str, etag: str, size: int, modified_ms: int) -> bytes:
    return blake2b(f"{key}\n{etag}\n{size}\n{modified_ms}".encode(), digest_size=16).digest()


@dataclass(slots=True)
class StoreCopy:
    """The copy of one store. `prefix` is where the texts of runs are; `progress` hears of bytes."""

    store: ObjectStore
    table: Table
    folder: BackupFolder
    known: EarlierBackup
    prefix: str
    progress: Callable[[int], None] = lambda _bytes: None
    entries: dict[str, BackupEntry] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)

    async def copy(self) -> None:
        """Copies everything. Raises `StoreUnavailable`, `UnsupportedVersion`."""
        for prefix in _CLAIMS:
            await self._below(prefix)
        await self._below(keys.SEGMENTS, lambda key: not key.startswith(keys.QUARANTINE))
        await self._below(keys.WATERMARKS)
        await self._runs()
        await self._table()
        # A segment is quarantined before the table passes over it.
        await self._below(keys.QUARANTINE)
        await self._below(keys.COORDINATION, self._is_left)
        done = {keys.SEGMENTS, keys.COORDINATION, keys.RUNS, f"{keys.TABLE}/", f"{self.prefix}/"}
        # Of a version that knows more, or OpenMetadata's.
        async for name in self.store.folders(""):
            if f"{name}/" not in done:
                await self._below(f"{name}/", self._is_left)

    def _is_left(self, key: str) -> bool:
        return key not in self.entries and not key.startswith(LEFT_OUT)

    # --- runs ------------------------------------------------------------------------

    async def _runs(self) -> None:
        """Pipeline by pipeline, so that little time is between manifests and what they name."""
        names = {name async for name in self.store.folders(keys.RUNS)}
        names |= {name async for name in self.store.folders(f"{self.prefix}/")}
        for name in sorted(names):
            manifests = await self._below(f"{keys.RUNS}{name}/")
            await self._below(f"{self.prefix}/{name}/")
            for key in manifests:
                await self._complete(key)

    async def _complete(self, key: str) -> None:
        """Copies the manifest anew as long as something that it names was replaced meanwhile."""
        lacking: Collection[str] = ()
        for _ in range(_TRIES):
            manifest = await in_thread(lambda: self._manifest(key))
            if manifest is None:
                return
            wanted = _named(Chunks(self.store, self.prefix), manifest)
            lacking = [one for one, etag in wanted.items() if not self._holds(one, etag)]
            if not lacking:
                return
            for one in lacking:
                await self._again(one)
            if all(self._holds(one, wanted[one]) for one in lacking):
                return
            if not await self._again(key):
                return  # the run is gone
        self.absent.update(lacking)

    def _manifest(self, key: str) -> Manifest | None:
        entry = self.entries.get(key)
        if entry is None:
            return None
        try:
            return decode_manifest(b"".join(self.folder.open(entry)))
        except (Damaged, UnsupportedVersion):
            return None  # `verify` names it

    def _holds(self, key: str, etag: str) -> bool:
        entry = self.entries.get(key)
        return entry is not None and etag in ("", entry.etag)

    # --- the table -------------------------------------------------------------------

    async def _table(self) -> None:
        """The newest version: its log, its files and their indexes."""
        await self._again(_HINT)  # what it names is still in the log when that is listed
        snapshot = await in_thread(self.table.snapshot)
        if snapshot.delta is None:
            self.entries.pop(_HINT, None)
            return
        files = {f"{keys.TABLE}/{file.path}" for file in snapshot.files}
        indexes = {keys.skip_index(file.path) for file in snapshot.files}
        newest = snapshot.version

        def is_wanted(key: str) -> bool:
            if not key.startswith(_LOG):
                return key in files or key in indexes
            number = key.removeprefix(_LOG)[:_VERSION_DIGITS]
            return number.isdecimal() and int(number) <= newest and "." in key

        await self._below(f"{keys.TABLE}/", is_wanted)
        self.absent.update(files - self.entries.keys())

    # --- objects ---------------------------------------------------------------------

    async def _below(self, prefix: str, wanted: Wanted = lambda _key: True) -> list[str]:
        """Copies the wanted objects below a prefix, and gives the keys that were listed."""
        some: list[ObjectInfo] = []
        found: list[str] = []
        async for info in self.store.list(prefix):
            if wanted(info.key):
                some.append(info)
                found.append(info.key)
            if len(some) == _AT_ONCE:
                await self._copy_all(some)
                some = []
        await self._copy_all(some)
        return found

    async def _copy_all(self, infos: list[ObjectInfo]) -> None:
        await asyncio.gather(*[self._copy(info) for info in infos])

    async def _again(self, key: str) -> bool:
        """Copies the object as it is now; False if it is gone."""
        self.entries.pop(key, None)
        try:
            await self._copy(await self.store.head(key))
        except NotFound:
            return False
        return key in self.entries

    async def _copy(self, info: ObjectInfo) -> None:
        """Copies an object that was listed; nothing if it is gone."""
        entry = self.known.find(info)
        if entry is None or not self.folder.has(entry.sha256, entry.size):
            entry = await self._read(info)
        if entry is not None:
            self.entries[info.key] = entry
            self.progress(entry.size)

    async def _read(self, info: ObjectInfo) -> BackupEntry | None:
        for _ in range(_TRIES):
            try:
                if info.size <= PIECE_BYTES:
                    info, body = await self.store.get(info.key)
                    kept = await self.folder.keep(_one(body))
                else:
                    info = await self.store.head(info.key)
                    stream = self.store.stream(info.key, if_match=info.etag)
                    kept = await self.folder.keep(stream)
            except PreconditionFailed:
                continue  # it was replaced while it was read
            except NotFound:
                return None
            sha256, size = kept
            if size == info.size:
                modified = (info.etag, info.modified_ms, dict(info.metadata))
                return BackupEntry("store", info.key, size, sha256, *modified)
        raise StoreUnavailable(f"{info.key} changes faster than it can be read")


async def _one(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _named(chunks: Chunks, manifest: Manifest) -> Mapping[str, str]:
    """The objects that a manifest names, with the ETag that it says, empty for any."""
    found: dict[str, str] = {}
    for chunk in manifest.chunks:
        if chunk.index is None:
            found[chunks.index_key(manifest.key, chunk)] = ""
        if chunk.text is None:
            found[chunks.text_key(manifest.key, chunk)] = chunk.etag
    return found


# Copies of the journals of running nodes; restored ones get an incarnation of their own.
#
# A file of the journal is copied up to its last whole entry at that moment: all bytes before it
# were written before, so the copy is the same as after a crash at that moment. Full files do not
# change; one that the node released meanwhile may be overwritten, so its copy does not count, and
# the newest file is copied again. It then says that the lines of the released one are in the store.


IDENTITY: Final = "node.json"
JOURNAL: Final = "journal"
WORKERS: Final = "workers"
_ROUNDS: Final = 100


def node_folders(fs: FileSystem, data: str) -> list[str]:
    """Paths below `data` that are data folders: itself (empty), and those of further workers."""
    inner = sorted(name for name, is_folder in fs.scan(f"{data}/{WORKERS}") if is_folder)
    found = ["", *[f"{WORKERS}/{name}/" for name in inner]]
    return [path for path in found if fs.stat(f"{data}/{path}{IDENTITY}") is not None]


async def copy_journals(
    fs: FileSystem, data: str, folder: BackupFolder
) -> tuple[list[str], list[BackupEntry]]:
    """Copies the data folders below `data`: their nodes, and what was copied.

    Raises `StoreUnavailable`, `Damaged`, `Conflict` if files come and go all the time.
    """
    nodes: list[str] = []
    entries: list[BackupEntry] = []
    for path in node_folders(fs, data):
        files = await _copy_files(fs, data, f"{path}{JOURNAL}", folder)
        # Behind its journal: of a node that forks meanwhile, the lines are under either name.
        identity = await _copy_file(fs, data, f"{path}{IDENTITY}", folder)
        with translated(f"{data}/{path}{IDENTITY}"):
            known = read_identity(fs, f"{data}/{path}".rstrip("/"))
        entries += [*files, identity]
        nodes += [] if known is None else [known.node]
    return nodes, entries


async def _copy_files(
    fs: FileSystem, data: str, path: str, folder: BackupFolder
) -> list[BackupEntry]:
    whole: dict[str, BackupEntry] = {}
    with translated(f"{data}/{path}"):
        for _ in range(_ROUNDS):
            names = _names(fs, f"{data}/{path}")
            if not names:
                return []
            try:
                for name in names[:-1]:
                    if name not in whole:
                        whole[name] = await _copy_file(fs, data, f"{path}/{name}", folder)
                newest = await _copy_file(fs, data, f"{path}/{names[-1]}", folder, newest=True)
            except NotFound:
                continue
            # Without those that were released since: the newest file may not say so yet.
            left = set(_names(fs, f"{data}/{path}"))
            if left.issuperset(names):
                return [*[whole[name] for name in names[:-1]], newest]
            whole = {name: entry for name, entry in whole.items() if name in left}
    raise Conflict(
        f"the journal in {data}/{path} released files faster than they were copied",
        hint="Back up to a faster disk, or at a time with fewer writes.",
    )


def _names(fs: FileSystem, path: str) -> list[str]:
    return sorted(name for name, is_folder in fs.scan(path) if name.endswith(wal.SUFFIX))


async def _copy_file(
    fs: FileSystem, data: str, path: str, folder: BackupFolder, *, newest: bool = False
) -> BackupEntry:
    """Copies one file, of the newest one of a journal what is written. Raises `NotFound`."""
    try:
        file = fs.open(f"{data}/{path}", "read")
    except FileNotFoundError as error:
        raise NotFound(f"{data}/{path} is gone") from error
    try:
        end = await in_thread(lambda: _written(file, path) if newest else file.size())
        sha256, size = await folder.keep(_pieces(file, end))
        return BackupEntry("data", path, size, sha256)
    finally:
        file.close()


def _written(file: File, path: str) -> int:
    """Where the whole entries of a journal file end now; all of it if its header is damaged."""
    header, _ = header_of(file, path.rpartition("/")[2].removesuffix(wal.SUFFIX))
    if header is None:
        return file.size()
    end = header.size
    for item in scan(file, header):
        if isinstance(item, Unused) or (isinstance(item, Torn) and not item.followed):
            return item.offset
        # The node may write meanwhile, so the size of the file says nothing about this scan.
        if isinstance(item, JournalEntry):
            end = item.offset + len(item.body)
        elif isinstance(item, Damage):
            end = item.offset + item.size
    return end


async def _pieces(file: File, end: int) -> AsyncIterator[bytes]:
    at = 0
    while at < end:
        piece = await in_thread(lambda: file.pread(min(PIECE_BYTES, end - at), at))  # noqa: B023
        if not piece:
            return
        yield piece
        at += len(piece)


def fork_restored(fs: FileSystem, data: str, clock: Clock, entropy: Entropy) -> list[str]:
    """Gives each restored data folder an incarnation of its own, and names its new node.

    What was acknowledged after the backup may have used the old one's numbers. Raises as
    `recover`, `FolderLocked`.
    """
    made = []
    for path in node_folders(fs, data):
        place = f"{data}/{path}".rstrip("/")
        recovered = recover(fs, f"{place}/{JOURNAL}")
        for file in recovered.files:
            file.close()
        held = DataFolder(fs, place, clock, entropy)
        try:
            known = read_identity(fs, place)
            if known is not None and recovered.state is not None:
                confirmed = recovered.state.confirmed
                known = held.forked(known, name=known.name, base=confirmed.end, seq=confirmed.seq)
            made += [] if known is None else [known.node]
        finally:
            held.release()
    return made
