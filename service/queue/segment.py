"""A segment as consumers see it: its id, its footer's content, and leases of it.

An id is `{node}-{seq}`, the sequence in decimal; a node's name holds no `/`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from logstore import keys
from logstore.errors import NotFound

_ID = re.compile(r"(.+)-([1-9][0-9]{0,18})")


class Name(NamedTuple):
    """The name of a segment: the node that cut it, and its number there."""

    node: str
    seq: int

    @property
    def id(self) -> str:
        """The name as text."""
        return f"{self.node}-{self.seq}"

    @property
    def key(self) -> str:
        """The key of the segment's object."""
        return keys.segment(self.node, self.seq)


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment; `low` and `high` are ULID texts, empty without rows.

    `damage` says why the segment cannot be read.
    """

    name: Name
    size: int
    etag: str
    modified_ms: int
    rows: int = 0
    low: str = ""
    high: str = ""
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class Leased:
    """A lease as it was acquired or renewed."""

    name: Name
    epoch: int
    until_ms: int
    attempts: int


def parse_id(text: str) -> Name:
    """The name of an id. Raises `NotFound` for a text that is no id."""
    found = _ID.fullmatch(text)
    if found is None:
        raise NotFound(f"no segment {text[:100]!r}", hint="Ids come from POST /segments/next.")
    return Name(found[1], int(found[2]))
