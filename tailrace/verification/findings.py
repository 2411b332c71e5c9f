"""The faults of a verification, with their places, and counts; text split into records.

A fault is reported when it is found, and only counted afterwards: memory does not grow with their
number. Its `kind` is for programs, its `place` a key, a path or a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.logstore.batch import RunKey, line_ends
from tailrace.logstore.errors import Damaged
from tailrace.logstore.runs.chunk_index import Blocks
from tailrace.logstore.segments.file_format import line_ulids

Kind = Literal[
    "segment-damaged",  # fails seal, schema, checksum, or is another's
    "segment-newer",  # of a format that this program does not know
    "segment-missing",  # a number between others is not there
    "segment-lost",  # a node stored it, and the store, restored or replaced, lacks it
    "segment-aside",  # quarantined: its lines are not read
    "segment-overlap",  # holds positions of the segment before it
    "marker-alone",  # a segment is quarantined that is not there
    "manifest-damaged",
    "state-damaged",  # another object that says how far something is, or who does it
    "state-newer",  # of a format that this program does not know
    "run-lost",  # lines of it are stored, and no manifest names it
    "chunk-missing",
    "chunk-changed",  # of another length, or another object, than the manifest says
    "chunk-damaged",  # its bytes are not those of its index
    "index-missing",
    "index-damaged",
    "line-not-stored",  # text or journal have it, segments and table do not
    "line-not-in-text",  # segments below the watermark or the table have it, the text does not
    "line-differs",
    "line-twice-in-text",
    "table-log-damaged",  # an entry or a checkpoint does not read
    "table-file-missing",
    "table-file-damaged",
    "table-line-missing",  # a segment that the table says it holds has it
    "table-line-differs",
    "table-line-twice",
    "table-line-misplaced",  # in a file of another hour
    "skip-index-damaged",  # searches read its file whole
    "skip-index-wrong",  # whole, and not what its file makes of it
    "journal-damaged",
    "journal-gap",
]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; `lines` is the number of lines that it concerns, 0 if unknown."""

    kind: Kind
    place: str
    detail: str
    lines: int = 0
    repaired: str = ""


@dataclass(slots=True)
class Findings:
    """Collects faults. `report` is called once for each; `progress` with the present step."""

    report: Callable[[Fault], None]
    progress: Callable[[str, int], None] = lambda _what, _count: None
    compared: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def add(
        self, kind: Kind, place: str, detail: str, *, lines: int = 0, repaired: str = ""
    ) -> None:
        """Reports a fault; one that is repaired says how in `repaired`, and is not left."""
        self.report(Fault(kind, place, detail, lines, repaired))
        (self.repaired if repaired else self.faults)[kind] += 1

    def count(self, what: str, number: int = 1) -> None:
        """Counts what was looked at, and shows that work goes on."""
        self.compared[what] += number
        self.progress(what, self.compared[what])

    def note(self, sentence: str) -> None:
        """Reports a part that was not checked, with the reason, or a remark that is no fault."""
        self.notes.append(sentence)

    @property
    def total(self) -> int:
        """Faults that were found, those that were repaired included."""
        return self.faults.total() + self.repaired.total()

    @property
    def sound(self) -> bool:
        """Whether no fault is left."""
        return not self.faults


def run_place(fqn: str, run: str) -> str:
    """How a run is named in a fault."""
    return f"run {fqn}/{run}"


def place_of(key: RunKey) -> str:
    """The same, of a key."""
    return run_place(key.fqn, key.run)


# The records of a range of text: their ids, positions and messages, without a loop.
#
# If a block's lines are its records, each line end ends a record; a block that is one record with
# newlines in it ends once. A record's number within its batch is the distance of its position from
# that of the batch's first record.


Ints = NDArray[np.int64]


def records(blocks: Blocks, text: bytes, starts: Ints) -> pa.Table:
    """`ulid`, `pos`, `block` and `message` (binary, without its last newline) of each record.

    `text` is that of the blocks, one after another; `starts` has the first position of each block's
    batch. Blocks whose record boundaries are unknown are left out. Raises `Damaged` if the text has
    other lines than the blocks say.
    """
    sizes = blocks["size"].astype(np.int64)
    bounds = np.cumsum(sizes)
    ends = line_ends(text)
    owner = np.searchsorted(bounds, ends, "left")
    lines = np.bincount(owner, minlength=len(blocks)) if len(ends) else np.zeros(len(blocks), int)
    if len(text) != int(sizes.sum()) or not np.array_equal(lines, blocks["lines"]):
        raise Damaged("the text has other lines than its index says")
    plain = blocks["records"] == blocks["lines"]
    known = plain | (blocks["records"] == 1)
    kept = known[owner] & (plain[owner] | (ends == bounds[owner]))
    chosen, counts = ends[kept], np.where(known, blocks["records"].astype(np.int64), 0)
    begins = _begins(chosen, owner[kept], bounds, sizes)
    block = np.repeat(np.arange(len(blocks)), counts)
    within = np.arange(len(block)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = (blocks["pos"].astype(np.int64) - starts)[block]
    return pa.table(
        {
            "ulid": line_ulids(blocks, counts, first + within),
            "pos": blocks["pos"].astype(np.int64)[block] + within,
            "block": block,
            "message": _messages(text, begins, chosen),
        }
    )


def _begins(ends: Ints, owner: Ints, bounds: Ints, sizes: Ints) -> Ints:
    """The begin of each record: after the one before it, or with its block."""
    before = np.concatenate((np.zeros(1, np.int64), ends[:-1])) if len(ends) else ends
    begins: Ints = np.maximum(before, (bounds - sizes)[owner])
    return begins


def _messages(text: bytes, begins: Ints, ends: Ints) -> pa.Array:
    # Every second item is a message with its newline; the bytes between belong to no record.
    edges = np.empty(2 * len(ends) + 1, np.int64)
    edges[0:-1:2], edges[1::2] = begins, ends
    edges[-1] = len(text)
    whole = pa.Array.from_buffers(
        pa.large_binary(), 2 * len(ends), [None, pa.py_buffer(edges), pa.py_buffer(text)]
    )
    taken = whole.take(pa.array(np.arange(0, 2 * len(ends), 2)))
    return pc.binary_slice(taken, 0, -1) if len(ends) else taken
