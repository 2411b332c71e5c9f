"""Deletions in the journal's state: those to be done, and the latest of those that are done.

A deletion that is done leaves what each start takes up again. It stays known for a while, so
that a node whose store is away at its start refuses what is deleted; past `MOST` the oldest
is forgotten here, and the store alone knows it. So the state stays small however many there
were.

In the state, `tombstones` are those to be done, `deleted` those that are done, the latest at the
end; both are `[[fqn, run or null, T], …]`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from logstore import ulid as ulids

MOST = 1000
# As JSON: a state with all of them stays well below the smallest journal file.
NAME_BYTES = 400


class DoneDeletions:
    """The latest that are done, at most `most`, none with long names."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: OrderedDict[tuple[str, str | None], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def add(self, fqn: str, run: str | None, t: int) -> None:
        """One more is done; of several of one run the highest T counts."""
        if len(orjson.dumps([fqn, run])) > NAME_BYTES:
            return
        self._known[fqn, run] = max(self._known.get((fqn, run), 0), t)
        self._known.move_to_end((fqn, run))
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def all(self) -> Mapping[tuple[str, str | None], int]:
        """(fqn, run or None) to T."""
        return dict(self._known)


def encode_deletions(deletions: Mapping[tuple[str, str | None], int]) -> list[list[Any]]:
    """As they stand in a state."""
    return [[fqn, run, ulids.encode(t)] for (fqn, run), t in deletions.items()]


def decode_deletions(rows: Sequence[Sequence[Any]]) -> dict[tuple[str, str | None], int]:
    """What a state holds."""
    return {(fqn, run): ulids.decode(t) for fqn, run, t in rows}


def decode_done(rows: Sequence[Sequence[Any]]) -> DoneDeletions:
    """The done ones that a state holds."""
    done = DoneDeletions()
    for (fqn, run), t in decode_deletions(rows).items():
        done.add(fqn, run, t)
    return done
