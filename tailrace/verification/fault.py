"""The faults that a verification finds, with their places, and the number of things compared.

A fault is said when it is found, and only counted afterwards: memory does not grow with
their number. Its `kind` is for programs, its `place` a key, a path or a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from logstore.batch import RunKey

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
    """One thing that is wrong; `lines` is how many lines it concerns, 0 if nobody can tell."""

    kind: Kind
    place: str
    detail: str
    lines: int = 0
    repaired: str = ""


@dataclass(slots=True)
class Findings:
    """Where faults go. `report` is called once for each; `progress` with what is being done."""

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
        """Says what was not looked at, and why, or what is no fault and yet worth knowing."""
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
