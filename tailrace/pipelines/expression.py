"""Filters in the language of searches: the same grammar and meaning as `q` of `GET /query`.

An expression becomes the same term of SQL as in a search, and DuckDB finds the events for which it
is true. DuckDB works in the thread that asks, within `_MEMORY` for all expressions of a process.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.search.conditions import Column, asks_for_text, leaves
from tailrace.logstore.search.language import parse
from tailrace.logstore.search.translate import Where
from tailrace.pipelines.events import EVENTS

_MEMORY: Final = "128MB"
_A_MOMENT: Final = 1_000_000_000_000
_LATER: Final = 86_400_000
_ROW: Final = "row"


class Expression(NamedTuple):
    """A term of a WHERE clause over records `r`, and what it binds."""

    term: str
    parameters: dict[str, Any]
    asks_for_text: bool = False

    def of(self, events: pa.Table) -> pa.Table:
        """The events (columns of `EVENTS`) for which it is true, in the same order."""
        if events.num_rows == 0:
            return events
        rows = pa.array(np.arange(events.num_rows))
        with _database().cursor() as cursor:
            cursor.register("r", events.append_column(_ROW, rows))
            # The term is made of what the parser knows, and binds what the user wrote.
            statement = f"SELECT {_ROW} FROM r WHERE {self.term}"  # noqa: S608
            found = cursor.execute(statement, self.parameters).to_arrow_table()
        if found.num_rows == events.num_rows:
            return events
        return events.take(pa.array(np.sort(found.column(_ROW).to_numpy())))


def expression(text: str) -> Expression:
    """What the text asks for. Raises `InvalidInput`, `TooLarge` that say where it is wrong."""
    condition = parse(text, now_ms=_A_MOMENT)
    if condition is None:
        raise InvalidInput("is empty", hint="Leave it out to take every record.")
    if condition != parse(text, now_ms=_A_MOMENT + _LATER):
        raise InvalidInput(
            "has a time that moves with the clock", hint="Write times as 2026-11-21T10:00:00Z."
        )
    for leaf in leaves(condition):
        if leaf.field == Column("pos"):  # type: ignore[union-attr]  # leaves have fields
            raise InvalidInput("asks for pos, which events of pipelines do not have")
    where = Where()
    term = where.term(condition)
    made = Expression(term, where.parameters, asks_for_text(condition))
    _check(made)
    return made


def _check(made: Expression) -> None:
    """Raises `InvalidInput` if DuckDB does not take it: a regular expression that is none."""
    nothing = pa.table({one.name: pa.nulls(1, one.type) for one in EVENTS})
    try:
        made.of(nothing)
    except duckdb.Error as error:
        reason = str(error).removeprefix("Invalid Input Error: ")
        raise InvalidInput(
            f"has an invalid regular expression: {reason[:200]}",
            hint="RE2 syntax: no look-around and no back references.",
        ) from None


@cache
def _database() -> duckdb.DuckDBPyConnection:
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "memory_limit": _MEMORY,
        "enable_external_access": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "lock_configuration": True,
    }
    return duckdb.connect(":memory:", config=settings)
