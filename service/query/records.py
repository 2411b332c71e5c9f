"""Records of one run, for whoever makes its text again, or has it and wants to know more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from logstore.batch import RunKey
from logstore.errors import StoreUnavailable
from service.query.engine import QueryEngine
from service.query.hot import SCHEMA
from service.query.request import QueryRequest
from service.runs.records import DETAILS, Details, Known

_DETAILS: Final = pa.schema([SCHEMA.field(name) for name in DETAILS])


def run_records(engine: QueryEngine) -> Callable[[RunKey, int, int], AsyncIterator[pa.RecordBatch]]:
    """What gives a run's records with ULIDs between two, inclusive, in order, each once.

    It raises as a search does, and `StoreUnavailable` at the end if it could not read all.
    """

    async def records(key: RunKey, low: int, high: int) -> AsyncIterator[pa.RecordBatch]:
        request = QueryRequest(low=low, high=high, fqn=key.fqn, run=key.run, descending=False)
        if not await engine.may_hold(request):
            return  # most likely a run that never was: no search for it
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
    """What gives all but the text of a run's records; they lie between two ULIDs.

    It takes no slot of searches. The journal has most of what is read while a run is written.
    """

    async def details(key: RunKey, low: int, high: int, wanted: pa.Array) -> Known:
        request = QueryRequest(low=low, high=high, fqn=key.fqn, run=key.run, descending=False)

        def chosen(batch: pa.RecordBatch) -> pa.RecordBatch:
            known = pc.is_in(batch.column("ulid"), value_set=wanted)
            return batch.select(list(DETAILS)).filter(known).cast(_DETAILS)

        def in_journal() -> list[pa.RecordBatch]:
            return [chosen(batch) for batch in engine.hot_records(request)]

        found = await asyncio.to_thread(in_journal)
        if _has_all(found, wanted):
            return Known(pa.Table.from_batches(found, _DETAILS), ())
        found = []
        async with await engine.open_details(request) as search:
            async for batch in search.batches():
                found.append(chosen(batch))
            report = search.report
            missing = [*report.missing, *report.unreadable]
        return Known(pa.Table.from_batches(found, _DETAILS), missing)

    return details


def _has_all(found: Sequence[pa.RecordBatch], wanted: pa.Array) -> bool:
    ulids = pa.chunked_array([batch.column("ulid") for batch in found], pa.string())
    return bool(pc.all(pc.is_in(wanted, value_set=ulids)).as_py())
