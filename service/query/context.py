"""Reads the records around hits, and the records of one run.

A search with context has hits with the records around them, as `grep -B -A` has it, in each hit's
run. The hits of one search are grouped by run. Around each hit are the records of its run with the
next lower and next higher ULIDs, whatever they hold; overlapping windows are one group. Groups come
in the order of their first hits in the search, the records of a group in the order of ULIDs, oldest
first, as a log is read.

Searches of their own find the records around a hit, a page each, so the number of hits and the size
of a window are bounded.

`run_records` and `run_details` serve readers that make a run's text again, or have the text and
want the other columns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from service.query.engine import QueryEngine
from service.query.request import QueryRequest, RecordKey
from service.run_log.read_records import DETAILS, Details, KnownRecords
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import InvalidInput, LimitReached, StoreUnavailable
from tailrace.logstore.segments.file_format import KEY_ORDER, distinct
from tailrace.logstore.table.schema import RECORD_SCHEMA

DEFAULT_HITS: Final = 20
MAX_HITS: Final = 100
MAX_AROUND: Final = 100
_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Around:
    """How many records of the run are returned before and after a hit."""

    before: int
    behind: int


@dataclass(frozen=True, slots=True)
class HitGroup:
    """Consecutive records of one run; `hits` marks the matches of the search."""

    records: pa.Table
    hits: Sequence[bool]


@dataclass(slots=True)
class _HitWindow:
    """The known records around some hits of a run that are close together."""

    hits: list[RecordKey]
    parts: list[pa.Table]


@dataclass(slots=True)
class ContextSearch:
    """One search with context; `stats` are complete once `groups` has returned."""

    engine: QueryEngine
    request: QueryRequest
    around: Around
    stats: dict[str, Any] = field(default_factory=dict)
    _bytes: int = 0

    async def groups(self) -> list[HitGroup]:
        """Returns all groups. Raises as a search does, and `LimitReached` if they are too large."""
        hits = await self._found(self.request, follow=False)
        order = {key: number for number, key in enumerate(RecordKey.of(hits))}
        by_run: dict[tuple[str, str], list[RecordKey]] = {}
        for key in sorted(order):
            by_run.setdefault((key.fqn, key.run), []).append(key)
        windows: list[_HitWindow] = []
        for keys in by_run.values():
            windows += await self._windows(keys)
        found = [_group(window, hits) for window in windows]
        first = [min(order[key] for key in window.hits) for window in windows]
        self.stats["context"] = sum(len(g.hits) - sum(g.hits) for g in found)
        return [group for _, group in sorted(zip(first, found, strict=True), key=lambda g: g[0])]

    async def _windows(self, hits: Sequence[RecordKey]) -> list[_HitWindow]:
        """Returns the windows around hits of one run, which are in ascending order."""
        windows: list[_HitWindow] = []
        for hit in hits:
            before = await self._next(hit, self.around.before, descending=True)
            behind = await self._next(hit, self.around.behind, descending=False)
            window = windows[-1] if windows else None
            if window is not None and _touches(window, hit, before):
                window.hits.append(hit)
                window.parts += [before, behind]
            else:
                windows.append(_HitWindow([hit], [before, behind]))
        return windows

    async def _next(self, key: RecordKey, count: int, *, descending: bool) -> pa.Table:
        """Returns the next records of the run after a key, oldest first."""
        if count == 0:
            return RECORD_SCHEMA.empty_table()
        request = QueryRequest(
            fqn=key.fqn, run=key.run, after=key, limit=count, descending=descending
        )
        return (await self._found(request, follow=True)).sort_by(KEY_ORDER)

    async def _found(self, request: QueryRequest, *, follow: bool) -> pa.Table:
        batches: list[pa.RecordBatch] = []
        async with await self.engine.open(request) as search:
            async for batch in search.batches():
                batches.append(batch.cast(RECORD_SCHEMA))
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
        return pa.Table.from_batches(batches, RECORD_SCHEMA)


def context_request(request: QueryRequest) -> QueryRequest:
    """Returns the search for hits, whose number is bounded.

    Raises `InvalidInput` if the request wants more.
    """
    if request.limit is not None and request.limit > MAX_HITS:
        raise InvalidInput(
            f"limit is {request.limit}, with context at most {MAX_HITS}",
            field="limit",
            hint="Go on with `after`, or leave the context out.",
        )
    return replace(request, limit=request.limit or DEFAULT_HITS)


def _touches(window: _HitWindow, hit: RecordKey, before: pa.Table) -> bool:
    """Returns true if the window already contains the hit or a record before it."""
    held = {key for part in window.parts for key in RecordKey.of(part)} | set(window.hits)
    return hit in held or any(key in held for key in RecordKey.of(before))


def _group(window: _HitWindow, hits: pa.Table) -> HitGroup:
    wanted = set(window.hits)
    own = hits.filter(pa.array([key in wanted for key in RecordKey.of(hits)], pa.bool_()))
    records = distinct(pa.concat_tables([own, *window.parts]).sort_by(KEY_ORDER))
    return HitGroup(records, [key in wanted for key in RecordKey.of(records)])


def _add_missing(stats: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Adds sources that the searches around the hits could not read."""
    stats["complete"] = stats["complete"] and more["complete"]
    stats["bytes"] += more["bytes"]
    for name in ("missing", "unreadable"):
        stats[name] = list(dict.fromkeys([*stats[name], *more[name]]))


