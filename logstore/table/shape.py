"""Checks that a table still has the shape that we made: its Delta features and its columns.

We write version 1 for readers and 2 for writers, which every engine supports. Another program that
writes to the table may raise that. Then a file of the log is no longer just its rows (a deletion
vector beside it removes some), or its columns have other names inside (column mapping), and
a program that reads Parquet as it stands, as DuckDB, Spark and we do, returns wrong lines
without an error. Everything that is not known to be harmless is therefore refused.

| | readers | writers |
| --- | --- | --- |
| version for readers above 1 | refuse | refuse |
| a column of ours missing or of another type, other partitions | refuse | refuse |
| `schema.ADDED` missing | accept | accept: `Table.create` adds them |
| further columns: rewriting would lose them | accept | refuse |
| features for writers, except `appendOnly` and others that demand nothing | accept | refuse |

The marks are no rows: they can be read from a table of any shape (`Table.mark`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import orjson
from deltalake import DeltaTable, Schema

from logstore.errors import UnsupportedVersion
from logstore.table.schema import ADDED, COLUMNS, PARTITIONS

_READER: Final = 1
_FEATURES: Final = 7  # the version of writers from which features are named one by one
_LEGACY_WRITER: Final = 4  # up to here what neither configuration nor columns ask for is off
_HARMLESS: Final = frozenset({"appendOnly", "invariants", "changeDataFeed"})
_HINT: Final = (
    "Another program changed the table. Take it back there, as docs/operations.md says (A table"
    " of another shape), and let no other program write to it. Nothing was read or written"
    " meanwhile; segments wait."
)


def check_readable(delta: DeltaTable, uri: str) -> None:
    """Raises `UnsupportedVersion` if the table's files alone do not determine its lines."""
    _refuse(uri, "read", _unreadable(delta))


def check_writable(delta: DeltaTable, uri: str) -> None:
    """Raises `UnsupportedVersion` if our writes would not fulfil all that the table demands."""
    _refuse(uri, "written to", _unwritable(delta))


def lacks_columns(delta: DeltaTable) -> bool:
    """Whether it is a table of an earlier version, without columns that were added since."""
    return any(name not in _types(delta.schema()) for name in ADDED)


def _refuse(uri: str, what: str, reasons: Iterator[str]) -> None:
    found = ", ".join(reasons)
    if found:
        raise UnsupportedVersion(
            f"the table at {uri} has another shape and is not {what}: {found}", hint=_HINT
        )


def _unreadable(delta: DeltaTable) -> Iterator[str]:
    protocol = delta.protocol()
    if protocol.min_reader_version > _READER:
        named = sorted(protocol.reader_features or ["columnMapping"])
        yield f"its readers must know {', '.join(named)}"
    partitions = delta.metadata().partition_columns
    if partitions != list(PARTITIONS):
        yield f"it is partitioned by {', '.join(partitions) or 'nothing'}"
    there = _types(delta.schema())
    for name, type_ in _ours().items():
        if name not in there:
            if name in ADDED:
                continue
            yield f"column {name} is gone"
        elif there[name] != type_:
            yield f"column {name} is of another type"


def _unwritable(delta: DeltaTable) -> Iterator[str]:
    yield from _unreadable(delta)
    protocol, schema = delta.protocol(), delta.schema()
    features = set(protocol.writer_features or ())
    if _LEGACY_WRITER < protocol.min_writer_version < _FEATURES:
        yield f"it is of version {protocol.min_writer_version} for writers"
    if features - _HARMLESS:
        yield f"its writers must know {', '.join(sorted(features - _HARMLESS))}"
    for name, value in sorted(delta.metadata().configuration.items()):
        if name.startswith("delta.constraints.") or (name, value) == ("delta.appendOnly", "true"):
            yield f"it has {name} = {value}"
    for field in _fields(schema):
        if field["name"] not in _ours():
            yield f"it has a column {field['name']}"
        if field.get("metadata"):
            yield f"column {field['name']} has {', '.join(sorted(field['metadata']))}"


@cache
def _ours() -> Mapping[str, Any]:
    return _types(Schema.from_arrow(COLUMNS))


def _types(schema: Schema) -> Mapping[str, Any]:
    return {field["name"]: field["type"] for field in _fields(schema)}


def _fields(schema: Schema) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(schema.to_json())["fields"]
    return found
