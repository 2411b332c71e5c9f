"""Leases of this process by source: Data Prepper's counters under its last words, and what is held.

Named leases (`text`, `sweep`) and coordinators count alike. What a named lease has not, such as
progress, stays at 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from coordination.counters import NAMES, CoordinationCounters
from service.metrics.declared import Declared, Sources, counter, gauge

_HELP: Final = {
    "supplied": "Runs of the supplier of new partitions.",
    "none_acquired": "Acquires that brought nothing.",
    "created": "Partitions made.",
    "acquired": "Leases acquired.",
    "completed": "Partitions done for good.",
    "closed": "Partitions done until they are due again.",
    "deleted": "Partitions and named leases removed by who held them.",
    "given_up": "Leases let go before the end of the work.",
    "saved": "Saves of progress.",
    "not_found": "Leases lost because somebody deleted the item.",
    "not_owned": "Leases lost to another owner, or to time.",
}
_OURS: Final = {
    "failures": ("partition_failures", "Failures that workers reported, also those tried again."),
    "failed": ("partitions_failed", "Partitions that became FAILED: tried too often."),
    "held_back": ("partitions_held_back", "Acquires refused as we hold our fair share."),
    "asked_back": ("partitions_asked_back", "Partitions that were asked back for others."),
    "renewal_errors": ("lease_renewal_errors", "Heartbeats of a lease that the store refused."),
}


def _counters(sources: Sources) -> Mapping[str, CoordinationCounters]:
    named = sources.node.text.leases.counters
    return {**named, **{work.source: work.counters for work in sources.work}}


def _total(name: str) -> Callable[[Sources], dict[str, float]]:
    def read(sources: Sources) -> dict[str, float]:
        return {source: getattr(one, name) for source, one in _counters(sources).items()}

    return read


def _update_errors(sources: Sources) -> dict[tuple[str, str], float]:
    return {
        (source, action): count
        for source, one in _counters(sources).items()
        for action, count in one.update_errors.items()
    }


def _held(sources: Sources) -> dict[str, float]:
    found: dict[str, float] = dict.fromkeys(_counters(sources), 0)
    for held in sources.node.text.leases.held:
        found[held.lease.name.source] += 1
    return found | {work.source: len(work.held()) for work in sources.work}


def _oldest(sources: Sources) -> dict[str, float]:
    found: dict[str, float] = dict.fromkeys(_counters(sources), 0)
    for held in sources.node.text.leases.held:
        source = held.lease.name.source
        found[source] = max(found[source], sources.now - held.since)
    return found | {work.source: work.oldest_seconds() for work in sources.work}


def _attempts(sources: Sources) -> dict[str, float]:
    return {
        work.source: max([held.partition.attempts for held in work.held()], default=0)
        for work in sources.work
    }


def _lag(sources: Sources) -> dict[str, float]:
    return {work.source: work.lag_seconds() for work in sources.work}


def _snake(upstream: str) -> str:
    return re.sub("([A-Z])", r"_\1", upstream).lower()


def _declared() -> Iterator[Declared]:
    for field, upstream in NAMES.items():
        yield counter(_snake(upstream), _HELP[field], _total(field), "source")
    yield counter(
        "partition_update_errors",
        "Writes of a held partition that failed, by `saveState`, `close` and `complete`.",
        _update_errors,
        *("source", "action"),
    )
    for field, (name, text) in _OURS.items():
        yield counter(name, text, _total(field), "source")


LEASES: tuple[Declared, ...] = (
    *_declared(),
    gauge("leases_held", "Leases that this process holds.", _held, "source"),
    gauge("lease_oldest_seconds", "For how long the oldest of them is held.", _oldest, "source"),
    gauge(
        "lease_attempts",
        "Acquisitions without progress of the partition held that has most.",
        _attempts,
        "source",
    ),
    gauge(
        "lease_lag_seconds",
        "For how long the work of the held partition that was due first is due.",
        _lag,
        "source",
    ),
)
