"""What a rewriting job is given: plain values, so that planning one needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from logstore.runs.deletion import Deletion


@dataclass(frozen=True, slots=True)
class RewriteInput:
    """Table files of one hour, given by their addresses, to be written anew as `parts` files.

    `rows` is their number of lines as far as is known. `deletions` say which to leave out,
    `sizes` the bytes of the files, as far as they are known.
    """

    files: Sequence[str]
    rows: int
    parts: int
    deletions: Sequence[Deletion]
    sizes: Mapping[str, int] = field(default_factory=dict)
