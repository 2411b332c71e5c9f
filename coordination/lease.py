"""A lease: the owner of a piece of work, its end, and the token that fences off earlier owners.

    free ──acquire──► owned ──renew, every third of the timeout──► owned ──release──► free
                        │
        until - 2 s ────┤ the owner stops by itself
        until + 2 s ────┘ any process may acquire it

Every lease of this package has these fields, whatever else it holds and however it is stored:

- `owner` is `{identity}/{ULID of the process}`, so a process knows what an earlier one of its
  identity left behind. Segments of a consumer group have the ULID of a call instead.
- `epoch` is the fencing token. It is above that of every earlier owner.
- `until_ms` is on the store's clock, of which a program knows an interval
  (`coordination.storetime`). An owner uses its late end, another claimant its early one.

Named leases (`coordination.named`), partitions (`coordination.partitions`) and segments of
consumer groups (`coordination.groups`) are such leases, each in a format of its own.
"""

from __future__ import annotations

from typing import Final

MARGIN_MS: Final = 2000
"""So long before its end an owner stops, and so long after it a taker waits."""


def identity_of(owner: str) -> str:
    """The owner without its process."""
    return owner.rpartition("/")[0]


def is_earlier_process(owner: str, of: str) -> bool:
    """Whether `owner` was a process of the same identity, before the process `of`."""
    return identity_of(owner) == identity_of(of) and owner < of


def left_ms(until_ms: int, at_most_ms: int) -> int:
    """Milliseconds that the owner has left; at 0 or less it has stopped."""
    return until_ms - MARGIN_MS - at_most_ms


def is_over(until_ms: int, at_least_ms: int) -> bool:
    """Whether the owner has stopped, by any clock, so that another process may take the lease."""
    return at_least_ms >= until_ms + MARGIN_MS


def next_epoch(last: int, at_most_ms: int) -> int:
    """A token above `last`; as it is a time, it also rises if the stored lease was removed."""
    return max(last + 1, at_most_ms)
