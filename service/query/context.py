"""Hits with the records around them, as `grep -B -A` has it, in each hit's run.

The hits of one search are grouped by run. Around each hit are the records of its run with the next
lower and next higher ULIDs, whatever they hold; where such windows overlap they are one
group. Groups come in the order of their first hits in the search, the records of a group in the
order of ULIDs, oldest first, as a log is read.

The records around a hit are found by searches of their own, a page each, so the number of hits and
the size of a window are bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from logstore.errors import InvalidInput, LimitReached
from logstore.segments.record_keys import KEY_ORDER, distinct
from service.query.cursor import RecordKey
from service.query.engine import QueryEngine
from service.query.hot import SCHEMA
from service.query.request import QueryRequest

DEFAULT_HITS: Final = 20
MAX_HITS: Final = 100
MAX_AROUND: Final = 100
_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Around:
    """How many records of the run are given before and behind a hit."""

    before: int
    behind: int


@dataclass(frozen=True, slots=True)
class Group:
    """Records of one run that follow one another; `hits` says which of them were searched for."""

    records: pa.Table
    hits: Sequence[bool]


@dataclass(slots=True)
class _Window:
    """What is known around some hits of a run that stand close together."""

    hits: list[RecordKey]
    parts: list[pa.Table]


@dataclass(slots=True)
class Context:
    """One search with context; `stats` are complete once `groups` has returned."""

    engine: QueryEngine
    request: QueryRequest
    around: Around
    stats: dict[str, Any] = field(default_factory=dict)
    _bytes: int = 0

    async def groups(self) -> list[Group]:
        """All groups. Raises as a search does, and `LimitReached` if they are too large."""
        hits = await self._found(self.request, follow=False)
        order = {key: number for number, key in enumerate(RecordKey.of(hits))}
        by_run: dict[tuple[str, str], list[RecordKey]] = {}
        for key in sorted(order):
            by_run.setdefault((key.fqn, key.run), []).append(key)
        windows: list[_Window] = []
        for keys in by_run.values():
            windows += await self._windows(keys)
        found = [_group(window, hits) for window in windows]
        first = [min(order[key] for key in window.hits) for window in windows]
        self.stats["context"] = sum(len(g.hits) - sum(g.hits) for g in found)
        return [group for _, group in sorted(zip(first, found, strict=True), key=lambda g: g[0])]

    async def _windows(self, hits: Sequence[RecordKey]) -> list[_Window]:
        """The windows around hits of one run, which rise."""
        windows: list[_Window] = []
        for hit in hits:
            before = await self._next(hit, self.around.before, descending=True)
            behind = await self._next(hit, self.around.behind, descending=False)
            window = windows[-1] if windows else None
            if window is not None and _touches(window, hit, before):
                window.hits.append(hit)
                window.parts += [before, behind]
            else:
                windows.append(_Window([hit], [before, behind]))
        return windows

    async def _next(self, key: RecordKey, count: int, *, descending: bool) -> pa.Table:
        """The next records of the run behind a key, oldest first."""
        if count == 0:
            return SCHEMA.empty_table()
        request = QueryRequest(
            fqn=key.fqn, run=key.run, after=key, limit=count, descending=descending
        )
        return (await self._found(request, follow=True)).sort_by(KEY_ORDER)

    async def _found(self, request: QueryRequest, *, follow: bool) -> pa.Table:
        batches: list[pa.RecordBatch] = []
        async with await self.engine.open(request) as search:
            async for batch in search.batches():
                batches.append(batch.cast(SCHEMA))
                self._bytes += batch.nbytes
                if self._bytes > _MOST_BYTES:
                    raise LimitReached(
                        f"hits and context have more than {_MOST_BYTES >> 20} MiB",
                        hint="Ask for fewer hits with `limit`, or for less context.",
                    )
            stats = search.stats()
        if follow:
            _add_missing(self.stats, stats)
        else:
            self.stats |= stats
        return pa.Table.from_batches(batches, SCHEMA)


def context_request(request: QueryRequest) -> QueryRequest:
    """The search for hits, whose number is bounded. Raises `InvalidInput` if more are asked for."""
    if request.limit is not None and request.limit > MAX_HITS:
        raise InvalidInput(
            f"limit is {request.limit}, with context at most {MAX_HITS}",
            field="limit",
            hint="Go on with `after`, or leave the context out.",
        )
    return replace(request, limit=request.limit or DEFAULT_HITS)


def _touches(window: _Window, hit: RecordKey, before: pa.Table) -> bool:
    """Whether the hit, or a record before it, is in the window already."""
    held = {key for part in window.parts for key in RecordKey.of(part)} | set(window.hits)
    return hit in held or any(key in held for key in RecordKey.of(before))


def _group(window: _Window, hits: pa.Table) -> Group:
    wanted = set(window.hits)
    own = hits.filter(pa.array([key in wanted for key in RecordKey.of(hits)], pa.bool_()))
    records = distinct(pa.concat_tables([own, *window.parts]).sort_by(KEY_ORDER))
    return Group(records, [key in wanted for key in RecordKey.of(records)])


def _add_missing(stats: dict[str, Any], more: Mapping[str, Any]) -> None:
    """What the searches around the hits could not read is missing, too."""
    stats["complete"] = stats["complete"] and more["complete"]
    stats["bytes"] += more["bytes"]
    for name in ("missing", "unreadable"):
        stats[name] = list(dict.fromkeys([*stats[name], *more[name]]))
