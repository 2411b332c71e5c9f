"""Paths that depend on the event: `{service}/{fqn}/{date}.log`.

| field | is |
| --- | --- |
| `{fqn}`, `{run}`, `{connector}`, `{level}` | of the record |
| `{service}` | the first part of the pipeline's name |
| `{date}`, `{hour}` | of the event's time in UTC: `2026-11-23`, `07` |
| `{part}` | which part of the pipelines' names this is, from 0 |
| `{attribute.NAME}` | an attribute |

A value becomes a name that cannot leave its folder (`logstore.names`); one that is missing is
`none`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logstore.names import encode

Indexes = NDArray[np.int64]
_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_COLUMNS: Final = {"fqn": "fqn", "run": "run_id", "connector": "connector_id", "level": "level"}
_NONE: Final = "none"


class PathTemplate:
    """A path below an appender's folder. Raises `ValueError` for one that cannot be."""

    def __init__(self, template: str) -> None:
        pieces = template.split("/")
        if template.startswith("/") or not all(pieces) or {".", "..", ".tailrace"} & set(pieces):
            raise ValueError(f"{template!r} must be a path below the folder, without . and ..")
        self.template = template
        self.fields = tuple(_FIELD.findall(template))
        if set(_FIELD.sub("", template)) & set("{}"):
            raise ValueError(f"{template!r} has a brace that nothing closes")
        for field in self.fields:
            _column(field)

    @property
    def of_one_pipeline(self) -> bool:
        """Whether no two parts of the pipelines' names have a path in common."""
        return "fqn" in self.fields or "part" in self.fields

    def groups(self, events: pa.Table, part: int) -> Iterator[tuple[str, Indexes]]:
        """Each path, and the rows of its events in order."""
        codes = np.zeros(events.num_rows, dtype=np.int64)
        values: list[list[str]] = []
        for field in self.fields:
            found = _column(field)(events, part).dictionary_encode()
            codes = codes * max(len(found.dictionary), 1) + found.indices.to_numpy()
            values.append([_named(value) for value in found.dictionary.to_pylist()])
        for code in np.unique(codes).tolist():
            yield self._path(code, values), np.flatnonzero(codes == code)

    def _path(self, code: int, values: list[list[str]]) -> str:
        chosen: list[str] = []
        for names in reversed(values):
            code, index = divmod(code, max(len(names), 1))
            chosen.append(names[index])
        return _FIELD.sub(lambda _: chosen.pop(), self.template)


def _named(value: str) -> str:
    return encode(value) if value else _NONE


def _column(field: str) -> Callable[[pa.Table, int], pa.Array]:
    """Makes a column of texts without nulls. Raises `ValueError` for a field that is not known."""
    if field in _COLUMNS:
        return lambda events, _: _filled(events.column(_COLUMNS[field]))
    if field == "service":
        return lambda events, _: pc.replace_substring_regex(
            _filled(events.column("fqn")), r"\..*", ""
        )
    if field == "date":
        return lambda events, _: pc.strftime(events.column("ts").combine_chunks(), "%Y-%m-%d")
    if field == "hour":
        return lambda events, _: pc.strftime(events.column("ts").combine_chunks(), "%H")
    if field == "part":
        return lambda events, part: pa.repeat(str(part), events.num_rows)
    if field.startswith("attribute."):
        name = field.removeprefix("attribute.")
        return lambda events, _: _filled(
            pc.map_lookup(events.column("attributes").combine_chunks(), name, "last")
        )
    known = "fqn, run, connector, level, service, date, hour, part"
    raise ValueError(f"has the field {{{field}}}; known are {known} and attribute.NAME")


def _filled(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pc.fill_null(array.cast(pa.string()), "")
