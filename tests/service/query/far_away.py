"""A file cache before a table on S3 that is made of words."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from threading import Event

from service.query.file_cache import FileCache
from tailrace.logstore import keys
from tailrace.logstore.errors import NotFound, StoreUnavailable
from tailrace.logstore.table.followed import TableVersion, Transactions
from tailrace.logstore.table.snapshot import HOUR_MS, FileIndex, TableFile
from tests.simulation.hand_clock import NOW_MS, HandClock
from tests.waiting import until

SIZE = 20_000
ROOM = 1 << 30
LATELY_SECONDS = 601.0


class WallClock(HandClock):
    """One whose wall time goes as its seconds do."""

    def now_ms(self) -> int:
        return NOW_MS + round(self.monotonic() * 1000)


def file_at(hours_ago: int, size: int = SIZE, name: str = "job-00000-R1.parquet") -> TableFile:
    """A file of the hour that began so long ago."""
    began = datetime.fromtimestamp((NOW_MS // HOUR_MS - hours_ago) * HOUR_MS / 1000, UTC)
    path = f"date={began:%Y-%m-%d}/hour={began.hour}/{name}"
    uri = f"s3://logs/table/{path}"
    return TableFile(
        path, uri, size, 1, date.fromisoformat(f"{began:%Y-%m-%d}"), began.hour, None, None, None
    )


class FarAway:
    """A table on S3: its newest files, what of them is there, and what was asked."""

    def __init__(self, files: Sequence[TableFile]) -> None:
        self.files = list(files)
        self.bodies = {file.uri: os.urandom(file.size) for file in files}
        self.bodies |= {self.index_of(file.path): b"index of it" for file in files}
        self.asked: list[str] = []
        self.answers = Event()
        self.answers.set()
        self.down = False

    def index_of(self, path: str) -> str:
        return f"s3://logs/{keys.skip_index(path)}"

    def get(self, uri: str, range_: str) -> bytes:
        if not range_ or range_.startswith("bytes=0-"):
            self.asked.append(uri)
        self.answers.wait()
        if self.down:
            raise StoreUnavailable("it is away")
        if uri not in self.bodies:
            raise NotFound(uri)
        if not range_:
            return self.bodies[uri]
        first, last = map(int, range_.removeprefix("bytes=").split("-"))
        return self.bodies[uri][first : last + 1]

    def newest(self) -> TableVersion:
        return TableVersion(1, FileIndex.of(self.files), Transactions({}))

    @property
    def fetched(self) -> list[str]:
        """Files that were asked for, in order."""
        return [uri for uri in self.asked if keys.INDEX_SUFFIX not in uri]


@asynccontextmanager
async def cache_of(
    away: FarAway,
    folder: Path,
    clock: HandClock,
    most_bytes: int = ROOM,
    quiet: Event | None = None,
) -> AsyncIterator[FileCache]:
    if quiet is None:
        quiet = Event()
        quiet.set()
    cache = FileCache(
        away.get,
        away.index_of,
        away.newest,
        clock,
        str(folder / "cache"),
        quiet,
        most_bytes=most_bytes,
        check=lambda _path: None,
    )
    try:
        yield cache
    finally:
        away.answers.set()
        cache.close()


async def settled(clock: HandClock) -> None:
    """Returns once the cache has looked, and waits for the next time."""
    await until(lambda: clock.sleeping == 1)


async def fetched(cache: FileCache, clock: HandClock, count: int) -> None:
    """Returns once it has fetched so many files, and waits for the next time."""
    await until(lambda: cache.fetched == count)
    await settled(clock)


def here(cache: FileCache, files: Sequence[TableFile]) -> list[bool]:
    """Of which files a copy is in the folder, with an index, as the cache says too."""
    found = []
    for file in files:
        place = Path(cache._place(file.path))
        assert place.exists() == Path(cache.index_place(file.path)).exists()
        assert place.exists() == cache.has_index(file)
        found.append(place.exists())
    return found
