"""The forwarder's metrics: their names, and where each is read when Prometheus asks.

The parts add to plain integers on their own objects; a metric costs nothing in between. They are
served as text over HTTP (`serve`), by a thread of its own (`tailrace.logstore.prometheus`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.forwarder.delivery.delivery import BatchDelivery
from tailrace.forwarder.engine.state import EngineParts, SourceTally, Tracked
from tailrace.logstore import prometheus
from tailrace.logstore.prometheus import Declared, ProgramHealth, Reading


@dataclass(slots=True)
class SyncCounts:
    """Syncs of the checkpoint log; `add` is its `on_sync`."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """A sync took so long."""
        self.count += 1
        self.seconds += seconds


@dataclass(slots=True)
class UnreadSince:
    """The time since which files have bytes that are not acknowledged.

    It is computed at each request: a file that has unread bytes is remembered with the moment at
    which they were seen, until they are acknowledged. So an age is never too high, and too low by
    at most the time between two requests.
    """

    _since: dict[str, tuple[int, float]] = field(default_factory=dict)

    def seconds(self, files: list[Tracked], now: float) -> dict[str, float]:
        """The age of the oldest unacknowledged byte, by source."""
        found: dict[str, float] = {}
        since: dict[str, tuple[int, float]] = {}
        for file in files:
            if not behind(file):
                continue
            known = self._since.get(file.id)
            if known is None or file.cursor.offset >= known[0]:
                known = (file.content_end, file.grown_at)
            since[file.id] = known
            found[file.source] = max(found.get(file.source, 0.0), now - known[1])
        self._since = since
        return found


@dataclass(frozen=True, slots=True)
class ForwarderMetricSources:
    """The objects whose numbers are shown."""

    shared: EngineParts
    delivery: BatchDelivery
    syncs: SyncCounts
    unread: UnreadSince = field(default_factory=UnreadSince)

    @property
    def files(self) -> list[Tracked]:
        """All files that are known, as of now; the engine goes on meanwhile."""
        return list(self.shared.registry.files.values())

    def by_source(self, read: Callable[[SourceTally], float]) -> dict[str, float]:
        """A number of each source."""
        return {name: read(tally) for name, tally in self.shared.tallies.items()}

    def over_files(self, read: Callable[[Tracked], float]) -> dict[str, float]:
        """A number that is summed over the files of each source."""
        found = dict.fromkeys(self.shared.tallies, 0.0)
        for file in self.files:
            if file.source in found:
                found[file.source] += read(file)
        return found


def behind(file: Tracked) -> int:
    """Bytes of a file's content that are known to be there and are not acknowledged."""
    return 0 if file.over else max(file.content_end - file.cursor.offset, 0)


def _counter(
    name: str, text: str, read: Callable[[ForwarderMetricSources], Reading], *labels: str
) -> Declared[ForwarderMetricSources]:
    return Declared(f"tailrace_forwarder_{name}", "counter", text, read, labels)


def _gauge(
    name: str, text: str, read: Callable[[ForwarderMetricSources], Reading], *labels: str
) -> Declared[ForwarderMetricSources]:
    return Declared(f"tailrace_forwarder_{name}", "gauge", text, read, labels)


def _tally(name: str, text: str, field_name: str) -> Declared[ForwarderMetricSources]:
    return _counter(
        name, text, lambda s: s.by_source(lambda tally: getattr(tally, field_name)), "source"
    )


_OKLOG: tuple[Declared[ForwarderMetricSources], ...] = (
    Declared(
        "tailrace_forward_bytes",
        "counter",
        "OK Log's name of `tailrace_forwarder_acknowledged_bytes`.",
        lambda s: s.by_source(lambda tally: tally.acknowledged_bytes),
        ("source",),
    ),
    Declared(
        "tailrace_forward_records",
        "counter",
        "OK Log's name of `tailrace_forwarder_acknowledged_records`.",
        lambda s: s.by_source(lambda tally: tally.acknowledged_records),
        ("source",),
    ),
    Declared(
        "tailrace_forward_disconnects",
        "counter",
        "Changes to another address, as OK Log counts them.",
        lambda s: s.delivery.pool.failovers,
    ),
    Declared(
        "tailrace_forward_short_writes",
        "counter",
        "Requests that have to be made again: what is to OK Log a write that broke off.",
        lambda s: s.delivery.counts.retries,
    ),
)

