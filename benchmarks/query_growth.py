"""Looking one record up as the table grows: `python -m benchmarks.query_growth`.

The table grows by hours of 0.1 GB of text, as `benchmarks.query` builds them, to `--gigabytes`.
From there to `--stated` it grows by files that only its log knows, with the statistics of the
real ones and hours of their own, since a look-up reads none of them. At each doubling, records of
the real hours are looked up by ULID, pipeline and run, through the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pyarrow.parquet as pq
from deltalake import write_deltalake

from benchmarks import query
from benchmarks.corpus import blocks
from service.query.engine import QueryEngine
from service.query.request import QueryRequest
from tailrace.logstore import keys, ulid
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.table.table import Table

_HOUR_GB = 0.1
_LOOK_UPS = 100


def _grow(table: Table, hour: int, text: Iterator[bytes], rng: random.Random) -> None:
    write_deltalake(
        table.uri,
        query.hour_of_text(hour, int(_HOUR_GB * 1e9), text, rng),
        mode="append",
        partition_by=["date", "hour"],
        writer_properties=query.WRITER,
    )


def _state(table: Table, first: int, count: int) -> None:
    """Adds so many files to the log that are nowhere, of hours from `first` on."""
    known = max(table.snapshot().files, key=lambda file: file.size)
    assert known.fqns is not None, "the writer gives bounds"
    assert known.runs is not None, "the writer gives bounds"
    log = Path(table.uri) / "_delta_log"
    version = max(int(path.stem) for path in log.glob("*.json") if path.stem.isdigit())
    actions = []
    for hour in range(first, first + count):
        start_ms = query.START_MS + hour * query.HOUR_MS
        day = datetime.fromtimestamp(start_ms / 1000, UTC)
        low, high = (
            ulid.encode(edge) for edge in (ulid.lowest_at(start_ms), ulid.highest_at(start_ms + 1))
        )
        bounds = {"ulid": low, "fqn": known.fqns[0], "run_id": known.runs[0]}
        tops = {"ulid": high, "fqn": known.fqns[1], "run_id": known.runs[1]}
        said = {"numRecords": known.rows, "minValues": bounds, "maxValues": tops, "nullCount": {}}
        place = {"date": f"{day:%Y-%m-%d}", "hour": str(day.hour)}
        actions.append(
            {
                "add": {
                    "path": f"date={place['date']}/hour={place['hour']}/stated-{hour}.parquet",
                    "partitionValues": place,
                    "size": known.size,
                    "modificationTime": start_ms,
                    "dataChange": True,
                    "stats": orjson.dumps(said).decode(),
                }
            }
        )
    body = b"".join(orjson.dumps(action, option=orjson.OPT_APPEND_NEWLINE) for action in actions)
    (log / f"{version + 1:020}.json").write_bytes(body)


async def _look_up(engine: QueryEngine, records: list[tuple[str, str, str]]) -> float:
    """The median in ms."""
    taken = []
    for text, fqn, run in records:
        exact = ulid.decode(text)
        request = replace(QueryRequest(), low=exact, high=exact, fqn=fqn, run=run)
        began = time.perf_counter()
        async with await engine.open(request) as running:
            found = sum([batch.num_rows async for batch in running.batches()])
        taken.append((time.perf_counter() - began) * 1000)
        if found != 1:
            raise SystemExit(f"{text} was found {found} times")
    return statistics.median(taken)


async def measure(root: str, gigabytes: float, stated: float) -> None:
    """Prints size, files and ms of a look-up at each doubling."""
    store = LocalStore(f"{root}/store", Disk(), SystemClock(), random.Random(1))
    table, rng = Table(store.uri(keys.TABLE)), random.Random(1)
    table.create()
    engine = query.engine_over(store, table, f"{root}/scratch")
    text = blocks()
    real, hours, target = round(gigabytes / _HOUR_GB), 0, 1
    records: list[tuple[str, str, str]] = []
    print(f"{'GB':>6}{'files':>8}{'ms':>8}")
    while target <= round(stated / _HOUR_GB):  # at each doubling
        while hours < min(target, real):
            _grow(table, hours, text, rng)
            hours += 1
        if hours < target:
            _state(table, hours, target - hours)
            hours = target
        if target <= real:
            keep = [file for file in table.snapshot().files if file.rows > _LOOK_UPS]
            records = []
            for _ in range(_LOOK_UPS):
                file = rng.choice(keep)
                group = pq.ParquetFile(file.uri).read_row_group(0, ["ulid", "fqn", "run_id"])
                row = group.slice(rng.randrange(group.num_rows), 1).to_pylist()[0]
                records.append((row["ulid"], row["fqn"], row["run_id"]))
        await _look_up(engine, records[:5])
        ms = await _look_up(engine, records)
        print(f"{hours * _HOUR_GB:>6.1f}{len(table.snapshot().files):>8}{ms:>8.2f}", flush=True)
        target *= 2
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Look records up as the table grows.")
    parser.add_argument("--gigabytes", type=float, default=1.6, help="text in real files")
    parser.add_argument("--stated", type=float, default=51.2, help="text in all that the log has")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        asyncio.run(measure(root, arguments.gigabytes, arguments.stated))


if __name__ == "__main__":
    main()
