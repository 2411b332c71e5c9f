"""How far an appender of a pipeline is: what its partition keeps as progress, a JSON object.

    format      1
    nodes       {node: [low, next, high_ms]}: segments below `next` were read, their highest ULID
                is of that time, and of those from `low` on some events may wait
    frontier    null or [microseconds, ULID, fqn, run]: the highest event that was given to the
                appender
    appender    null or what the appender's `sync` gave; `dead_letter`: the same of the file that
                takes its events while it is disabled, and those that are refused
    replayed    the id of the last replay that it knows of, a ULID; "" for none
    replay      null, or the replay that it is in:
                low       the lowest ULID that is given again
                marks     {node: seq}: the segments that were in the table when it began
                table     [low, next, end]: of the table, the records of ULIDs below the time
                          `next` were read, and of those from `low` on some may wait
                read      {node: seq}: the segments below were read before it began
                frontier  as above, before it began: what is not above it was given before
                appender  what the `sync` of the appender gave that is given those again
    redelivery  not there, or the last time that dead letters were sent again:
                id        a ULID, of whoever asked for it
                upto      the last of the files that are sent; empty: there was none
                file, row where it is: the next line of that file
                sent, refused, deleted    events that the appender took, refused again, and that
                          a deletion covers
                done      whether all were sent, and the files are removed
    saved_at    when it was saved, in milliseconds
    counts      events, late, forced, clamped, copies, deleted, lost (segments that were gone before
                they were read), dead, again (events that a replay gave again), refused,
                redelivered, since it began

Of the segments below `next`, exactly the events up to the frontier are in what the appender has
synced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from logstore.checked import decode_checked, encode_checked
from logstore.errors import Damaged, UnsupportedVersion

_FORMAT: Final = 1


class EventKey(NamedTuple):
    """The place of an event in the order: microseconds since 1970, ULID, fqn, run."""

    moment: int
    ulid: str
    fqn: str
    run: str


class Reading(NamedTuple):
    """How far the segments of a node were read: `high_ms` is the highest time of a ULID there."""

    low: int
    next: int
    high_ms: int = 0


class TableReading(NamedTuple):
    """How far the table was read: times of ULIDs in milliseconds, the last one exclusive."""

    low: int
    next: int
    end: int


@dataclass(frozen=True, slots=True)
class Replaying:
    """A replay that an appender is in."""

    low: str
    marks: Mapping[str, int]
    table: TableReading
    read: Mapping[str, int]
    frontier: EventKey | None
    appender: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Redelivery:
    """Dead letters that are sent again, and how far that is."""

    id: str
    upto: str = ""
    file: str = ""
    row: int = 0
    sent: int = 0
    refused: int = 0
    deleted: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far an appender is."""

    nodes: Mapping[str, Reading] = field(default_factory=dict)
    frontier: EventKey | None = None
    appender: Mapping[str, Any] | None = None
    dead_letter: Mapping[str, Any] | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    replayed: str = ""
    replay: Replaying | None = None
    saved_ms: int = 0
    redelivery: Redelivery | None = None


def encode(checkpoint: Checkpoint) -> str:
    """The JSON of a checkpoint."""
    return encode_checked(
        {
            "format": _FORMAT,
            "nodes": {node: list(one) for node, one in checkpoint.nodes.items()},
            "frontier": checkpoint.frontier and list(checkpoint.frontier),
            "appender": checkpoint.appender,
            "dead_letter": checkpoint.dead_letter,
            "counts": checkpoint.counts,
            "replayed": checkpoint.replayed,
            "replay": checkpoint.replay and _replay_value(checkpoint.replay),
            "saved_at": checkpoint.saved_ms,
        }
        | ({} if checkpoint.redelivery is None else {"redelivery": asdict(checkpoint.redelivery)})
    ).decode()


def _replay_value(replay: Replaying) -> dict[str, Any]:
    return {
        "low": replay.low,
        "marks": replay.marks,
        "table": list(replay.table),
        "read": replay.read,
        "frontier": replay.frontier and list(replay.frontier),
        "appender": replay.appender,
    }


def decode(text: str | None) -> Checkpoint:
    """The checkpoint in a JSON text; the first one if there is none. Raises `Damaged`."""
    if text is None:
        return Checkpoint()
    try:
        value = decode_checked(text.encode())
        if int(value["format"]) > _FORMAT:
            raise UnsupportedVersion(
                f"a checkpoint has format {value['format']}, this program knows {_FORMAT}"
            )
        nodes = {node: Reading(*map(int, one)) for node, one in value["nodes"].items()}
        replay = value.get("replay")
        return Checkpoint(
            nodes,
            _event_key(value["frontier"]),
            value["appender"],
            value["dead_letter"],
            {name: int(count) for name, count in value["counts"].items()},
            str(value.get("replayed", "")),
            None if replay is None else _replay(replay),
            int(value.get("saved_at", 0)),
            None if value.get("redelivery") is None else _redelivery(value["redelivery"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"not a checkpoint: {error}") from error


def _event_key(value: Any) -> EventKey | None:
    return None if value is None else EventKey(int(value[0]), *map(str, value[1:]))


def _redelivery(value: Mapping[str, Any]) -> Redelivery:
    return Redelivery(
        str(value["id"]),
        str(value["upto"]),
        str(value["file"]),
        int(value["row"]),
        int(value["sent"]),
        int(value["refused"]),
        int(value["deleted"]),
        bool(value["done"]),
    )


def _replay(value: Mapping[str, Any]) -> Replaying:
    return Replaying(
        str(value["low"]),
        {node: int(seq) for node, seq in value["marks"].items()},
        TableReading(*map(int, value["table"])),
        {node: int(seq) for node, seq in value["read"].items()},
        _event_key(value["frontier"]),
        value["appender"],
    )
