"""Bytes written to the table per byte of it, over a simulated day.

    python -m benchmarks.amplification [--pieces 6] [--minutes 10] [--hours 24]

Three nodes upload a segment every ten seconds of a day (`benchmarks/day.py`), and the compactor
has a pass every ten minutes by the day's clock, with its default settings, until the last
hour is over. Counted is every file that was ever in the table's folder: what the ingest wrote,
what rewriting wrote in its place, the log and its checkpoints. The text is scaled down to
some 30 KB a segment, 0.9 GB a day, so that it ends within minutes; with more of it, files'
footers and the log weigh less. Passes must leave four files an hour or more: fewer, as small
as these are, are not worth rewriting, and the figure would be near 1.
Goal: at most 3. Beside it: files per hour at the end, and bytes of the table per byte of
text, where `zstd -3` has the same text without its copies.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.backlog import store_at
from benchmarks.corpus import source
from benchmarks.day import HOUR_MS, NODES, Day, Text, make, path_of
from compactor.context import Compactor
from compactor.placement import FolderPlacement
from compactor.report import PassReport
from compactor.runner import once
from compactor.settings import Compaction
from compactor.spark.session import Session
from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.table.schema import level_of
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import Table


class DayClock(SystemClock):
    """The day's wall time, moved by hand; phases take as long as they do."""

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms

    def now_ms(self) -> int:
        return self.at_ms


class Written:
    """Every file that was ever below the folder, by what it was written for."""

    def __init__(self, folder: Path) -> None:
        self.bytes: Counter[str] = Counter()
        self._folder = folder
        self._seen: set[tuple[str, int]] = set()

    def look(self) -> None:
        """Counts what is new, or was written anew."""
        for place, _, names in os.walk(self._folder):
            for name in names:
                stat = os.stat(os.path.join(place, name))
                path = os.path.relpath(os.path.join(place, name), self._folder)
                if (path, stat.st_mtime_ns) not in self._seen:
                    self._seen.add((path, stat.st_mtime_ns))
                    self.bytes[_purpose(path)] += stat.st_size


def _purpose(path: str) -> str:
    if path.startswith("_delta_log"):
        return "log" if path.endswith(".json") else "checkpoints"
    return "ingest" if level_of(path) == 0 else "rewriting"


async def live(
    folder: Path, day: Day, session: Session, every_ms: int
) -> tuple[Written, TableSnapshot]:
    """The day, pass by pass."""
    store, clock = store_at(folder), DayClock(day.start_ms)
    table = Table(store.uri(keys.TABLE))
    limits = Compaction()
    placement = FolderPlacement(Disk(), table.uri)
    entropy = system_entropy()
    compactor = Compactor(
        store, table, placement, clock, entropy, limits, session, lambda _step: None
    )
    written, uploaded = Written(folder / "store" / keys.TABLE), dict.fromkeys(NODES, 0)
    last = day.end_ms + int(limits.settle_seconds * 1000) + every_ms
    while clock.at_ms < last:
        clock.at_ms += every_ms
        _upload(folder, day, uploaded, clock.at_ms)
        report = await once(compactor, PassReport())
        written.look()
        if clock.at_ms % HOUR_MS == 0:
            _tell(clock.at_ms - day.start_ms, report, written)
    return written, table.snapshot()


def _upload(folder: Path, day: Day, uploaded: dict[str, int], now_ms: int) -> None:
    """Puts into the store what nodes have uploaded by now."""
    for node in NODES:
        target = folder / "store" / keys.segment(node, 1)
        target.parent.mkdir(parents=True, exist_ok=True)
        while (seq := uploaded[node] + 1) <= day.ticks:
            at = day.uploaded_ms(node, seq)
            if at > now_ms:
                break
            made = path_of(folder / "day", node, seq)
            os.utime(made, ns=(at * 1_000_000,) * 2)
            made.rename(folder / "store" / keys.segment(node, seq))
            uploaded[node] = seq


def _tell(day_ms: int, report: PassReport, written: Written) -> None:
    print(
        f"{day_ms // HOUR_MS:2} h: {sum(written.bytes.values()) / 1e6:.1f} MB written,"
        f" the last pass {report.segments} segments, {sum(report.seconds.values()):.1f} s",
        flush=True,
    )


def tell(text: Text, written: Written, snapshot: TableSnapshot) -> None:
    """The figures."""
    final = sum(file.size for file in snapshot.files)
    total = sum(written.bytes.values())
    files = Counter((file.date, file.hour) for file in snapshot.files)
    shares = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in written.bytes.items())
    print(f"{total / 1e6:.1f} MB written ({shares}), {final / 1e6:.1f} MB of table")
    print(f"bytes written per byte of table: {total / final:.2f} (goal 3)")
    print(
        f"files per hour at the end: median {statistics.median(files.values()):.0f}, most"
        f" {max(files.values())}; {len(files)} hours, {snapshot.version} versions"
    )
    print(
        f"bytes of table per byte of text: {final / text.distinct:.3f};"
        f" zstd -3: {text.compressed / text.distinct:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pieces", type=int, default=6, help="of fifty lines, in a segment")
    parser.add_argument("--minutes", type=int, default=10, help="of the day, between passes")
    parser.add_argument("--hours", type=int, default=24)
    flags = parser.parse_args()
    # A day that is over, for files are as old as they really are.
    end_ms = int(time.time()) // 3600 * HOUR_MS
    day = Day(end_ms - flags.hours * HOUR_MS, flags.pieces, flags.hours)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as made:
        text = make(Path(made) / "day", day)
        print(
            f"{text.sent / 1e6:.0f} MB of text ({source()}), {text.distinct / 1e6:.0f} without"
            f" copies, {day.ticks * len(NODES)} segments",
            flush=True,
        )
        session = Session("2g")
        passes = live(Path(made), day, session, flags.minutes * 60_000)
        written, snapshot = asyncio.run(passes)
        session.stop()
    tell(text, written, snapshot)


if __name__ == "__main__":
    main()
