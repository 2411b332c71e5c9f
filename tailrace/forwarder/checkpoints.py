"""Checkpoints: the state of each file on disk, so that no crash loses or repeats a line.

    put(), forget()  ─►  memory  ─►  sync(): one frame, one fdatasync  ─►  the file of the log

`Checkpoints` is the log of one storage folder, on disk before anything is sent. The file with the
highest number is the log. A new file is written of all known states at each start, and each time
when the log is over four times its first size and over 8 MiB: written, synced, renamed, folder
synced, and then the older ones are removed.

Invariants:

- When `sync` has returned, a power cut loses nothing that was put before it.
- Only a file in which every write and sync succeeded is appended to. After an error, whose effect
  nobody knows, the next `sync` writes a new file from memory: memory has everything.
- A file of the log gets its name only when it is whole.
- The next `sync` notices a file that was removed or replaced, and writes a new one.

`Checkpoints` is for one thread. `read_states` reads without the lock, while a forwarder writes.
"""

from __future__ import annotations

import binascii
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast, get_args
from zlib import crc32

from tailrace.forwarder.model import EntryCursor, FileFacts, FileState, Prepared, Stage
from tailrace.logstore.clock import Clock, SystemClock
from tailrace.logstore.errors import (
    Damaged,
    FolderLocked,
    NotFound,
    Unavailable,
    UnsupportedVersion,
)
from tailrace.logstore.filesystem import Disk, File, FileSystem, Lock

# Errors that keep checkpoints from being used. Each hint says what to do.


class StorageInUse(FolderLocked):
    """Another forwarder has the storage."""

    hint = "Stop the other forwarder, or give this one another `storage`."


class StorageDamaged(Damaged):
    """The checkpoints differ from those that were synced."""

    hint = (
        "`tailrace forward state reset --damaged` keeps the files that are still readable; it"
        " reads the others again."
    )


class StorageFailed(Unavailable):
    """The disk refused. Everything that was put stays in memory: sync again later."""

    hint = "Free disk space, or give `storage` a folder on a disk that can be written."


# The state of a file as a line of JSON.
#
#   {"id": "…", "source": "…", "path": "…", "fingerprint": "<base64>",
#    "window": [offset, length, xxh3], "device": 1, "inode": 2, "size": 3, "seen_ms": 4,
#    "cursor": [offset, records, header or null, pieces of a long entry before it],
#    "prepared": [{"batch": "<ULID>", "start": <cursor>, "end": <cursor>, "digest": <xxh3>,
#                  "content": <xxh3 of the range's bytes>, "path": "…", "attributes": {…},
#                  "fqn": "…", "run": "…"}, …],
#    "fqn": "…", "run": "…", "stage": "open", "lost": 0,
#    "written_ns": 5, "stored_size": 6, "archives": true, "named": "…",
#    "copies": [[offset, xxh3], …], "recent": [offset, "<base64>"], "cut": [offset, length, xxh3]}
#   {"forget": "<id>"}
#
# The fields from `written_ns` on are left out where they have their default.
#
# `fingerprint` is left out if an earlier line of the same log file has it for this id already.
# Names of files that are no UTF-8 have surrogates, as `os.fsdecode` makes them, in ASCII escapes.


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_NUMBERS = ("device", "inode", "size", "seen_ms", "lost")
_TEXTS = ("id", "source", "path", "fqn", "run")
_STAGES = get_args(Stage)


@dataclass(frozen=True, slots=True)
class Forget:
    """The file of this id is not tracked any more."""

    id: str


def encode(state: FileState, *, with_fingerprint: bool) -> bytes:
    """The line of a state, with its end."""
    value: dict[str, Any] = {name: getattr(state, name) for name in (*_TEXTS, *_NUMBERS)}
    if with_fingerprint:
        value["fingerprint"] = _to_base64(state.fingerprint)
    value["window"] = state.window
    value["stage"] = state.stage
    value["cursor"] = _cursor(state.cursor)
    value["prepared"] = [_prepared(batch) for batch in state.prepared]
    if state.written_ns:
        value["written_ns"] = state.written_ns
    if state.stored_size:
        value["stored_size"] = state.stored_size
    if state.archives:
        value["archives"] = True
    if state.named:
        value["named"] = state.named
    if state.copies:
        value["copies"] = state.copies
    if state.recent[1]:
        value["recent"] = [state.recent[0], _to_base64(state.recent[1])]
    if state.cut[1]:
        value["cut"] = state.cut
    return _encode(value).encode("ascii") + b"\n"


