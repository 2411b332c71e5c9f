"""A segment as consumers see it: its id, what its footer says, and leases of it.

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
    """Which segment: the node that cut it, and its number there."""

    node: str
    seq: int

    @property
    def id(self) -> str:
        """As text."""
        return f"{self.node}-{self.seq}"

    @property
    def key(self) -> str:
        """Its object's key."""
        return keys.segment(self.node, self.seq)


@dataclass(frozen=True, slots=True)
class Segment:
    """`low` and `high` are ULID texts, empty without rows; `damage` says why it does not read."""

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
    """A lease as it was given or renewed."""

    name: Name
    epoch: int
    until_ms: int
    attempts: int


def parse_id(text: str) -> Name:
    """The segment of an id. Raises `NotFound`: what is no id names nothing."""
    found = _ID.fullmatch(text)
    if found is None:
        raise NotFound(f"no segment {text[:100]!r}", hint="Ids come from POST /segments/next.")
    return Name(found[1], int(found[2]))
