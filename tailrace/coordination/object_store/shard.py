"""The format of a shard: the partitions of a source whose keys have one hash, in one object.

`coordination/partitions/{source}/{shard:04x}.json`, changed by compare-and-swap, is JSON:

    format        1
    source        the source's name
    shard, shards this shard's number, and the number of shards of the source
    epoch         the last one that this shard gave out; it rises with every acquisition and never
                  falls, so epochs go on when a partition is deleted and made again. The object
                  is never removed
    version       the ULID of this write, so no two versions have equal bytes
    recent        the ULIDs of the last writes, this one last: a writer whose answer was lost
                  finds its write in it, also when others have written since
    partitions    key: row

A partition's shard is the XXH3 (64 bits) of its key's UTF-8 modulo `shards`. A row is a partition:

    version         always; the ULID of this version
    created_at      always; milliseconds of the store's clock, as all times
    available_at    left out if it is `created_at`
    status          left out if UNASSIGNED
    owner, epoch, owner_timeout, progress_state, closed_count, attempts, last_error,
    priority, place, ended_at
                    as in `tailrace.coordination.partitions`; left out if empty or 0

Keys that this version does not know survive a rewrite, in a shard and in a row. Rows stay as they
were parsed, dicts of plain values, which Python's garbage collector does not look at: a process may
hold a million of them.

JSON is stored plain if it is small, so that people can read it, and otherwise compressed with zstd.
A supplier writes large shards with each of its batches, and a worker with each acquisition.
Compression reduces them to about a tenth.

`Summary` tells without reading a shard whether it may have a free partition. Each `Operation`
changes a `ShardEdit`, the next version of a shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import xxhash
import zstandard

from tailrace.coordination.lease import identity_of, is_over
from tailrace.coordination.partitions import (
    Acquired,
    Claim,
    NewPartition,
    Partition,
    Status,
    acquired,
    chosen,
    exhausted,
    worn_out,
)
from tailrace.logstore import keys
from tailrace.logstore.errors import Damaged, NotFound, PreconditionFailed, UnsupportedVersion
from tailrace.logstore.state import decode_checked, encode_checked

Stored = Mapping[str, Any]

FORMAT: Final = 1
RECENT: Final = 16
"""Writes whose ULIDs a shard remembers."""
PLAIN_BYTES: Final = 64 << 10
"""JSON up to this size stays as it is."""
COMPRESSION: Final = 12
"""The ratio, as measured, by which rows that were never acquired shrink; others shrink less."""
_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_MAX_BYTES: Final = 1 << 30
_SHARD_KEYS: Final = frozenset(
    ["format", "source", "shard", "shards", "epoch", "version", "recent", "partitions"]
)
_ENDED: Final = frozenset({Status.COMPLETED.value, Status.FAILED.value})
_ROW_KEYS: Final = frozenset(
    [
        "version",
        "created_at",
        "available_at",
        "status",
        "owner",
        "epoch",
        "owner_timeout",
        "progress_state",
        "closed_count",
        "attempts",
        "last_error",
        "priority",
        "place",
        "ended_at",
    ]
)


def spelled(partition: Partition) -> dict[str, Any]:
    """The stored fields of a partition, without its key and without unknown fields."""
    stored: dict[str, Any] = {"version": partition.version, "created_at": partition.created_ms}
    if partition.available_ms != partition.created_ms:
        stored["available_at"] = partition.available_ms
    if partition.status is not Status.UNASSIGNED:
        stored["status"] = partition.status.value
    fields = (
        ("epoch", partition.epoch),
        ("owner_timeout", partition.until_ms),
        ("closed_count", partition.closed_count),
        ("attempts", partition.attempts),
        ("priority", partition.priority),
        ("place", partition.place),
        ("ended_at", partition.ended_ms),
    )
    texts = (
        ("owner", partition.owner),
        ("progress_state", partition.progress),
        ("last_error", partition.last_error),
    )
    stored.update((name, number) for name, number in fields if number)
    stored.update((name, text) for name, text in texts if text is not None)
    return stored


def unknown(stored: Stored) -> dict[str, Any]:
    """The fields that a newer version wrote and this version does not know."""
    return {name: value for name, value in stored.items() if name not in _ROW_KEYS}


def status_of(stored: Stored) -> str:
    """The status of a row, as it is spelled."""
    found: str = stored.get("status", "UNASSIGNED")
    return found


def has_ended(stored: Stored) -> bool:
    """Whether the partition never becomes free again by itself."""
    return stored.get("status") in _ENDED


def fresh_row(new: NewPartition, version: str, now_ms: int, place: int) -> Stored:
    """The stored fields of a new partition, made without a `Partition` because there are many."""
    stored: dict[str, Any] = {"version": version, "created_at": now_ms}
    if place:
        stored["place"] = place
    if new.priority:
        stored["priority"] = new.priority
    if new.progress is not None:
        stored["progress_state"] = new.progress
    return stored


def read_row(source: str, key: str, stored: Stored) -> Partition:
    """The partition of a row. Raises `ValueError`, `TypeError` or `KeyError` for invalid rows."""
    get = stored.get
    created_ms = int(stored["created_at"])
    return Partition(
        source,
        key,
        version=stored["version"],
        created_ms=created_ms,
        available_ms=int(get("available_at", created_ms)),
        status=Status(get("status", "UNASSIGNED")),
        owner=get("owner"),
        epoch=int(get("epoch", 0)),
        until_ms=int(get("owner_timeout", 0)),
        progress=get("progress_state"),
        closed_count=int(get("closed_count", 0)),
        attempts=int(get("attempts", 0)),
        last_error=get("last_error"),
        priority=float(get("priority", 0.0)),
        place=int(get("place", 0)),
        ended_ms=int(get("ended_at", 0)),
    )


@dataclass(frozen=True, slots=True)
class Shard:
    """One version of a shard. `rows` are never changed in place.

    `read` caches the partitions that were asked for; versions share it.
    """

    source: str
    number: int
    shards: int
    epoch: int = 0
    version: str = ""
    recent: tuple[str, ...] = ()
    rows: Mapping[str, Stored] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    read: dict[str, Partition] = field(default_factory=dict, compare=False)

    def get(self, key: str) -> Partition | None:
        """Returns the partition. Raises `Damaged`."""
        stored = self.rows.get(key)
        return None if stored is None else self._partition(key, stored)

    def unended(self) -> Iterator[Partition]:
        """The partitions that are free now or may become free later. Raises `Damaged`."""
        rows = self.rows.items()
        return (self._partition(key, stored) for key, stored in rows if not has_ended(stored))

    def _partition(self, key: str, stored: Stored) -> Partition:
        known = self.read.get(key)
        try:
            if known is None or known.version != stored["version"]:
                known = self.read[key] = read_row(self.source, key, stored)
        except (ValueError, TypeError, KeyError) as error:
            raise Damaged(
                f"partition {key!r} in {keys.partition_shard(self.source, self.number)}"
                f" is none: {error!r}"
            ) from error
        return known


def shard_of(key: str, shards: int) -> int:
    """The number of the shard that holds `key`."""
    return xxhash.xxh3_64_intdigest(key.encode(errors="surrogatepass")) % shards


def encode_shard(shard: Shard) -> bytes:
    """The JSON of a shard."""
    return encode_checked(
        {
            **shard.others,
            "format": FORMAT,
            "source": shard.source,
            "shard": shard.number,
            "shards": shard.shards,
            "epoch": shard.epoch,
            "version": shard.version,
            "recent": shard.recent,
            "partitions": shard.rows,
        }
    )


def decode_shard(expected: Shard, json: bytes) -> Shard:
    """The shard in `json`, which must be the one that `expected` names.

    Raises `Damaged`, or its subclass `UnsupportedVersion`.
    """
    where = keys.partition_shard(expected.source, expected.number)
    try:
        value = decode_checked(json)
        if int(value["format"]) > FORMAT:
            raise UnsupportedVersion(f"{where} has format {value['format']}")
        found = Shard(
            value["source"],
            int(value["shard"]),
            int(value["shards"]),
            epoch=int(value["epoch"]),
            version=value["version"],
            recent=tuple(value["recent"]),
            rows=dict(value["partitions"]),
            others={name: kept for name, kept in value.items() if name not in _SHARD_KEYS},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"{where} is not a shard: {error!r}") from error
    if not set(map(type, found.rows.values())) <= {dict}:
        raise Damaged(f"{where} holds an entry that is not a partition")
    names = (found.source, found.number, found.shards)
    if names != (expected.source, expected.number, expected.shards):
        raise Damaged(f"{where} says that it is shard {found.number} of {found.shards}")
    return found


def decode_any_shard(key: str, body: bytes) -> Shard:
    """The shard in an object's bytes, with all its partitions read, whichever shard it is.

    Raises as `decode_shard`.
    """
    json = decompressed(key, body)
    try:
        value = decode_checked(json)
        named = Shard(value["source"], int(value["shard"]), int(value["shards"]))
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"{key} is not a shard: {error!r}") from error
    found = decode_shard(named, json)
    for row in found.rows:
        found.get(row)
    return found


def compressed(json: bytes) -> bytes:
    """Encodes JSON as the object's bytes."""
    if len(json) <= PLAIN_BYTES:
        return json
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(json)