METRICS: tuple[Declared[ForwarderMetricSources], ...] = (
    _gauge(
        "bytes_behind",
        "Bytes of content that were seen and are not acknowledged.",
        lambda s: s.over_files(behind),
        "source",
    ),
    _gauge(
        "oldest_unread_seconds",
        "Age of the oldest byte that is not acknowledged; at most one scrape's interval too low.",
        lambda s: {
            **dict.fromkeys(s.shared.tallies, 0.0),
            **s.unread.seconds(s.files, s.shared.clock.monotonic()),
        },
        "source",
    ),
    _tally("lost_bytes", "Bytes that disappeared from a file before they were read.", "lost_bytes"),
    _tally("truncations", "Files that were cut and written anew.", "truncations"),
    _tally("rotations", "Files that were moved away from their path.", "rotations"),
    _tally(
        "duplicate_files",
        "Files that were not read, because another file has the same content.",
        "duplicate_files",
    ),
    _gauge(
        "files",
        "Files that are known and expected to grow.",
        lambda s: s.over_files(_alive),
        "source",
    ),
    _gauge(
        "matched_files",
        "Files under the paths of the source at its last scan.",
        lambda s: s.by_source(lambda tally: tally.matched_files),
        "source",
    ),
    _gauge("open_files", "Files that are open.", lambda s: len(s.shared.handles)),
    _tally("open_errors", "Files that could not be opened, each time.", "open_errors"),
    _tally("damaged_files", "Damaged compressed files.", "damaged"),
    _tally("scans", "Scans for files.", "scans"),
    _tally("scan_seconds", "Time spent on scans.", "scan_seconds"),
    _tally("acknowledged_bytes", "Bytes of content that were acknowledged.", "acknowledged_bytes"),
    _tally("acknowledged_records", "Records that were acknowledged.", "acknowledged_records"),
    _tally(
        "duplicate_batches",
        "Batches that the service already had, because their first answer was lost.",
        "duplicate_batches",
    ),
    _tally(
        "dropped_records",
        "Records whose run was deleted after they were logged.",
        "dropped_records",
    ),
    _tally("failed_files", "Files stopped by a batch that was refused, each time.", "failed_files"),
    _gauge(
        "refused_files",
        "Files that are stopped, because the service refused a batch.",
        lambda s: s.over_files(lambda file: file.stage == "failed"),
        "source",
    ),
    _tally("replaced_characters", "Characters that became U+FFFD.", "replaced"),
    _tally("truncated_entries", "Entries beyond `max_log_size`.", "truncated"),
    _tally("unparsed_entries", "Entries that an operator could not parse.", "unparsed"),
    _counter(
        "verdicts",
        "Requests with a final answer, by its meaning.",
        lambda s: dict(s.delivery.counts.verdicts),
        "kind",
    ),
    _gauge("requests_waiting", "Requests that wait for an answer.", lambda s: s.delivery.waiting),
    _counter(
        "requests", "Requests to services, with each retry.", lambda s: s.delivery.counts.requests
    ),
    _counter(
        "retries", "Requests that have to be made again.", lambda s: s.delivery.counts.retries
    ),
    _counter("failovers", "Changes to another address.", lambda s: s.delivery.pool.failovers),
    _counter(
        "lookup_failures",
        "Names of targets that could not be looked up, each time.",
        lambda s: s.delivery.pool.lookup_failures,
    ),
    _counter(
        "sent_bytes", "Bytes of bodies, with each retry.", lambda s: s.delivery.counts.sent_bytes
    ),
    _counter(
        "wire_bytes",
        "Bytes of bodies as `body_encoding` sends them, with each retry.",
        lambda s: s.delivery.counts.wire_bytes,
    ),
    _counter("checkpoint_syncs", "Syncs of the checkpoint log.", lambda s: s.syncs.count),
    _counter(
        "checkpoint_sync_seconds",
        "Time spent on syncs of the checkpoint log.",
        lambda s: s.syncs.seconds,
    ),
    *_OKLOG,
)


def _alive(file: Tracked) -> float:
    return 0.0 if file.over else 1.0


def serve(listen: str, sources: ForwarderMetricSources) -> Callable[[], None]:
    """Answers Prometheus at `host:port` until the function that it gives is called.

    Raises `InvalidInput` for an address that cannot be listened on.
    """
    return prometheus.serve(
        listen,
        lambda: (one.family(sources) for one in METRICS),
        lambda: health(sources),
        key="metrics.listen",
    )


def health(sources: ForwarderMetricSources) -> ProgramHealth:
    """Ready while a service takes what is sent; the problems name services that do not."""
    pool = sources.delivery.pool
    return ProgramHealth(ready=pool.delivers, problems=pool.problems())
