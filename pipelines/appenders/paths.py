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
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logstore.names import encode

Indexes = NDArray[np.int64]
Column = Callable[[pa.Table, int], tuple[Indexes, list[str]]]
"""For each event the number of its text, and the texts."""
_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_COLUMNS: Final = {"fqn": "fqn", "run": "run_id", "connector": "connector_id", "level": "level"}
_NONE: Final = "none"
_TIMES: Final = {"date": (86_400_000_000, "%Y-%m-%d"), "hour": (3_600_000_000, "%H")}


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
            found, texts = _column(field)(events, part)
            codes = codes * max(len(texts), 1) + found
            values.append([_named(text) for text in texts])
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


def _column(field: str) -> Column:
    """Makes a column. Raises `ValueError` for a field that is not known."""
    if field in _COLUMNS:
        return lambda events, _: _encoded(events.column(_COLUMNS[field]))
    if field == "service":
        return lambda events, _: _changed(
            _encoded(events.column("fqn")), lambda name: name.partition(".")[0]
        )
    if field in _TIMES:
        microseconds, form = _TIMES[field]
        return lambda events, _: _times(events, microseconds, form)
    if field == "part":
        return lambda events, part: (np.zeros(events.num_rows, dtype=np.int64), [str(part)])
    if field.startswith("attribute."):
        name = field.removeprefix("attribute.")
        return lambda events, _: _encoded(
            pc.map_lookup(events.column("attributes").combine_chunks(), name, "last")
        )
    known = "fqn, run, connector, level, service, date, hour, part"
    raise ValueError(f"has the field {{{field}}}; known are {known} and attribute.NAME")


def _encoded(column: pa.ChunkedArray | pa.Array) -> tuple[Indexes, list[str]]:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    found = array.dictionary_encode(null_encoding="encode")
    codes: Indexes = found.indices.to_numpy().astype(np.int64)
    return codes, [text or "" for text in found.dictionary.to_pylist()]


def _changed(
    column: tuple[Indexes, list[str]], change: Callable[[str], str]
) -> tuple[Indexes, list[str]]:
    """The column with other texts, of which several may become the same."""
    codes, texts = column
    changed = [change(text) for text in texts]
    kept = sorted(set(changed))
    return np.array([kept.index(text) for text in changed], dtype=np.int64)[codes], kept


def _times(events: pa.Table, microseconds: int, form: str) -> tuple[Indexes, list[str]]:
    stamps = events.column("ts").combine_chunks().cast(pa.int64()).to_numpy() // microseconds
    found, codes = np.unique(stamps, return_inverse=True)
    seconds = (found * (microseconds // 1_000_000)).tolist()
    column = codes.astype(np.int64), [f"{datetime.fromtimestamp(s, UTC):{form}}" for s in seconds]
    return _changed(column, str)
