"""What the tortured service keeps its objects on, and what must be true of it in the end.

local    a folder
minio    a real S3 server
faults   a real S3 server behind a proxy that misbehaves by the seed
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.config import StoreSettings, open_store
from tailrace.logstore.objects.store import ObjectStore
from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy
from tests.servers.minio import (
    HERE,
    Bucket,
    Place,
    memory_folder,
    running_minio,
    why_no_minio,
)

KINDS: Final = ("local", "minio", "faults")
RATE: Final = 0.1
_DAY_MS: Final = 86_400_000


@dataclass
class TorturedStore:
    """Settings of the service, and what stands between it and its objects."""

    settings: dict[str, str] = field(default_factory=dict)
    bucket: Bucket | None = None
    schedule: Schedule | None = None
    folder: Path | None = None
    swept: int = 0
    server: int | None = None
    """The process of the S3 server, if there is one."""
    _segments: dict[str, dict[RunKey, set[str]]] = field(default_factory=dict)

    @property
    def large(self) -> bool:
        """Whether some runs should be so large that they are made of uploaded parts."""
        return self.bucket is not None

    async def holds(self, key: RunKey, text: bytes) -> bool:
        """Whether one segment in the store has all lines of a batch."""
        lines = set(text.decode().split("\n")[:-1])
        async with self._open() as store:
            async for found in store.list(keys.SEGMENTS):
                if found.key.endswith(".parquet") and found.key not in self._segments:
                    self._segments[found.key] = _messages((await store.get(found.key))[1])
        return any(lines <= held.get(key, set()) for held in self._segments.values())

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[ObjectStore]:
        if self.bucket is not None:
            async with self.bucket.open() as store:
                yield store
        else:
            assert self.folder is not None
            place = StoreSettings(store=str(self.folder))
            async with open_store(place, SystemClock(), system_entropy(), Disk()) as store:
                yield store

    async def faults(self) -> list[str]:
        """What is wrong with the store after all was closed, and swept as a day later."""
        if self.bucket is None:
            return []
        async with self.bucket.open() as store:
            self.swept = await store.sweep(SystemClock().now_ms() + _DAY_MS)
        found = [f"an upload of {key} was left" for key in self.uploads()]
        if self.schedule is not None and not self.schedule.injected:
            found.append("the proxy did no harm")
        return found

    def uploads(self) -> list[str]:
        """Keys of uploads that were begun and neither completed nor aborted."""
        if self.bucket is None:
            return []
        client: Any = self.bucket.client()
        try:
            answer = client.list_multipart_uploads(Bucket=self.bucket.name)
        finally:
            client.close()
        return [upload["Key"] for upload in answer.get("Uploads", [])]

    def told(self) -> str:
        """What became of uploads, and what the proxy did, in words."""
        if self.bucket is None:
            return ""
        swept = f"{self.swept} uploads that kills or lost answers left were swept"
        if self.schedule is None:
            return swept
        kinds = ", ".join(f"{n} {kind.value}" for kind, n in self.schedule.injected.most_common())
        return f"{swept}; {self.schedule.requests} requests met {kinds}"


def _messages(segment: bytes) -> dict[RunKey, set[str]]:
    """What a segment has of each run."""
    table = pq.read_table(BytesIO(segment), columns=["fqn", "run_id", "message"])
    found: dict[RunKey, set[str]] = {}
    for fqn, run, message in zip(
        *(table[name].to_pylist() for name in table.column_names), strict=True
    ):
        found.setdefault(RunKey(fqn, run), set()).add(message)
    return found


@contextmanager
def tortured_store(
    kind: str, seed: int, folder: Path | None = None, place: Place = HERE
) -> Iterator[TorturedStore]:
    """One of `KINDS`, empty; a local one is in `folder`, or in each node's own if there is none.

    A server of S3 runs at `place`.

    Raises `RuntimeError` where MinIO cannot be had.
    """
    if kind == "local":
        yield TorturedStore({"TAILRACE_STORE": str(folder)} if folder else {}, folder=folder)
        return
    reason = why_no_minio()
    if reason is not None:
        raise RuntimeError(f"no MinIO here: {reason}")
    with ExitStack() as stack:
        minio = stack.enter_context(running_minio(memory_folder(), place))
        bucket, pid = minio.bucket(), minio.process.pid
        if kind == "minio":
            yield TorturedStore(bucket.environment, bucket, server=pid)
            return
        schedule = Schedule(seed, evenly(RATE))
        url = stack.enter_context(fault_proxy(bucket.endpoint_url, schedule))
        yield TorturedStore(bucket.through(url).environment, bucket, schedule, server=pid)