def decompressed(where: str, body: bytes) -> bytes:
    """Decodes an object, which `where` names in errors. Raises `Damaged`."""
    if not body.startswith(_MAGIC):
        return body
    try:
        size = zstandard.frame_content_size(body)
        if not 0 <= size <= _MAX_BYTES:
            raise Damaged(f"{where} says that it holds {size} bytes")
        return zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise Damaged(f"{where} cannot be decompressed: {error}") from error


def decompressed_bytes(body_bytes: int) -> int:
    """Estimates the size of the JSON in an object of that size; rather too high than too low."""
    return body_bytes * COMPRESSION


# The summary of a shard's version, by which an acquire skips the shard without reading it.
#
# All times are milliseconds of the store's clock. A summary never says that no partition is free
# while one is.


NEVER_MS: Final = 1 << 62

_FREE: Final = frozenset({Status.UNASSIGNED.value, Status.CLOSED.value})

Due: TypeAlias = tuple[bool, tuple[float, int, int, str]]
"""The sort key of `tailrace.coordination.partitions.chosen`: left-behind ones, then by order."""
FIRST: Final[Due] = (False, (float("-inf"), 0, 0, ""))


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of one version of a shard."""

    counts: Mapping[Status, int]
    waiting_ms: int
    """From when at the earliest an UNASSIGNED or CLOSED one may be taken."""
    order: tuple[float, int, int, str]
    """Before all of those in the order of `ageing_ms`."""
    ageing_ms: int
    until_ms: int
    """When the first of the ASSIGNED runs out."""
    owners: frozenset[str]
    """Whose those are."""
    ended_ms: int
    """When the first of the COMPLETED ended."""

    def due(self, claim: Claim) -> Due | None:
        """A lower bound of the order of partitions free for the claimant; None if none is."""
        if self._left_behind(claim):
            return FIRST
        if claim.at_least_ms < self.waiting_ms:
            return None
        return (True, self.order if claim.ageing_ms == self.ageing_ms else FIRST[1])

    def _left_behind(self, claim: Claim) -> bool:
        if is_over(self.until_ms, claim.at_least_ms):
            return True
        return claim.restarted and any(
            owner != claim.owner and identity_of(owner) == claim.identity for owner in self.owners
        )


def summarized(shard: Shard, ageing_ms: int) -> Summary:
    """The summary of a shard, for claims with that ageing. Raises `Damaged`.

    It is computed from stored rows: making partitions of thousands of rows takes much longer.
    """
    try:
        return _summarized(shard, ageing_ms)
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"a row of shard {shard.number} of {shard.source}: {error!r}") from error


def _summarized(shard: Shard, ageing_ms: int) -> Summary:
    counts: Counter[str] = Counter()
    waiting_ms, until_ms, ended_ms, order = NEVER_MS, NEVER_MS, NEVER_MS, None
    owners = set()
    for key, stored in shard.rows.items():
        status = status_of(stored)
        counts[status] += 1
        if status in _FREE:
            created_ms = stored["created_at"]
            available_ms = stored.get("available_at", created_ms)
            waiting_ms = min(waiting_ms, available_ms)
            rank_ms = available_ms + stored.get("priority", 0.0) * ageing_ms
            if order is None or rank_ms <= order[0]:
                found = (rank_ms, created_ms, stored.get("place", 0), key)
                order = found if order is None else min(order, found)
        elif status == Status.ASSIGNED.value:
            until_ms = min(until_ms, stored.get("owner_timeout", 0))
            owners.add(stored.get("owner", ""))
        elif status == Status.COMPLETED.value:
            ended_ms = min(ended_ms, stored.get("ended_at", 0))
    return Summary(
        {Status(name): count for name, count in counts.items()},
        waiting_ms,
        order or FIRST[1],
        ageing_ms,
        until_ms,
        frozenset(owners),
        ended_ms,
    )


# Operations on a shard, and the edit that they change one after another.
#
# Each operation is decided against the current shard, repeatedly if needed. `decide` changes the
# edit and returns the result, or raises `PreconditionFailed` or `NotFound` before it changed
# anything.


class ShardEdit:
    """The next version of a shard: each operation sees the changes of those before it.

    `fresh_id` gives ULIDs.
    """

    def __init__(self, shard: Shard, fresh_id: Callable[[], str]) -> None:
        self._shard = shard
        self._rows = dict(shard.rows)
        self._epoch = shard.epoch
        self.fresh_id = fresh_id
        self.changed = False

    @property
    def source(self) -> str:
        """The source's name."""
        return self._shard.source

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def get(self, key: str) -> Partition | None:
        """The partition with the changes so far. Raises `Damaged`."""
        return self._now().get(key)

    def unended(self) -> Iterator[Partition]:
        """As `Shard.unended`, with the changes so far."""
        return self._now().unended()

    def rows(self) -> Iterator[tuple[str, Stored]]:
        """All rows that existed at the call."""
        return iter(list(self._rows.items()))

    def next_epoch(self, partition: Partition) -> int:
        """An epoch above all that this shard gave out, and above the partition's own."""
        self._epoch = max(self._epoch, partition.epoch) + 1
        return self._epoch

    def put(self, partition: Partition) -> Partition:
        """Stores the partition under a new version; its unknown fields stay."""
        fresh = replace(partition, version=self.fresh_id())
        old = self._rows.get(partition.key)
        stored = spelled(fresh) if old is None else unknown(old) | spelled(fresh)
        self._rows[partition.key] = stored
        self.changed = True
        return fresh

    def add(self, key: str, row: Stored) -> None:
        """Adds a partition that did not exist."""
        assert key not in self._rows
        self._rows[key] = row
        self.changed = True

    def remove(self, key: str) -> None:
        """Removes the partition."""
        del self._rows[key]
        self.changed = True

    def _now(self) -> Shard:
        return replace(self._shard, rows=self._rows)

    def finished(self) -> Shard:
        """The shard after all changes, under a new version."""
        version = self.fresh_id()
        recent = (*self._shard.recent, version)[-RECENT:]
        return replace(
            self._shard, epoch=self._epoch, version=version, recent=recent, rows=self._rows
        )


