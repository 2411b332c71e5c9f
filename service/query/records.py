"""All records of one run, for whoever makes its text again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pyarrow as pa

from logstore.batch import RunKey
from logstore.errors import StoreUnavailable
from service.query.engine import QueryEngine
from service.query.request import QueryRequest


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
            if not search.report.complete:
                raise StoreUnavailable(
                    f"not all segments that may hold {key.fqn}/{key.run} can be read",
                    hint="See `tailrace verify`.",
                )

    return records
