"""Copies a backup back into an empty store and an empty data folder.

Everything is read and compared with its checksum before anything is written. From the first write
to the last, a file in the data folder marks the unfinished restore; no node starts on a folder
that has one (`service.runtime.identity`).

A store gives objects ETags of its own. A manifest names that of `logs.txt`, so manifests are
written last, with the new ETags. On S3 these differ if an object was uploaded in parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from service.runtime.identity import UNFINISHED, DataFolder
from tailrace.backups.repository import Backup, BackupEntry, BackupFolder
from tailrace.backups.save import IDENTITY, JOURNAL, WORKERS, fork_restored
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import Conflict, Damaged
from tailrace.logstore.filesystem import FileSystem, translated
from tailrace.logstore.objects.local import in_thread
from tailrace.logstore.objects.store import ObjectInfo, ObjectPart, ObjectStore
from tailrace.logstore.runs.manifest import decode_manifest, encode_manifest
from tailrace.logstore.table.table import LOG

_AT_ONCE: Final = 16
_DELETE_COUNT: Final = 500
_PUT_BYTES: Final = 128 << 20
_LATE: Final = (f"{keys.TABLE}/{LOG}/", keys.RUNS)
"""What makes the rest visible, in this order."""


@dataclass(slots=True)
class Restore:
    """The restore of one backup. `data` is the data folder; `store` None leaves the store alone."""

    folder: BackupFolder
    backup: Backup
    fs: FileSystem
    data: str
    store: ObjectStore | None
    with_data: bool
    clock: Clock
    entropy: Entropy
    put_bytes: int = _PUT_BYTES
    _etags: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def entries(self) -> list[BackupEntry]:
        """The entries of the backup that this restore brings back."""
        stored = [] if self.store is None else self.backup.of("store")
        return [*stored, *(self.backup.of("data") if self.with_data else [])]

    async def run(self, *, replace_all: bool) -> list[str]:
        """Restores, and gives the nodes that the data folders are now.

        Raises `Conflict` if the target is not empty and not to be replaced, or a service runs on
        it, `Damaged` for a damaged backup, `StoreUnavailable`.
        """
        held = DataFolder(self.fs, self.data, self.clock, self.entropy)
        try:
            if not replace_all:
                await self._check_empty()
            await self.folder.check(self.entries)
            self._begin()
            await self._clear()
            if self.store is not None:
                await self._restore_store(self.store)
            if self.with_data:
                await in_thread(self._restore_files)
        finally:
            held.release()
        nodes = []
        if self.with_data:
            nodes = fork_restored(self.fs, self.data, self.clock, self.entropy)
        with translated(self.data):
            self.fs.unlink(f"{self.data}/{UNFINISHED}")
            self.fs.sync_folder(self.data)
        return nodes

    # --- the target ------------------------------------------------------------------

    async def _check_empty(self) -> None:
        hint = (
            "Restore into an empty store and data folder, or use --replace, which deletes"
            " their contents."
        )
        if self.with_data:
            for name in (IDENTITY, JOURNAL, WORKERS):
                if (found := f"{self.data}/{name}") and self._exists(found):
                    raise Conflict(f"the data folder is not empty: it holds {found}", hint=hint)
        if self.store is not None:
            async for info in self.store.list(""):
                where = self.store.uri(info.key)
                raise Conflict(f"the store is not empty: it holds {where}", hint=hint)

    def _exists(self, path: str) -> bool:
        return self.fs.stat(path) is not None or any(True for _ in self.fs.scan(path))

    def _begin(self) -> None:
        path = f"{self.data}/{UNFINISHED}"
        with translated(path):
            self.fs.open(path, "append").close()
            self.fs.sync_folder(self.data)

    async def _clear(self) -> None:
        if self.with_data:
            with translated(self.data):
                for name in (JOURNAL, WORKERS):
                    self._remove(f"{self.data}/{name}")
                if self.fs.stat(f"{self.data}/{IDENTITY}") is not None:
                    self.fs.unlink(f"{self.data}/{IDENTITY}")
        if self.store is None:
            return
        gone: list[str] = []
        async for info in self.store.list(""):
            gone.append(info.key)
            if len(gone) == _DELETE_COUNT:
                await self.store.delete(gone)
                gone = []
        await self.store.delete(gone)

    def _remove(self, folder: str) -> None:
        for name, is_folder in list(self.fs.scan(folder)):
            if is_folder:
                self._remove(f"{folder}/{name}")
            else:
                self.fs.unlink(f"{folder}/{name}")
        if self._exists(folder):
            self.fs.remove_folder(folder)

    def _restore_files(self) -> None:
        for entry in self.backup.of("data"):
            path = f"{self.data}/{entry.key}"
            folder = path.rpartition("/")[0]
            with translated(path):
                self.fs.make_folders(folder)
                file = self.fs.open(path, "create")
                try:
                    for piece in self.folder.open(entry):
                        file.write([piece])
                    file.sync()
                finally:
                    file.close()
                self.fs.sync_folder(folder)

    # --- the store -------------------------------------------------------------------

    async def _restore_store(self, store: ObjectStore) -> None:
        entries = self.backup.of("store")
        early = [entry for entry in entries if not entry.key.startswith(_LATE)]
        await self._put_all(store, early)
        for prefix in _LATE:
            await self._put_all(store, [e for e in entries if e.key.startswith(prefix)])

    async def _put_all(self, store: ObjectStore, entries: Sequence[BackupEntry]) -> None:
        for start in range(0, len(entries), _AT_ONCE):
            some = entries[start : start + _AT_ONCE]
            await asyncio.gather(*[self._put(store, entry) for entry in some])

    async def _put(self, store: ObjectStore, entry: BackupEntry) -> None:
        if entry.size <= self.put_bytes:
            body = await in_thread(lambda: b"".join(self.folder.open(entry)))
            if entry.key.startswith(keys.RUNS):
                body = self._with_etags(body)
            info = await store.put(entry.key, body, metadata=entry.metadata)
        else:
            info = await self._put_large(store, entry)
        if info.etag != entry.etag:
            self._etags[entry.key] = entry.etag, info.etag

    async def _put_large(self, store: ObjectStore, entry: BackupEntry) -> ObjectInfo:
        """In pieces, each appended to what is there by the store itself."""
        pieces = _joined(self.folder.open(entry), self.put_bytes)
        info: ObjectInfo | None = None
        while (piece := await in_thread(lambda: next(pieces, None))) is not None:
            if info is None:
                info = await store.put(entry.key, piece, metadata=entry.metadata)
            else:
                parts: list[ObjectPart | bytes] = [ObjectPart(entry.key, if_match=info.etag), piece]
                info = await store.compose(entry.key, parts, metadata=entry.metadata)
        if info is None:
            raise Damaged(f"{entry.key}: its contents are empty")
        return info

    def _with_etags(self, body: bytes) -> bytes:
        """A manifest with the ETags that its `logs.txt` has now."""
        try:
            manifest = decode_manifest(body)
        except Damaged:
            return body  # as it was; `verify` names it
        changed = self._etags.get(keys.logs(self.backup.prefix, manifest.key))
        if changed is None:
            return body
        before, now = changed
        chunks = [replace(c, etag=now) if c.etag == before else c for c in manifest.chunks]
        version = ulids.fresh_text(self.clock, self.entropy)
        return encode_manifest(replace(manifest, chunks=tuple(chunks), version=version))


def _joined(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of at least `size`, but for the last one."""
    some: list[bytes] = []
    held = 0
    for piece in pieces:
        some.append(piece)
        held += len(piece)
        if held >= size:
            yield b"".join(some)
            some, held = [], 0
    if some:
        yield b"".join(some)
