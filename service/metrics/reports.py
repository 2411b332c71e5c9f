"""What clients report of their runs beside lines."""

from __future__ import annotations

from service.metrics.declared import Declared, counter

REPORTS: tuple[Declared, ...] = (
    counter(
        "reports",
        "Reports of clients on their runs that were stored.",
        lambda s: dict(s.node.status.stored),
        "kind",
    ),
    counter(
        "reports_expired",
        "Reports removed because their run is gone.",
        lambda s: s.node.status.expiry.removed,
    ),
    counter(
        "report_sweep_failures",
        "Sweeps of reports that the store cut short.",
        lambda s: s.node.status.sweep_failures,
    ),
    counter(
        "status_look_failures",
        "Looks for a watched run's status that failed; it counts as running meanwhile.",
        lambda s: s.node.status.endings.failures,
    ),
)
