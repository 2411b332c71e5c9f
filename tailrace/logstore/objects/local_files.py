"""The blocking half of the object store in a folder: paths, sidecars, files and their syncs.

`KeyPaths` and `Walk` map keys to paths, `Sidecars` keeps ETags and metadata, and `LocalFiles` has
the operations on the disk. `LocalStore` (`tailrace/logstore/objects/local.py`) makes an
`ObjectStore` of them. Several processes of one machine may share the folder. A local store cannot
hold both an object `x` and objects below `x/`: the later put is a `Conflict`.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import NamedTuple, TypeVar

import xxhash

from tailrace.logstore import ulid
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    InvalidName,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    TailraceError,
)
from tailrace.logstore.filesystem import (
    File,
    FileSystem,
    OpenFolder,
    Stat,
    means_absent,
    translated,
    unknown_outcome,
)
from tailrace.logstore.objects.store import (
    PIECE_BYTES,
    Body,
    ListedKey,
    Listing,
    ObjectInfo,
    ObjectPart,
    OpenRange,
    check_metadata,
    check_range,
    length_of,
)
from tailrace.logstore.state import decode_checked, encode_checked

# Paths of objects, the keys that the store accepts, and their order.
#
#   {root}/{key}               the object's bytes
#   {root}/.meta/{key}.json    ETag and user metadata (`Sidecars`)
#   {root}/.locks/{00..3f}     flock files; a key's is chosen by its hash. All are made at the
#                              start, so that deleting works on a full disk; none is ever removed
#   {root}/.tmp/{ULID}         objects that are being written
#   {root}/.reserve/           room for a full disk, which the service takes
#
# `Walk` lists keys in S3's order, lazily. S3 orders by the bytes of the whole key: `a-b`, `a.b`,
# `a/b`, `a0`. A folder therefore sorts as its name with the `/`. The order of `str` is the order of
# UTF-8, so nothing is encoded. Only the names of the folders on the way down to the current key are
# in memory.


META, LOCKS, TEMPORARIES, RESERVE = ".meta", ".locks", ".tmp", ".reserve"
OWN = frozenset({META, LOCKS, TEMPORARIES, RESERVE})
LOCKS_COUNT = 64
MAX_KEY_BYTES = 1024
MAX_COMPONENT_BYTES = 245  # of the 255 of a file name; the sidecar's adds five

_FOLDER_LIKE_SIDECAR = re.compile(r"(\.json%*)/")
_HINT = "Encode names with tailrace.logstore.keys and spell keys with tailrace.logstore.keys."


class KeyPaths:
    """Paths of keys below one root folder."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.temporaries = f"{self.root}/{TEMPORARIES}"
        self.locks = f"{self.root}/{LOCKS}"
        self.meta = f"{self.root}/{META}"

    def object(self, key: str) -> str:
        """The path of the object's bytes.

        Raises `InvalidName` for a key that no object can have.
        """
        check_key(key)
        return f"{self.root}/{key}"

    def sidecar(self, key: str) -> str:
        """The path of the object's sidecar.

        A folder's name that ends in `.json` gets a `%`, so that the sidecar of `a` does not
        stand in the way of those of `a.json/b`.
        """
        spelled = _FOLDER_LIKE_SIDECAR.sub(r"\1%/", key)
        return f"{self.meta}/{spelled}.json"

    def lock(self, key: str) -> str:
        """The path of the lock that every writer of the key holds while it decides and renames."""
        stripe = xxhash.xxh3_64_intdigest(os.fsencode(key)) % LOCKS_COUNT
        return f"{self.locks}/{stripe:02x}"

    def all_locks(self) -> list[str]:
        """The paths of all locks that `lock` can return."""
        return [f"{self.locks}/{stripe:02x}" for stripe in range(LOCKS_COUNT)]


def check_key(key: str) -> None:
    """Raises `InvalidName` unless it is relative, clean and short enough."""
    components = key.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in components):
        raise InvalidName(f"{key!r} is not a key", field="key", hint=_HINT)
    if components[0] in OWN:
        raise InvalidName(f"{components[0]} belongs to the store itself", field="key", hint=_HINT)
    if len(os.fsencode(key)) > MAX_KEY_BYTES:
        raise InvalidName(f"a key has at most {MAX_KEY_BYTES} bytes", field="key", hint=_HINT)
    if any(len(os.fsencode(part)) > MAX_COMPONENT_BYTES for part in components):
        raise InvalidName(
            f"a key's component has at most {MAX_COMPONENT_BYTES} bytes", field="key", hint=_HINT
        )


