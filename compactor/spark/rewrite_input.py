"""What a rewriting job is given: plain values, so that planning one needs no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logstore.runs.deletion import Deletion


@dataclass(frozen=True, slots=True)
class RewriteInput:
    """Table files of one hour, given by their addresses, to be written anew as `parts` files.

    `rows` is their number of lines as far as is known. `deletions` say which to leave out.
    """

    files: Sequence[str]
    rows: int
    parts: int
    deletions: Sequence[Deletion]
