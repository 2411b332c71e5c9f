"""Every key of the object store, spelled only in this module, and the encoding of names in keys.

`encode` encodes each name, so no name can leave its prefix. `prefix` is the setting that says where
the texts of runs are. A pipeline's deletion is `.pipeline` in the folder of its runs' deletions,
since a local store cannot hold both an object `x` and objects below `x/`; no encoded run begins
with a dot.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import InvalidName

# Names as key components: one-to-one, readable, safe on S3 and on every file system.
#
# An fqn, run or node name becomes one component of a key:
#
# - letters, digits, `.`, `-` and `_` of ASCII stay as they are, except a leading dot;
# - every other byte of the name's UTF-8 is `%XX`, in capitals; the empty name is `%`;
# - a component longer than 200 bytes is cut to a head, `~`, and 40 hexadecimal digits of a BLAKE2b
#   of the name. No other component holds a `~`.
#
# So a component is never empty, `.` or `..`, holds no `/`, and two names never share one. A
# component with a hash cannot be decoded: manifests carry names in clear.


MAX_COMPONENT_BYTES = 200
MAX_NAME_BYTES = 4096
HASH_MARK = "~"

_HASH_DIGITS = 40
_EMPTY = "%"
_READABLE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_")
_SPELLING = [chr(byte) if byte in _READABLE else f"%{byte:02X}" for byte in range(256)]
_COMPONENT = re.compile(r"(?:[A-Za-z0-9._-]|%[0-9A-F]{2})+")
_TORN_ESCAPE = re.compile(r"%[0-9A-F]?$")


def encode(name: str) -> str:
    """The component of `name`. Raises `InvalidName` if it is not text (lone surrogates)."""
    raw = _utf8(name, "name")
    component = _spell(raw)
    if len(component) <= MAX_COMPONENT_BYTES:
        return component
    head = component[: MAX_COMPONENT_BYTES - _HASH_DIGITS - len(HASH_MARK)]
    digest = hashlib.blake2b(raw, digest_size=_HASH_DIGITS // 2).hexdigest()
    return _TORN_ESCAPE.sub("", head) + HASH_MARK + digest


def decode(component: str) -> str | None:
    """The name of a component; None if it was cut, or if `encode` never gives it."""
    if component == _EMPTY:
        return ""
    if _COMPONENT.fullmatch(component) is None or len(component) > MAX_COMPONENT_BYTES:
        return None
    parts = component.split("%")
    raw = parts[0].encode() + b"".join(bytes([int(p[:2], 16)]) + p[2:].encode() for p in parts[1:])
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return None
    return name if _spell(raw) == component else None


def check_name(name: str, field: str) -> None:
    """Raises `InvalidName` if it is empty, above 4,096 bytes of UTF-8, or not text."""
    if not name:
        raise InvalidName(f"{field} is empty", field=field, hint=f"Give the {field} a name.")
    size = len(_utf8(name, field))
    if size > MAX_NAME_BYTES:
        raise InvalidName(
            f"{field} has {size} bytes of UTF-8",
            field=field,
            hint=f"Use at most {MAX_NAME_BYTES} bytes.",
        )


def check_new_name(name: str, field: str) -> None:
    """`check_name` for a name that comes into use. Objects that have such a name stay readable."""
    check_name(name, field)
    if name in (".", ".."):
        raise InvalidName(
            f"{field} is {name!r}, which is a folder in every URL",
            field=field,
            hint="Browsers and clients remove it from addresses. Choose another name.",
        )


def _utf8(name: str, field: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise InvalidName(
            f"{field} is not text: it holds half of a surrogate pair",
            field=field,
            hint="Send the name as valid UTF-8.",
        ) from error


def _spell(raw: bytes) -> str:
    if not raw:
        return _EMPTY
    spelled = "".join([_SPELLING[byte] for byte in raw])
    return "%2E" + spelled[1:] if spelled[0] == "." else spelled


PREFIX = "pipeline-logs"
RUNS = "runs/"
SEGMENTS = "segments/"
QUARANTINE = "segments/.aside/"
TABLE = "table"
SKIP_INDEXES = "table/_index/"
COORDINATION = "coordination/"
NODES = "coordination/nodes/"
PEERS = "coordination/peers/"
FORGOTTEN = "coordination/forgotten/"
SHEDDING = "coordination/shedding.json"
WATERMARKS = "coordination/text/"
DELETED = "coordination/deleted/"
STATUS = "coordination/status/"
PROGRESS = "coordination/progress/"
METRICS = "coordination/metrics/"
LEASES = "coordination/leases/"
PARTITIONS = "coordination/partitions/"
GROUPS = "coordination/groups/"
PIPELINES = "coordination/pipelines/"

INDEX_SUFFIX = ".skip4"
GIVEN_UP_SUFFIX = ".given-up"

_SEGMENT = re.compile(r"segments/([^/]+)/([0-9]{20})\.parquet")
_MANIFEST = re.compile(r"runs/([^/]+)/([^/]+)\.json")
_INDEX_VERSION = re.compile(r"\.skip[0-9]*$")
_NOT_UPSTREAM = re.compile(r"[^a-zA-Z0-9_-]")


def run_manifest(key: RunKey) -> str:
    """The key of the run's manifest."""
    return f"{manifests_of(key.fqn)}{encode(key.run)}.json"


