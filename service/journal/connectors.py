"""Gen-1 connectors: who opened a run with OpenMetadata's empty call, and what each sent last.

OpenMetadata's clients of the first generation (1.10 to 1.12.8) send a batch again when its
reply was lost, and give it no id. They begin a run with a call without lines. The journal's
state holds which connectors did that, and the last batch of each.

Invariants:

- A batch that may not be in the journal is never recorded as a connector's last: its retry
  would look like a copy of a batch that is not there. The state at the start of a file leaves
  it out, and it counts again once its own entry is read.
- If a connector is forgotten, its retry becomes a second batch; no line is lost. Only the
  connectors used last are therefore kept, and none whose names are long.

In the state, `connectors` is `[[fqn, run, connector, last], …]`, with the one used last at the
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
    """A connector that opened a run; `last` is its last batch since then."""

    last: LastBatch | None = None


class Connectors:
    """The connectors that were used last, at most `most` of them."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: OrderedDict[tuple[RunKey, str], Connector] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: RunKey, name: str) -> Connector | None:
        """The connector, if it opened the run; it then counts as used last."""
        known = self._known.get((key, name))
        if known is not None:
            self._known.move_to_end((key, name))
        return known

    def open(self, key: RunKey, name: str) -> None:
        """Records that the connector begins the run; its earlier batches no longer count."""
        if not is_short(key, name):
            return
        self._known[key, name] = Connector()
        self._known.move_to_end((key, name))
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def encoded(self) -> list[list[Any]]:
        """The value for a state that is written now."""
        return [
            [key.fqn, key.run, name, _encode(connector.last)]
            for (key, name), connector in self._known.items()
        ]


def is_short(key: RunKey, name: str) -> bool:
    """Whether the names are short enough to be remembered."""
    return len(orjson.dumps([key.fqn, key.run, name])) <= NAME_BYTES


def decode_connectors(rows: Sequence[Sequence[Any]]) -> Connectors:
    """Decodes the connectors that a state holds."""
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
