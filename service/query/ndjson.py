"""Records as lines of JSON, made by column: no step of Python per record.

    {"ulid","ts","fqn","run_id","level","connector_id","pos","message","attributes"}

The bytes are those that orjson gives for the same objects one by one. A ULID and a time hold
nothing that JSON escapes.

Strings of a column are quoted together: each with a DEL behind it they are one string to
orjson, which leaves a DEL as it is, so that each is where one ends and the next begins. Only
a column that holds a DEL itself, or a null, is quoted string by string.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_DEL: Final = 0x7F
_NAMES: Final = ("fqn", "run_id", "level", "connector_id")


def lines(batch: pa.RecordBatch) -> bytes:
    """One line for each record."""
    attributes = batch.column("attributes")
    bare = attributes.null_count == len(attributes)
    joined = _joined(
        '{"ulid":"',
        batch.column("ulid"),
        '","ts":"',
        _times(batch.column("ts")),
        _names(batch),
        batch.column("pos").cast(pa.string()),
        ',"message":',
        _quoted(batch.column("message")),
        ',"attributes":null}\n' if bare else ',"attributes":',
        *([] if bare else [_objects(attributes), "}\n"]),
    )
    return bytes(characters(joined))


def characters(strings: pa.StringArray) -> memoryview:
    """The bytes of all strings, one behind the other."""
    _, offsets, data = strings.buffers()
    if offsets is None or data is None or len(strings) == 0:
        return memoryview(b"")
    bounds = np.frombuffer(offsets, np.int32)
    return memoryview(data)[bounds[strings.offset] : bounds[strings.offset + len(strings)]]


def _times(column: pa.Array) -> pa.Array:
    """RFC 3339 with six digits, without the Z. Twenty times as fast as `strftime`."""
    spaced = column.cast(pa.timestamp("us")).cast(pa.string())
    return pc.binary_replace_slice(spaced, 10, 11, "T")


def _names(batch: pa.RecordBatch) -> pa.Array:
    """What is between time and number. Few records differ in it: each kind is made once."""
    codes = np.zeros(batch.num_rows, np.int64)
    for name in _NAMES:
        column = batch.column(name).dictionary_encode(null_encoding="encode")
        codes = codes * len(column.dictionary) + column.indices.to_numpy()
    _, first, which = np.unique(codes, return_index=True, return_inverse=True)
    kinds = batch.select(_NAMES).take(pa.array(first)).to_pylist()
    members = [b'Z",%b,"pos":' % orjson.dumps(kind)[1:-1] for kind in kinds]
    return pa.array(members, pa.string()).take(pa.array(which))


def _objects(column: pa.Array) -> pa.Array:
    """Maps as JSON objects. Of values of the same key the last counts, as in a `dict`."""
    bounds = column.offsets.to_numpy()
    first, size = bounds[0], bounds[-1] - bounds[0]
    keys = column.keys.slice(first, size)
    if _doubled(keys, bounds - first):
        plain = [None if items is None else dict(items) for items in column.to_pylist()]
        return pa.array([orjson.dumps(value) for value in plain], pa.string())
    members = _joined(_quoted(keys), ":", _quoted(column.items.slice(first, size)))
    together = pa.ListArray.from_arrays(pa.array(bounds - first), members)
    objects = _joined("{", pc.binary_join(together, ","), "}")
    return pc.if_else(column.is_valid(), objects, "null")


def _doubled(keys: pa.Array, bounds: NDArray[np.int32]) -> bool:
    """Whether a map has a key twice."""
    coded = keys.dictionary_encode()
    maps = np.repeat(np.arange(len(bounds) - 1, dtype=np.int64), np.diff(bounds))
    pairs = maps * len(coded.dictionary) + coded.indices.to_numpy()
    return len(np.unique(pairs)) != len(pairs)


def _quoted(strings: pa.Array) -> pa.Array:
    """Each as JSON has it."""
    if strings.null_count == 0:
        together = characters(_joined(strings, chr(_DEL)))
        text = orjson.dumps(str(together, "utf-8"))
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _DEL)
        if len(ends) == len(strings):
            bounds = np.zeros(len(strings) + 1, np.int32)
            bounds[1:] = ends + np.arange(1, len(strings) + 1)
            quoted = text.replace(b"\x7f", b'""')
            buffers = [pa.py_buffer(bounds), pa.py_buffer(quoted)]
            return pa.StringArray.from_buffers(len(strings), *buffers)
    return pa.array(list(map(orjson.dumps, strings.to_pylist())), pa.string())


def _joined(*parts: pa.Array | str) -> pa.Array:
    """Strings of each record, one behind the other; null where there is none."""
    return pc.binary_join_element_wise(*parts, "", null_handling="replace", null_replacement="null")
