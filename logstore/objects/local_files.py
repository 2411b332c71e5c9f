"""The blocking half of the local store: what each operation does to the disk.

Writes. Bytes are written to a temporary file, which is synced. Then, under the key's lock,
the condition is checked, the file is renamed to its key, and the folder is synced. Every
writer takes the lock; otherwise a put without a condition could come between another's
check and rename. Programs other than ours (Spark, deltalake) write `table/` without it.

Folders are made and synced before a name is put into them. This process remembers the folders
that it knows to be durable. Deleting the last object of a folder removes the folder; a put whose
folder was removed that way makes it again.

Reads hold the file open, so they see one whole object, however often the key is
rewritten meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, pairwise
from typing import NamedTuple, TypeVar

import xxhash

from logstore.clock import Clock, Entropy
from logstore.errors import NotFound, OutcomeUnknown, PreconditionFailed
from logstore.filesystem import File, FileSystem
from logstore.objects.keypath import KeyPaths, Walk
from logstore.objects.oserrors import means_absent, translated, unknown_outcome
from logstore.objects.ranges import PIECE_BYTES, OpenRange, check_range, length_of
from logstore.objects.sidecar import Known, KnownFile, Sidecars
from logstore.objects.store import Body, Listed, Listing, ObjectInfo, Part, check_metadata

STALE_TEMPORARY_MS = 24 * 3600 * 1000
_SMALL_BYTES = 16 << 10
"""So much is hashed as fast as a sidecar is read: without metadata, it has none."""

T = TypeVar("T")

_ATTEMPTS = 100
_NAMES = 64  # are read at a time: they cost little beside what is asked of each file


@contextmanager
def _absent_or_done() -> Iterator[None]:
    """Passes over what is not there, or cannot be."""
    try:
        yield
    except OSError as error:
        if not means_absent(error):
            raise


class Condition(NamedTuple):
    """The condition on the key under which a write happens."""

    if_absent: bool
    if_match: str | None


class Written(NamedTuple):
    """A synced temporary file that is to become an object."""

    path: str
    file: KnownFile


class LocalFiles:
    """Every operation of the store as one blocking call. None raises `OSError`.

    The folder must be made before (`make`).
    """

    def __init__(self, root: str, fs: FileSystem, clock: Clock, entropy: Entropy) -> None:
        self._fs = fs
        self._clock = clock
        self.paths = KeyPaths(root)
        self._sidecars = Sidecars(fs, self.paths, clock, entropy)
        self._walk = Walk(fs, self.paths.root)
        self._durable_folders: set[str] = set()
        self._made = False
        self._making = threading.Lock()

    def make(self) -> None:
        """Makes the folder, unless that was done. Raises `StoreUnavailable`."""
        with self._making, translated(f"opening the store {self.paths.root}"):
            if self._made:
                return
            self._fs.make_folders(self.paths.temporaries)
            self._fs.make_folders(self.paths.locks)
            self._fs.make_folders(self.paths.meta)
            self._make_locks()
            self._sweep(self._clock.now_ms() - STALE_TEMPORARY_MS)
            self._made = True

    def after_make(self, work: Callable[[], T]) -> T:
        """The result of an operation, once the folder is there."""
        if not self._made:
            self.make()
        return work()

    def put(
        self, key: str, body: Body, condition: Condition, metadata: Mapping[str, str]
    ) -> ObjectInfo:
        """As `ObjectStore.put`."""
        self.paths.object(key)
        check_metadata(metadata)
        with translated(f"put {key}"):
            known = Known(xxhash.xxh3_128_hexdigest(body), metadata)
            with self._new_file() as (path, file):
                file.write([body])
                file.sync()
                written = Written(path, KnownFile(file.stat(), known))
            return self._publish(key, written, condition)

    def compose(
        self,
        key: str,
        parts: Sequence[Part | bytes],
        condition: Condition,
        metadata: Mapping[str, str],
    ) -> ObjectInfo:
        """As `ObjectStore.compose`."""
        self.paths.object(key)
        check_metadata(metadata)
        with translated(f"compose {key}"):
            with self._new_file() as (path, file):
                for part in parts:
                    self._append(part, file)
                file.sync()
                written = Written(path, KnownFile(file.stat(), Known(_hash(file), metadata)))
            return self._publish(key, written, condition)

    def read(
        self, key: str, offset: int, size: int | None, if_match: str | None
    ) -> tuple[ObjectInfo, bytes]:
        """As `ObjectStore.get`."""
        check_range(offset, size)
        with translated(f"get {key}"), self._opened(key) as file:
            info = self._info(key, file)
            _check_match(info, if_match)
            return info, file.pread(length_of(info.size, offset, size), offset)

    def open(self, key: str, offset: int, size: int | None, if_match: str | None) -> OpenRange:
        """A range that is read in pieces; the caller closes it."""
        check_range(offset, size)
        with translated(f"get {key}"):
            file = self._open(key)
            try:
                if if_match is not None:
                    _check_match(self._info(key, file), if_match)
                return OpenRange(key, file, offset, length_of(file.size(), offset, size))
            except BaseException:
                file.close()
                raise

    def head(self, key: str) -> ObjectInfo:
        """As `ObjectStore.head`."""
        with translated(f"head {key}"), self._opened(key) as file:
            return self._info(key, file)

    def objects(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Yields the objects in order, without those that are removed meanwhile. Blocks."""
        keys = self._walk.keys(prefix, after)
        while taken := self.take(keys, _NAMES):
            for key in taken:
                if (found := self._found(key)) is not None:
                    yield found

    def listed(self, prefix: str, after: str) -> Listing:
        """As `ObjectStore.listed`, without a look at the files."""
        keys, behind = self._walk.keys(prefix, after), None
        with translated(f"list {prefix}"), suppress(StopIteration):
            while True:
                behind = yield Listed(keys.send(behind), None)

    def folders(self, prefix: str, after: str) -> Iterator[str]:
        """Yields components in order; read them with `take`."""
        return self._walk.folders(prefix, after)

    def take(self, items: Iterator[T], count: int) -> list[T]:
        """The next `count` of `objects` or `folders`; fewer at the end."""
        with translated("list"):
            return list(islice(items, count))

    def _found(self, key: str) -> ObjectInfo | None:
        with suppress(NotFound), translated(f"list {key}"), self._opened(key) as file:
            info = self._info(key, file)
            return ObjectInfo(key, info.size, info.etag, info.modified_ms)
        return None  # it was removed

    def delete(self, keys: Sequence[str]) -> None:
        """As `ObjectStore.delete`."""
        paths = [self.paths.object(key) for key in keys]
        with translated("delete"):
            for key, path in zip(keys, paths, strict=True):
                self._unlink(key, path)
            folders = {os.path.dirname(path) for path in paths}
            for folder in sorted(folders):
                # Also when nothing was unlinked: an earlier try may have got no further.
                with _absent_or_done():
                    self._fs.sync_folder(folder)
            sidecars = {os.path.dirname(self.paths.sidecar(key)) for key in keys}
            for folder in sorted(folders | sidecars, reverse=True):
                self._remove_empty(folder)

    def sweep(self, before_ms: int) -> int:
        """As `ObjectStore.sweep`."""
        with translated("sweep"):
            return self._sweep(before_ms)

    # -- writing

    @contextmanager
    def _new_file(self) -> Iterator[tuple[str, File]]:
        path = self._sidecars.new_temporary()
        file = self._fs.open(path, "create")
        try:
            yield path, file
        except Exception:
            self._discard(path)
            raise
        finally:
            file.close()

    def _append(self, part: Part | bytes, target: File) -> None:
        if isinstance(part, bytes):
            target.write([part])
            return
        check_range(part.offset, part.size)
        with self._opened(part.key) as source:
            if part.if_match is not None:
                _check_match(self._info(part.key, source), part.if_match)
            size = length_of(source.size(), part.offset, part.size)
            if size:
                self._fs.copy(source, part.offset, size, target)

    def _publish(self, key: str, written: Written, condition: Condition) -> ObjectInfo:
        try:
            with self._locked(key):
                replaced = self._check(key, condition)
                needed = _needs_sidecar(written.file)
                if needed:
                    self._sidecars.write(key, written.file, replaced)
                self._place(key, written.path)
                if not needed and replaced is not None and _needs_sidecar(replaced):
                    self._sidecars.remove(key)  # else it is only of no use
        except OutcomeUnknown:
            raise
        except Exception:
            self._discard(written.path)
            raise
        return _info_of(key, written.file)

    def _check(self, key: str, condition: Condition) -> KnownFile | None:
        """What is known of the object that a write replaces. Raises `PreconditionFailed`."""
        try:
            return self._check_present(key, condition)
        except PreconditionFailed:
            # The writer that came first may have died between its rename and its sync. Whoever
            # hears that its object is there must be able to rely on it.
            with _absent_or_done():
                self._fs.sync_folder(os.path.dirname(self.paths.object(key)))
            raise

    def _check_present(self, key: str, condition: Condition) -> KnownFile | None:
        try:
            with self._opened(key) as file:
                if condition.if_absent:
                    raise PreconditionFailed(f"{key} exists")
                if condition.if_match is None:
                    return self._sidecars.read(key, file.stat())
                found = self._described(key, file)
                _check_match(_info_of(key, found), condition.if_match)
                return found
        except NotFound:
            if condition.if_match is not None:
                raise PreconditionFailed(f"{key} does not exist") from None
            return None

    def _place(self, key: str, source: str) -> None:
        path, what = self.paths.object(key), f"put {key}"
        folder = os.path.dirname(path)
        for _ in range(_ATTEMPTS):
            try:
                self._make_durable(folder)
                with unknown_outcome(what, started=False):
                    self._fs.rename(source, path)
                break
            except FileNotFoundError:  # somebody removed the folder while it was empty
                self._forget(folder)
        else:
            raise FileNotFoundError(source)
        with unknown_outcome(what, started=True):
            self._fs.sync_folder(folder)

    def _make_durable(self, folder: str) -> None:
        """Makes the folder, then syncs the parents of those that another process may have made."""
        if folder in self._durable_folders:
            return
        made = self._fs.make_folders(folder)
        chain = [folder]
        while chain[-1] != self.paths.root and chain[-1] not in self._durable_folders:
            chain.append(os.path.dirname(chain[-1]))
        for child, parent in reversed(list(pairwise(chain))):
            if child not in made:
                self._fs.sync_folder(parent)
        self._durable_folders.update(chain)

    def _forget(self, folder: str) -> None:
        while folder != self.paths.root:
            self._durable_folders.discard(folder)
            folder = os.path.dirname(folder)

    def _unlink(self, key: str, path: str) -> None:
        with self._locked(key), _absent_or_done():
            self._fs.unlink(path)
            self._sidecars.remove(key)

    def _remove_empty(self, folder: str) -> None:
        while folder not in (self.paths.root, self.paths.meta):
            self._durable_folders.discard(folder)
            try:
                self._fs.remove_folder(folder)
            except FileNotFoundError:
                pass
            except OSError:  # not empty, or somebody's mount point: then it stays
                return
            folder = os.path.dirname(folder)

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        lock = self._fs.lock(self.paths.lock(key), wait=True)
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def _discard(self, path: str) -> None:
        # The failure that led here is what the caller must hear of. A file that stays is
        # removed at a later start.
        with suppress(OSError):
            self._fs.unlink(path)

    def _make_locks(self) -> None:
        found = {name for name, _ in self._fs.scan(self.paths.locks)}
        for path in self.paths.all_locks():
            if os.path.basename(path) not in found:
                self._fs.open(path, "append").close()

    def _sweep(self, before_ms: int) -> int:
        swept = 0
        for name, _ in list(self._fs.scan(self.paths.temporaries)):
            path = f"{self.paths.temporaries}/{name}"
            found = self._fs.stat(path)
            if found is not None and found.modified_ns // 1_000_000 < before_ms:
                with suppress(FileNotFoundError):
                    self._fs.unlink(path)
                    swept += 1
        return swept

    # -- reading

    def _open(self, key: str) -> File:
        try:
            return self._fs.open(self.paths.object(key), "read")
        except OSError as error:
            if means_absent(error):
                raise NotFound(f"there is no object {key}") from None
            raise

    @contextmanager
    def _opened(self, key: str) -> Iterator[File]:
        file = self._open(key)
        try:
            yield file
        finally:
            file.close()

    def _info(self, key: str, file: File) -> ObjectInfo:
        return _info_of(key, self._described(key, file))

    def _described(self, key: str, file: File) -> KnownFile:
        stat = file.stat()
        found = self._sidecars.read(key, stat)
        if found is None:
            found = KnownFile(stat, Known(_hash(file), {}))
            if _needs_sidecar(found):
                self._remember(key, found)
        return found

    def _remember(self, key: str, found: KnownFile) -> None:
        """Stores the hash in the sidecar for the next reader, unless a writer holds the lock.

        It does not wait for the lock, since the caller may hold it. A full disk is no error here,
        since it must not stop reads: the sidecar is only a cache for them.
        """
        with suppress(OSError):
            lock = self._fs.lock(self.paths.lock(key), wait=False)
            if lock is None:
                return
            try:
                if self._fs.stat(self.paths.object(key)) == found.stat:
                    self._sidecars.write(key, found)
            finally:
                lock.release()


def _needs_sidecar(described: KnownFile) -> bool:
    return bool(described.known.metadata) or described.stat.size > _SMALL_BYTES


def _check_match(info: ObjectInfo, if_match: str | None) -> None:
    if if_match is not None and info.etag != if_match:
        raise PreconditionFailed(f"{info.key} has ETag {info.etag}, not {if_match}")


def _info_of(key: str, found: KnownFile) -> ObjectInfo:
    stat, known = found
    return ObjectInfo(key, stat.size, known.etag, stat.modified_ns // 1_000_000, known.metadata)


def _hash(file: File) -> str:
    digest, offset = xxhash.xxh3_128(), 0
    while piece := file.pread(PIECE_BYTES, offset):
        digest.update(piece)
        offset += len(piece)
    return digest.hexdigest()
