"""Batches on disk until the service has acknowledged them.

A spool is a folder. Each process that uses it has a folder in it, a queue, for one run:

    SPOOL/
      01M8…/                  a queue: named by a ULID, owned by who holds its lock
        lock                  locked (flock) as long as the owner lives
        target.json           {"version": 2, "url", "fqn", "run", "durability", "check"}
        01M8…00000.batch      a batch: the file's name is the batch's id
        01M8…00000.refused    a batch that the service refused: it is sent again by the next
                              program, and once an hour
        01M8…00000.conflict   a batch whose id the service has with other bytes, kept for people;
                              also .damaged (bytes that are not intact)
        start.json            {"started_ms", "check"}: the run began then; gone once it is reported
        close.json            {"outcome", "started_ms", "ended_ms", "check"}: close the run when all
                              batches are delivered; older versions know only the outcome.
                              close.json.damaged is one that does not read, kept for people

    check      = CRC-32 of the JSON list of [name, value] of the other members but the URL, in hex;
                 a file of an earlier version has none

    batch file = "TRBATCH2", the ULID under which the batch was made (16 bytes, big endian), 1 if
                 its present id was given by the service after a deletion, else 0 (1 byte), CRC-32
                 of all this (4 bytes, big endian), then entries: length (4 bytes, little
                 endian), CRC-32 of length, time and payload (4 bytes), time of writing
                 in ms (8 bytes), payload (records as ndjson)

    version 1  = "TRBATCH1", then entries without the time; their CRC-32 is of length and payload

Invariants:
- The id of a batch is on disk before its first byte. A file that was sent is never written to
  again, and is synced before it is sent: every later attempt sends the same bytes.
- A file is removed once the service has acknowledged it, or the batch was dropped and counted.
- After a deletion, the records that were written after it get a file with another id, and the
  refused one is removed. Files of one ULID of origin are one batch: the one with the highest id is
  it. Batches are sent in the order of their origins.
- A write that a crash broke off is an entry whose checksum fails at the end of a file that was
  never sent. It is left out.
- A queue whose lock is free has no owner any more: any process may take it over.
- Files are for their owner only (0600, folders 0700). No token is ever written.

After a crash: `kill -9` loses nothing that was written; a power cut may lose the bytes written
since the last sync.

A queue is not safe for threads: callers serialise its methods, but for `read`.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from contextlib import suppress
from typing import Any, Dict, List, NamedTuple, Optional, Tuple
from zlib import crc32

from tailrace_client import system
from tailrace_client.records import BatchIds, decode, encode, id_after, is_batch_id

MAGIC = b"TRBATCH2"
_MAGIC_1 = b"TRBATCH1"
BATCH, REFUSED = ".batch", ".refused"
_ASIDE = (REFUSED, ".conflict", ".damaged")
_LOCK, _TARGET, _START, _CLOSE = "lock", "target.json", "start.json", "close.json"
_HEAD_1 = struct.Struct("<II")
_HEAD = struct.Struct("<IIQ")
_CHECKED = struct.Struct("<Q")
_ORIGIN = struct.Struct(">8s16s?")
_HEAD_BYTES = _ORIGIN.size + 4
_VERSION = 2
_MOST_ENTRY = 64 << 20
_DRAFT_SECONDS = 3600.0


class Target(NamedTuple):
    """Where the batches of a queue go."""

    url: str
    fqn: str
    run: str
    durability: str = "durable"


class SpooledBatch(NamedTuple):
    """A batch that takes no more records: its id, its records and the bytes of its file."""

    id: str
    records: int
    size: int


class BatchContent(NamedTuple):
    """The payload of a batch, its number of entries, and the damaged bytes after it.

    `given` says that its id was given by the service after a deletion.
    """

    payload: bytes
    records: int
    damaged: int
    given: bool = False


class SpoolEntry(NamedTuple):
    """A record of a batch, and the time when it was written, by `system.steady_ms`."""

    written_ms: int
    payload: bytes


def written_since(entries: List[SpoolEntry], since_ms: int) -> Tuple[List[SpoolEntry], int]:
    """The entries written at that time or later, and the number of the others."""
    kept = [entry for entry in entries if entry.written_ms >= since_ms]
    return kept, len(entries) - len(kept)


class Closing(NamedTuple):
    """The run is to be closed, with this outcome, when its batches are delivered.

    The times are of its start, if this client began it, and of its end.
    """

    outcome: Optional[str]
    started_ms: Optional[int] = None
    ended_ms: Optional[int] = None


class SpoolQueue:
    """One run's batches in order of their ids. Made by `create` or `take_over`."""

    def __init__(self, path: str, target: Target, lock: int) -> None:
        self.path = path
        self.target = target
        self._lock: Optional[int] = lock
        self._file: Optional[int] = None
        self._current = ""
        self._records: Dict[str, int] = {}
        self._sizes: Dict[str, int] = {}
        self._origins: Dict[str, str] = {}
        self._given = ""
        self.size = 0
        """Bytes of the batches that are not removed."""
        self._unsynced: List[int] = []

    @classmethod
    def create(cls, spool: str, target: Target, ids: BatchIds) -> SpoolQueue:
        """A new queue. Raises `OSError` if the folder cannot be used."""
        os.makedirs(spool, mode=system.PRIVATE_FOLDER, exist_ok=True)
        name = ids.mint()
        # Under a name that nobody takes over, until it is locked.
        draft = os.path.join(spool, f".{name}")
        os.mkdir(draft, mode=system.PRIVATE_FOLDER)
        lock = None
        try:
            lock = system.lock_file(os.path.join(draft, _LOCK))
            if lock is None:
                raise OSError(f"the new folder {draft} is locked by another process")
            content = _checked({"version": _VERSION, **target._asdict()})
            system.write_whole(os.path.join(draft, _TARGET), content)
            path = os.path.join(spool, name)
            system.rename(draft, path)
        except BaseException:
            if lock is not None:
                os.close(lock)
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return cls(path, target, lock)

    @classmethod
    def take_over(cls, path: str, *, refused: bool = False) -> Optional[SpoolQueue]:
        """The queue of a process that has ended; None if it has an owner, or is no queue.

        With `refused` it has the batches again that the service refused. Raises `ValueError` for
        one that this version cannot read.
        """
        if not os.path.isdir(path):
            return None
        lock = system.lock_file(os.path.join(path, _LOCK))
        if lock is None:
            return None
        try:
            queue = cls(path, read_target(path), lock)
            for name in sorted(os.listdir(path)):
                stem, suffix = os.path.splitext(name)
                if suffix == REFUSED and refused and is_batch_id(stem):
                    system.rename(os.path.join(path, name), queue._path(stem))
                    suffix = BATCH
                if suffix == BATCH and is_batch_id(stem):
                    queue._find(stem)
                elif name.endswith(f"{BATCH}.new"):  # what a crash left of it
                    os.unlink(os.path.join(path, name))
        except BaseException:
            os.close(lock)
            raise
        return queue

    @property
    def records(self) -> int:
        """Records of the batches that are not removed."""
        return sum(list(self._records.values()))

    @property
    def open_batch(self) -> str:
        """The id of the batch that still takes records; empty if there is none."""
        return self._current

    @property
    def open_size(self) -> int:
        """Bytes of the batch that still takes records; 0 if there is none."""
        return self._sizes.get(self._current, 0)

    def append(self, entries: List[SpoolEntry], ids: BatchIds) -> None:
        """Adds records to the open batch, or to a new one. Raises `OSError`: none was added."""
        if self._file is None:
            self._begin(ids.mint())
        file = self._file
        assert file is not None
        data = b"".join([_encode(entry) for entry in entries])
        start = self._sizes[self._current]
        try:
            written = os.write(file, data)
            if written != len(data):
                raise OSError(28, "no space left for the whole record")
        except OSError:
            os.ftruncate(file, start)
            raise
        self._resize(self._current, start + len(data))
        self._records[self._current] += len(entries)

    def seal(self) -> None:
        """Ends the open batch: it takes no more records. It is not synced yet."""
        if self._file is not None:
            self._unsynced.append(self._file)
            self._file, self._current = None, ""

    def descriptors(self) -> List[int]:
        """Copies of the descriptors of what may not be synced, for the caller to sync and close."""
        files = [*self._unsynced, *([] if self._file is None else [self._file])]
        copies = [os.dup(file) for file in files]
        done, self._unsynced = self._unsynced, []
        for file in done:
            os.close(file)
        return copies

    def sealed(self) -> List[SpooledBatch]:
        """The batches that may be sent, oldest first."""
        return [
            SpooledBatch(name, self._records[name], self._sizes[name])
            for name in sorted(self._sizes, key=lambda name: (self.origin(name), name))
            if name != self._current
        ]

    def origin(self, batch: str) -> str:
        """The id under which a batch was made: it stays when the batch gets another one."""
        return self._origins.get(batch, batch)

    def read(self, batch: str) -> BatchContent:
        """A batch from its file. Raises `OSError`."""
        with open(self._path(batch), "rb") as file:
            return parse(file.read())

    def send_anew(self, batch: str, new: str, since_ms: int) -> Tuple[str, int]:
        """After a deletion: puts what was written since under the id `new`, or a higher one.

        Returns the id, which is empty if nothing is left, and the number of records that were
        dropped. Raises `OSError`: nothing was changed.
        """
        if self._given >= new:
            new = id_after(self._given)
        with open(self._path(batch), "rb") as file:
            entries = _entries(file.read(), int(os.fstat(file.fileno()).st_mtime * 1000))
        kept, dropped = written_since(entries, since_ms)
        origin = self.origin(batch)
        if kept:
            self._put(new, origin, kept, given=True)
            self._given = new
        self.remove(batch)
        return new if kept else "", dropped

    def keep(self, batch: str, entries: List[SpoolEntry], *, given: bool) -> None:
        """Adds a batch that has its id already. Raises `OSError`: nothing was changed."""
        self._put(batch, batch, entries, given=given)

    def _put(self, batch: str, origin: str, entries: List[SpoolEntry], *, given: bool) -> None:
        body = _head(origin, given=given) + b"".join([_encode(entry) for entry in entries])
        system.write_whole(self._path(batch), body)
        self._origins[batch], self._records[batch] = origin, len(entries)
        self._resize(batch, len(body))

    def remove(self, batch: str) -> None:
        """Removes a batch: it was acknowledged, or dropped and counted."""
        with suppress(FileNotFoundError):
            os.unlink(self._path(batch))
        self._forget(batch)

    def give_new_id(self, batch: str, ids: BatchIds) -> str:
        """Renames a batch that the service certainly does not have."""
        new = ids.mint()
        system.rename(self._path(batch), self._path(new))
        self._origins[new] = self._origins.pop(batch, batch)
        self._sizes[new] = self._sizes.pop(batch)
        self._records[new] = self._records.pop(batch)
        return new

    def set_aside(self, batch: str, why: str) -> str:
        """Keeps a batch for people, and sends it no more: `why` is the file's new ending."""
        path = os.path.join(self.path, f"{batch}.{why}")
        system.rename(self._path(batch), path)
        self._forget(batch)
        return path

    @property
    def closing(self) -> Optional[Closing]:
        """Whether the run is to be closed when all batches are delivered.

        What does not read is kept as `….damaged`, and the run is closed without an outcome.
        """
        path = os.path.join(self.path, _CLOSE)
        try:
            with open(path, "rb") as file:
                value = _whole(file.read())
                return Closing(*(value.get(field) for field in Closing._fields))
        except FileNotFoundError:
            return None
        except ValueError:
            with suppress(FileNotFoundError):
                os.link(path, f"{path}.damaged")
            system.write_whole(path, _checked({"outcome": None}))
            return Closing(None)

    @closing.setter
    def closing(self, value: Closing) -> None:
        content = _checked(value._asdict())
        system.write_whole(os.path.join(self.path, _CLOSE), content)

    @property
    def kept_close(self) -> str:
        """Where a note to close the run is kept that did not read; empty without one."""
        kept = os.path.join(self.path, f"{_CLOSE}.damaged")
        return kept if os.path.exists(kept) else ""

    @property
    def started_ms(self) -> Optional[int]:
        """When the run began, if that is to be reported."""
        try:
            with open(os.path.join(self.path, _START), "rb") as file:
                value = _whole(file.read()).get("started_ms")
        except (FileNotFoundError, ValueError):
            return None
        return value if isinstance(value, int) else None

    @started_ms.setter
    def started_ms(self, value: int) -> None:
        content = _checked({"started_ms": value})
        system.write_whole(os.path.join(self.path, _START), content)

    def start_reported(self) -> None:
        """Nobody needs to report the start of the run any more."""
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, _START))

    def closed(self) -> None:
        """The run was closed: nobody needs to do it later."""
        self.start_reported()
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, _CLOSE))

    def release(self) -> None:
        """Lets another process take the queue over. An empty queue is removed."""
        self.seal()
        for file in self._unsynced:
            system.sync(file)
            os.close(file)
        self._unsynced = []
        lock, self._lock = self._lock, None
        if lock is None:
            return
        if set(os.listdir(self.path)) <= {_LOCK, _TARGET}:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(lock)

    def leave_to_parent(self) -> None:
        """In a forked child: closes what it inherited. The parent keeps its lock."""
        for file in (self._lock, self._file, *self._unsynced):
            if file is not None:
                os.close(file)
        self._lock, self._file, self._unsynced = None, None, []

    def _begin(self, batch: str) -> None:
        file = system.open_new(self._path(batch))
        try:
            os.write(file, _head(batch, given=False))
            system.sync_folder(self.path)
        except BaseException:
            os.close(file)
            os.unlink(self._path(batch))
            raise
        self._resize(batch, _HEAD_BYTES)
        self._records[batch] = 0
        self._current, self._file = batch, file

    def _resize(self, batch: str, size: int) -> None:
        self.size += size - self._sizes.get(batch, 0)
        self._sizes[batch] = size

    def _find(self, batch: str) -> None:
        """Takes a batch that an earlier owner wrote."""
        with open(self._path(batch), "rb") as file:
            data = file.read()
        origin, given = _origin_of(data) or (batch, False)
        for other in [name for name, found in self._origins.items() if found == origin]:
            self.remove(other)  # a crash kept it from being removed: this one is in its place
        self._origins[batch] = origin
        self._resize(batch, len(data))
        self._records[batch] = parse(data).records
        if given:
            self._given = max(self._given, batch)

    def _forget(self, batch: str) -> None:
        self.size -= self._sizes.pop(batch, 0)
        self._records.pop(batch, None)
        self._origins.pop(batch, None)

    def _path(self, batch: str) -> str:
        return os.path.join(self.path, batch + BATCH)


