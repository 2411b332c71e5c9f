"""Lines of table files that were found before DuckDB, as records with numbers for names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logstore.segments.schema import CARRIED
from logstore.segments.ulids import texts_of
from logstore.table.pages.line_map import LINE
from service.query.footers import ATTRIBUTES, MESSAGE, NAMES
from service.query.hot import SCHEMA

NO_NAME: Final = 0xFFFF
_SOME_BYTES: Final = 4 * LINE.itemsize  # what a line takes beside its message


@dataclass(frozen=True, slots=True)
class Found:
    """Lines of a row group: their rows in it, what belongs to them (`LINE`), their messages.

    A number without a name is that of no name.
    """

    names: dict[int, str]
    numbers: Sequence[int]
    records: NDArray[Any]
    messages: Sequence[bytes]

    @property
    def nbytes(self) -> int:
        """About how much memory they take."""
        return sum(map(len, self.messages)) + _SOME_BYTES * len(self.numbers)


def batch_of(found: Sequence[Found]) -> pa.RecordBatch:
    """All of these lines, without attributes."""
    names: dict[str | None, int] = {None: 0}
    records = np.concatenate([_renumbered(one, names) for one in found])
    texts = pa.array(list(names), pa.string())
    columns = {
        "ulid": _ulids(texts_of(records["hi"], records["lo"])),
        "ts": pa.array(records["ts"]).cast(SCHEMA.field("ts").type),
        "pos": pa.array(records["pos"]),
        MESSAGE: _strings([text for one in found for text in one.messages]),
        ATTRIBUTES: pa.nulls(len(records), SCHEMA.field(ATTRIBUTES).type),
        CARRIED: pa.array(records["carried"], mask=~records["carried"]),
    }
    columns |= {name: texts.take(pa.array(records[name])) for name in NAMES}
    return pa.RecordBatch.from_arrays([columns[one.name] for one in SCHEMA], schema=SCHEMA)


def _renumbered(found: Found, names: dict[str | None, int]) -> NDArray[Any]:
    """The records with numbers of `names`, to which their names are added."""
    records = found.records.copy()
    used = np.unique(np.concatenate([records[column] for column in NAMES]))
    texts = [found.names.get(number) for number in used.tolist()]
    numbers = np.array([names.setdefault(text, len(names)) for text in texts])
    for column in NAMES:
        records[column] = numbers[np.searchsorted(used, records[column])]
    return records


def _ulids(texts: NDArray[np.uint8]) -> pa.StringArray:
    ends = np.arange(0, texts.size + 1, texts.shape[1], dtype=np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(texts))


def _strings(texts: Sequence[bytes]) -> pa.StringArray:
    return pa.array(texts, pa.binary()).cast(pa.string(), safe=False)