def encode_forget(file_id: str) -> bytes:
    """The line that says that a file is forgotten."""
    return _encode({"forget": file_id}).encode("ascii") + b"\n"


def decode(line: bytes, known: Mapping[str, FileState]) -> FileState | Forget:
    """Decodes a line; `known` are the states before it.

    Raises `ValueError` for a line that this program does not write, and for one whose state has its
    fingerprint in a line that is missing.
    """
    try:
        value = json.loads(line)
        if "forget" in value:
            return Forget(_text(value["forget"]))
        plain: dict[str, Any] = {name: _text(value.pop(name)) for name in _TEXTS}
        plain |= {name: _number(value.pop(name)) for name in _NUMBERS}
        recent_end, recent = value.pop("recent", (0, ""))
        state = FileState(
            **plain,
            fingerprint=_fingerprint(value.pop("fingerprint", None), known.get(plain["id"])),
            window=_window(value.pop("window")),
            cursor=_to_cursor(value.pop("cursor")),
            stage=_stage(value.pop("stage")),
            prepared=tuple([_to_prepared(batch) for batch in value.pop("prepared")]),
            written_ns=_number(value.pop("written_ns", 0)),
            stored_size=_number(value.pop("stored_size", 0)),
            archives=_flag(value.pop("archives", False)),
            named=_text(value.pop("named", "")),
            copies=tuple([(_number(end), _number(xxh3)) for end, xxh3 in value.pop("copies", ())]),
            recent=(_number(recent_end), _from_base64(recent)),
            cut=_window(value.pop("cut", (0, 0, 0))),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a state is not as this program writes it: {error!r}") from error
    if value:
        raise ValueError(f"a state has the unknown field {next(iter(value))!r}")
    return state


def _fingerprint(text: str | None, known: FileState | None) -> bytes:
    if text is not None:
        return _from_base64(text)
    if known is None:
        raise ValueError("the line with a file's fingerprint is missing")
    return known.fingerprint


def _to_base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _from_base64(text: str) -> bytes:
    return binascii.a2b_base64(text, strict_mode=True)


def _window(value: Any) -> tuple[int, int, int]:
    offset, length, digest = map(_number, value)
    return offset, length, digest


def _cursor(cursor: EntryCursor) -> list[Any]:
    header = None if cursor.header is None else dict(cursor.header)
    return [cursor.offset, cursor.records, header, cursor.inside]


def _to_cursor(value: Any) -> EntryCursor:
    offset, records, header, inside = value
    attributes = None if header is None else _mapping(header)
    return EntryCursor(_number(offset), _number(records), attributes, _number(inside))


def _prepared(batch: Prepared) -> dict[str, Any]:
    return {
        "batch": batch.batch,
        "start": _cursor(batch.start),
        "end": _cursor(batch.end),
        "digest": batch.digest,
        "content": batch.content,
        "path": batch.facts.path,
        "attributes": dict(batch.facts.attributes),
        "fqn": batch.fqn,
        "run": batch.run,
        "read_ms": batch.read_ms,
        "given": int(batch.given),
    }


def _to_prepared(value: Any) -> Prepared:
    return Prepared(
        batch=_text(value["batch"]),
        start=_to_cursor(value["start"]),
        end=_to_cursor(value["end"]),
        digest=_number(value["digest"]),
        content=_number(value["content"]),
        facts=FileFacts(_text(value["path"]), _mapping(value["attributes"])),
        fqn=_text(value["fqn"]),
        run=_text(value["run"]),
        # Both are absent in the log of an earlier version.
        read_ms=_number(value.get("read_ms", 0)),
        given=bool(_number(value.get("given", 0))),
    )


def _stage(value: Any) -> Stage:
    if value not in _STAGES:
        raise TypeError(f"{value!r} is not a stage")
    return cast(Stage, value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a number")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _mapping(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not a mapping")
    return {_text(name): _text(text) for name, text in value.items()}


# One file of the checkpoint log: frames with checksums, and a last frame that a crash may break.
#
#   file  = "TRFCKPT1", then frames
#   frame = mark (4 bytes: f5 "TRF"), length of the payload (4 bytes, little endian),
#           CRC-32 of length and payload (4 bytes), payload
#   payload = lines of JSON, as above
#
# The first line of the first frame is `{"version": 1, "states": N}`: at least N lines follow, which
# were written and synced before the file had its name. Each later frame is one `write`, and is
# synced before the next is written. So:
#
# - If a frame is not whole and no frame follows it, a crash broke it off: no caller was told that
#   it was written. It is the file's torn tail.
# - A frame that is not whole before another, or among the first N states, is damage.
#
# The mark is no UTF-8, so no payload has it: after a frame with an implausible length the next
# frame is found by its mark.


MAGIC = b"TRFCKPT1"
_FAMILY = MAGIC[:-1]
_MARK = b"\xf5TRF"
_HEAD = struct.Struct("<4sII")
_VERSION = 1
_MOST_PAYLOAD = 1 << 30
_SCAN_BYTES = 1 << 20


def frame(payload: bytes) -> bytes:
    """The head of a frame, which precedes `payload`."""
    length = len(payload)
    return _HEAD.pack(_MARK, length, _checksum(payload))


def first_line(states: int) -> bytes:
    """The first line of a file, with the number of states that follow it."""
    return b'{"version":%d,"states":%d}\n' % (_VERSION, states)


def _checksum(payload: bytes) -> int:
    return crc32(payload, crc32(len(payload).to_bytes(4, "little")))


class Generation:
    """The content of a file of the log: `files`, and the `torn` bytes from `end` on."""

    def __init__(self, file: File, path: str, *, salvage: bool = False) -> None:
        """Reads it. Raises `StorageDamaged`, unless it is to `salvage` what can be read."""
        self.path = path
        self.files: dict[str, FileState] = {}
        self.end = 0
        self.torn = 0
        self.damage = ""
        """With `salvage`: what was found first that is not as it was written."""
        self._file = file
        self._size = file.size()
        self._salvage = salvage
        self._lines = 0
        self._read()

    def tail(self) -> bytes:
        """The torn bytes."""
        return self._file.pread(self.torn, self.end)

    def _read(self) -> None:
        magic = self._file.pread(len(MAGIC), 0)
        if magic != MAGIC:
            if magic[:-1] == _FAMILY:
                raise UnsupportedVersion(f"{self.path} was written by a newer Tailrace")
            self._damaged("does not begin as checkpoints do")
        promised: int | None = None
        for payload in self._payloads():
            lines = payload.splitlines()
            if promised is None:
                promised = self._promised(lines)
            for line in lines:
                self._take(line)
        if promised is None or self._lines < promised:
            self._damaged(f"has {self._lines} of the {promised or 'first'} states it began with")

    def _promised(self, lines: list[bytes]) -> int:
        """How many states follow the first line, which is taken from `lines`."""
        try:
            first = json.loads(lines[0])
            version, states = first["version"], int(first["states"])
        except (ValueError, LookupError, TypeError):
            self._damaged("has no first line")
            return 0
        del lines[0]
        if version != _VERSION:
            raise UnsupportedVersion(f"{self.path} was written by a newer Tailrace")
        return states

    def _take(self, line: bytes) -> None:
        self._lines += 1
        try:
            said = decode(line, self.files)
        except ValueError as error:
            self._damaged(str(error))
            return
        if isinstance(said, Forget):
            self.files.pop(said.id, None)
        else:
            self.files[said.id] = said

    def _payloads(self) -> Iterator[bytes]:
        at = self.end = len(MAGIC)
        while at < self._size:
            payload = self._payload(at)
            if payload is not None:
                yield payload
                at = self.end = at + _HEAD.size + len(payload)
                continue
            found = self._next_frame(at + 1)
            if found is None:
                self.torn = self._size - at
                return
            self._damaged(f"is not whole between the bytes {at} and {found}")
            at = found

    def _payload(self, at: int) -> bytes | None:
        """The payload of the frame that begins at `at`, if one does."""
        head = self._file.pread(_HEAD.size, at)
        if len(head) < _HEAD.size:
            return None
        mark, length, checksum = _HEAD.unpack(head)
        if mark != _MARK or length > min(self._size - at - _HEAD.size, _MOST_PAYLOAD):
            return None
        payload = self._file.pread(length, at + _HEAD.size)
        return payload if _checksum(payload) == checksum else None

    def _next_frame(self, at: int) -> int | None:
        """Where the next whole frame begins."""
        while at < self._size:
            piece = self._file.pread(_SCAN_BYTES + len(_MARK) - 1, at)
            found = piece.find(_MARK)
            if found < 0:
                at += _SCAN_BYTES
            elif self._payload(at + found) is not None:
                return at + found
            else:
                at += found + 1
        return None

    def _damaged(self, what: str) -> None:
        if not self._salvage:
            raise StorageDamaged(f"{self.path} {what}")
        self.damage = self.damage or what


# The files of a storage folder, and its lock.
#
#   STORAGE/
#     lock                      flock, as long as a forwarder or a verb that changes something runs;
#                               it has a byte once there were checkpoints
#     0000000012.checkpoints    the log: the file with the highest number counts, alone
#     0000000013.new            a file that is being written; removed at the next start
#     0000000011.torn           bytes of a write that a crash broke off, kept for people
#     0000000010.damaged        a damaged file; a new one has its readable states
#     0000000009.reset          a file that was reset
#
# Only the owner has access to any of them.


LOG, DRAFT, TORN, DAMAGED, RESET = ".checkpoints", ".new", ".torn", ".damaged", ".reset"
_LOCK = "lock"
_DIGITS = 10


@contextmanager
def errors_as_ours(folder: str) -> Iterator[None]:
    """Turns errors of the disk into `StorageFailed`."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"checkpoints in {folder}: {error.strerror or error}") from error


class CheckpointFolder:
    """A storage folder on a file system. Raises `OSError`."""

    def __init__(self, path: str, fs: FileSystem) -> None:
        self.path = os.path.abspath(path)
        self.fs = fs
        self._inode = 0

    def used(self) -> bool:
        """Whether a forwarder had checkpoints in the folder before."""
        found = self.fs.stat(self._lock_path)
        return found is not None and found.size > 0

    def mark_used(self) -> None:
        """Notes that there are checkpoints: if they are gone later, that is a loss."""
        if not self.used():
            file = self.fs.open(self._lock_path, "append")
            try:
                file.write([b"1"])
                file.sync()
            finally:
                file.close()

    def lock(self) -> Lock:
        """Makes the folder and locks it. Raises `StorageInUse`."""
        self.fs.make_folders(self.path)
        lock = self.fs.lock(self._lock_path, wait=False)
        if lock is None:
            raise StorageInUse(f"another forwarder uses the storage {self.path}")
        self._inode = self._inode_of_lock()
        return lock

    def has_lock(self) -> bool:
        """Whether the file that `lock` locked is still in the folder."""
        return self._inode == self._inode_of_lock()

    def _inode_of_lock(self) -> int:
        found = self.fs.stat(self._lock_path)
        return 0 if found is None else found.inode

    @property
    def _lock_path(self) -> str:
        return os.path.join(self.path, _LOCK)

    def numbers(self, ending: str) -> list[int]:
        """The numbers of files with this ending, rising."""
        names = [name for name, is_folder in self.fs.scan(self.path) if not is_folder]
        stems = [name.removesuffix(ending) for name in names if name.endswith(ending)]
        return sorted([int(stem) for stem in stems if stem.isascii() and stem.isdigit()])

    def file(self, number: int, ending: str) -> str:
        """The path of a file."""
        return os.path.join(self.path, f"{number:0{_DIGITS}d}{ending}")

    def read(self, number: int, *, salvage: bool = False) -> tuple[Generation, bytes]:
        """What a file of the log holds, and its torn tail. Raises `StorageDamaged`."""
        path = self.file(number, LOG)
        file = self.fs.open(path, "read")
        try:
            generation = Generation(file, path, salvage=salvage)
            return generation, generation.tail()
        finally:
            file.close()

    def keep(self, number: int, ending: str, data: bytes) -> str:
        """Writes a file for people, in the place of older ones of its kind: its path."""
        for older in self.numbers(ending):
            self.fs.unlink(self.file(older, ending))
        path = self.file(number, ending)
        file = self.fs.open(path, "create")
        try:
            file.write([data])
            file.sync()
        finally:
            file.close()
        return path


COMPACT_FROM_BYTES = 8 << 20
_TIMES_LIVE = 4
_PAYLOAD_BYTES = 256 << 10


class Checkpoints:
    """The states of all files; one process at a time has a folder.

    Raises `StorageInUse` if another process has it, `StorageDamaged` if the log differs from the
    synced one (with `salvage`, its readable part is kept, and the file as well), and
    `StorageFailed` if the disk refuses. `say` takes a sentence that a person should know. `on_sync`
    takes the seconds that each write with its sync took.
    """

    def __init__(
        self,
        folder: str,
        fs: FileSystem | None = None,
        *,
        say: Callable[[str], None],
        clock: Clock | None = None,
        on_sync: Callable[[float], None] = lambda _: None,
        compact_from_bytes: int = COMPACT_FROM_BYTES,
        salvage: bool = False,
    ) -> None:
        self._folder = CheckpointFolder(folder, fs or Disk(private=True))
        self._say = say
        self._clock = clock or SystemClock()
        self._on_sync = on_sync
        self._compact_from = compact_from_bytes
        self._files: dict[str, FileState] = {}
        self._pending: dict[str, None] = {}  # ids, in the order in which they were put first
        self._fingerprints: dict[str, bytes] = {}  # those that the file of the log has
        self._file: File | None = None
        self._number = 0
        self._size = 0
        self._compact_at = 0
        with errors_as_ours(self.path):
            used = self._folder.used()
            self._lock = self._folder.lock()
            try:
                self._begin(salvage, used)
                self._folder.mark_used()
            except BaseException:
                self._lock.release()
                raise

    @property
    def path(self) -> str:
        """The folder, absolute."""
        return self._folder.path

    @property
    def files(self) -> Mapping[str, FileState]:
        """The last state that was put for each id. Not to be changed."""
        return self._files

    def put(self, state: FileState) -> None:
        """Takes the state of a file in the place of an earlier one; `sync` makes it safe."""
        self._files[state.id] = state
        self._pending[state.id] = None

    def forget(self, id: str) -> None:  # noqa: A002 -- the field's own name
        """Drops the state of a file. Nothing happens for an unknown id."""
        if self._files.pop(id, None) is not None:
            self._pending[id] = None

    def sync(self) -> None:
        """When it returns, all that was put survives a power cut.

        Raises `StorageFailed`; the states stay in memory, and a later call may sync them. Raises
        `StorageInUse` if the folder was removed and another forwarder has begun one in its place.
        """
        with errors_as_ours(self.path):
            lost = self._file is not None and self._is_lost(self._file)
        if not (self._pending or lost):
            return
        began = self._clock.monotonic()
        with errors_as_ours(self.path):
            if lost:
                self._begin_again()
            elif self._file is None:
                self._write_new()
            else:
                self._append(self._file)
        self._on_sync(self._clock.monotonic() - began)
        if self._size > self._compact_at:
            self._compact()

    def close(self) -> None:
        """Syncs and lets others use the folder. Raises `StorageFailed` if it cannot be synced."""
        try:
            self.sync()
        finally:
            self._close_file()
            self._lock.release()

    def reset(self) -> str:
        """Forgets all files, and keeps the log aside: the path that it has now."""
        for file_id in list(self._files):
            self.forget(file_id)
        kept = self._folder.file(self._number, RESET)
        with errors_as_ours(self.path):
            self._write_new(keep_as=RESET)
        return kept

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _begin(self, salvage: bool, used: bool) -> None:
        """`used`: whether an earlier process had the folder."""
        folder = self._folder
        numbers = folder.numbers(LOG)
        self._number = max([0, *numbers, *folder.numbers(DRAFT)])
        if numbers:
            found, torn = folder.read(numbers[-1], salvage=salvage)
            self._files = found.files
            if torn:
                kept = folder.keep(numbers[-1], TORN, torn)
                self._say(
                    f"the last {len(torn)} bytes of {found.path} were not written completely:"
                    f" they are kept in {kept}. If a crash broke off the write, nothing is missing;"
                    " if somebody cut the file, lines may be sent twice"
                )
            if found.damage:
                self._write_new(keep_as=DAMAGED)
                kept = folder.file(numbers[-1], DAMAGED)
                self._say(f"{found.path} {found.damage}: it is kept as {kept}")
                return
        elif used:
            self._say(
                f"ALARM: {self.path} was in use before, and its checkpoints are gone: files are"
                " read as if nothing had been sent, so their lines may be there twice"
            )
        self._write_new()

    def _is_lost(self, file: File) -> bool:
        """Whether the file of the log is not in its place any more."""
        found = self._folder.fs.stat(self._folder.file(self._number, LOG))
        return found is None or found.inode != file.stat().inode

    def _begin_again(self) -> None:
        """Writes what memory has in the place of a folder, or a file, that was taken away."""
        if not self._folder.has_lock():
            lock = self._folder.lock()
            self._lock.release()
            self._lock = lock
        self._write_new()
        self._folder.mark_used()
        self._say(
            f"ALARM: somebody removed or replaced the checkpoints in {self.path} while this"
            " forwarder runs: they are written again, and nothing is lost"
        )

    def _append(self, file: File) -> None:
        changed = list(self._pending)
        payload = b"".join([self._line(file_id) for file_id in changed])
        head = frame(payload)
        try:
            file.write([head, payload])
            file.sync()
        except OSError:
            self._close_file()
            raise
        self._size += len(head) + len(payload)
        self._pending.clear()
        for file_id in changed:
            self._remember(file_id)

    def _line(self, file_id: str) -> bytes:
        state = self._files.get(file_id)
        if state is None:
            return encode_forget(file_id)
        known = self._fingerprints.get(file_id) == state.fingerprint
        return encode(state, with_fingerprint=not known)

    def _remember(self, file_id: str) -> None:
        state = self._files.get(file_id)
        if state is None:
            self._fingerprints.pop(file_id, None)
        else:
            self._fingerprints[file_id] = state.fingerprint

    def _compact(self) -> None:
        """Writes a new file, if the disk takes it; all of this is on the disk in either case."""
        try:
            self._write_new()
        except OSError as error:
            self._compact_at = self._size + self._compact_from
            self._say(f"checkpoints in {self.path} cannot be compacted: {error.strerror or error}")

    def _write_new(self, *, keep_as: str = "") -> None:
        """Writes a new file of all known states, in place of the old ones or next to them."""
        folder = self._folder
        self._remove(DRAFT)
        number = self._number + 1
        draft = folder.file(number, DRAFT)
        file = folder.fs.open(draft, "create")
        try:
            size = self._write_all(file)
        except BaseException:
            file.close()
            with suppress(OSError):  # the next attempt removes it
                folder.fs.unlink(draft)
            raise
        # From now on the old file may lack states of this one: it is not appended to any more.
        self._close_file()
        self._number = number
        try:
            folder.fs.rename(draft, folder.file(number, LOG))
            folder.fs.sync_folder(folder.path)
        except BaseException:
            file.close()
            raise
        self._file, self._size = file, size
        self._compact_at = max(self._compact_from, size * _TIMES_LIVE)
        self._pending.clear()
        self._fingerprints = {state.id: state.fingerprint for state in self._files.values()}
        if keep_as:
            for older in folder.numbers(LOG)[:-1]:
                folder.fs.rename(folder.file(older, LOG), folder.file(older, keep_as))
        self._remove(LOG, below=number)

    def _write_all(self, file: File) -> int:
        size = file.write([MAGIC])
        for payload in _payloads(self._files):
            size += file.write([frame(payload), payload])
        file.sync()
        return size

    def _remove(self, ending: str, *, below: int | None = None) -> None:
        for number in self._folder.numbers(ending):
            if below is None or number < below:
                self._folder.fs.unlink(self._folder.file(number, ending))

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _payloads(files: Mapping[str, FileState]) -> Iterator[bytes]:
    """The states as payloads of frames, of which none is large."""
    lines, size = [first_line(len(files))], 0
    for state in files.values():
        lines.append(encode(state, with_fingerprint=True))
        size += len(lines[-1])
        if size >= _PAYLOAD_BYTES:
            yield b"".join(lines)
            lines, size = [], 0
    if lines:
        yield b"".join(lines)


_ATTEMPTS = 10


def read_states(folder: str, fs: FileSystem | None = None) -> Mapping[str, FileState]:
    """The states by id, as they were at some moment of this call.

    Raises `NotFound` where there are no checkpoints, `StorageDamaged`, `StorageFailed`.
    """
    files = CheckpointFolder(folder, fs or Disk())
    with errors_as_ours(files.path):
        for _ in range(_ATTEMPTS):
            numbers = files.numbers(LOG)
            if not numbers:
                raise NotFound(
                    f"{files.path} has no checkpoints", hint="Name the folder with --storage."
                )
            try:
                return files.read(numbers[-1])[0].files
            except FileNotFoundError:  # a newer one has come, and this is gone
                continue
    raise StorageFailed(f"checkpoints in {files.path} are replaced faster than they are read")