T_co = TypeVar("T_co", covariant=True)


class Operation(Protocol[T_co]):
    """One operation that a caller submits."""

    @property
    def patient(self) -> bool:
        """Whether the operation is decided again after a lost race.

        Else its caller gets the error.
        """
        ...

    def decide(self, edit: ShardEdit) -> T_co:
        """Applies the change to `edit`."""
        ...


@dataclass(frozen=True, slots=True)
class Make:
    """Makes those partitions that do not exist. Gives the keys that it made."""

    new: Sequence[tuple[str, Stored]]
    patient: bool = True

    def decide(self, edit: ShardEdit) -> list[str]:
        made = []
        for key, row in self.new:
            if key not in edit:
                edit.add(key, row)
                made.append(key)
        return made


@dataclass(frozen=True, slots=True)
class Take:
    """Acquires up to `count` partitions that are free for the claim, of `keys` if given."""

    claim: Claim
    count: int
    keys: Collection[str] | None = None
    patient: bool = True

    def decide(self, edit: ShardEdit) -> Acquired:
        asked = edit.unended() if self.keys is None else self._asked(edit, self.keys)
        taken: list[Partition] = []
        failed: list[Partition] = []
        known = list(asked)
        for one in chosen(known, self.claim, len(known)):
            if len(taken) == self.count:
                break
            if exhausted(one, self.claim):
                failed.append(edit.put(worn_out(one, self.claim)))
            else:
                taken.append(edit.put(acquired(one, self.claim, edit.next_epoch(one))))
        return Acquired(taken, failed)

    @staticmethod
    def _asked(edit: ShardEdit, keys: Collection[str]) -> list[Partition]:
        found = [edit.get(key) for key in keys]
        return [one for one in found if one is not None]


