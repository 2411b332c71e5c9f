"""One file of the checkpoint log: frames with checksums, and what a crash may do to the last one.

    file  = "TRFCKPT1", then frames
    frame = mark (4 bytes: f5 "TRF"), length of the payload (4 bytes, little endian),
            CRC-32 of length and payload (4 bytes), payload
    payload = lines of JSON (`forwarder.checkpoints.encoding`)

The first line of the first frame is `{"version": 1, "states": N}`: at least so many lines follow,
which were written and synced before the file had its name. Each later frame is one `write`, and
is synced before the next is written. So:

- A frame that is not whole, with none behind it, is one that a crash broke off: nobody was told
  that it is there. It is the file's torn tail.
- A frame that is not whole before another, or among the first N states, is damage.

The mark is no UTF-8, so no payload has it: behind a frame whose length cannot be believed
the next is found by its mark.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from zlib import crc32

from forwarder.checkpoints.encoding import Forget, decode
from forwarder.checkpoints.errors import StorageDamaged
from forwarder.model import FileState
from logstore.errors import UnsupportedVersion
from logstore.filesystem import File

MAGIC = b"TRFCKPT1"
_FAMILY = MAGIC[:-1]
_MARK = b"\xf5TRF"
_HEAD = struct.Struct("<4sII")
_VERSION = 1
_MOST_PAYLOAD = 1 << 30
_SCAN_BYTES = 1 << 20


def frame(payload: bytes) -> bytes:
    """The head of a frame, which stands before `payload`."""
    length = len(payload)
    return _HEAD.pack(_MARK, length, _checksum(payload))


def first_line(states: int) -> bytes:
    """What a file begins with, before the lines of so many states."""
    return b'{"version":%d,"states":%d}\n' % (_VERSION, states)


def _checksum(payload: bytes) -> int:
    return crc32(payload, crc32(len(payload).to_bytes(4, "little")))


class Generation:
    """What a file of the log holds: `files`, and the `torn` bytes from `end` on."""

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
