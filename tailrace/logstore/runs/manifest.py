"""The manifest of a run: the chunks of its text, its state; changed by compare-and-swap only.

`runs/{fqn}/{run}.json`, a JSON object:

    format      1; 2 with `by_ulid`; 3 if a chunk has its bytes here; a reader that meets a
                higher one stops
    version     a fresh ULID in every write, so that no two versions have equal bytes
    fqn, run    in clear, since a long name's key holds a hash
    state       open | closing | closed | deleted
    generation  T of the last deletion, "" if there was none; ULIDs up to it do not exist
    epoch       grows each time another process takes the run up; `owner` is that process
    chunks      the text, in order: id, kind (chunk | logs), bytes, lines, records, first and
                last (lowest and highest batch ULID), blocks, index_bytes, tail_bytes, etag
                (of `logs.txt`), writers {node: [lowest pos, highest pos + 1]}
    writers     {node: pos}: all batches of that node with a `pos` below are dealt with
    closes      {node: pos}: batches of that node with a `pos` below came before the close
    asking      nodes that closed the run and do not know yet that every other node has closed it
                for its lines; the run is `closing` while there is one; absent without any
    copies      [ULID, node, pos, records] of the last 1,000 batches that a node held as well, and
                that were left out because another node's were in the chunks; may be absent
    fixed       the number of first lines that have their final place; may be absent
    by_ulid     true if lines below `fixed` were sorted by ULID so that positions do not say which
                of them lie before others; absent otherwise
    abandoned   true if the sweeper closed the run, which nobody had closed; absent otherwise
    door        the door by which all its lines came; absent otherwise
    partial     the source of `partial.txt`: bytes, lines, at_ms
    closing     the `logs.txt` that is about to be put: put, bytes, chunks (ids)
    first_ms, last_ms, flushed_ms   times of the first and last batch, and of the last flush

Keys that this version does not know survive a rewrite.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cache import Cache
from tailrace.logstore.cas import Document, RetryBudget, Revision, swap
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    Damaged,
    InvalidInput,
    OutcomeUnknown,
    PreconditionFailed,
    UnsupportedVersion,
)
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.state import advice, decode_checked, encode_checked

FORMAT = 1
_FORMAT_BY_ULID = 2
"""Of a manifest with `by_ulid`: an older version would take positions for the order of lines."""
_FORMAT_INLINE = 3
"""Of a manifest that holds the bytes of a chunk: an older version would look for objects."""
INLINE_BYTES = 4096
"""Of text, and of an index: so many bytes at most stand in the manifest itself."""
Octets: TypeAlias = bytes
"""A chunk has a field of the name `bytes`."""
State = Literal["open", "closing", "closed", "deleted"]
Kind = Literal["chunk", "logs"]

_STATES = ("open", "closing", "closed", "deleted")
_NAMES = (
    "format version fqn run state generation epoch owner chunks writers closes copies partial "
    "closing first_ms last_ms flushed_ms asking by_ulid fixed abandoned door"
)
_KNOWN = frozenset(_NAMES.split(" "))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of the run's text. `first` and `last` are batch ULIDs, 0 if it has none.

    `text` and `index` are those of a small chunk, and have no object; None: they have one.
    """

    id: str
    kind: Kind
    bytes: int
    lines: int
    records: int
    first: int
    last: int
    blocks: int
    index_bytes: int
    tail_bytes: int
    writers: Mapping[str, tuple[int, int]]
    etag: str = ""
    text: Octets | None = None
    index: Octets | None = None


class Copy(NamedTuple):
    """A batch that `node` holds from `pos` on, and that the run's log has from another node."""

    ulid: int
    node: str
    pos: int
    records: int


MOST_COPIES = 1000
"""Of a run: those that came last are kept."""


