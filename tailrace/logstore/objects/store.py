"""The object store: the one interface through which programs share durable data.

`ObjectStore` is the interface, `RemoteStore` adds the operations of a store on a server, and
`RangeReader` reads ranges of an object as a file. An implementation passes
`tests/contracts/object_store.py` unchanged. Callers rely on these rules, which S3, MinIO and the
local store all keep:

- A put is atomic: readers see the whole old object or the whole new one.
- After a put, compose or delete returns, every later get, head and list shows it.
- `if_absent` and `if_match` are honoured by put and compose; of several racing writers with the
  same condition at most one succeeds.
- Conditions on delete do not exist. A copy honours conditions on its *source* only.
- An ETag is a hash of bytes, not a version: equal bytes may have equal ETags. A caller that needs a
  version puts a fresh ULID inside the object.
- A write that fails with `OutcomeUnknown` may have happened.
- Keys are relative, `/`-separated, already encoded (`tailrace.logstore.keys`).

The metadata of an object are short pairs of text, stored with its bytes. S3 keeps them as headers:
2 KB in total, names and values in ASCII, names in lower case.
"""

from __future__ import annotations

import io
import re
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.filesystem import File, translated

# S3's 2048, less the id of the write that an S3 store adds, and MinIO counts `x-amz-meta-`.
MAX_BYTES: Final = 1900
_NAME: Final = re.compile(r"[a-z0-9-]+")
_VALUE: Final = re.compile(r"[ -~]*")


def is_remote(uri: str) -> bool:
    """Returns whether the `uri` of a store is on S3; otherwise it is a path on this machine."""
    return uri.startswith("s3://")


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Raises `InvalidInput` for metadata that S3 would not store unchanged."""
    for name, value in metadata.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or value != value.strip():
            raise InvalidInput(
                f"metadata {name!r} is not a name in lower case with a value in ASCII",
                field="metadata",
                hint="Encode it, or put it into an object of its own.",
            )
    size = sum([len(name) + len(value) for name, value in metadata.items()])
    if size > MAX_BYTES:
        raise InvalidInput(
            f"metadata has {size} bytes of {MAX_BYTES}",
            field="metadata",
            hint="Put it into an object of its own.",
        )


Body: TypeAlias = "bytes | bytearray | memoryview"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A stored object; `metadata` is empty in listings.

    `modified_ms` may be of whole seconds. In the result of a write it is the time of the answer,
    and may differ by a second from the time that a later read returns.
    """

    key: str
    size: int
    etag: str
    modified_ms: int
    metadata: Mapping[str, str] = field(default_factory=dict)


class ListedKey(NamedTuple):
    """A key, with the object's size where a store has it without looking at each object."""

    key: str
    size: int | None


Listing: TypeAlias = Generator[ListedKey, "str | None"]


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """A range of a stored object as a source of `compose`; `size` None means to its end."""

    key: str
    offset: int = 0
    size: int | None = None
    if_match: str | None = None


