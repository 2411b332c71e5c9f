"""Appending while S3 takes 30 s per call: `python -m benchmarks.stall [--seconds 60]`.

As many connections as in `benchmarks.ingest` post, turn about: everything between service
and MinIO passes at once, or every request waits `--stall-seconds` in a proxy. Printed is
the ack's p99 of both, and their ratio. At the end all lines that were acknowledged must be in
their runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.ingest import CONNECTIONS, PATHS, Case, make_case
from benchmarks.outage import deliver
from benchmarks.process import Load, Watched, load
from tests.e2e.service_process import ServiceProcess
from tests.faults.kinds import Kind
from tests.faults.schedule import Schedule
from tests.faults.thread import fault_proxy
from tests.servers.minio import running_minio, why_no_minio

_TURNS = 3
_MOST_RATIO = 1.5


def _measure(schedule: Schedule, once: Callable[[], Load]) -> tuple[list[Load], list[Load]]:
    """Loads without and with the stall, turn about."""
    free, stalled = [], []
    for _ in range(_TURNS):
        free.append(once())
        schedule.refuse(Kind.STALL)
        stalled.append(once())
        schedule.relent()
    return free, stalled


def _row(name: str, loads: list[Load]) -> float:
    """Prints what the acks took; their median p99 in ms."""
    p99 = median(seen.p99_ms for seen in loads)
    each = " ".join(f"{seen.p99_ms:.1f}" for seen in loads)
    rate = median(seen.rate for seen in loads)
    errors = sum(seen.errors for seen in loads)
    print(f"{name:9} p99 {p99:.1f} ms ({each}), {rate:.0f} batches/s, {errors} errors", flush=True)
    return p99


def _run(folder: Path, arguments: argparse.Namespace) -> bool:
    schedule = Schedule(stall_seconds=arguments.stall_seconds)
    case: Case = make_case(folder, arguments.lines, "raw")
    with running_minio() as minio, fault_proxy(minio.endpoint_url, schedule) as url:
        service = ServiceProcess(
            folder / "data",
            store=None,
            **minio.bucket().through(url).environment,
            TAILRACE_JOURNAL__MAX_BYTES=str(60 << 30),
        )
        service.start()
        watched = Watched(service.pid)

        def once() -> Load:
            return load(
                service.url,
                PATHS,
                case.bodies,
                seconds=arguments.seconds,
                connections=CONNECTIONS,
                content_type="text/plain",
                folder=folder,
            )

        free, stalled = _measure(schedule, once)
        watched.end()
        delivered, needed = deliver(service)
        service.stop()
    usual = _row("at once", free)
    ratio = _row("stalled", stalled) / usual
    expected = sum(seen.requests for seen in [*free, *stalled]) * arguments.lines
    print(
        f"stalled over at once {ratio:.2f} (limit {_MOST_RATIO}); {schedule.injected[Kind.STALL]} "
        f"calls took {arguments.stall_seconds:g} s; RSS at most {watched.peak_mb:.0f} MB; "
        f"{delivered} lines delivered {needed:.0f} s after, at least {expected} acknowledged"
    )
    # wrk leaves with up to one unanswered request a connection, at each turn.
    spare = CONNECTIONS * arguments.lines * 2 * _TURNS
    errors = sum(seen.errors for seen in [*free, *stalled])
    return ratio <= _MOST_RATIO and 0 <= delivered - expected <= spare and errors == 0


def main() -> int:
    """0 if nobody who appends noticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60, help="of each of six turns")
    parser.add_argument("--stall-seconds", type=float, default=30)
    parser.add_argument("--lines", type=int, default=10)
    arguments = parser.parse_args()
    reason = why_no_minio()
    if reason is not None:
        print(f"no MinIO here: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=".") as temporary:
        return 0 if _run(Path(temporary).resolve(), arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
