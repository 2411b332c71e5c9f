"""Places files in a bucket: the server copies each one, then Spark's file is removed.

S3 has no renaming. Spark could write below the table's own folders, but would then sort
every file once more and could not spell `hour=09`; a copy inside the store moves no byte
through this process. It also gives the file its storage class, by its level: Spark's file lives for
seconds and a fresh file for an hour, and a class may be billed for at least a month.

A put is durable when it is answered, also one of the log, so nothing has to be settled.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from compactor.commit.placement import is_part, placed_path, staging_folder
from logstore import keys
from logstore.objects.parquet import fetch_tail, opened
from logstore.objects.store import ObjectInfo, ObjectStore, Part
from logstore.swap import write_until_known
from logstore.table.stats import NewFile, describe

_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class ObjectPlacement:
    """`Placement` of the table in an object store."""

    store: ObjectStore

    async def place(self, job: str, level: int = 0) -> list[NewFile]:
        prefix = _staging(job)
        staged = [info async for info in self.store.list(prefix)]
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(part: ObjectInfo) -> NewFile | None:
            async with turns:
                return await self._copy(part, job, level)

        parts = [info for info in staged if is_part(info.key.removeprefix(prefix))]
        placed = await asyncio.gather(*(one(part) for part in parts))
        # The files are placed: an ambiguous removal must not make the job be done again.
        gone = [*(info.key for info in staged), *await self.markers(job)]
        await write_until_known(lambda: self.store.delete(gone))
        return [file for file in placed if file is not None]

    async def markers(self, job: str) -> list[str]:
        """Hadoop's connector puts an empty object `x/` for a folder `x`; these are its keys."""
        return await self._folders(_staging(job))

    async def settle(self, version: int) -> None:
        pass

    async def quarantine_torn(self, now_ms: int) -> list[str]:  # noqa: ARG002 - nothing is ever half
        return []

    async def _folders(self, prefix: str) -> list[str]:
        found = [prefix]
        async for name in self.store.folders(prefix):
            found += await self._folders(f"{prefix}{name}/")
        return found

    async def _copy(self, part: ObjectInfo, job: str, level: int) -> NewFile | None:
        tail = await fetch_tail(self.store, part.key, part.size, if_match=part.etag)
        footer = opened(tail, part.key).metadata
        if footer.num_rows == 0:  # where nothing is left Spark writes a file for its schema
            return None
        path = placed_path(footer, part.key.removeprefix(_staging(job)), job, level)
        made = await self._copied(Part(part.key, if_match=part.etag), f"{keys.TABLE}/{path}")
        return describe(footer, path=path, size=made.size, modified_ms=made.modified_ms)

    async def _copied(self, source: Part, key: str) -> ObjectInfo:
        # The name is this job's alone: a second copy does no harm.
        return await write_until_known(lambda: self.store.compose(key, [source]))


def _staging(job: str) -> str:
    return staging_folder(keys.TABLE, job) + "/"