def read_target(path: str) -> Target:
    """Where a queue's batches go. Raises `ValueError` for a queue that cannot be read."""
    try:
        with open(os.path.join(path, _TARGET), "rb") as file:
            value = _whole(file.read())
        if value["version"] > _VERSION:
            raise ValueError(f"{path} has version {value['version']}: use a newer tailrace-client")
        return Target(*(str(value[field]) for field in Target._fields))
    except (OSError, KeyError, TypeError, _Changed) as error:
        raise ValueError(f"{path} is not a queue of a spool: {error}") from error


class _Changed(ValueError):
    """The bytes differ from those that were written."""


def _checked(members: Dict[str, Any]) -> bytes:
    """The JSON of members with their checksum."""
    return json.dumps({**members, "check": _check_of(members)}).encode()


def _whole(data: bytes) -> Dict[str, Any]:
    """The members without the checksum. Raises `_Changed`."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise _Changed(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _Changed("it is not a JSON object")
    check = value.pop("check", None)
    if check is not None and check != _check_of(value):
        raise _Changed("it does not match its checksum")
    return value


def _check_of(members: Dict[str, Any]) -> str:
    """Of all but the URL: a person may write another one, if the service has moved."""
    checked = [[name, value] for name, value in members.items() if name != "url"]
    return f"{crc32(json.dumps(checked).encode()):08x}"


def queues(spool: str) -> List[str]:
    """The folders of all queues of a spool, oldest first. Drafts that a crash left are removed."""
    try:
        names = sorted(os.listdir(spool))
    except FileNotFoundError:
        return []
    for name in names:
        if name.startswith(".") and is_batch_id(name[1:]):
            age = system.now_ms() - (decode(name[1:]) >> 80)
            if age > _DRAFT_SECONDS * 1000:
                shutil.rmtree(os.path.join(spool, name), ignore_errors=True)
    return [os.path.join(spool, name) for name in names if is_batch_id(name)]


def has_work(path: str) -> bool:
    """Whether a queue has anything to deliver."""
    return any(name in (_START, _CLOSE) or name.endswith(BATCH) for name in _names(path))


def set_aside_in(path: str) -> List[str]:
    """The paths of a queue's batches that the service did not take for good."""
    return [os.path.join(path, name) for name in _names(path) if name.endswith(_ASIDE)]


