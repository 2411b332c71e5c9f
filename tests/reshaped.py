"""Tables that another program has changed, by log entries as Delta's protocol has them.

delta-rs writes neither deletion vectors nor column mapping, so the entries are made here by
hand. That they are real ones is shown by a reader that knows them:
`tests/logstore/table/test_shape.py`.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import orjson

Action: TypeAlias = "dict[str, Any]"
Reshape: TypeAlias = Callable[[Path], None]

_MAGIC = 1_681_511_377  # of an array of Roaring bitmaps of 64 bits
_NO_RUNS = 12_346  # of Roaring's portable format
# ZeroMQ's alphabet in place of Python's, digit by digit.
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def with_deletion_vector(table: Path, rows: Sequence[int] = (0, 2)) -> None:
    """Takes these rows out of the table's first file, which stays as it is."""
    entry = next(iter(_added(table)))
    vector = {
        "storageType": "i",
        "pathOrInlineDv": _z85(_bitmap(rows)),
        "sizeInBytes": len(_bitmap(rows)),
        "cardinality": len(rows),
    }
    removed = {"path": entry["path"], "deletionTimestamp": 1, "dataChange": True}
    _commit(
        table,
        _protocol(3, 7, ["deletionVectors"]),
        {"remove": removed},
        {"add": entry | {"deletionVector": vector, "dataChange": True}},
    )


def with_column_mapping(table: Path) -> None:
    """Calls the columns of files yet to come by other names inside."""
    metadata = _metadata(table)
    schema = orjson.loads(metadata["schemaString"])
    for number, column in enumerate(schema["fields"]):
        column["metadata"] = {
            "delta.columnMapping.id": number + 1,
            "delta.columnMapping.physicalName": column["name"],
        }
    metadata["schemaString"] = orjson.dumps(schema).decode()
    metadata["configuration"] |= {
        "delta.columnMapping.mode": "name",
        "delta.columnMapping.maxColumnId": str(len(schema["fields"])),
    }
    _commit(
        table, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": metadata}
    )


def with_columns(change: Callable[[list[Action]], list[Action]]) -> Reshape:
    """Changes the columns as `change` says, which is given them as Delta's JSON has them."""

    def reshape(table: Path) -> None:
        metadata = _metadata(table)
        schema = orjson.loads(metadata["schemaString"])
        schema["fields"] = change(schema["fields"])
        metadata["schemaString"] = orjson.dumps(schema).decode()
        _commit(table, {"metaData": metadata})

    return reshape


def with_partitions(*names: str) -> Reshape:
    """Empties it, and has it partitioned by these columns from now on."""

    def reshape(table: Path) -> None:
        removed = [{"path": entry["path"], "dataChange": True} for entry in _added(table)]
        metadata = _metadata(table) | {"partitionColumns": names}
        _commit(table, {"metaData": metadata}, *({"remove": one} for one in removed))

    return reshape


def with_configuration(**more: str) -> Reshape:
    """Sets properties of the table, named without `delta.`."""

    def reshape(table: Path) -> None:
        metadata = _metadata(table)
        metadata["configuration"] |= {f"delta.{name}": value for name, value in more.items()}
        _commit(table, {"metaData": metadata})

    return reshape


def with_writer_features(*names: str) -> Reshape:
    """Says what its writers must know."""
    return lambda table: _commit(table, _protocol(1, 7, [], names))


def _protocol(
    reader: int, writer: int, features: Sequence[str], more: Sequence[str] = ()
) -> Action:
    found: Action = {"minReaderVersion": reader, "minWriterVersion": writer}
    if reader == 3:  # from here on features are named
        found["readerFeatures"] = list(features)
    return {"protocol": found | {"writerFeatures": [*features, *more]}}


def _bitmap(rows: Sequence[int]) -> bytes:
    """Rows below 65,536, an even number of them: what is inline is whole words."""
    roaring = struct.pack("<IIHHI", _NO_RUNS, 1, 0, len(rows) - 1, 16)
    roaring += struct.pack(f"<{len(rows)}H", *sorted(rows))
    return struct.pack("<IQI", _MAGIC, 1, 0) + roaring


def _z85(body: bytes) -> str:
    return base64.b85encode(body).translate(bytes.maketrans(_B85, _Z85)).decode()


def _log(table: Path) -> list[Path]:
    return sorted((table / "_delta_log").glob("*.json"))


def _actions(table: Path) -> Iterable[Action]:
    for entry in _log(table):
        yield from map(orjson.loads, entry.read_bytes().splitlines())


def _added(table: Path) -> Iterable[Action]:
    return (action["add"] for action in _actions(table) if "add" in action)


def _metadata(table: Path) -> Action:
    found = [action["metaData"] for action in _actions(table) if "metaData" in action]
    last: Action = found[-1]
    return last


def _commit(table: Path, *actions: Action) -> None:
    info = {"commitInfo": {"timestamp": 1, "operation": "SOMEBODY ELSE"}}
    version = int(_log(table)[-1].name[:20]) + 1
    lines = [orjson.dumps(action) + b"\n" for action in (info, *actions)]
    (table / "_delta_log" / f"{version:020d}.json").write_bytes(b"".join(lines))