@dataclass(slots=True)
class _WalkPlace:
    """The place of a walk: only keys above `after` are wanted."""

    after: str


class Walk:
    """The objects below `root` as keys."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root

    def keys(self, prefix: str, after: str) -> Generator[str, str | None]:
        """Keys that begin with `prefix` and are above `after`, or above a key that is sent."""
        base = prefix[: prefix.rfind("/") + 1]
        if is_clean(base):
            yield from self._below(base, prefix, _WalkPlace(after))

    def folders(self, prefix: str, after: str) -> Iterator[str]:
        """Components below `prefix` that have objects below themselves, above `after`."""
        if not is_clean(prefix):
            return
        for entry in self._entries(prefix):
            is_new = not after or entry > f"{after}/"
            if entry.endswith("/") and is_new and self._has_objects(prefix + entry):
                yield entry[:-1]

    def _below(self, base: str, prefix: str, place: _WalkPlace) -> Generator[str, str | None]:
        for entry in self._entries(base):
            key = base + entry
            if not key.startswith(prefix):
                continue
            if not entry.endswith("/"):
                if key > place.after:
                    place.after = (yield key) or place.after
            elif key > place.after or place.after.startswith(key):
                yield from self._below(key, prefix, place)

    def _has_objects(self, base: str) -> bool:
        return next(self._below(base, base, _WalkPlace("")), None) is not None

    def _entries(self, base: str) -> list[str]:
        try:
            found = list(self._fs.scan(f"{self._root}/{base}".rstrip("/")))
        except OSError as error:
            if means_absent(error):
                return []
            raise
        own = OWN if not base else frozenset[str]()
        return sorted([f"{name}/" if folder else name for name, folder in found if name not in own])


def is_clean(base: str) -> bool:
    """Whether keys may begin with `base`: it is empty, or folders with a `/` after each."""
    return not base or all(part not in ("", ".", "..") for part in base[:-1].split("/"))


# Sidecars: the ETag and metadata of an object, in `.meta/{key}.json`.
#
#   {"etag": …, "size": …, "mtime_ns": …, "inode": …, "metadata": {…}, "replaced": {the same five}}
#
# A sidecar is valid only for a file of that size, time and inode. For any other file the ETag is
# computed from the bytes. The sidecar is written before the file is renamed to its key. Therefore
# `replaced` describes the file that is still at the key until then, or for ever if the writer is
# killed. A sidecar is written without a sync; its loss loses nothing but user metadata.


_ATTEMPTS = 100
_MAX_BYTES = 1 << 16


class LocalMetadata(NamedTuple):
    """ETag and user metadata of one object."""

    etag: str
    metadata: Mapping[str, str]


class KnownFile(NamedTuple):
    """A file, with the metadata that is known for it."""

    stat: Stat
    known: LocalMetadata


class Sidecars:
    """Reads and writes sidecars."""

    def __init__(self, fs: FileSystem, paths: KeyPaths, clock: Clock, entropy: Entropy) -> None:
        self._fs = fs
        self._paths = paths
        self._clock = clock
        self._entropy = entropy

    def read(self, key: str, stat: Stat) -> KnownFile | None:
        """The stored ETag and metadata of the file with that `stat`; None if there are none."""
        try:
            file = self._fs.open(self._paths.sidecar(key), "read")
        except OSError:  # absent, or a name too long: then nothing is known
            return None
        try:
            return _parse(file.pread(_MAX_BYTES, 0), stat)
        finally:
            file.close()

    def write(self, key: str, described: KnownFile, replaced: KnownFile | None = None) -> None:
        """Stores the metadata of a file, and of the file that it will replace. Raises `OSError`."""
        temporary = self.new_temporary()
        file = self._fs.open(temporary, "create")
        try:
            file.write([_spell(described, replaced)])
        finally:
            file.close()
        move(self._fs, temporary, self._paths.sidecar(key))

    def remove(self, key: str) -> None:
        """Removes the sidecar, if there is one."""
        try:
            self._fs.unlink(self._paths.sidecar(key))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return

    def new_temporary(self) -> str:
        """A path for a file that is not an object yet."""
        name = ulid.fresh_text(self._clock, self._entropy)
        return f"{self._paths.temporaries}/{name}"


def move(fs: FileSystem, source: str, target: str) -> None:
    """Renames into a folder, which is made if needed, and made again if it is removed meanwhile."""
    folder = os.path.dirname(target)
    for attempt in range(_ATTEMPTS):
        try:
            if attempt:
                fs.make_folders(folder, sync=False)
            fs.rename(source, target)
        except FileNotFoundError:
            continue
        return
    raise FileNotFoundError(source)


def _spell(described: KnownFile, replaced: KnownFile | None) -> bytes:
    fields = _fields(described)
    return encode_checked(fields if replaced is None else {**fields, "replaced": _fields(replaced)})


def _fields(described: KnownFile) -> dict[str, object]:
    return {
        "etag": described.known.etag,
        "size": described.stat.size,
        "mtime_ns": described.stat.modified_ns,
        "inode": described.stat.inode,
        "metadata": dict(described.known.metadata),
    }


def _parse(text: bytes, stat: Stat) -> KnownFile | None:
    wanted = (stat.size, stat.modified_ns, stat.inode)
    try:
        newest = decode_checked(text)
        for found in (newest, newest.get("replaced")):
            if found and (found["size"], found["mtime_ns"], found["inode"]) == wanted:
                return KnownFile(stat, LocalMetadata(str(found["etag"]), dict(found["metadata"])))
    except (ValueError, KeyError, TypeError, AttributeError):  # torn by a power cut, or changed
        pass
    return None


# The blocking half of the local store: the operations on the disk.
#
# Writes. Bytes are written to a temporary file, which is synced. Then, under the key's lock, the
# condition is checked, the file is renamed to its key, and the folder is synced. Every writer takes
# the lock; otherwise a put without a condition could come between another's check and rename.
# Programs other than ours (Spark, deltalake) write `table/` without it.
#
# A group of small puts has its syncs in common: all temporary files and the parents of new folders
# are synced together, then all files are renamed, then their folders are synced together.
#
# Folders are made and synced before a name is put into them. This process remembers some of the
# folders that it knows to be durable. Deleting the last object of a folder removes the folder; a
# put whose folder was removed that way makes it again.
#
# Reads hold the file open, so they see one whole object, however often the key is rewritten
# meanwhile.


STALE_TEMPORARY_MS = 24 * 3600 * 1000
_SMALL_BYTES = 16 << 10
"""So much is hashed as fast as a sidecar is read: without metadata, it has none."""

T = TypeVar("T")

_MOST_FOLDERS = 4096  # each small run has one; what is forgotten costs a sync of its parent
_NAMES = 64  # are read at a time: they cost little beside what is asked of each file


@contextmanager
def _absent_or_done() -> Iterator[None]:
    """Ignores an error if the name does not exist, or cannot exist."""
    try:
        yield
    except OSError as error:
        if not means_absent(error):
            raise


class Condition(NamedTuple):
    """The condition on the key under which a write happens."""

    if_absent: bool
    if_match: str | None


class Put(NamedTuple):
    """The arguments of one put."""

    key: str
    body: Body
    condition: Condition
    metadata: Mapping[str, str]


class WrittenFile(NamedTuple):
    """A synced temporary file that is to become an object."""

    path: str
    file: KnownFile


@dataclass(slots=True)
class _GroupedPut:
    """A put of a group; without an outcome it must be done alone."""

    put: Put
    path: str = ""
    file: File | None = None
    outcome: ObjectInfo | TailraceError | None = None


class LocalFiles:
    """Every operation of the store as one blocking call. None raises `OSError`.

    The folder must be made before (`make`).
    """

    def __init__(
        self,
        root: str,
        fs: FileSystem,
        clock: Clock,
        entropy: Entropy,
        *,
        most_folders: int = _MOST_FOLDERS,
    ) -> None:
        """`most_folders`: so many are remembered as durable."""
        self._fs = fs
        self._clock = clock
        self._most_folders = most_folders
        self.paths = KeyPaths(root)
        self._sidecars = Sidecars(fs, self.paths, clock, entropy)
        self._walk = Walk(fs, self.paths.root)
        self._durable_folders: set[str] = set()
        self._made = False
        self._making = threading.Lock()
        self._publishing = threading.Lock()

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

    def put(self, put: Put, *, wait: bool = True) -> ObjectInfo | None:
        """As `ObjectStore.put`; without `wait`, None if another writer holds the key's lock."""
        key, body, condition, metadata = put
        self.paths.object(key)
        check_metadata(metadata)
        with translated(f"put {key}"):
            known = LocalMetadata(xxhash.xxh3_128_hexdigest(body), metadata)
            with self._new_file() as (path, file):
                file.write([body])
                file.sync()
                written = WrittenFile(path, KnownFile(file.stat(), known))
            return self._publish(key, written, condition, wait=wait)

    def put_all(self, puts: Sequence[Put]) -> Sequence[ObjectInfo | TailraceError | None]:
        """Makes several small puts with common syncs; returns what each returns or raises.

        None stands for a put that was not made: it meets an error, or another writer holds its
        lock. It must be made alone. This never waits for another process.
        """
        group = [_GroupedPut(put) for put in puts]
        try:
            self._write_all(group)
            with self._publishing:  # else two groups would find each other's locks taken
                self._publish_all([one for one in group if one.path])
        finally:
            for one in group:
                if one.file is not None:
                    one.file.close()
                if one.path:
                    self._discard(one.path)
        return [one.outcome for one in group]

    def compose(
        self,
        key: str,
        parts: Sequence[ObjectPart | bytes],
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
                written = WrittenFile(
                    path, KnownFile(file.stat(), LocalMetadata(_hash(file), metadata))
                )
            made = self._publish(key, written, condition)
            assert made is not None
            return made

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
                behind = yield ListedKey(keys.send(behind), None)

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

    def _append(self, part: ObjectPart | bytes, target: File) -> None:
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

    def _write_all(self, group: Sequence[_GroupedPut]) -> None:
        """Writes and syncs temporary files; one that fails has no `path` afterwards."""
        parents: dict[str, OpenFolder] = {}
        needs: dict[str, Sequence[str]] = {}
        try:
            for one in group:
                with suppress(OSError, TailraceError):
                    self._write_one(one, parents, needs)
            written = [one for one in group if one.path and one.file is not None]
            files = [one.file for one in written if one.file is not None]
            failed = self._fs.sync_all([*files, *parents.values()])
        finally:
            for folder in parents.values():
                folder.close()
        synced = {
            path for path, error in zip(parents, failed[len(files) :], strict=True) if not error
        }
        for made, above in needs.items():
            if synced.issuperset(above):
                self._keep_durable([made, *above])
        lacking = {made for made, above in needs.items() if not synced.issuperset(above)}
        for one, error in zip(written, failed, strict=False):
            if error is not None or os.path.dirname(self.paths.object(one.put.key)) in lacking:
                self._give_up(one)

    def _write_one(
        self, one: _GroupedPut, parents: dict[str, OpenFolder], needs: dict[str, Sequence[str]]
    ) -> None:
        key, body, _, metadata = one.put
        folder = os.path.dirname(self.paths.object(key))
        check_metadata(metadata)
        if folder not in self._durable_folders and folder not in needs:
            self._fs.make_folders(folder, sync=False)
            chain = self._chain_of(folder)[1:]
            for parent in chain:
                if parent not in parents:
                    parents[parent] = self._fs.open_folder(parent)
            needs[folder] = chain
        path = self._sidecars.new_temporary()
        one.file = self._fs.open(path, "create")
        one.path = path
        try:
            one.file.write([body])
        except OSError:
            self._give_up(one)

    def _give_up(self, one: _GroupedPut) -> None:
        self._discard(one.path)
        one.path = ""

    def _publish_all(self, group: Sequence[_GroupedPut]) -> None:
        """Renames what was written, then syncs the folders; all locks are held meanwhile."""
        renamed: dict[str, list[_GroupedPut]] = {}
        with ExitStack() as held:
            locks: dict[str, bool] = {}
            for one in group:
                where = self.paths.lock(one.put.key)
                try:
                    if where not in locks:
                        lock = self._fs.lock(where, wait=False)
                        locks[where] = lock is not None
                        if lock is not None:
                            held.callback(lock.release)
                    if locks[where]:
                        self._replace_one(one)
                        one.path = ""
                        folder = os.path.dirname(self.paths.object(one.put.key))
                        renamed.setdefault(folder, []).append(one)
                except FileNotFoundError:  # somebody removed the folder while it was empty
                    self._forget(os.path.dirname(self.paths.object(one.put.key)))
                except (PreconditionFailed, OutcomeUnknown) as error:
                    one.outcome = error
                except (OSError, TailraceError):
                    continue  # alone it meets the same error, or none
            self._sync_renamed(renamed)

    def _replace_one(self, one: _GroupedPut) -> None:
        key, body, condition, metadata = one.put
        assert one.file is not None
        known = LocalMetadata(xxhash.xxh3_128_hexdigest(body), metadata)
        written = WrittenFile(one.path, KnownFile(one.file.stat(), known))
        self._replace(key, written, condition, self._rename)
        one.outcome = _info_of(key, written.file)

    def _sync_renamed(self, renamed: Mapping[str, Sequence[_GroupedPut]]) -> None:
        opened: list[OpenFolder] = []
        try:
            failed: list[OSError | None] = []
            for path in renamed:
                try:
                    opened.append(self._fs.open_folder(path))
                except OSError as error:
                    failed.append(error)
                    break
            failed = [*self._fs.sync_all(opened), *failed]
        finally:
            for folder in opened:
                folder.close()
        for number, group in enumerate(renamed.values()):
            reason = failed[min(number, len(failed) - 1)]
            for one in group:
                try:
                    with unknown_outcome(f"put {one.put.key}", started=True):
                        if reason is not None:
                            raise reason
                except OutcomeUnknown as error:
                    one.outcome = error

    def _publish(
        self, key: str, written: WrittenFile, condition: Condition, *, wait: bool = True
    ) -> ObjectInfo | None:
        try:
            with self._locked(key, wait=wait) as locked:
                if not locked:
                    self._discard(written.path)
                    return None
                self._replace(key, written, condition, self._place)
        except OutcomeUnknown:
            raise
        except Exception:
            self._discard(written.path)
            raise
        return _info_of(key, written.file)

    def _replace(
        self,
        key: str,
        written: WrittenFile,
        condition: Condition,
        place: Callable[[str, str], None],
    ) -> None:
        """Checks the condition and lets `place` rename the file; the key's lock is held."""
        replaced = self._check(key, condition)
        needed = _needs_sidecar(written.file)
        if needed:
            self._sidecars.write(key, written.file, replaced)
        place(key, written.path)
        if not needed and replaced is not None and _needs_sidecar(replaced):
            self._sidecars.remove(key)  # else it is only of no use

    def _check(self, key: str, condition: Condition) -> KnownFile | None:
        """Returns the metadata of the object that a write replaces. Raises `PreconditionFailed`."""
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

    def _rename(self, key: str, source: str) -> None:
        with unknown_outcome(f"put {key}", started=False):
            self._fs.rename(source, self.paths.object(key))

    def _place(self, key: str, source: str) -> None:
        folder = os.path.dirname(self.paths.object(key))
        for _ in range(_ATTEMPTS):
            try:
                self._make_durable(folder)
                self._rename(key, source)
                break
            except FileNotFoundError:  # somebody removed the folder while it was empty
                self._forget(folder)
        else:
            raise FileNotFoundError(source)
        with unknown_outcome(f"put {key}", started=True):
            self._fs.sync_folder(folder)

    def _make_durable(self, folder: str) -> None:
        """Makes the folder, then syncs the parents of those that another process may have made."""
        if folder in self._durable_folders:
            return
        made = self._fs.make_folders(folder)
        chain = self._chain_of(folder)
        for child, parent in reversed(list(pairwise(chain))):
            if child not in made:
                self._fs.sync_folder(parent)
        self._keep_durable(chain)

    def _keep_durable(self, folders: Sequence[str]) -> None:
        if len(self._durable_folders) + len(folders) > self._most_folders:
            self._durable_folders.clear()
        self._durable_folders.update(folders)

    def _chain_of(self, folder: str) -> list[str]:
        """Returns the folder and the ones above it, up to one that is durable."""
        chain = [folder]
        while chain[-1] != self.paths.root and chain[-1] not in self._durable_folders:
            chain.append(os.path.dirname(chain[-1]))
        return chain

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
    def _locked(self, key: str, *, wait: bool = True) -> Iterator[bool]:
        """Yields false if the lock is held elsewhere and not `wait`."""
        lock = self._fs.lock(self.paths.lock(key), wait=wait)
        try:
            yield lock is not None
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
            found = KnownFile(stat, LocalMetadata(_hash(file), {}))
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