@dataclass(frozen=True, slots=True)
class Replace:
    """Replaces `old` by `wanted`. Gives what is stored."""

    old: Partition
    wanted: Partition
    patient: bool = True

    def decide(self, edit: ShardEdit) -> Partition:
        check_newest(edit, self.old)
        return edit.put(self.wanted)


@dataclass(frozen=True, slots=True)
class Remove:
    """Removes `old`."""

    old: Partition
    patient: bool = True

    def decide(self, edit: ShardEdit) -> None:
        check_newest(edit, self.old)
        edit.remove(self.old.key)


@dataclass(frozen=True, slots=True)
class Purge:
    """Removes partitions that were COMPLETED before a time. Gives their number."""

    ended_before_ms: int
    patient: bool = True

    def decide(self, edit: ShardEdit) -> int:
        over = [
            key
            for key, row in edit.rows()
            if status_of(row) == Status.COMPLETED.value
            and row.get("ended_at", 0) < self.ended_before_ms
        ]
        for key in over:
            edit.remove(key)
        return len(over)


def check_newest(edit: ShardEdit, old: Partition) -> None:
    """Raises `NotFound` and `PreconditionFailed` unless `old` is the newest version."""
    found = edit.get(old.key)
    if found is None:
        raise NotFound(f"there is no partition {old.key!r} of {old.source!r}")
    if found.version != old.version:
        raise PreconditionFailed(f"{old.key!r} of {old.source!r} was changed meanwhile")
