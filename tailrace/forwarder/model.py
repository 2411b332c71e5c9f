"""The types that the parts of the forwarder share.

A batch is a range [start, end) of one file's content, both of them entry borders. Offsets count
bytes of the decompressed content. Nothing is carried over a border except the `EntryCursor`, which
has all that is needed to go on after it. So the same range gives the same body at any time,
wherever its bytes are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import xxhash

Kind = Literal["text/plain", "application/x-ndjson"]
Stage = Literal["open", "rotated", "done", "gone", "failed"]


@dataclass(frozen=True, slots=True)
class EntryCursor:
    """A border between entries, and the state that the entries before it left."""

    offset: int = 0
    """Bytes of decompressed content."""
    records: int = 0
    """Records before it; `log.file.record_number` counts from 1."""
    header: Mapping[str, str] | None = None
    """Attributes of the file's header. None: before it, or none is configured. An empty name among
    them says that the header may go on."""
    inside: int = 0
    """How many pieces of an entry longer than `max_log_size` are before it, if that entry goes on
    behind it; 0 at the begin of an entry."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The facts of a file when a batch of it is packed first; they are stored with that batch."""

    path: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    """What `include_file_name` and the like ask for, by the names of the attributes."""


@dataclass(frozen=True, slots=True)
class Packed:
    """The body of a batch, and where it ends."""

    end: EntryCursor
    body: bytes
    """May be empty, if the range gives no record, as a header does; then nothing is sent."""
    kind: Kind
    records: int
    attributes: str = ""
    """Of all lines of `text/plain`, as `Tailrace-Attributes` has them."""
    replaced: int = 0
    """Characters that were no text in the file's encoding and are U+FFFD in the body."""
    truncated: int = 0
    """Entries longer than `max_log_size`, that were split or cut."""
    failed: int = 0
    """Entries that an operator could not parse."""

    def digest(self) -> int:
        """xxh3-64 of the request: the body, after a line with the attributes if it has any."""
        digest = xxhash.xxh3_64(f"{self.attributes}\n".encode() if self.attributes else b"")
        digest.update(self.body)
        return digest.intdigest()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch as the checkpoint log has it before the batch is sent first."""

    batch: str
    """ULID."""
    start: EntryCursor
    end: EntryCursor
    digest: int
    """`Packed.digest` of what is sent."""
    content: int
    """xxh3-64 of the range's bytes, by which the file is known that they are read again from."""
    facts: FileFacts
    fqn: str
    run: str
    read_ms: int = 0
    """When its bytes were read, by `system.steady_ms` of the client; 0: not known."""
    given: bool = False
    """The service gave its id, after a deletion."""


@dataclass(frozen=True, slots=True)
class FileState:
    """One record of the checkpoint log; of an id the last one counts."""

    id: str
    """Opaque, given when the file was seen first."""
    source: str
    path: str
    """Where it was seen last."""
    fingerprint: bytes
    """The first bytes of its decompressed content; fewer while it is shorter."""
    window: tuple[int, int, int]
    """Offset, length and xxh3-64 of the bytes before the acknowledged offset; before the end as it
    was seen first, if nothing is acknowledged."""
    device: int
    inode: int
    """With `device` a hint, and no identity."""
    size: int
    """Bytes, as seen last."""
    seen_ms: int
    """Milliseconds since 1970; `forget_after` counts from then."""
    cursor: EntryCursor
    """Everything before it is acknowledged."""
    prepared: tuple[Prepared, ...] = ()
    fqn: str = ""
    run: str = ""
    stage: Stage = "open"
    lost: int = 0
    """Bytes that are proven lost."""
    written_ns: int = 0
    """When it was written last, nanoseconds since 1970."""
    stored_size: int = 0
    """Bytes of the file, compressed if it is, if nothing more is expected of it."""
    archives: bool = False
    """All archives of its source were known when this was written."""
    named: str = ""
    """The path under which it was written, if that is not `path`."""
    copies: tuple[tuple[int, int], ...] = ()
    """Where copies of it ended that are shorter than it: offset and xxh3-64 of the bytes before."""
    recent: tuple[int, bytes] = (0, b"")
    """An offset and the bytes before it, if a copy that nobody saw yet may end among them."""
    cut: tuple[int, int, int] = (0, 0, 0)
    """The window at the end of a copy that is all that is left of it, and ends before `cursor`."""