def manifests_of(fqn: str) -> str:
    """The prefix of the manifests of a pipeline's runs."""
    return f"{RUNS}{encode(fqn)}/"


def pipeline_texts(prefix: str, fqn: str) -> str:
    """The prefix of the texts of a pipeline's runs."""
    return f"{prefix}/{encode(fqn)}/"


def run_texts(prefix: str, key: RunKey) -> str:
    """The prefix of the objects of a run that readers of plain text see."""
    return f"{pipeline_texts(prefix, key.fqn)}{encode(key.run)}/"


def chunks_of(prefix: str, key: RunKey) -> str:
    """The prefix of a run's chunks and their indexes."""
    return f"{run_texts(prefix, key)}chunks/"


def chunk_text(prefix: str, key: RunKey, ulid_text: str) -> str:
    """The text of a chunk."""
    return f"{chunks_of(prefix, key)}{ulid_text}.txt"


def chunk_index(prefix: str, key: RunKey, ulid_text: str) -> str:
    """The index of a chunk."""
    return f"{chunks_of(prefix, key)}{ulid_text}.idx"


def partial(prefix: str, key: RunKey) -> str:
    """The text so far of an open run."""
    return f"{run_texts(prefix, key)}partial.txt"


def logs(prefix: str, key: RunKey) -> str:
    """The text of a closed run."""
    return f"{run_texts(prefix, key)}logs.txt"


def upstream_pipeline(prefix: str, fqn: str) -> str:
    """The folder in which OpenMetadata keeps a pipeline's runs; several names may share it."""
    return f"{prefix}/{_NOT_UPSTREAM.sub('_', fqn)}/"


def upstream_texts(prefix: str, key: RunKey) -> str:
    """The folder in which OpenMetadata keeps the run's `partial.txt` and `logs.txt`."""
    return f"{upstream_pipeline(prefix, key.fqn)}{encode(key.run)}/"


def active(prefix: str, key: RunKey, node: str) -> str:
    """The object saying that `node` holds lines of the run that its chunks lack."""
    return f"{active_nodes(prefix, key)}{encode(node)}"


def all_active(prefix: str) -> str:
    """The prefix of the `active` objects of all runs."""
    return f"{prefix}/.active/"


def active_nodes(prefix: str, key: RunKey) -> str:
    """The prefix of a run's `active` objects."""
    return f"{active_pipeline(prefix, key.fqn)}{encode(key.run)}/"


def active_pipeline(prefix: str, fqn: str) -> str:
    """The prefix of the `active` objects of a pipeline's runs."""
    return f"{all_active(prefix)}{encode(fqn)}/"


def segment(node: str, seq: int) -> str:
    """A segment; `seq` counts from 1."""
    return f"{segments_of(node)}{seq:020d}.parquet"


def segments_of(node: str) -> str:
    """The prefix of a node's segments."""
    return f"{SEGMENTS}{encode(node)}/"


