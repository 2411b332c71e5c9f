"""Logs that OpenMetadata itself wrote: their keys, and which objects are the run's log.

OpenMetadata keeps a run in progress in `partial.txt`, and at its close copies that to
`logs.txt` and deletes it. Its folder has the pipeline's name with every character but
letters, digits, `_` and `-` turned into `_`; Tailrace looks at its own folder first. Objects there:

    only logs.txt       that; the run is closed
    only partial.txt    that; the run is open
    both, and one begins with the other (killed between copying and deleting)
                        the longer one; closed, unless that is partial.txt
    both, and neither does (a late batch, which OpenMetadata would throw away at the next close)
                        logs.txt, then partial.txt; the run is open again

An empty object counts as missing. Names that share a folder share its objects: a request under
one of them imports a copy. Whether a caller may use a name is decided before.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Container
from dataclasses import dataclass

from logstore import keys
from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import InvalidName, NotFound
from logstore.names import decode
from logstore.objects.store import ObjectInfo, ObjectStore
from service.runtime.shared_calls import SharedCalls

_COMPARED_BYTES = 8 << 20
_NEWLINE = b"\n"
_PLAIN = re.compile(r"[a-zA-Z0-9_-]+")
_NAMES = ("partial.txt", "logs.txt")


@dataclass(frozen=True, slots=True)
class UpstreamLog:
    """The objects whose bytes, one after another, are the run's log.

    `closed` says whether the log ends where OpenMetadata closed the run, `reopened` whether
    it continues after that. An object may lack its last newline.
    """

    objects: tuple[ObjectInfo, ...]
    closed: bool
    reopened: bool = False

    @property
    def modified_ms(self) -> int:
        """When its last object was written, in milliseconds since the epoch."""
        return max([info.modified_ms for info in self.objects])


@dataclass(frozen=True, slots=True)
class UpstreamRun:
    """A run in a listing that nobody has imported yet."""

    key: RunKey
    bytes: int
    modified_ms: int
    closed: bool


class Upstream:
    """Reads what OpenMetadata wrote below `prefix`; never writes."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._calls = SharedCalls()

    async def objects(self, key: RunKey) -> list[str]:
        """The keys of the run's objects. Raises `StoreUnavailable`."""
        folders = await asyncio.gather(*[self._look(folder) for folder in self._folders(key)])
        return [info.key for both in folders for info in both if info is not None]

    async def has_texts(self, key: RunKey) -> bool:
        """Whether an object is in a folder of the run. Raises `StoreUnavailable`.

        Runs of one pipeline ask together whether OpenMetadata has written anything of it.
        """
        ours, theirs = keys.run_texts(self._prefix, key), keys.upstream_texts(self._prefix, key)
        if ours == theirs:
            return await self._holds(ours)
        pipeline = keys.upstream_pipeline(self._prefix, key.fqn)
        if pipeline == keys.pipeline_texts(self._prefix, key.fqn):
            return await self._holds(ours) or await self._holds(theirs)
        own, others = await asyncio.gather(
            self._holds(ours), self._calls.call(pipeline, lambda: self._holds(pipeline))
        )
        return own or (others and await self._holds(theirs))

    async def _holds(self, prefix: str) -> bool:
        try:
            return await anext(aiter(self._store.list(prefix)), None) is not None
        except InvalidName:  # too long for this store
            return False

    async def find(self, key: RunKey, deleted_through: int) -> UpstreamLog | None:
        """The run's log; None if there is none that was written after the deletion.

        Raises `NotFound`, `PreconditionFailed` (somebody is changing it: look again),
        `StoreUnavailable`.
        """
        folders = await asyncio.gather(*[self._look(folder) for folder in self._folders(key)])
        for partial, logs in folders:
            alive = [_alive(info, deleted_through) for info in (partial, logs)]
            found = await self._chosen(*alive)
            if found is not None:
                return found
        return None

    async def runs(self, fqn: str, manifests: Container[str] = ()) -> AsyncIterator[UpstreamRun]:
        """Runs in the pipeline's folders that have a log, in no order; some come twice.

        The folders of runs that have one of these manifests are not looked into.
        """
        ours = keys.pipeline_texts(self._prefix, fqn)
        theirs = keys.upstream_pipeline(self._prefix, fqn)
        if theirs != ours:  # nothing but texts stands there: one list has them all
            async for run in self._listed(fqn, theirs, theirs):
                yield run
        async for folder in self._store.folders(ours):
            component = folder.removeprefix(ours).strip("/")
            if f"{keys.manifests_of(fqn)}{component}.json" in manifests:
                continue
            async for run in self._listed(fqn, ours, f"{ours}{component}/"):
                yield run

    async def left(self, before_ms: int) -> AsyncIterator[RunKey]:
        """Runs that OpenMetadata marked as in progress, last before `before_ms`.

        A marker has the pipeline's name, which the folder does not.
        """
        prefix = keys.all_active(self._prefix)
        async for info in self._store.list(prefix):
            folder, _, rest = info.key.removeprefix(prefix).partition("/")
            if info.modified_ms >= before_ms or _PLAIN.fullmatch(folder) is None:
                continue
            try:
                fqn = (await self._store.head(info.key)).metadata.get("pipeline", "")
            except NotFound:
                continue
            run = decode(rest.partition("/")[0])
            theirs = f"{self._prefix}/{folder}/" == keys.upstream_pipeline(self._prefix, fqn)
            if run is not None and theirs:
                yield RunKey(fqn, run)

    # --- looking -------------------------------------------------------------------

    def _folders(self, key: RunKey) -> list[str]:
        ours, theirs = keys.run_texts(self._prefix, key), keys.upstream_texts(self._prefix, key)
        return [ours] if ours == theirs else [ours, theirs]

    async def _look(self, folder: str) -> tuple[ObjectInfo | None, ObjectInfo | None]:
        # Along the movement: a run that is closed meanwhile is seen twice rather than not.
        partial = await self._head(f"{folder}partial.txt")
        return partial, await self._head(f"{folder}logs.txt")

    async def _head(self, key: str) -> ObjectInfo | None:
        try:
            info = await self._store.head(key)
        except (NotFound, InvalidName):  # a name too long for this store has no object in it
            return None
        return info

    # --- deciding ------------------------------------------------------------------

    async def _chosen(
        self, partial: ObjectInfo | None, logs: ObjectInfo | None
    ) -> UpstreamLog | None:
        if logs is None or partial is None:
            only = logs or partial
            return None if only is None else UpstreamLog((only,), closed=logs is not None)
        if not await self._continues(logs, partial):
            return UpstreamLog((logs, partial), closed=False, reopened=True)
        if partial.size <= logs.size:
            return UpstreamLog((logs,), closed=True)
        return UpstreamLog((partial,), closed=False, reopened=True)

    async def _continues(self, one: ObjectInfo, other: ObjectInfo) -> bool:
        """Whether the longer of the two begins with the shorter one, up to a line's end."""
        short, long = sorted((one, other), key=lambda info: info.size)
        if (short.size, short.etag) == (long.size, long.etag):
            return True
        last = b""
        for offset in range(0, short.size, _COMPARED_BYTES):
            size = min(_COMPARED_BYTES, short.size - offset)
            pieces = await asyncio.gather(
                *[self._range(info, offset, size) for info in (short, long)]
            )
            if pieces[0] != pieces[1]:
                return False
            last = pieces[0][-1:]
        if short.size == long.size or last == _NEWLINE:
            return True
        return await self._range(long, short.size, 1) == _NEWLINE

    async def _range(self, info: ObjectInfo, offset: int, size: int) -> bytes:
        return (await self._store.get(info.key, offset=offset, size=size, if_match=info.etag))[1]

    # --- listing -------------------------------------------------------------------

    async def _listed(self, fqn: str, folder: str, prefix: str) -> AsyncIterator[UpstreamRun]:
        async for info in self._store.list(prefix):
            component, _, name = info.key.removeprefix(folder).partition("/")
            run = decode(component)
            if name in _NAMES and run is not None and info.size:
                key = RunKey(fqn, run)
                yield UpstreamRun(key, info.size, info.modified_ms, name == "logs.txt")


def _alive(info: ObjectInfo | None, deleted_through: int) -> ObjectInfo | None:
    """The object, if it is not empty and was written after the deletion."""
    if info is None or not info.size:
        return None
    return info if ulids.highest_at(info.modified_ms) > deleted_through else None
