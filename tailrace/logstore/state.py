"""JSON objects that end with a checksum: the one codec of all state in the store; its kinds.

    {"seq":3,"pos":918,"low":1,"version":"…","check":"9ad4c1f0"}

`check` is the last member: the CRC-32 of all bytes before its comma, in eight hex digits. It is
computed from the stored bytes, so that no reader encodes anything again.

- An object without the member is of an earlier version, and is read unchecked.
- An earlier version that rewrites an object drops the member, or writes it back at another place,
  where it has no meaning.
- CRC-32 notices every change of up to three bits in 11 KB, and of two in any object of ours. The
  change of a single bit can thus be found and undone (`without_flip`). Up to 11 KB, no change of
  two bits looks like that of one.

`node.json` has the checksum as blanks after the JSON instead, because earlier versions refuse
members that they do not know.

`StateKind` describes every kind of state object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Final, Literal
from zlib import crc32

import orjson

from tailrace.logstore.errors import Damaged
from tailrace.logstore.patterns import LinearRegex

MOST_FLIP_BYTES: Final = 256 << 10
"""Up to this size, at most one of 2,048 damages of another kind looks like that of one bit."""
_SIZE: Final = len(',"check":"00000000"}')
_BLANKS: Final = 32
# Any change of one bit leaves it recognisable: no object of ours ends alike.
_MEMBER: Final = re.compile(rb',"([^"]{5})":"([^"]{8})"\}', re.DOTALL)
_HEX: Final = re.compile(rb"[0-9a-f]{8}")
_CRC: Final = tuple([crc32(bytes([byte])) ^ crc32(b"\0") for byte in range(256)])
"""What each byte changes in the checksum if it is the last one."""
_TO_BLANKS: Final = str.maketrans("01", " \t")


class ChecksumMismatch(ValueError):
    """The bytes differ from those that were written."""

    def __init__(self) -> None:
        super().__init__("its bytes do not match their checksum")


def encode_checked(value: Any) -> bytes:
    """The JSON of an object that is not empty, with its checksum."""
    return with_check(orjson.dumps(value))


def with_check(json: bytes) -> bytes:
    """The same JSON object with its checksum; it has none, and is not empty."""
    members = memoryview(json)[:-1]
    return b"".join((members, b',"check":"%08x"}' % crc32(members)))


def decode_checked(body: bytes) -> dict[str, Any]:
    """Returns the members of an object, without the checksum.

    Raises `ValueError` if the bytes are not a JSON object, or do not match their checksum.
    """
    if not is_intact(body):
        raise ChecksumMismatch
    value = orjson.loads(body)
    if type(value) is not dict:
        raise ValueError("it is not a JSON object")
    value.pop("check", None)
    return value


def is_checked(body: bytes) -> bool:
    """Whether the bytes end with a checksum, right or wrong."""
    return _MEMBER.fullmatch(body, max(len(body) - _SIZE, 0)) is not None


def is_intact(body: bytes) -> bool:
    """Whether the bytes match their checksum, or have none."""
    found = _MEMBER.fullmatch(body, max(len(body) - _SIZE, 0))
    if found is None:
        return True
    expected = b"%08x" % crc32(memoryview(body)[:-_SIZE])
    return found[1] == b"check" and found[2] == expected


def without_flip(body: bytes, accepts: Callable[[bytes], object]) -> bytes | None:
    """Returns the bytes before one bit of them changed; None if no single bit explains the damage.

    `accepts` raises `Damaged` for bytes that are not an object of the kind.
    """
    if len(body) > MOST_FLIP_BYTES:
        return None
    for at, bit in _flips(body):
        tried = bytearray(body)
        tried[at] ^= 1 << bit
        candidate = bytes(tried)
        if is_checked(candidate) and is_intact(candidate) and _accepted(candidate, accepts):
            return candidate
    return None


def _flips(body: bytes) -> Iterator[tuple[int, int]]:
    """Bits that may have changed: each of the member, and those that explain its checksum.

    CRC-32 is linear: the effect of a bit depends only on the number of bytes after it.
    """
    end = max(len(body) - _SIZE, 0)
    yield from product(range(end, len(body)), range(8))
    found = _MEMBER.fullmatch(body, end)
    if found is None or _HEX.fullmatch(found[2]) is None:
        return
    wanted = crc32(memoryview(body)[:end]) ^ int(found[2], 16)
    changes = [crc32(bytes([1 << bit])) ^ crc32(b"\0") for bit in range(8)]
    for at in range(end - 1, -1, -1):
        if wanted in changes:
            yield at, changes.index(wanted)
        changes = [change >> 8 ^ _CRC[change & 255] for change in changes]


def _accepted(body: bytes, accepts: Callable[[bytes], object]) -> bool:
    try:
        accepts(body)
    except Damaged:
        return False
    return True


# --- node.json -----------------------------------------------------------------------


def with_blank_check(json: bytes) -> bytes:
    """The same JSON with its checksum as blanks after it, which every parser skips."""
    return json + f"{crc32(json):032b}".translate(_TO_BLANKS).encode()


def without_blank_check(body: bytes) -> bytes:
    """The JSON before the blanks. Raises `ChecksumMismatch`; JSON without blanks has none."""
    json = body.rstrip()
    if len(body) - len(json) < _BLANKS:
        return json
    if with_blank_check(json) != body:
        raise ChecksumMismatch
    return json


# Every kind of state object: its key, and what programs do when it is damaged.
#
# A state object is a small JSON object that tells the progress of something, its owner, or the
# validity of something. This module encodes all of them. No program uses one that does not match
# its checksum: `damaged` is what programs do instead, and `remedy` how it comes back. In addition,
# `tailrace verify` names each damaged object, and `--repair` undoes the change of a single bit.
#
# `tailrace.verification.state` has a decoder for each kind in the store. The matrix of damage in
# docs/reference/guarantees.md and docs/reference/formats.md are made from this list.


Place = Literal["store", "data folder", "local store", "appender's store"]
_HOLDER: Final = re.compile(r"\\\{(\w+)(…?)\\\}")


@cache
def _pattern(key: str) -> LinearRegex:
    """What matches the keys of one spelling, in which the other parts stand for themselves."""
    return LinearRegex(_HOLDER.sub(lambda m: ".+" if m[2] else "[^/]+", re.escape(key)))


@dataclass(frozen=True, slots=True)
class StateKind:
    """A kind of state object, with its key, or its path below its place.

    In a key, `{name}` stands for a component of it or a part of one, `{names…}` for several.
    """

    name: str
    key: str
    damaged: str
    """What programs do that meet a damaged one: complete sentences."""
    remedy: str
    """How it comes back where more than one bit changed: complete sentences."""
    place: Place = "store"
    format: int = 1
    """The newest format that this version reads; an object without a format has the first."""

    def matches(self, key: str) -> bool:
        """Returns whether an object of that key, or at that path, is of the kind."""
        return _pattern(self.key).fullmatch(key) is not None


STATE_KINDS: Final = (
    StateKind(
        "run manifest",
        "runs/{fqn}/{run}.json",
        "Pages, downloads, the close and the deletion of the run fail with 500 `damaged`; its flush"
        " waits, and its lines stay in journal and segments.",
        "Put an intact version of the object back. Without one, remove it: the run's log is then"
        " rebuilt from segments and table when it is next read.",
        format=3,
    ),
    StateKind(
        "watermark",
        "coordination/text/{node}",
        "Nodes compute it again from the table's mark, the stored segments and their runs'"
        " manifests. The compactor removes no segment of the node until then.",
        "A node does so at its start and every ten minutes; `verify --repair` does so at once.",
    ),
    StateKind(
        "deletion of a pipeline",
        "coordination/deleted/{fqn}/.pipeline",
        "Nodes undo the change of a single bit for themselves. After other damage the time of the"
        " deletion is unknown: searches leave out the pipeline's lines and say so, log pipelines"
        " make dead letters of them, and the purge skips it. Other pipelines are not affected.",
        "Put an intact version of the object back, or delete the pipeline again, with all that it"
        " holds by now. Or remove it with `tailrace verify --drop KEY`: lines that it deleted may"
        " then be shown again.",
    ),
    StateKind(
        "deletion of a run",
        "coordination/deleted/{fqn}/{run}",
        "Readers take the deletion from its key, which contains it all.",
        "`verify --repair` writes it again from its key. If names are so long that the key holds a"
        " hash, do as for the deletion of a pipeline.",
    ),
    StateKind(
        "node registration",
        "coordination/nodes/{node}",
        "Live streams that continue at a copied folder fail with 500 `damaged`.",
        "The node writes it again at its next start. If the node is gone, put an intact version of"
        " the object back.",
    ),
    StateKind(
        "register entry",
        "coordination/peers/{node}~{instance}",
        "The node counts as silent: replies name it.",
        "The process that it belongs to writes it again within a minute.",
    ),
    StateKind(
        "forgotten node",
        "coordination/forgotten/{node}",
        "The node counts as let go and not returned.",
        "Put an intact version of the object back, or remove it if the node has returned.",
    ),
    StateKind(
        "shedding slots",
        "coordination/shedding.json",
        "Nodes take it for empty.",
        "The next node that sheds load writes it again.",
    ),
    StateKind(
        "named lease",
        "coordination/leases/{source}/{names…}",
        "Nobody acquires or renews it, and its work waits.",
        "Once `coordination.lease_seconds` have passed since it was written, the next node that"
        " asks for it writes it again.",
    ),
    StateKind(
        "source of partitions",
        "coordination/partitions/{source}/source.json",
        "Every call for the source fails and names the object.",
        "Put an intact version of the object back.",
    ),
    StateKind(
        "shard of partitions",
        "coordination/partitions/{source}/{shard}.json",
        "Partitions of other shards are given out; a call for one of this shard fails.",
        "Put an intact version of the object back.",
    ),
    StateKind(
        "consumer group",
        "coordination/groups/{group}",
        "Calls for the group fail, and no segment is removed, because the group may need it.",
        "Put an intact version of the object back, or forget the group and make it again.",
    ),
    StateKind(
        "pipeline control",
        "coordination/pipelines/{name}",
        "The pipeline pauses and says so.",
        "Put an intact version of the object back, or remove it: the pipeline then runs, with all"
        " its appenders.",
    ),
    StateKind(
        "report of status",
        "coordination/status/{fqn}/{run}",
        "A read of the run's status fails with 500 `damaged`.",
        "The next report of the client replaces it.",
    ),
    StateKind(
        "report of progress",
        "coordination/progress/{fqn}/{run}",
        "A read of the run's progress fails with 500 `damaged`.",
        "The next report of the client replaces it.",
    ),
    StateKind(
        "report of metrics",
        "coordination/metrics/{fqn}/{run}/{ULID}",
        "A read of the run's metrics fails with 500 `damaged`.",
        "Remove it: the metrics that it holds are lost.",
    ),
    StateKind(
        "give-up marker",
        "segments/.aside/{node}/{seq}.given-up",
        "The lines of the segment stay given up.",
        "Remove it: the segment is an alarm again until somebody decides.",
    ),
    StateKind(
        "quarantine marker",
        "segments/.aside/{node}/{seq}",
        "The segment stays quarantined; only the reason is lost.",
        "`verify --repair` brings back a segment that reads well, and removes its marker.",
    ),
    StateKind(
        "identity",
        "node.json",
        "The node does not start.",
        "Put the file back from a copy. Without it, the folder becomes a new node that takes over"
        " what the journal holds.",
        "data folder",
    ),
    StateKind(
        "sidecar",
        ".meta/{names…}.json",
        "The ETag is computed from the bytes again, and the object has no user metadata.",
        "The next write of the object replaces it.",
        "local store",
    ),
    StateKind(
        "undo note",
        ".tailrace/{part}/{number}-{ULID}.json",
        "The appender does not start, and its pipeline says why.",
        "Put an intact version of the object back, or remove it: lines since the last checkpoint"
        " may then be in the appender's objects twice.",
        "appender's store",
    ),
    StateKind(
        "mark of a saved checkpoint",
        ".tailrace/{part}.saved.json",
        "The appender does not start, and its pipeline says why.",
        "Remove it: the next checkpoint writes it again. Until then the appender would not notice"
        " that an older checkpoint was put back.",
        "appender's store",
    ),
)


def kind_of(key: str) -> StateKind | None:
    """The kind of the state object at a key of the store; None for objects of other kinds."""
    return next((k for k in STATE_KINDS if k.place == "store" and k.matches(key)), None)


def advice(key: str) -> str:
    """Returns the steps of an operator for a damaged state object."""
    kind = kind_of(key)
    first = "Run `tailrace verify --repair`, which undoes the change of a single bit."
    return first if kind is None else f"{first} {kind.remedy}"
