"""Records of one run, for whoever makes its text again, or has it and wants to know more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
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
    """What gives all but the text of a run's records; they lie between two ULIDs."""

    async def details(key: RunKey, low: int, high: int, wanted: pa.Array) -> Known:
        request = QueryRequest(low=low, high=high, fqn=key.fqn, run=key.run, descending=False)
        found: list[pa.RecordBatch] = []
        async with await engine.open(request) as search:
            async for batch in search.batches():
                chosen = pc.is_in(batch.column("ulid"), value_set=wanted)
                found.append(batch.select(list(DETAILS)).filter(chosen).cast(_DETAILS))
            report = search.report
            missing = [*report.missing, *report.unreadable]
        return Known(pa.Table.from_batches(found, _DETAILS), missing)

    return details
