"""A partition as it stands in its shard: a JSON object, whose key in the shard is the partition's.

    version         always; the ULID of this version
    created_at      always; milliseconds of the store's clock, as all times
    available_at    left out if it is `created_at`
    status          left out if UNASSIGNED
    owner, epoch, owner_timeout, progress_state, closed_count, attempts, last_error,
    priority, place, ended_at
                    as in `coordination.partitions.partition`; left out if empty or 0

Keys that this version does not know survive a rewrite. Rows stay as they were parsed, dicts of
plain values, which Python's garbage collector does not look at: there may be a million.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coordination.partitions.partition import NewPartition, Partition, Status

Stored = Mapping[str, Any]

_ENDED: Final = frozenset({Status.COMPLETED.value, Status.FAILED.value})
_NAMES: Final = (
    "version created_at available_at status owner epoch owner_timeout progress_state closed_count"
    " attempts last_error priority place ended_at"
)
_KNOWN: Final = frozenset(_NAMES.split(" "))


def spelled(partition: Partition) -> dict[str, Any]:
    """The stored fields of a partition, without its key and without unknown fields."""
    stored: dict[str, Any] = {"version": partition.version, "created_at": partition.created_ms}
    if partition.available_ms != partition.created_ms:
        stored["available_at"] = partition.available_ms
    if partition.status is not Status.UNASSIGNED:
        stored["status"] = partition.status.value
    fields = (
        ("epoch", partition.epoch),
        ("owner_timeout", partition.until_ms),
        ("closed_count", partition.closed_count),
        ("attempts", partition.attempts),
        ("priority", partition.priority),
        ("place", partition.place),
        ("ended_at", partition.ended_ms),
    )
    texts = (
        ("owner", partition.owner),
        ("progress_state", partition.progress),
        ("last_error", partition.last_error),
    )
    stored.update((name, number) for name, number in fields if number)
    stored.update((name, text) for name, text in texts if text is not None)
    return stored


def unknown(stored: Stored) -> dict[str, Any]:
    """The fields that a newer version wrote and this version does not know."""
    return {name: value for name, value in stored.items() if name not in _KNOWN}


def status_of(stored: Stored) -> str:
    """The status of a row, as it is spelled."""
    found: str = stored.get("status", "UNASSIGNED")
    return found


def has_ended(stored: Stored) -> bool:
    """Whether the partition never becomes free again by itself."""
    return stored.get("status") in _ENDED


def fresh_row(new: NewPartition, version: str, now_ms: int, place: int) -> Stored:
    """The stored fields of a new partition, made without a `Partition` because there are many."""
    stored: dict[str, Any] = {"version": version, "created_at": now_ms}
    if place:
        stored["place"] = place
    if new.priority:
        stored["priority"] = new.priority
    if new.progress is not None:
        stored["progress_state"] = new.progress
    return stored


def read_row(source: str, key: str, stored: Stored) -> Partition:
    """The partition of a row. Raises `ValueError`, `TypeError` or `KeyError` for invalid rows."""
    get = stored.get
    created_ms = int(stored["created_at"])
    return Partition(
        source,
        key,
        version=stored["version"],
        created_ms=created_ms,
        available_ms=int(get("available_at", created_ms)),
        status=Status(get("status", "UNASSIGNED")),
        owner=get("owner"),
        epoch=int(get("epoch", 0)),
        until_ms=int(get("owner_timeout", 0)),
        progress=get("progress_state"),
        closed_count=int(get("closed_count", 0)),
        attempts=int(get("attempts", 0)),
        last_error=get("last_error"),
        priority=float(get("priority", 0.0)),
        place=int(get("place", 0)),
        ended_ms=int(get("ended_at", 0)),
    )
