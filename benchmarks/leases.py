"""Leases: `python -m benchmarks.leases [--store local|minio|dynamodb] [--kill]`.

Workers in processes of their own share 10,000 partitions: each takes some, writes a line
for each, completes them. Printed: leases given out a second, what the store was asked for
each (its acquire and its completion together), the share of conditional writes that were
refused. Then every partition must be COMPLETED, and exactly one line must have its last
epoch: the effect that counts. With `--kill` a worker is killed with SIGKILL every second
and another started. `--create N` measures a supplier instead, and who lists all that it made:
seconds, memory, bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from pathlib import Path
from random import Random

import orjson

from benchmarks.lease_worker import SOURCE, Job, Place, Traffic, opened, supply, work
from tailrace.coordination.object_store.store import SHARDS
from tailrace.coordination.partitions import Status
from tailrace.coordination.settings import DynamoDbSettings
from tests.servers.dynamodb import ACCESS_KEY, REGION, SECRET_KEY, running_dynamodb, why_no_dynamodb
from tests.servers.minio import running_minio, why_no_minio

_MOST_REFUSED = 0.10
_CONTEXT = multiprocessing.get_context("spawn")


class Workers:
    """The processes; with `kill` one of them dies each second."""

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = jobs
        self._running = [self._started(job) for job in jobs]
        self._dice = Random(1)
        self.killed = 0

    @staticmethod
    def _started(job: Job) -> SpawnProcess:
        process = _CONTEXT.Process(target=work, args=(job,))
        process.start()
        return process

    def wait(self, *, kill: bool) -> bool:
        """Until all have ended by themselves: whether each did so well."""
        while kill and all(one.is_alive() for one in self._running):
            time.sleep(1.0)
            at = self._dice.randrange(len(self._running))
            if self._running[at].is_alive():
                self._running[at].kill()
                self._running[at].join()
                self._running[at] = self._started(self._jobs[at])
                self.killed += 1
        for one in self._running:
            one.join()
        return all(one.exitcode == 0 for one in self._running)


async def _state(place: Place) -> tuple[dict[str, int], int]:
    """Key and epoch of what is completed, and how many there are in all."""
    done: dict[str, int] = {}
    total, after = 0, None
    async with opened(place, Traffic()) as store:
        while True:
            page = await store.page(SOURCE, after=after, limit=5000)
            total += len(page.partitions)
            for one in page.partitions:
                if one.status is Status.COMPLETED:
                    done[one.key] = one.epoch
            if (after := page.after) is None:
                return done, total


def _effects(folder: Path) -> Counter[tuple[str, int]]:
    """How often each key was worked on under each epoch."""
    found: Counter[tuple[str, int]] = Counter()
    for path in folder.glob("*.lines"):
        for line in path.read_text().splitlines():
            key, epoch = line.rsplit(" ", 1)
            found[key, int(epoch)] += 1
    return found


def _told(folder: Path) -> dict[str, float]:
    """The sums of what workers told; of a killed one what it told last."""
    told = [orjson.loads(path.read_bytes()) for path in folder.glob("*.json")]
    sums: dict[str, float] = defaultdict(float)
    for one in told:
        for name, number in one.items():
            sums[name] += number
    sums["seconds"] = max(one["ended"] for one in told) - min(one["began"] for one in told)
    return sums


def _report(folder: Path, asked: argparse.Namespace, done: dict[str, int], killed: int) -> bool:
    told, effects = _told(folder), _effects(folder)
    exact = sum(effects[item] == 1 for item in done.items())
    acquired = told["acquired"]
    refused = told["refused"] / told["put"]
    each = {name: told[name] / acquired for name in ("put", "get", "list", "wire")}
    print(
        f"{asked.store}, {asked.workers} workers, {asked.partitions} partitions"
        + ("" if asked.store == "dynamodb" else f" in {asked.shards} shards")
        + f", up to {asked.batch} an acquire: {acquired / told['seconds']:.0f} leases/s and"
        f" {told['acquires'] / told['seconds']:.0f} acquires/s in {told['seconds']:.1f} s;"
        f" a lease and its completion: {each['put']:.2f} writes, {each['get']:.2f} reads,"
        f" {each['list']:.2f} listings"
        + (f", {each['wire']:.2f} requests on the wire" if told["wire"] else "")
        + f"; {refused:.1%} of {told['put']:.0f} writes refused (limit {_MOST_REFUSED:.0%})"
        + (f"; {told['sent'] / acquired / 1000:.1f} kB sent each" if told["sent"] else "")
    )
    print(
        f"{len(done)} of {asked.partitions} completed, {exact} with exactly one effect under their"
        f" last epoch; {sum(effects.values()) - asked.partitions} partitions were worked on"
        f" again, {killed} workers killed"
    )
    return exact == asked.partitions and refused <= _MOST_REFUSED


def _run(place: Place, folder: Path, asked: argparse.Namespace) -> bool:
    async def fill() -> int:
        async with opened(place, Traffic()) as store:
            return await supply(store, asked.partitions, 50_000)

    assert asyncio.run(fill()) == asked.partitions
    jobs = [
        Job(
            place,
            str(folder),
            f"worker-{number}",
            asked.partitions,
            asked.batch,
            round(asked.lease * 1000),
            asked.work_milliseconds / 1000,
        )
        for number in range(asked.workers)
    ]
    workers = Workers(jobs)
    well = workers.wait(kill=asked.kill)
    done, total = asyncio.run(_state(place))
    return _report(folder, asked, done, workers.killed) and well and total == asked.partitions


def _create(place: Place, asked: argparse.Namespace) -> None:
    """In a process of its own: its memory is measured."""

    async def fill() -> tuple[int, dict[str, int]]:
        traffic = Traffic()
        async with opened(place, traffic) as store:
            return await supply(store, asked.create, asked.chunk), traffic.numbers()

    before, began = _rss_mb(), time.monotonic()
    made, numbers = asyncio.run(fill())
    print(
        f"{asked.store}: {made} partitions made in {time.monotonic() - began:.1f} s, in chunks of"
        f" {asked.chunk} and {asked.shards} shards: {numbers['put']} puts, {numbers.get('get', 0)}"
        f" gets, {numbers['sent'] / 1e6:.0f} MB sent; peak RSS {_rss_mb():.0f} MB, of which"
        f" {before:.0f} MB before it began",
        flush=True,
    )
    sys.exit(0 if made == asked.create else 1)


def _list(place: Place, asked: argparse.Namespace) -> None:
    """In a process of its own too."""

    async def read() -> tuple[int, dict[str, int]]:
        traffic, listed, after = Traffic(), 0, None
        async with opened(place, traffic) as store:
            while True:
                page = await store.page(SOURCE, after=after)
                listed += len(page.partitions)
                if (after := page.after) is None:
                    return listed, traffic.numbers()

    before, began = _rss_mb(), time.monotonic()
    listed, numbers = asyncio.run(read())
    print(
        f"{listed} listed in {time.monotonic() - began:.1f} s, in pages of 1000:"
        f" {numbers['get']} gets, {numbers['list']} listings; peak RSS {_rss_mb():.0f} MB, of which"
        f" {before:.0f} MB before it began",
        flush=True,
    )
    sys.exit(0 if listed == asked.create else 1)


def _rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _created(place: Place, asked: argparse.Namespace) -> bool:
    for measured in (_create, _list):
        process = _CONTEXT.Process(target=measured, args=(place, asked))
        process.start()
        process.join()
        if process.exitcode != 0:
            return False
    return True


@contextmanager
def _place(folder: Path, asked: argparse.Namespace) -> Iterator[Place]:
    if asked.store == "local":
        yield Place(folder=str(folder / "store"), shards=asked.shards)
        return
    if asked.store == "minio":
        with running_minio() as minio:
            yield Place(bucket=minio.bucket(), shards=asked.shards)
        return
    # DynamoDB Local checks no key, but requests are signed.
    os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    with running_dynamodb() as server:
        table = DynamoDbSettings(
            table_name=server.table_name(), region=REGION, endpoint_url=server.endpoint_url
        )
        yield Place(table=table)


def main() -> int:
    """0 if every limit holds and every partition was done exactly once."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--store", choices=["local", "minio", "dynamodb"], default="minio")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--shards", type=int, default=SHARDS)
    parser.add_argument("--batch", type=int, default=10, help="partitions an acquire may bring")
    parser.add_argument("--lease", type=float, default=600, help="seconds; with --kill 6")
    parser.add_argument("--work-milliseconds", type=float, default=0, help="per partition")
    parser.add_argument("--kill", action="store_true", help="kill a worker each second")
    parser.add_argument("--create", type=int, default=0, help="measure so many made")
    parser.add_argument("--chunk", type=int, default=50_000, help="what a supplier makes at once")
    asked = parser.parse_args()
    if asked.kill and asked.lease == parser.get_default("lease"):
        asked.lease = 6.0
    why_not = {"minio": why_no_minio, "dynamodb": why_no_dynamodb}.get(asked.store)
    reason = why_not() if why_not is not None else None
    if reason is not None:
        print(f"no {asked.store} here: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=".") as name:
        folder = Path(name).resolve()
        with _place(folder, asked) as place:
            good = _created(place, asked) if asked.create else _run(place, folder, asked)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