@dataclass(frozen=True, slots=True)
class Partial:
    """How much of the text `partial.txt` held when it was last published."""

    bytes: int
    lines: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class PendingSeal:
    """The `logs.txt` that a close is about to put: the text of `chunks`, of `bytes` bytes."""

    put: str
    bytes: int
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a run's manifest."""

    key: RunKey
    state: State = "open"
    generation: int = 0
    epoch: int = 0
    owner: str = ""
    chunks: tuple[Chunk, ...] = ()
    writers: Mapping[str, int] = field(default_factory=dict)
    closes: Mapping[str, int] = field(default_factory=dict)
    asking: tuple[str, ...] = ()
    copies: tuple[Copy, ...] = ()
    partial: Partial | None = None
    closing: PendingSeal | None = None
    first_ms: int = 0
    last_ms: int = 0
    flushed_ms: int = 0
    fixed: int = 0
    by_ulid: bool = False
    abandoned: bool = False
    door: str = ""
    version: str = ""
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of text in the chunks."""
        return sum([chunk.bytes for chunk in self.chunks])

    @property
    def inline_bytes(self) -> int:
        """Bytes of text that stand in the manifest."""
        return sum([len(chunk.text) for chunk in self.chunks if chunk.text is not None])

    @property
    def lines(self) -> int:
        """Lines of text in the chunks."""
        return sum([chunk.lines for chunk in self.chunks])

    @property
    def last(self) -> int:
        """The highest batch ULID in the chunks, or the generation if that is higher."""
        return max([self.generation, *[chunk.last for chunk in self.chunks]])

    @property
    def logs(self) -> Chunk | None:
        """The chunk that is `logs.txt`; always the first one."""
        return self.chunks[0] if self.chunks and self.chunks[0].kind == "logs" else None

    @property
    def fixed_lines(self) -> int:
        """The number of first lines that have their final place: later lines come after them."""
        logs = self.logs
        return max(min(self.fixed, self.lines), 0 if logs is None else logs.lines)

    @property
    def fixed_chunks(self) -> int:
        """So many of the first chunks have a line with a final place."""
        count, line = 0, 0
        while count < len(self.chunks) and line < self.fixed_lines:
            line += self.chunks[count].lines
            count += 1
        return count

    @property
    def sealed(self) -> bool:
        """Whether `logs.txt` is the entire text."""
        return self.logs is not None and len(self.chunks) == 1

    def dealt_with(self, node: str) -> int:
        """The position below which all batches of the node are in the chunks or left out."""
        return self.writers.get(node, 0)

    def straddling(self, t: int) -> tuple[Chunk, ...]:
        """Chunks that hold lines from both sides of a deletion up to `t`."""
        return tuple([chunk for chunk in self.chunks if chunk.first <= t < chunk.last])

    def deleted_through(self, t: int) -> Manifest:
        """This manifest after a deletion up to `t`; itself if it includes that deletion already.

        Chunks that were written for lines above `t` stay. A chunk with lines on both sides is
        dropped: the caller that stores the manifest trims that chunk first.
        """
        if self.generation >= t:
            return self
        kept = tuple([chunk for chunk in self.chunks if chunk.first > t])
        if kept and kept == self.chunks:
            return replace(self, generation=t)
        return replace(
            self,
            state="open" if kept else "deleted",
            generation=t,
            chunks=kept,
            closes=self.closes if kept else {},
            asking=(),
            copies=tuple([copy for copy in self.copies if copy.ulid > t]),
            fixed=sum([chunk.lines for chunk in self.chunks[: self.fixed_chunks] if chunk in kept]),
            by_ulid=self.by_ulid and bool(kept),
            abandoned=self.abandoned and bool(kept),
            closing=None,
            partial=None,
            first_ms=min([ulids.time_ms(chunk.first) for chunk in kept], default=0),
            last_ms=max([ulids.time_ms(chunk.last) for chunk in kept], default=0),
        )

    def settled(self, chunks: int | None = None) -> bool:
        """Whether all batches in the first `chunks` chunks (all, if None) came before the close."""
        return bool(self.closes) and all(
            end <= self.closes.get(node, 0)
            for chunk in self.chunks[:chunks]
            for node, (_, end) in chunk.writers.items()
        )

    def state_of_close(self) -> State:
        """`closed` only if `logs.txt` has all chunks and nobody still asks other nodes."""
        if self.asking:
            return "closing"
        if not self.settled():
            return "open"
        return "closed" if self.sealed or not self.chunks else "closing"


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest."""
    value: dict[str, Any] = {
        **manifest.others,
        "format": _format(manifest),
        **({"fixed": manifest.fixed} if manifest.fixed else {}),
        **({"by_ulid": True} if manifest.by_ulid else {}),
        **({"abandoned": True} if manifest.abandoned else {}),
        **({"door": manifest.door} if manifest.door else {}),
        "version": manifest.version,
        "fqn": manifest.key.fqn,
        "run": manifest.key.run,
        "state": manifest.state,
        "generation": ulids.encode(manifest.generation) if manifest.generation else "",
        "epoch": manifest.epoch,
        "owner": manifest.owner,
        "chunks": [_encode_chunk(chunk) for chunk in manifest.chunks],
        "writers": dict(manifest.writers),
        "closes": dict(manifest.closes),
        **({"asking": list(manifest.asking)} if manifest.asking else {}),
        "copies": [[ulids.encode(c.ulid), c.node, c.pos, c.records] for c in manifest.copies],
        "partial": manifest.partial,
        "closing": manifest.closing,
        "first_ms": manifest.first_ms,
        "last_ms": manifest.last_ms,
        "flushed_ms": manifest.flushed_ms,
    }
    return encode_checked(value)


