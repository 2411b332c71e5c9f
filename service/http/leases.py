"""Routes of leases: who works on what, and how operators reset, reopen and fail leases.

Sources and keys are any text, so both are parameters of the query and never parts of the path.

The administration of leases is opened at the first request, so a store of partitions that is away,
or lacks its table, keeps no node from starting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import APIRouter, Query
from pydantic import BaseModel

from coordination.admin.admin import LeaseAdmin, LeaseFilter
from coordination.named.stored import StoredLeases
from coordination.open import open_partitions
from coordination.partitions.partition import Status
from coordination.partitions.store import PartitionStore
from coordination.pipelines.admin import PipelinesAdmin
from coordination.settings import SourceCoordination
from coordination.storetime import StoreTime
from logstore import ulid
from service.runtime.seams import Seams

_LIST, _MAX_LIST = 100, 1000
# A thousand years.
_AGE_SECONDS = 31_556_952_000

Open: TypeAlias = Callable[[], Awaitable[LeaseAdmin]]
"""Gives the administration of the leases in the service's stores. Raises `StoreUnavailable`."""

_Source = Annotated[str, Query(description="Its source, as the list has it.")]
_Key = Annotated[str, Query(description="Its key, as the list has it.")]
_Force = Annotated[bool, Query(description="Also take it from an owner that holds it.")]


class LeaseRow(BaseModel):
    """A partition, or a named lease of nodes and runs. Times are milliseconds of its store's clock.

    `lag_seconds` is for how long the work is due and not done; null if none is due. `held` says
    whether an owner has it: acting on it then needs `force`.
    """

    kind: Literal["partition", "lock"]
    source: str
    key: str
    status: Status
    owner: str | None
    held: bool
    epoch: int
    until: int | None
    age_seconds: float
    lag_seconds: float | None
    attempts: int
    closed_count: int
    priority: float
    last_error: str | None
    created_at: int
    available_at: int | None
    ended_at: int | None
    version: str


class WholeLease(LeaseRow):
    """A lease with what its workers saved of their progress."""

    progress: str | None


class LeaseList(BaseModel):
    """Some leases; `after` continues, null at the end. A page may be empty and not the last.

    `unreadable` are keys of objects that are damaged, or of a newer version.
    """

    leases: list[LeaseRow]
    after: str | None
    unreadable: list[str] = []


class Purged(BaseModel):
    """The number of leases that were removed."""

    purged: int


def lease_routes(admin: Open) -> APIRouter:
    """The routes that list leases and change them."""
    router = APIRouter(prefix="/leases", tags=["leases"])

    @router.get("", summary="Leases: who works on what", response_model=LeaseList)
    async def leases(
        source: Annotated[str | None, Query(description="Only of this source.")] = None,
        status: Annotated[Status | None, Query(description="Only in this status.")] = None,
        owner: Annotated[
            str | None, Query(description="Only of this owner, with or without its process.")
        ] = None,
        prefix: Annotated[str, Query(description="Only keys that begin so.")] = "",
        older_than_seconds: Annotated[
            float, Query(ge=0, le=_AGE_SECONDS, description="Only of that age and more.")
        ] = 0,
        limit: Annotated[int, Query(ge=1, le=_MAX_LIST, description="Leases at most.")] = _LIST,
        after: Annotated[str | None, Query(description="`after` of the page before.")] = None,
    ) -> dict[str, Any]:
        wanted = LeaseFilter(source, status, owner, prefix, round(older_than_seconds * 1000))
        page = await (await admin()).page(wanted, after=after, limit=limit)
        rows = [entry.spelled(whole=False) for entry in page.entries]
        return {"leases": rows, "after": page.after, "unreadable": sorted(page.unreadable)}

    @router.get("/one", summary="One lease, with its progress", response_model=WholeLease)
    async def one(source: _Source, key: _Key) -> dict[str, Any]:
        return (await (await admin()).show(source, key)).spelled(whole=True)

    @router.post("/reset", summary="Free a lease, whatever it was", response_model=WholeLease)
    async def reset(
        source: _Source,
        key: _Key,
        forget: Annotated[bool, Query(description="Drop its progress too.")] = False,
        force: _Force = False,
    ) -> dict[str, Any]:
        found = await (await admin()).reset(source, key, forget=forget, force=force)
        return found.spelled(whole=True)

    @router.post(
        "/reopen",
        summary="Have work that had ended done again, from its progress on",
        response_model=WholeLease,
    )
    async def reopen(source: _Source, key: _Key) -> dict[str, Any]:
        return (await (await admin()).reopen(source, key)).spelled(whole=True)

    @router.post("/fail", summary="Let nobody try it until it is reset", response_model=WholeLease)
    async def fail(
        source: _Source,
        key: _Key,
        reason: Annotated[str, Query(description="Why, for whoever looks at it.")],
        force: _Force = False,
    ) -> dict[str, Any]:
        found = await (await admin()).fail(source, key, reason=reason, force=force)
        return found.spelled(whole=True)

    @router.post(
        "/purge", summary="Remove partitions that were completed long ago", response_model=Purged
    )
    async def purge(
        source: _Source,
        older_than_seconds: Annotated[
            float, Query(ge=0, le=_AGE_SECONDS, description="Completed so long ago.")
        ],
    ) -> dict[str, Any]:
        older_than_ms = round(older_than_seconds * 1000)
        return {"purged": await (await admin()).purge(source, older_than_ms=older_than_ms)}

    return router


class LeasesOfStore:
    """Gives the admin of all leases at each call, and opens the partitions at the first."""

    def __init__(
        self, partitions: PartitionStore, named: StoredLeases, pipelines: PipelinesAdmin
    ) -> None:
        self._partitions = partitions
        self._admin = LeaseAdmin(partitions, named)
        self._pipelines = pipelines
        self._starting = asyncio.Lock()
        self._started = False

    async def __call__(self) -> LeaseAdmin:
        """Raises `StoreUnavailable`, and `InvalidInput` for settings that the store refuses."""
        await self._start()
        return self._admin

    async def pipelines(self) -> PipelinesAdmin:
        """The administration of log pipelines, whose checkpoints are partitions."""
        await self._start()
        return self._pipelines

    async def _start(self) -> None:
        async with self._starting:
            if not self._started:
                await self._partitions.start()
                self._started = True


@asynccontextmanager
async def open_leases(settings: SourceCoordination, seams: Seams) -> AsyncIterator[LeasesOfStore]:
    """Opens leases while the block runs. It asks no server. Raises `InvalidInput`."""
    opening = open_partitions(
        settings.store,
        seams.store,
        seams.clock,
        seams.entropy,
        newest_date=seams.newest_date,
        ageing_ms=settings.limits.ageing_ms,
    )
    async with opening as partitions:
        time = StoreTime(seams.clock, seams.newest_date)
        pipelines = PipelinesAdmin(
            seams.store,
            partitions,
            seams.clock,
            lambda: ulid.fresh_text(seams.clock, seams.entropy),
            prefix=settings.prefix,
        )
        leases = StoredLeases(seams.store, seams.clock, seams.entropy, time)
        yield LeasesOfStore(partitions, leases, pipelines)
