"""Metrics of leases by source: Data Prepper's counters by their last words, and held leases.

Named leases (`text`, `sweep`) and coordinators count alike. What a named lease has not, such as
progress, stays at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coordination.coordinator.work_queue import ATTEMPTS, HELD, LAG, OLDEST, Measure
from coordination.counters import OURS, UPDATE_ERRORS, UPSTREAMS, CoordinationCounters, Count
from service.metrics.declared import Declared, Read, Sources, counter, gauge


def _counters(sources: Sources) -> Mapping[str, CoordinationCounters]:
    named = sources.node.run_logs.leases.counters
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
    for held in sources.node.run_logs.leases.held:
        found[held.lease.name.source] += 1
    return found | {work.source: HELD.of(work) for work in sources.work}


def _oldest(sources: Sources) -> dict[str, float]:
    found: dict[str, float] = dict.fromkeys(_counters(sources), 0)
    for held in sources.node.run_logs.leases.held:
        source = held.lease.name.source
        found[source] = max(found[source], sources.now - held.since)
    return found | {work.source: OLDEST.of(work) for work in sources.work}


def _of_work(measure: Measure) -> Read:
    def read(sources: Sources) -> dict[str, float]:
        return {work.source: measure.of(work) for work in sources.work}

    return read


def _gauge(measure: Measure, read: Read) -> Declared:
    return gauge(measure.name, measure.help, read, "source")


def _counter(count: Count) -> Declared:
    return counter(count.name, count.help, _total(count.field), "source")


LEASES: tuple[Declared, ...] = (
    *map(_counter, UPSTREAMS),
    counter(*UPDATE_ERRORS, _update_errors, "source", "action"),
    *map(_counter, OURS),
    _gauge(HELD, _held),
    _gauge(OLDEST, _oldest),
    _gauge(ATTEMPTS, _of_work(ATTEMPTS)),
    _gauge(LAG, _of_work(LAG)),
)