def _format(manifest: Manifest) -> int:
    if any(chunk.index is not None for chunk in manifest.chunks):
        return _FORMAT_INLINE
    return _FORMAT_BY_ULID if manifest.by_ulid else FORMAT


def decode_manifest(body: bytes) -> Manifest:
    """The manifest that `body` holds. Raises `UnsupportedVersion`, `Damaged`."""
    try:
        value = decode_checked(body)
        if value["format"] > _FORMAT_INLINE:
            raise UnsupportedVersion(f"a run manifest of format {value['format']}")
        return _decode(value)
    except (ValueError, TypeError, KeyError, InvalidInput) as error:
        raise Damaged(f"not a run manifest: {error}") from error


def manifest_at(key: str, body: bytes) -> Manifest:
    """The manifest that the object at `key` holds. Raises as `decode_manifest`, with the key."""
    try:
        return decode_manifest(body)
    except UnsupportedVersion:
        raise
    except Damaged as error:
        raise Damaged(f"{key}: {error}", hint=advice(key)) from error


def _decode(value: Mapping[str, Any]) -> Manifest:
    if value["state"] not in _STATES:
        raise ValueError(f"state {value['state']!r}")
    partial, closing = value.get("partial"), value.get("closing")
    asking = tuple([str(node) for node in value.get("asking", ())])
    # An older version keeps `asking`, and writes `closed` for what its own node has closed.
    state = "closing" if asking and value["state"] == "closed" else value["state"]
    return Manifest(
        key=RunKey(value["fqn"], value["run"]),
        state=cast(State, state),
        generation=_ulid(value["generation"]),
        epoch=value["epoch"],
        owner=value.get("owner", ""),
        chunks=tuple([_decode_chunk(chunk) for chunk in value["chunks"]]),
        writers=value["writers"],
        closes=value["closes"],
        asking=asking,
        copies=tuple(
            [
                Copy(ulids.decode(ulid), node, pos, records)
                for ulid, node, pos, records in value.get("copies", ())
            ]
        ),
        partial=None if partial is None else Partial(**partial),
        closing=None
        if closing is None
        else PendingSeal(closing["put"], closing["bytes"], tuple(closing["chunks"])),
        first_ms=value["first_ms"],
        last_ms=value["last_ms"],
        flushed_ms=value["flushed_ms"],
        fixed=value.get("fixed", 0),
        by_ulid=bool(value.get("by_ulid")),
        abandoned=bool(value.get("abandoned")),
        door=value.get("door", ""),
        version=value["version"],
        others={name: kept for name, kept in value.items() if name not in _KNOWN},
    )


def _ulid(text: str) -> int:
    return ulids.decode(text) if text else 0


def _encode_chunk(chunk: Chunk) -> dict[str, Any]:
    return {
        "id": chunk.id,
        "kind": chunk.kind,
        "bytes": chunk.bytes,
        "lines": chunk.lines,
        "records": chunk.records,
        "first": ulids.encode(chunk.first) if chunk.last else "",
        "last": ulids.encode(chunk.last) if chunk.last else "",
        "blocks": chunk.blocks,
        "index_bytes": chunk.index_bytes,
        "tail_bytes": chunk.tail_bytes,
        "writers": {node: list(span) for node, span in chunk.writers.items()},
        "etag": chunk.etag,
        **({} if chunk.text is None else {"text": chunk.text.decode()}),
        **({} if chunk.index is None else {"index": base64.b64encode(chunk.index).decode()}),
    }


def _decode_chunk(value: Mapping[str, Any]) -> Chunk:
    return Chunk(
        id=value["id"],
        kind=value["kind"],
        bytes=value["bytes"],
        lines=value["lines"],
        records=value["records"],
        first=_ulid(value["first"]),
        last=_ulid(value["last"]),
        blocks=value["blocks"],
        index_bytes=value["index_bytes"],
        tail_bytes=value["tail_bytes"],
        writers={node: (low, high) for node, (low, high) in value["writers"].items()},
        etag=value.get("etag", ""),
        text=value["text"].encode() if "text" in value else None,
        index=base64.b64decode(value["index"], validate=True) if "index" in value else None,
    )


# Manifests in the store: read, and changed by compare-and-swap.
#
# A change is a function of the newest version. It is applied again to the new version when another
# writer was first, and also when an answer was lost: if the write did happen and others wrote
# since, the change finds its own effect in the value. A change must therefore be safe to apply
# twice.


