"""A partition: a piece of work that one worker at a time holds, and its state.

    UNASSIGNED ──acquire──► ASSIGNED ──complete──► COMPLETED
        ▲                    │ │ │                    (kept, so that it is never made again)
        ├──────give up───────┘ │ └──fail, too often──► FAILED ──reset──► UNASSIGNED
        │                      └──close──► CLOSED ──due──► ASSIGNED
        └── once the lease of an owner is over, the partition may be acquired again

Fields are those of a coordination item (contract, section 4). Times are milliseconds of the
store's clock. Partitions are values: a change is another value with another `version`, a
fresh ULID, so no two versions of a partition are equal and a write whose answer was lost is
found again by its version.

`rank_ms` is the order within a source: when the partition came to be available, later by
`ageing_ms` for each step of priority. It does not depend on now, so an index can keep it;
and whatever comes later has a higher rank, so nothing waits for ever. Equal ranks go by
creation, by place in the supplier's list, by key.

All stores have the same limits, so that a program may change its store:

    key        1 to 1,024 bytes of UTF-8    DynamoDB's sort key
    source     1 to 1,024 bytes of UTF-8    DynamoDB's hash key, with a status behind it
    progress   up to 300 KiB of UTF-8       DynamoDB's item has 400 KB, all attributes together
    priority   a number from -1e9 to 1e9    milliseconds of waiting that still are exact
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from coordination.lease import identity_of
from logstore.errors import InvalidInput, TooLarge

AGEING_MS: Final = 600_000
"""What one step of priority is worth in waiting, unless told otherwise."""
MAX_KEY_BYTES: Final = 1024
MAX_SOURCE_BYTES: Final = 1024
MAX_PROGRESS_BYTES: Final = 300 * 1024
MAX_PRIORITY: Final = 1e9


class Status(StrEnum):
    """Where a partition stands; the values are the contract's."""

    UNASSIGNED = "UNASSIGNED"
    ASSIGNED = "ASSIGNED"
    CLOSED = "CLOSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class NewPartition:
    """A partition that a supplier makes. `key` is unique in its source.

    Low priorities come first.
    """

    key: str
    priority: float = 0.0
    progress: str | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """One version of a partition. `source` is `[prefix|]name|type`, `progress` opaque JSON."""

    source: str
    key: str
    version: str
    created_ms: int
    available_ms: int
    """Since when it waits, or from when it may be taken: created, given up, due to reopen."""
    status: Status = Status.UNASSIGNED
    owner: str | None = None
    """`identity/ULID of the process`, None when free."""
    epoch: int = 0
    """The fencing token: above that of every earlier owner, also over a deletion."""
    until_ms: int = 0
    """While ASSIGNED: when ownership ends."""
    progress: str | None = None
    closed_count: int = 0
    attempts: int = 0
    """Acquisitions since progress was last made."""
    last_error: str | None = None
    priority: float = 0.0
    place: int = 0
    """Where it stood in the supplier's list."""
    ended_ms: int = 0
    """When it was completed or failed."""

    def rank_ms(self, ageing_ms: int = AGEING_MS) -> float:
        """The rank among free partitions, in ms; lower ranks come first."""
        return self.available_ms + self.priority * ageing_ms

    def order(self, ageing_ms: int = AGEING_MS) -> tuple[float, int, int, str]:
        """The sort key of a source's free partitions."""
        return (self.rank_ms(ageing_ms), self.created_ms, self.place, self.key)

    @property
    def identity(self) -> str | None:
        """The owner's identity without its process, which may reacquire at once after a restart."""
        return None if self.owner is None else identity_of(self.owner)


def check_new(source: str, new: NewPartition) -> None:
    """Raises `InvalidInput`, `TooLarge` for a new partition that breaks a limit."""
    check_name("source", source, MAX_SOURCE_BYTES)
    check_name("key", new.key, MAX_KEY_BYTES)
    check_changed(new.progress, new.priority)


def check_changed(progress: str | None, priority: float) -> None:
    """Raises `InvalidInput`, `TooLarge` for a change that breaks a limit."""
    if progress is not None and _size("progress", progress) > MAX_PROGRESS_BYTES:
        raise TooLarge(
            f"progress has more than {MAX_PROGRESS_BYTES} bytes",
            field="progress",
            hint="Keep what is large in an object of its own, and its key as progress.",
        )
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidInput(f"{priority} is not from -1e9 to 1e9", field="priority")


def check_name(field: str, name: str, most: int) -> None:
    """Raises `InvalidInput` for a name that is empty or longer than `most` bytes."""
    size = _size(field, name)
    if not 0 < size <= most:
        raise InvalidInput(f"a {field} has 1 to {most} bytes, this has {size}", field=field)


def _size(field: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the {field} is not text: {error}", field=field) from error
