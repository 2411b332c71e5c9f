"""Limits how many groups one client may make, and chooses the unused group that a new one replaces.

Without users a client is its address; for IPv6 it is the network of 64 bits that one host has for
itself. All clients behind a proxy are one. The making of groups is counted, which consumers do
once; the count is lost with the process.

At the limit of groups an unused one is replaced: one that has committed nothing, and that in a
long time was neither written nor requested at this node. Nothing is lost
by that: a consumer that returns makes its group again, from the oldest segment or from now as
before.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final

from coordination.groups import Group
from logstore import ulid
from logstore.clock import Clock
from logstore.errors import OverQuota

_HOUR_SECONDS: Final = 3600.0
_PEERS: Final = 4096
_NETWORK_BITS: Final = 64


class NewGroups:
    """Counts the groups that each peer made within an hour."""

    def __init__(self, clock: Clock, per_hour: int) -> None:
        self._clock = clock
        self._per_hour = per_hour
        self._made: OrderedDict[str, deque[float]] = OrderedDict()

    def take(self, peer: str) -> None:
        """Counts a new group of this peer. Raises `OverQuota` if the peer made too many."""
        now = self._clock.monotonic()
        made = self._made.setdefault(_network(peer), deque())
        self._made.move_to_end(_network(peer))
        while made and made[0] <= now - _HOUR_SECONDS:
            made.popleft()
        if len(made) >= self._per_hour:
            raise OverQuota(
                f"{len(made)} consumer groups were made from this address within an hour",
                retry_after_seconds=math.ceil(made[0] + _HOUR_SECONDS - now),
                hint="Use a group again: its name is what keeps its place. An operator can raise "
                "queue.new_groups_per_hour.",
            )
        made.append(now)
        if len(self._made) > _PEERS:
            self._made.popitem(last=False)


def unused(groups: Iterable[Group], asked: Iterable[str], before_ms: int) -> Group | None:
    """The first group to replace: not in `asked`, and not written since `before_ms`."""
    known = set(asked)
    found = [
        (written, group)
        for group in groups
        if not group.committed_segments and group.name not in known
        for written in [_written_ms(group)]
        if written < before_ms and not _leased(group, before_ms)
    ]
    return min(found, key=lambda one: (one[0], one[1].name))[1] if found else None


def _written_ms(group: Group) -> int:
    """The time of the last write in ms, from the ULID that is the version."""
    return ulid.time_ms(ulid.decode(group.version)) if group.version else group.created_ms


def _leased(group: Group, now_ms: int) -> bool:
    pending = (one for cursor in group.cursors.values() for one in cursor.pending.values())
    return any(one.until_ms > now_ms for one in pending)


def _network(peer: str) -> str:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return peer
    if address.version == 4:
        return peer
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