_REMEMBERED_BYTES: Final = 16 << 20
"""Of about 6,000 small runs, so that a run that is closed later is not read again."""
_REVISION_BYTES: Final = 1500
"""Of a version without its chunks and their text, roughly: measured with `tracemalloc`."""
_CHUNK_BYTES: Final = 600
_AMBIGUOUS: Final = 10  # `decide` may have written chunks: they are not given up for a lost answer


@dataclass(frozen=True, slots=True)
class Versioned:
    """A manifest as stored; `etag` None means that there is no object."""

    manifest: Manifest
    etag: str | None


class Manifests:
    """The manifests of all runs.

    Versions that were written here last are remembered: a change begins with them and saves a read.
    If one is not the newest any more, the store refuses the write, and the change is made again.
    """

    def __init__(self, store: ObjectStore, clock: Clock, entropy: Entropy) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self.conflicts = 0
        self._written = Cache[Revision[Manifest]](_REMEMBERED_BYTES)

    def _document(self, key: RunKey) -> Document[Manifest]:
        return Document(self._store, keys.run_manifest(key), decode_manifest, encode_manifest)

    async def get(self, key: RunKey) -> Versioned:
        """The newest version; an empty open one without ETag if there is no object.

        Raises `Damaged`, `UnsupportedVersion`, `StoreUnavailable`.
        """
        return _versioned(key, await self._document(key).read())

    async def recent(self, key: RunKey) -> Versioned:
        """The version that was written here last; without one, as `get`."""
        written = self._written.get(key)
        return await self.get(key) if written is None else _versioned(key, written)

    def is_remembered(self, key: RunKey) -> bool:
        """Whether `recent` asks nobody."""
        return self._written.get(key) is not None

    async def presumed(self, key: RunKey) -> Versioned:
        """As `recent`; a run that most likely is new is presumed to have no manifest.

        The store refuses the first write if that is wrong.
        """
        return await self.recent(key)

    async def swap(self, seen: Versioned, manifest: Manifest) -> Versioned:
        """Replaces `seen` by `manifest`.

        Raises `PreconditionFailed` if `seen` is not the newest version any more,
        `StoreUnavailable`, `OutcomeUnknown`.
        """
        key = manifest.key
        self._written.drop(key)
        written = await self._document(key).write(self._fresh(manifest), seen.etag)
        return self._remembered(key, written)

    async def update(self, key: RunKey, change: Callable[[Manifest], Manifest | None]) -> Versioned:
        """Applies `change` to the newest version until it is written; None leaves it unchanged.

        Raises as `get`, and `OutcomeUnknown`.
        """

        async def decide(newest: Manifest | None) -> Manifest | None:
            return change(newest or Manifest(key))

        return await self.update_by(key, decide)

    async def update_by(
        self,
        key: RunKey,
        decide: Callable[[Manifest | None], Awaitable[Manifest | None]],
        *,
        seen: Versioned | None = None,
    ) -> Versioned:
        """As `update`, with an async `decide`, which may for instance write chunks.

        `decide` gets None where there is no manifest. If that was `seen` just now, the first try
        does not look again.
        """
        budget = RetryBudget(self._clock, self._entropy, ambiguous=_AMBIGUOUS)

        async def change(newest: Manifest | None) -> Manifest | None:
            wanted = await decide(newest)
            return None if wanted is None else self._fresh(wanted)

        known = self._written.get(key)
        self._written.drop(key)
        if known is None and seen is not None and seen.etag is None:
            try:
                if (first := await change(None)) is not None:
                    return self._remembered(key, await self._document(key).write(first, None))
            except PreconditionFailed:  # somebody was faster
                pass
            except OutcomeUnknown as error:
                budget.spend(error)
        try:
            found = await swap(self._document(key), change, known=known, budget=budget)
        finally:
            self.conflicts += budget.refused
        return self._remembered(key, found)

    def _remembered(self, key: RunKey, found: Revision[Manifest] | None) -> Versioned:
        if found is not None and found.written:
            self._written.drop(key)
            self._written.put(key, found, _bytes_of(found.value))
        return _versioned(key, found)

    def fresh_id(self) -> str:
        """A fresh ULID, for versions and chunks."""
        return ulids.fresh_text(self._clock, self._entropy)

    def _fresh(self, manifest: Manifest) -> Manifest:
        return replace(manifest, version=self.fresh_id())


def _bytes_of(manifest: Manifest) -> int:
    chunks = manifest.chunks
    kept = sum([len(chunk.text or b"") + len(chunk.index or b"") for chunk in chunks])
    return _REVISION_BYTES + _CHUNK_BYTES * (len(chunks) + len(manifest.copies) // 4) + kept


def _versioned(key: RunKey, found: Revision[Manifest] | None) -> Versioned:
    return Versioned(Manifest(key), None) if found is None else Versioned(found.value, found.etag)