# --- Records of one run -------------------------------------------------------------------------


_DETAILS: Final = pa.schema([RECORD_SCHEMA.field(name) for name in DETAILS])


def run_records(engine: QueryEngine) -> Callable[[RunKey, int, int], AsyncIterator[pa.RecordBatch]]:
    """Returns a reader of a run's records with ULIDs between two, inclusive, in order, each once.

    The reader raises as a search does, and `StoreUnavailable` at the end if it could not read all.
    """

    async def records(key: RunKey, low: int, high: int) -> AsyncIterator[pa.RecordBatch]:
        request = QueryRequest(low=low, high=high, fqn=key.fqn, run=key.run, descending=False)
        if not await engine.may_hold(request):
            return  # most likely a run that never existed: no search for it
        async with await engine.open(request) as search:
            async for batch in search.batches():
                yield batch
            if not search.report.read_all:
                raise StoreUnavailable(
                    f"not all segments that may hold {key.fqn}/{key.run} can be read",
                    hint="See `tailrace verify`.",
                )

    return records


def run_details(engine: QueryEngine) -> Details:
    """Returns a reader of all columns but the text of a run's records between two ULIDs.

    It takes no slot of searches. While a run is written, the journal has most of these records.
    """

    async def details(key: RunKey, low: int, high: int, wanted: pa.Array) -> KnownRecords:
        request = QueryRequest(low=low, high=high, fqn=key.fqn, run=key.run, descending=False)

        def chosen(batch: pa.RecordBatch) -> pa.RecordBatch:
            known = pc.is_in(batch.column("ulid"), value_set=wanted)
            return batch.select(list(DETAILS)).filter(known).cast(_DETAILS)

        def in_journal() -> list[pa.RecordBatch]:
            return [chosen(batch) for batch in engine.journal_records(request)]

        found = await asyncio.to_thread(in_journal)
        if _has_all(found, wanted):
            return KnownRecords(pa.Table.from_batches(found, _DETAILS), ())
        found = []
        async with await engine.open_details(request) as search:
            async for batch in search.batches():
                found.append(chosen(batch))
            report = search.report
            missing = [*report.missing, *report.unreadable]
        return KnownRecords(pa.Table.from_batches(found, _DETAILS), missing)

    return details


def _has_all(found: Sequence[pa.RecordBatch], wanted: pa.Array) -> bool:
    ulids = pa.chunked_array([batch.column("ulid") for batch in found], pa.string())
    return bool(pc.all(pc.is_in(wanted, value_set=ulids)).as_py())