class ObjectStore(Protocol):
    """Immutable-looking objects under keys. All sizes and offsets are bytes."""

    async def put(
        self,
        key: str,
        body: Body,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        """Writes the whole object.

        Raises `PreconditionFailed` (exists, or another ETag, or gone), `StoreUnavailable`
        (nothing was written) or `OutcomeUnknown`.
        """
        ...

    async def get(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> tuple[ObjectInfo, bytes]:
        """The object's bytes from `offset`, at most `size` of them, in one request.

        A range that begins at or past the end gives no bytes. Raises `NotFound`,
        `PreconditionFailed`, `StoreUnavailable`.
        """
        ...

    def stream(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> AsyncIterator[bytes]:
        """Like `get`, in pieces of about 1 MiB, in constant memory."""
        ...

    async def head(self, key: str) -> ObjectInfo:
        """The object with its metadata. Raises `NotFound`, `StoreUnavailable`."""
        ...

    async def compose(
        self,
        key: str,
        parts: Sequence[ObjectPart | bytes],
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        """Writes `key` as the concatenated parts; the bytes of stored parts never pass through us.

        A part may be a range of `key` itself. Raises as `put`, and `NotFound` or
        `PreconditionFailed` for a source that does not exist or has another ETag.
        """
        ...

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """Objects whose key begins with `prefix` and is above `after`, in order of key."""
        ...

    def listed(self, prefix: str, *, after: str = "") -> Listing:
        """The keys of `list` for who works in a thread of its own: it blocks.

        It goes on behind a key that is sent to it (`Generator.send`).
        """
        ...

    def folders(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        """The distinct next key components below `prefix` (which ends in `/`), in order.

        Only components that are followed by another `/`, as S3's common prefixes.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Removes the objects; those that do not exist are no error. Raises `StoreUnavailable`."""
        ...

    async def sweep(self, before_ms: int) -> int:
        """Removes the remains of unfinished writes that began before that time; returns how many.

        A write that still continues fails. Raises `StoreUnavailable`.
        """
        ...

    def uri(self, key: str) -> str:
        """The object's address for Spark, DuckDB and deltalake: a path or an `s3://` address."""
        ...


# Further operations of a store on a server: a clock, request counts, rules and checks.
#
# Their callers need none of the vendor's modules, which cost 35 MB of memory and are loaded only
# where a bucket is opened; a store in a folder does without them.
#
# A store with a clock of its own, S3, sends its time in every answer, cut to whole seconds. At some
# moment between sending and arrival the store's time was between `date_ms` and `date_ms` + 1 s.


@dataclass(frozen=True, slots=True)
class DateSample:
    """A `Date` (ms since the epoch), and when its request was sent and answered.

    `sent` and `arrived` are seconds of `Clock.monotonic`; `now_ms` is our wall clock at arrival.
    """

    date_ms: int
    sent: float
    arrived: float
    now_ms: int

    @property
    def bounds_ms(self) -> tuple[int, int]:
        """The least and the most ms by which our clock was ahead of the store's."""
        slow_ms = round((self.arrived - self.sent) * 1000)
        return self.now_ms - slow_ms - (self.date_ms + 1000), self.now_ms - self.date_ms

    @property
    def ahead_ms(self) -> int:
        """The ms by which our clock is ahead of the store's for sure; negative if behind."""
        least, most = self.bounds_ms
        return least if least > 0 else min(most, 0)


class Requesting(Protocol):
    """The part of a store that makes requests."""

    @property
    def made(self) -> Mapping[str, int]:
        """The number of requests by operation, including retries.

        The mapping is updated in place.
        """
        ...


@runtime_checkable
class RemoteStore(Protocol):
    """An object store on a server, with its further operations."""

    @property
    def requests(self) -> Requesting: ...

    @property
    def newest_date(self) -> DateSample | None:
        """The last sample of the store's clock."""
        ...

    async def check(self) -> None:
        """Checks all features that we rely on. Raises `InvalidInput`, `StoreUnavailable`."""
        ...

    async def expire(self, prefix: str, days: int) -> bool:
        """Makes the server remove older objects below `prefix/`. Raises `StoreUnavailable`."""
        ...


def requests_of(store: ObjectStore) -> Mapping[str, int]:
    """The live counts of the store's requests by operation; empty for a folder."""
    return store.requests.made if isinstance(store, RemoteStore) else {}


def newest_date_of(store: ObjectStore) -> Callable[[], DateSample | None] | None:
    """A function for the last sample of the store's clock; None for a store without one."""
    return (lambda: store.newest_date) if isinstance(store, RemoteStore) else None


# Ranges of a stored file, and reading one piece by piece.


PIECE_BYTES = 1 << 20


def check_range(offset: int, size: int | None) -> None:
    """Raises `InvalidInput` for a negative offset or size."""
    if offset < 0 or (size is not None and size < 0):
        raise InvalidInput("offset and size are not negative", field="offset")


def length_of(total: int, offset: int, size: int | None) -> int:
    """The number of bytes that the range has in a file of `total` bytes."""
    rest = max(0, total - offset)
    return rest if size is None else min(rest, size)


class OpenRange:
    """A range of an open object, read piece by piece."""

    def __init__(self, key: str, file: File, offset: int, size: int) -> None:
        self._key = key
        self._file = file
        self._offset = offset
        self._end = offset + size

    def next_piece(self) -> bytes:
        """The next bytes, about 1 MiB; no bytes at the end."""
        with translated(f"get {self._key}"):
            size = min(PIECE_BYTES, self._end - self._offset)
            piece = self._file.pread(size, self._offset) if size > 0 else b""
            self._offset += len(piece)
            return piece

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class RangeReader(io.RawIOBase):
    """A readable, seekable file of `size` bytes, for libraries that read only ranges of it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._at = 0

    @abstractmethod
    def range_at(self, start: int, size: int) -> bytes:
        """So many bytes, at least one, from offset `start` on."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._size - self._at, 0)
        want = left if size is None or size < 0 else min(size, left)
        piece = self.range_at(self._at, want) if want else b""
        self._at += len(piece)
        return piece