def quarantine_marker(node: str, seq: int) -> str:
    """The object saying why a segment cannot be read."""
    return f"{QUARANTINE}{encode(node)}/{seq:020d}"


def give_up_marker(node: str, seq: int) -> str:
    """The object saying that an operator gave up the lines of a quarantined segment."""
    return f"{quarantine_marker(node, seq)}{GIVEN_UP_SUFFIX}"


def watermark(node: str) -> str:
    """The watermark: up to which segment a node's lines are in their runs' chunks."""
    return f"{WATERMARKS}{encode(node)}"


def skip_index(path: str) -> str:
    """The skip index of the table file at `path`, below the table."""
    return f"{SKIP_INDEXES}{path}{INDEX_SUFFIX}"


def indexed_file(key: str) -> str:
    """The table file to which the skip index belongs, whatever its version is."""
    return f"{TABLE}/{_INDEX_VERSION.sub('', key.removeprefix(SKIP_INDEXES))}"


def lease(source: str, parts: Sequence[str]) -> str:
    """The named lease of a piece of work."""
    return leases_of(source) + "/".join([encode(part) for part in parts])


def leases_of(source: str) -> str:
    """The prefix of all leases of one kind of work."""
    return f"{LEASES}{source}/"


def group(name: str) -> str:
    """The state of a consumer group of the segment queue."""
    return f"{GROUPS}{encode(name)}"


def pipeline_control(name: str) -> str:
    """The key of the operators' control of a log pipeline."""
    return f"{PIPELINES}{encode(name)}"


def partitions_of(source: str) -> str:
    """The prefix of all objects of a source of partitions."""
    return f"{PARTITIONS}{encode(source)}/"


def partition_source(source: str) -> str:
    """The object with a source's name and number of shards."""
    return f"{partitions_of(source)}source.json"


def partition_shard(source: str, number: int) -> str:
    """A shard of a source's partitions; `number` counts from 0."""
    return f"{partitions_of(source)}{number:04x}.json"


def node_registration(node: str) -> str:
    """The registration of a node: that it was ever there."""
    return f"{NODES}{encode(node)}"


def peer(node: str, instance: str) -> str:
    """The entry of a process of a node in the register, with its address."""
    return f"{peers_of(node)}{instance}"


def peers_of(node: str) -> str:
    """The prefix of the entries of a node's processes."""
    return f"{PEERS}{encode(node)}~"


def forgotten(node: str) -> str:
    """The key of the last state of a node that was let go."""
    return f"{FORGOTTEN}{encode(node)}"


def deletions_of(key: RunKey) -> str:
    """The prefix of a run's deletions; it may match other runs whose names are long."""
    return f"{DELETED}{encode(key.fqn)}/{encode(key.run)}~"


def deleted_run(key: RunKey, t: str) -> str:
    """The deletion of a run up to the ULID `t`; no other deletion ever has that key."""
    return f"{deletions_of(key)}{t}"


def deleted_pipeline(fqn: str) -> str:
    """The deletion of all runs of a pipeline."""
    return f"{DELETED}{encode(fqn)}/.pipeline"


def reports_of(folder: str, fqn: str) -> str:
    """The prefix of what clients reported of a pipeline's runs; `folder` is STATUS or another."""
    return f"{folder}{encode(fqn)}/"


def run_report(folder: str, key: RunKey) -> str:
    """The newest status or progress of a run; below it with a `/`, its metrics."""
    return f"{reports_of(folder, key.fqn)}{encode(key.run)}"


def parse_segment(key: str) -> tuple[str, int] | None:
    """Node and seq of a segment's key; None for any other key."""
    found = _SEGMENT.fullmatch(key)
    node = decode(found[1]) if found else None
    return (node, int(found[2])) if found and node else None


def parse_run_manifest(key: str) -> RunKey | None:
    """The run of a manifest's key; None for other keys, and for names that were cut."""
    found = _MANIFEST.fullmatch(key)
    if found is None:
        return None
    fqn, run = decode(found[1]), decode(found[2])
    return RunKey(fqn, run) if fqn is not None and run is not None else None
