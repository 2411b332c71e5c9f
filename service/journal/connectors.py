"""Gen-1 connectors: who opened a run with OpenMetadata's empty call, and what each sent last.

OpenMetadata's clients of the first generation (1.10 to 1.12.8) send a batch again when
its reply was lost, and give it no id. They begin a run with a call that holds no lines;
who did that, and the last batch of each, is part of the journal's state.

Invariants:

- A batch that may not be in the journal is never written down as a connector's last:
  its retry would be taken for a copy of what is not there. At the start of a file it is
  left out, and counts again once its own entry is read.
- Whatever is forgotten makes a retry a second batch, and never loses a line. So only
  the connectors used last are kept, and none whose names are long.

In the state, `connectors`: `[[fqn, run, connector, last], …]`, the one used last at the
end; `last` is null or `[ULID, digest, bytes, records, milliseconds of arrival, end]`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from logstore import ulid as ulids
from logstore.batch import RunKey
from service.ingest.batch import KnownBatch

MOST = 1000
# As JSON: a state with all of them stays well below the smallest journal file.
NAME_BYTES = 400


@dataclass(slots=True)
class LastBatch:
    """What a connector sent last; `size` is the text's in bytes."""

    ulid: int
    size: int
    at_ms: int
    known: KnownBatch


@dataclass(slots=True)
class Connector:
    """One that opened a run; `last` is what it sent to it since."""

    last: LastBatch | None = None


class Connectors:
    """Those used last, at most `most`."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: OrderedDict[tuple[RunKey, str], Connector] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: RunKey, name: str) -> Connector | None:
        """The connector, if it opened the run; it is used now."""
        known = self._known.get((key, name))
        if known is not None:
            self._known.move_to_end((key, name))
        return known

    def open(self, key: RunKey, name: str) -> None:
        """The connector begins the run, maybe anew: what it sent before is no concern."""
        if not is_short(key, name):
            return
        self._known[key, name] = Connector()
        self._known.move_to_end((key, name))
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def encoded(self) -> list[list[Any]]:
        """As it stands in a state that is written now."""
        return [
            [key.fqn, key.run, name, _encode(connector.last)]
            for (key, name), connector in self._known.items()
        ]


def is_short(key: RunKey, name: str) -> bool:
    """Whether the names are short enough to be remembered."""
    return len(orjson.dumps([key.fqn, key.run, name])) <= NAME_BYTES


def decode_connectors(rows: Sequence[Sequence[Any]]) -> Connectors:
    """What a state holds."""
    connectors = Connectors()
    for fqn, run, name, last in rows:
        connectors.open(RunKey(fqn, run), name)
        connector = connectors.get(RunKey(fqn, run), name)
        if connector is not None and last is not None:
            ulid, digest, size, records, at_ms, end = last
            known = KnownBatch(digest, records, end)
            connector.last = LastBatch(ulids.decode(ulid), size, at_ms, known)
    return connectors


def _encode(last: LastBatch | None) -> list[Any] | None:
    if last is None or not last.known.held:
        return None
    known = last.known
    ulid = ulids.encode(last.ulid)
    return [ulid, known.digest, last.size, known.records, last.at_ms, known.end]
