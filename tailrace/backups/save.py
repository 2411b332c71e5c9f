"""Copies a store into a backup while services and compactors work on it.

    journals ─► progress of consumers ─► segments ─► watermarks ─► manifests, texts ─► table ─► rest

Lines move from the journal to segments, and from there to run logs and table. What is read in that
order has each line at least once. What only says how far something is comes before what it speaks
of: a consumer's progress before segments, a watermark before manifests. A restored store is then
one in which some steps are to be repeated, and no step is believed that it does not have.

A deletion is recorded before the manifest says it, so records are copied behind manifests. An
object that is listed and gone was removed by its owner; whether something still names it is checked
at the end (`absent`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, TypeAlias

from logstore import keys
from logstore.errors import (
    Damaged,
    NotFound,
    PreconditionFailed,
    StoreUnavailable,
    UnsupportedVersion,
)
from logstore.objects.local import in_thread
from logstore.objects.store import ObjectInfo, ObjectStore
from logstore.runs.manifest import Manifest, decode_manifest
from logstore.table.table import LOG, Table
from service.runs.chunks import Chunks
from tailrace.backups.repository import PIECE_BYTES, Backup, BackupEntry, BackupFolder

LEFT_OUT: Final = (keys.PEERS, keys.LEASES, keys.SHEDDING, ".probe/")
"""What holds for processes of now alone: a restored one must not wait for them, nor ask them."""

_CLAIMS: Final = (keys.GROUPS, keys.PARTITIONS, keys.PIPELINES)
_AT_ONCE: Final = 16
_TRIES: Final = 8
_LOG: Final = f"{keys.TABLE}/{LOG}/"
_HINT: Final = f"{_LOG}_last_checkpoint"
_VERSION_DIGITS: Final = 20

Wanted: TypeAlias = Callable[[str], bool]


class Known:
    """What an earlier backup holds: an object of the same ETag, size and time is not read again."""

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
    known: Known
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
