"""Searches that need no DuckDB: for texts and names, among few lines that are there already.

A statement over a handful of lines takes DuckDB some 4 ms to plan, many times what there is to do.
Here the same is asked of Arrow's columns: texts are compared byte by byte as DuckDB does, names
likewise, and the order of strings is that of their bytes in both. A condition of any other kind
(regular expressions, numbers, JSON, `NOT`, another case) is not for here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from logstore import ulid
from logstore.search.conditions import MESSAGE, All, AnyOf, Column, Condition, Contains, Is
from logstore.segments.record_keys import KEY_COLUMNS
from service.query.cursor import RecordKey
from service.query.request import QueryRequest
from service.query.tiles import Tile
from service.query.view import Deletion

_NAMES: Final = (MESSAGE, Column("fqn"), Column("run_id"))
"""Columns of text that every record has."""


def is_plain(request: QueryRequest) -> bool:
    """Whether `matching` can answer it."""
    return request.value is None and _is_plain(request.condition)


def _is_plain(condition: Condition | None) -> bool:
    match condition:
        case All(parts) | AnyOf(parts):
            return bool(parts) and all(map(_is_plain, parts))
        case Contains(_, field, False) | Is(_, field, False):
            return field in _NAMES
    return condition is None


def matching(
    records: Sequence[pa.RecordBatch],
    request: QueryRequest,
    tile: Tile,
    after: RecordKey | None,
    deletions: Sequence[Deletion],
) -> pa.RecordBatch:
    """Those of the records that the request asks for, behind `after`, in order, uncut."""
    rows = pa.concat_batches(records)
    terms = [*_asked(rows, request, tile), *_live(rows, deletions)]
    if after is not None:
        terms.append(_behind(rows, after, descending=request.descending))
    kept = reduce(pc.and_, terms)
    if not pc.all(kept).as_py():
        rows = rows.filter(kept)
    if rows.num_rows > 1:
        direction = "descending" if request.descending else "ascending"
        rows = rows.sort_by([(name, direction) for name in KEY_COLUMNS])
    return rows


def _asked(rows: pa.RecordBatch, request: QueryRequest, tile: Tile) -> list[pa.Array]:
    ids = rows.column("ulid")
    terms = [
        pc.greater_equal(ids, ulid.encode(tile.low)),
        pc.less_equal(ids, ulid.encode(tile.high)),
    ]
    if request.fqn is not None:
        terms.append(pc.equal(rows.column("fqn"), request.fqn))
    if request.run is not None:
        terms.append(pc.equal(rows.column("run_id"), request.run))
    if request.levels:
        levels = pa.array(request.levels, pa.string())
        terms.append(pc.is_in(rows.column("level"), value_set=levels))
    if request.condition is not None:
        terms.append(_term(rows, request.condition))
    return terms


def _term(rows: pa.RecordBatch, condition: Condition) -> pa.Array:
    match condition:
        case All(parts):
            return reduce(pc.and_, [_term(rows, part) for part in parts])
        case AnyOf(parts):
            return reduce(pc.or_, [_term(rows, part) for part in parts])
        case Contains(text, field) if isinstance(field, Column):
            return pc.match_substring(rows.column(field.name), text)
        case Is(text, field) if isinstance(field, Column):
            return pc.equal(rows.column(field.name), text)
    raise AssertionError(f"is_plain comes first: {condition}")


def _live(rows: pa.RecordBatch, deletions: Sequence[Deletion]) -> list[pa.Array]:
    """For each deletion, what it leaves."""
    terms = []
    for fqn, run, until in deletions:
        gone = pc.and_(
            pc.equal(rows.column("fqn"), fqn),
            pc.less_equal(rows.column("ulid"), ulid.encode(until)),
        )
        if run is not None:
            gone = pc.and_(gone, pc.equal(rows.column("run_id"), run))
        terms.append(pc.invert(gone))
    return terms


def _behind(rows: pa.RecordBatch, after: RecordKey, *, descending: bool) -> pa.Array:
    """Whether the key of a record comes after this one, in the order of the search."""
    comes = pc.less if descending else pc.greater
    term = None
    for name, value in zip(reversed(KEY_COLUMNS), reversed(after), strict=True):
        column = rows.column(name)
        here = comes(column, value)
        term = here if term is None else pc.or_(here, pc.and_(pc.equal(column, value), term))
    return term
