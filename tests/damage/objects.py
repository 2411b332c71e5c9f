"""The kinds of stored objects, and ways to damage one that was really written."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import google_crc32c
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from service.journal import format as wal
from tailrace.logstore.state import (
    decode_checked,
    encode_checked,
    with_blank_check,
    without_blank_check,
)
from tests.edited import flips

Damage = Callable[[bytes], bytes | None]
"""The damaged bytes, None for no object. Raises `NotApplicable`."""


class NotApplicable(Exception):
    """The kind has no version number, or no bit that leaves it readable."""


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind of object: a pattern of its path below the data folder, of whose matches the `at`-th
    is damaged; its flip that still parses, and its newer format.
    """

    name: str
    pattern: str
    flip: Callable[[bytes], bytes]
    newer: Callable[[bytes], bytes] | None = None
    at: int = 0
    excused: Mapping[str, str] = field(default_factory=dict)
    """Why nobody can tell that damage from a store that never had the object."""
    only_flipped: bool = False
    """Another row has the other columns."""

    def path(self, data: Path) -> Path:
        """The object that is damaged."""
        return sorted(path for path in data.glob(self.pattern) if path.is_file())[self.at]

    def damages(self) -> dict[str, Damage]:
        """The columns of the matrix."""
        if self.only_flipped:
            none = dict.fromkeys(("removed", "emptied", "cut", "newer format"), _no_version)
            return {**none, "one bit flipped": self.flip}
        return {
            "removed": lambda _: None,
            "emptied": lambda _: b"",
            "cut": lambda body: body[: len(body) // 2],
            "one bit flipped": self.flip,
            "newer format": _no_version if self.newer is None else self.newer,
        }


def _no_version(_body: bytes) -> bytes:
    raise NotApplicable


def _flip_at(body: bytes, at: int) -> bytes:
    return body[:at] + bytes((body[at] ^ 1,)) + body[at + 1 :]


def flip_json(body: bytes) -> bytes:
    """A bit of a value of the JSON, which still parses and says something else."""
    before = orjson.loads(body.rstrip())
    parses = []
    for changed in flips(body):
        try:
            value = orjson.loads(changed)
        except ValueError:
            continue
        if isinstance(value, dict) and value.keys() == before.keys() and value != before:
            parses.append(changed)
    return Random(len(body)).choice(parses)


def flip_more_json(body: bytes) -> bytes:
    """Three bits, which nobody turns back."""
    for _ in range(3):
        body = flip_json(body)
    return body


def flip_text(body: bytes) -> bytes:
    """A letter in the middle of a text."""
    return _flip_at(body, body.index(b"line", len(body) // 2))


def _flip_column(column: str) -> Callable[[bytes], bytes]:
    """A bit in the middle of a column's values, which Parquet reads as other ones if it can."""

    def flip(body: bytes) -> bytes:
        footer = pq.read_metadata(_reader(body))
        names = [footer.schema.column(index).name for index in range(footer.num_columns)]
        chunk = footer.row_group(0).column(names.index(column))
        start = chunk.data_page_offset
        end = start + chunk.total_compressed_size
        intact = pq.ParquetFile(_reader(body)).read()
        for at in range(start + 40, end):
            changed = _flip_at(body, at)
            try:
                table = pq.ParquetFile(_reader(changed)).read()
            except (OSError, ValueError):
                continue
            if table.num_rows == footer.num_rows and table != intact:
                return changed
        return _flip_at(body, (start + end) // 2)

    return flip


def _reader(body: bytes) -> pa.BufferReader:
    return pa.BufferReader(body)


def flip_middle(body: bytes) -> bytes:
    return _flip_at(body, len(body) // 2)


def _flip_digit(word: bytes) -> Callable[[bytes], bytes]:
    """A bit of the first digit after `word`, which stays a digit and does not become 0."""

    def flip(body: bytes) -> bytes:
        at = body.index(word) + len(word)
        digit = next(other for bit in range(3) if (other := body[at] ^ 1 << bit) in b"123456789")
        return body[:at] + bytes([digit]) + body[at + 1 :]

    return flip


def _newer_json(member: str = "format") -> Callable[[bytes], bytes]:
    return lambda body: encode_checked(decode_checked(body) | {member: 99})


def _newer_identity(body: bytes) -> bytes:
    return with_blank_check(orjson.dumps(orjson.loads(without_blank_check(body)) | {"format": 99}))


def _newer_journal(body: bytes) -> bytes:
    header = wal.decode_header(body)
    head = bytearray(body[: header.size - 4])
    struct.pack_into("<I", head, 8, wal.VERSION + 1)
    return bytes(head) + struct.pack("<I", google_crc32c.value(bytes(head))) + body[header.size :]


def _newer_segment(body: bytes) -> bytes:
    at = body.rindex(b"TRSEAL01")
    seal = b"TRSEAL99" + body[at + 8 : at + 24]
    return body[:at] + seal + xxhash.xxh3_64(seal).digest()[::-1] + body[at + 32 :]


def _newer_skip_index(body: bytes) -> bytes:
    return body.replace(b"TRSKIP04", b"TRSKIP09")


def _newer_table(body: bytes) -> bytes:
    return body.replace(b'"minReaderVersion":1', b'"minReaderVersion":9')


def _flip_journal(body: bytes) -> bytes:
    return _flip_at(body, body.index(b"held line 7"))


IGNORED: Final = (
    *("lock", "store/.locks/*", "store/.tmp/*", "store/table/_delta_log/.mending"),
    *("store/table/*/*/.*.crc", "store/table/_staging/**"),
    *("reserve/*/*", "store/.reserve/*/*"),
)
"""Files of no content, and those that no program reads again."""
SIBLINGS: Final = (
    *("store/coordination/deleted/*/*", "store/runs/*/*.json", "store/segments/*/*.parquet"),
    *("store/pipeline-logs/*/*/*.txt", "store/pipeline-logs/*/*/chunks/*"),
    "store/table/_delta_log/*.json",
)
"""Other objects of kinds below, of which one is damaged."""
KINDS: Final = (
    ObjectKind("journal file", "journal/*.wal", _flip_journal, _newer_journal, at=-1),
    ObjectKind("journal row cache", "journal/*.idx", flip_middle),
    ObjectKind("name of the newest journal file", "journal/newest", flip_middle),
    ObjectKind("node identity", "node.json", flip_json, _newer_identity),
    ObjectKind(
        "segment, in the table",
        "store/segments/node*/*2.parquet",
        _flip_column("message"),
        _newer_segment,
    ),
    ObjectKind(
        "segment, not in the table",
        "store/segments/node*/*.parquet",
        _flip_column("message"),
        _newer_segment,
        at=-1,
    ),
    ObjectKind("quarantine marker", "store/segments/.aside/*/*[0-9]", flip_json),
    ObjectKind("give-up marker", "store/segments/.aside/*/*.given-up", flip_json),
    ObjectKind("run manifest, closed", "store/runs/p/closed.json", flip_json, _newer_json()),
    ObjectKind(
        "run manifest, closed: three bits",
        "store/runs/p/closed.json",
        flip_more_json,
        only_flipped=True,
    ),
    ObjectKind("run manifest, open", "store/runs/p/open.json", flip_json, _newer_json()),
    ObjectKind(
        "run manifest, open: three bits",
        "store/runs/p/open.json",
        flip_more_json,
        only_flipped=True,
    ),
    ObjectKind("run manifest, deleted", "store/runs/p/gone.json", flip_json, _newer_json()),
    ObjectKind(
        "run manifest, deleted: three bits",
        "store/runs/p/gone.json",
        flip_more_json,
        only_flipped=True,
    ),
    ObjectKind("active run", "store/pipeline-logs/.active/*/*/*", _no_version),
    ObjectKind("logs.txt", "store/pipeline-logs/p/closed/logs.txt", flip_text),
    ObjectKind("partial.txt", "store/pipeline-logs/p/open/partial.txt", flip_text),
    ObjectKind("chunk, of an open run", "store/pipeline-logs/p/open/chunks/*.txt", flip_text),
    ObjectKind(
        "chunk index, of an open run", "store/pipeline-logs/p/open/chunks/*.idx", flip_middle
    ),
    ObjectKind(
        "chunk index, of a closed run",
        "store/pipeline-logs/p/closed/chunks/*.idx",
        flip_middle,
        at=-1,
    ),
    ObjectKind("flush watermark", "store/coordination/text/*", flip_json, _newer_json()),
    ObjectKind("deletion of a run", "store/coordination/deleted/p/gone*", flip_json, _newer_json()),
    ObjectKind(
        "deletion of a pipeline",
        "store/coordination/deleted/r/.pipeline",
        flip_json,
        _newer_json(),
    ),
    ObjectKind("node registration", "store/coordination/nodes/*", flip_json, _newer_json()),
    ObjectKind("register entry", "store/coordination/peers/*", flip_json, _newer_json()),
    ObjectKind("forgotten node", "store/coordination/forgotten/*", flip_json, _newer_json()),
    ObjectKind("shedding slots", "store/coordination/shedding.json", flip_json, _newer_json()),
    ObjectKind("named lease", "store/coordination/leases/text/*", flip_json, _newer_json()),
    ObjectKind("consumer group", "store/coordination/groups/*", flip_json, _newer_json()),
    ObjectKind(
        "source of partitions",
        "store/coordination/partitions/*/source.json",
        flip_json,
        _newer_json(),
    ),
    ObjectKind(
        "shard of partitions", "store/coordination/partitions/*/0*.json", flip_json, _newer_json()
    ),
    ObjectKind("pipeline control", "store/coordination/pipelines/*", flip_json, _newer_json()),
    ObjectKind("report of status", "store/coordination/status/p/*", flip_json, _newer_json()),
    ObjectKind("report of progress", "store/coordination/progress/p/*", flip_json, _newer_json()),
    ObjectKind(
        "report of metrics",
        "store/coordination/metrics/p/*/*",
        flip_json,
        _newer_json(),
        excused={"removed": "nothing else names it"},
    ),
    ObjectKind("table data file", "store/table/date=*/*/*.parquet", _flip_column("message")),
    ObjectKind(
        "table log entry, first",
        "store/table/_delta_log/*0.json",
        _flip_digit(b'"minWriterVersion":'),
        _newer_table,
    ),
    ObjectKind(
        "table log entry, before the checkpoint",
        "store/table/_delta_log/*1.json",
        _flip_digit(b'"size":'),
    ),
    ObjectKind(
        "table log entry, after the checkpoint: a file",
        "store/table/_delta_log/*.json",
        _flip_digit(b'"path":"date='),
        at=3,
    ),
    ObjectKind(
        "table log entry, after the checkpoint: a mark",
        "store/table/_delta_log/*.json",
        _flip_digit(b'"version":'),
        at=3,
    ),
    ObjectKind(
        "table checkpoint", "store/table/_delta_log/*.checkpoint.parquet", _flip_column("path")
    ),
    ObjectKind("pointer to the checkpoint", "store/table/_delta_log/_last_checkpoint", flip_json),
    ObjectKind("skip index", "store/table/_index/**/*.skip4", flip_middle, _newer_skip_index),
    ObjectKind(
        "sidecar of a local store", "store/.meta/pipeline-logs/p/closed/logs.txt.json", flip_json
    ),
)
STATES: Final = {
    **{name: name for name in ("register entry", "forgotten node", "shedding slots")},
    **{name: name for name in ("deletion of a run", "deletion of a pipeline")},
    **{name: name for name in ("node registration", "named lease", "consumer group")},
    **{name: name for name in ("source of partitions", "shard of partitions")},
    **{name: name for name in ("give-up marker", "quarantine marker", "pipeline control")},
    **{name: name for name in ("report of status", "report of progress", "report of metrics")},
    "run manifest": "run manifest, closed",
    "watermark": "flush watermark",
    "identity": "node identity",
    "sidecar": "sidecar of a local store",
    "undo note": "undo note of a rolling object",
    "mark of a saved checkpoint": "mark of a rolling object's saved checkpoint",
}
"""Rows of the kinds of state objects."""
KEYS: Final = {
    "run_manifest": "run manifest, closed",
    "chunk_text": "chunk, of an open run",
    "chunk_index": "chunk index, of an open run",
    "partial": "partial.txt",
    "logs": "logs.txt",
    "active": "active run",
    "segment": "segment, in the table",
    "quarantine_marker": "quarantine marker",
    "give_up_marker": "give-up marker",
    "watermark": "flush watermark",
    "skip_index": "skip index",
    "indexed_file": "table data file",
    "lease": "named lease",
    "group": "consumer group",
    "pipeline_control": "pipeline control",
    "partition_source": "source of partitions",
    "partition_shard": "shard of partitions",
    "node_registration": "node registration",
    "peer": "register entry",
    "forgotten": "forgotten node",
    "deleted_run": "deletion of a run",
    "deleted_pipeline": "deletion of a pipeline",
    "run_report": "report of status",
}
"""Rows of the keys that `tailrace.logstore.keys` spells. Its other functions give prefixes."""
PREFIXES: Final = (
    *("manifests_of", "pipeline_texts", "run_texts", "chunks_of", "upstream_pipeline"),
    *("upstream_texts", "all_active", "active_pipeline", "active_nodes", "segments_of"),
    *("leases_of", "partitions_of", "peers_of", "deletions_of", "reports_of"),
)
