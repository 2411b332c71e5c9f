"""The operations on a shard, and the edit that they change one after another.

Each operation is decided against the current shard, repeatedly if needed. `decide` changes the edit
and returns the result, or raises `PreconditionFailed` or `NotFound` before it changed anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from coordination.object_store.shard import RECENT, Shard, Stored, spelled, status_of, unknown
from coordination.partitions.partition import Partition, Status
from coordination.partitions.store import Acquired
from coordination.partitions.transitions import Claim, acquired, chosen, exhausted, worn_out
from logstore.errors import NotFound, PreconditionFailed


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
