"""Pages of partitions in the order of keys, although each shard has a part of all keys.

    first page     all shards are read; as many of the rows behind the page as fit into their
                   part of the memory are kept, as JSON
    next pages     one LIST; only those shards are read again that changed
    end of rows    all shards are read again

A source of a million partitions is thus read some ten times, not once for each page. A store
keeps the rows of one listing: the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import itemgetter
from typing import Final, NamedTuple

import orjson

from coordination.object_store.cache import EXPANSION, Cache
from coordination.object_store.directory import ShardDirectory, each, good
from coordination.object_store.shard import Shard, status_of
from coordination.object_store.writer import ShardWriter
from coordination.partitions.partition import Partition, Status
from coordination.partitions.store import Page
from logstore.errors import Damaged

_PART: Final = 4
"""Of the memory for shards, a fourth."""
_ROW_BYTES: Final = 250
"""What Python takes for a row beside its key and its JSON."""

_UNREAD: Final = ""
"""What is no ETag, and not that of a shard without an object."""
_KEY: Final = itemgetter(0)


class _Row(NamedTuple):
    key: str
    shard: int
    json: str

    def size(self) -> int:
        """The size of the row in memory, in bytes."""
        return len(self.key) + len(self.json) + _ROW_BYTES


@dataclass(frozen=True)
class _Ahead:
    """All rows of a source with a status from behind the key `start` up to the key `end`."""

    source: str
    status: Status | None
    start: str | None
    end: str | None = None
    """None: there are no more."""
    rows: Sequence[_Row] = ()
    versions: Mapping[int, str | None] = field(default_factory=dict)
    """The ETag of each shard that was read for it."""

    def behind(self, after: str | None) -> _Ahead:
        """The rows without those up to `after`, which is not before `start`."""
        rows = [row for row in self.rows if after is None or row.key > after]
        return replace(self, start=after, rows=rows)

    def serves(self, source: str, status: Status | None, after: str | None) -> bool:
        """Whether these rows include those behind `after`."""
        if (source, status) != (self.source, self.status):
            return False
        begins = self.start is None or (after is not None and after >= self.start)
        return begins and (self.end is None or after is None or after < self.end)

    def fills(self, source: str, status: Status | None, after: str | None, limit: int) -> bool:
        """Whether they include a page behind `after`, and show whether another page follows."""
        enough = self.end is None or len(self.rows) > limit
        return self.start == after and enough and self.serves(source, status, after)

    def holds(self, key: str, stored: Mapping[str, object]) -> bool:
        """Whether such a row belongs to these rows."""
        behind = self.start is None or key > self.start
        before = self.end is None or key <= self.end
        return behind and before and (self.status is None or status_of(stored) == self.status.value)

    def of_shard(self, shard: Shard, etag: str | None) -> _Ahead:
        """These rows, with those of one shard as in that version. Raises `Damaged`."""
        try:
            fresh = [
                _Row(key, shard.number, orjson.dumps(stored).decode())  # its bytes fill a page
                for key, stored in shard.rows.items()
                if self.holds(key, stored)
            ]
        except (ValueError, TypeError) as error:
            raise Damaged(f"a row of shard {shard.number} of {shard.source}: {error!r}") from error
        others = [row for row in self.rows if row.shard != shard.number]
        versions = {**self.versions, shard.number: etag}
        return replace(self, rows=sorted([*others, *fresh], key=_KEY), versions=versions)

    def cut(self, most_bytes: int, least: int) -> _Ahead:
        """The first rows, as many as fit into that memory, and not fewer than `least`."""
        sizes = accumulate(row.size() for row in self.rows)
        kept = max(sum(size <= most_bytes for size in sizes), least)
        if kept >= len(self.rows):
            return self
        return replace(self, rows=self.rows[:kept], end=self.rows[kept - 1].key)


class Pages:
    """Pages of all sources of a store."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._ahead: _Ahead | None = None

    def forget_rows(self) -> None:
        """Drops all rows; the next page reads all shards."""
        self._ahead = None

    async def page(
        self, directory: ShardDirectory, status: Status | None, after: str | None, limit: int
    ) -> Page:
        """As `PartitionStore.page`."""
        newest = await directory.refresh()
        ahead, self._ahead = self._ahead, None
        self._cache.dropped(self)
        if ahead is not None and ahead.serves(directory.source.name, status, after):
            ahead = await self._renewed(ahead.behind(after), directory, newest, limit)
        if ahead is None or not ahead.fills(directory.source.name, status, after, limit):
            fresh = _Ahead(directory.source.name, status, after)
            ahead = await self._renewed(fresh, directory, newest, limit)
        rows = ahead.rows[:limit]
        more = len(ahead.rows) > limit
        if more:
            self._keep(ahead)
        return Page([_read(directory, row) for row in rows], rows[-1].key if more else None)

    async def _renewed(
        self, ahead: _Ahead, directory: ShardDirectory, newest: Sequence[str | None], limit: int
    ) -> _Ahead:
        """The rows as of the shards' newest versions, or later. Raises as `ShardWriter.look`."""

        most_bytes = self._cache.limit_bytes // _PART

        async def read(writer: ShardWriter) -> None:
            nonlocal ahead
            version = await writer.look()
            ahead = ahead.of_shard(version.shard, version.etag).cut(most_bytes, limit + 1)

        changed = [
            writer
            for writer, etag in zip(directory.writers, newest, strict=True)
            if ahead.versions.get(writer.number, _UNREAD) != etag
        ]
        good(await each(read, changed))
        return ahead

    def _keep(self, ahead: _Ahead) -> None:
        self._ahead = ahead
        self._cache.used(self, sum(row.size() for row in ahead.rows) // EXPANSION)


def _read(directory: ShardDirectory, row: _Row) -> Partition:
    """The partition in a row. Raises `Damaged`."""
    rows = {row.key: orjson.loads(row.json)}
    found = Shard(directory.source.name, row.shard, directory.source.shards, rows=rows).get(row.key)
    assert found is not None
    return found
