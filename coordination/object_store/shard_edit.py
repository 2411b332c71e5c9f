"""A shard that is being changed by the operations of one group, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from coordination.object_store.row import Stored, spelled, unknown
from coordination.object_store.shard import RECENT, Shard
from coordination.partitions.partition import Partition


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
