"""The object store: the one interface through which programs share durable data.

An implementation passes `tests/contracts/object_store.py` as it is. Rules that
callers rely on, and that S3, MinIO and the local store all keep:

- A put is atomic: readers see the whole old object or the whole new one.
- After a put, compose or delete returns, every later get, head and list shows it.
- `if_absent` and `if_match` are honoured by put and compose; of several racing
  writers with the same condition at most one succeeds.
- Conditions on delete do not exist. A copy honours conditions on its *source* only.
- An ETag is a hash of bytes, not a version: equal bytes may have equal ETags. A caller that
  needs a version puts a fresh ULID inside the object.
- A write that fails with `OutcomeUnknown` may have happened.
- Keys are relative, `/`-separated, already encoded (`logstore.names`, `logstore.keys`).

The metadata of an object are short pairs of text beside its bytes. S3 keeps them as headers: 2 KB
in total, names and values in ASCII, names in lower case.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from logstore.errors import InvalidInput

# S3's 2048, less the id of the write that an S3 store adds, and MinIO counts `x-amz-meta-`.
MAX_BYTES: Final = 1900
_NAME: Final = re.compile(r"[a-z0-9-]+")
_VALUE: Final = re.compile(r"[ -~]*")


def is_remote(uri: str) -> bool:
    """Whether what a store's `uri` gave is on S3: else it is a path on this machine."""
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

    `modified_ms` may be of whole seconds. That of a write's result is the time of the answer,
    and may differ by a second from what is read later.
    """

    key: str
    size: int
    etag: str
    modified_ms: int
    metadata: Mapping[str, str] = field(default_factory=dict)


class Listed(NamedTuple):
    """A key, with the object's size where a store has it without looking at each object."""

    key: str
    size: int | None


Listing: TypeAlias = Generator[Listed, "str | None"]


@dataclass(frozen=True, slots=True)
class Part:
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
        parts: Sequence[Part | bytes],
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
