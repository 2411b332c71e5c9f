"""Which of some new records a search matches: DuckDB says so, as it does for stored ones.

Without an expression no database is needed. All calls block; only `interrupt` may come from
another thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import TailraceError
from logstore.search.conditions import patterns
from service.query.hot import SCHEMA
from service.query.pool import DatabasePool
from service.query.request import QueryRequest
from service.query.sql import Scans, Statement
from service.query.tiles import Tile

if TYPE_CHECKING:
    from service.query.database import Database

_ALL: Final = Tile(0, (1 << 128) - 1)


class Matcher:
    """Looks at records for one search at a time, in a database of the pool."""

    def __init__(self, databases: DatabasePool) -> None:
        self._databases = databases
        self._database: Database | None = None
        self._stopped: TailraceError | None = None

    def matches(self, request: QueryRequest, records: Sequence[pa.RecordBatch]) -> pa.Table:
        """The records that match, whatever their time. Raises as a search does."""
        table = _named(request, pa.Table.from_batches(records, SCHEMA))
        if request.condition is None or table.num_rows == 0:
            return table
        self._stopped = None
        self._database = self._databases.take(
            separate=bool(patterns(request.condition)), check=self._check
        )
        try:
            return _selected(self._database, request, table)
        finally:
            self._database.close()
            self._database = None

    def interrupt(self, reason: TailraceError) -> None:
        """Ends what it does now with `reason`; call it until that has ended."""
        self._stopped = reason
        database = self._database
        if database is not None:
            database.interrupt(reason)

    def _check(self) -> None:
        if self._stopped is not None:
            raise self._stopped


def _named(request: QueryRequest, table: pa.Table) -> pa.Table:
    """The records of the runs and levels that are asked for."""
    if request.fqn is not None:
        table = table.filter(pc.equal(table.column("fqn"), request.fqn))
    if request.run is not None:
        table = table.filter(pc.equal(table.column("run_id"), request.run))
    if request.levels:
        table = table.filter(pc.is_in(table.column("level"), pa.array(request.levels)))
    return table


def _selected(database: Database, request: QueryRequest, table: pa.Table) -> pa.Table:
    statement = Statement(request)
    scans = Scans({"hot": []})
    database.feed("hot", SCHEMA, iter(table.to_batches()))
    found = database.run(statement.records(scans, None, None), statement.parameters(_ALL, None))
    return pa.Table.from_batches([batch.cast(SCHEMA) for batch in found], SCHEMA)