def _names(path: str) -> List[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _head(origin: str, *, given: bool) -> bytes:
    head = _ORIGIN.pack(MAGIC, decode(origin).to_bytes(16, "big"), given)
    return head + crc32(head).to_bytes(4, "big")


def _origin_of(data: bytes) -> Optional[Tuple[str, bool]]:
    """The id under which a batch was made, and whether its present one was given."""
    checksum = crc32(data[: _ORIGIN.size]).to_bytes(4, "big")
    if not data.startswith(MAGIC) or data[_ORIGIN.size : _HEAD_BYTES] != checksum:
        return None
    _, raw, given = _ORIGIN.unpack_from(data)
    return encode(int.from_bytes(raw, "big")), bool(given)


def _encode(entry: SpoolEntry) -> bytes:
    payload, written_ms = entry.payload, entry.written_ms
    return _HEAD.pack(len(payload), _checksum(payload, written_ms), written_ms) + payload


def _checksum(payload: bytes, written_ms: int) -> int:
    return crc32(payload, crc32(_CHECKED.pack(written_ms), len(payload)))


def parse(data: bytes) -> BatchContent:
    """The intact entries of a file's beginning."""
    found = _origin_of(data)
    entries, at = _walk(data, 0)
    payload = b"".join([entry.payload for entry in entries])
    return BatchContent(payload, len(entries), len(data) - at, found is not None and found[1])


def _entries(data: bytes, written_ms: int) -> List[SpoolEntry]:
    """The intact entries; those of version 1 do not say when they were written."""
    return _walk(data, written_ms)[0]


def _walk(data: bytes, written_ms: int) -> Tuple[List[SpoolEntry], int]:
    """The intact entries, and where they end."""
    if data.startswith(_MAGIC_1):
        head, at = _HEAD_1, len(_MAGIC_1)
    elif _origin_of(data) is not None:
        head, at = _HEAD, _HEAD_BYTES
    else:
        return [], 0
    entries: List[SpoolEntry] = []
    while at + head.size <= len(data):
        length, checksum, *times = head.unpack_from(data, at)
        end = at + head.size + length
        if length > _MOST_ENTRY or end > len(data):
            break
        payload = data[at + head.size : end]
        found = _checksum(payload, times[0]) if times else crc32(payload, length)
        if found != checksum:
            break
        entries.append(SpoolEntry(times[0] if times else written_ms, payload))
        at = end
    return entries, at
