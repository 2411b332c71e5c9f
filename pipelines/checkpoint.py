"""A checkpoint: how far an appender is, and what it needs to go back there.

It is the progress of the partition that the appender's lease is on, a JSON object:

    format    1
    nodes     {node: [low, next, ms]}: all segments below `next` were read, their highest ULID is of
              that time, and of those from `low` on some events may wait
    frontier  null or [microseconds, ULID, fqn, run]: the highest event that was given to the
    appender appender  null or what the appender's `sync` gave counts    events, late, forced,
    copies, lost (segments that were gone before they were read), since it began

Of the segments below `next`, exactly the events up to the frontier are in what the appender has
synced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from logstore.errors import Damaged, UnsupportedVersion
from pipelines.events import EventKey

_FORMAT: Final = 1


class Reading(NamedTuple):
    """How far the segments of a node were read: `high_ms` is the highest time of a ULID there."""

    low: int
    next: int
    high_ms: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far an appender is."""

    nodes: Mapping[str, Reading] = field(default_factory=dict)
    frontier: EventKey | None = None
    appender: Mapping[str, Any] | None = None
    dead_letter: Mapping[str, Any] | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


def encode(checkpoint: Checkpoint) -> str:
    """The JSON of a checkpoint."""
    return orjson.dumps(
        {
            "format": _FORMAT,
            "nodes": {node: list(one) for node, one in checkpoint.nodes.items()},
            "frontier": checkpoint.frontier and list(checkpoint.frontier),
            "appender": checkpoint.appender,
            "dead_letter": checkpoint.dead_letter,
            "counts": checkpoint.counts,
        }
    ).decode()


def decode(text: str | None) -> Checkpoint:
    """The checkpoint in a JSON text; the first one if there is none. Raises `Damaged`."""
    if text is None:
        return Checkpoint()
    try:
        value = orjson.loads(text)
        if int(value["format"]) > _FORMAT:
            raise UnsupportedVersion(
                f"a checkpoint has format {value['format']}, this program knows {_FORMAT}"
            )
        nodes = {node: Reading(*map(int, one)) for node, one in value["nodes"].items()}
        frontier = value["frontier"]
        return Checkpoint(
            nodes,
            None if frontier is None else EventKey(int(frontier[0]), *map(str, frontier[1:])),
            value["appender"],
            value["dead_letter"],
            {name: int(count) for name, count in value["counts"].items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"not a checkpoint: {error}") from error
