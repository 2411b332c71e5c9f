"""Serves the routes of operators: leases, log pipelines, and how far deletions are erased.

`LeasesOfStore` opens the administration of leases at the first request. So a node starts even if
the store of partitions does not answer or lacks its table.

Sources and keys of leases are any text, so both are query parameters and never parts of the path.

The routes of log pipelines do not ask the processes of `tailrace pipelines`. They read the stored
state, and store an operator's command. A process reads its pipeline's state every
`pipelines.poll_seconds`.

`GET /deletions` lists how far deleted lines are erased, the newest deletion first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import APIRouter, Query
from pydantic import BaseModel

from service.erasure import DeletionState, Erasure
from service.runtime.environment import Environment
from tailrace.coordination.admin import LeaseAdmin, LeaseFilter
from tailrace.coordination.lease import StoreTime
from tailrace.coordination.named_leases import StoredLeases
from tailrace.coordination.open import open_partitions
from tailrace.coordination.partitions import PartitionStore, Status
from tailrace.coordination.pipelines import PipelinesAdmin
from tailrace.coordination.settings import SourceCoordination
from tailrace.logstore import ulid
from tailrace.logstore.clock import rfc3339
from tailrace.logstore.errors import InvalidCursor

_LIST, _MAX_LIST = 100, 1000
# A thousand years.
_AGE_SECONDS = 31_556_952_000

Open: TypeAlias = Callable[[], Awaitable[LeaseAdmin]]
"""Returns the administration of the leases in the service's stores. Raises `StoreUnavailable`."""

_Source = Annotated[str, Query(description="Its source, as shown in the list.")]
_Key = Annotated[str, Query(description="Its key, as shown in the list.")]
_Force = Annotated[bool, Query(description="Free it even while an owner holds it.")]


class LeaseRow(BaseModel):
    """A partition, or a named lease of nodes and runs. Times are milliseconds of its store's clock.

    `lag_seconds` is how long the work has been due; null if none is due. `held` says
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
    """Returns the routes that list leases and change them."""
    router = APIRouter(prefix="/leases", tags=["leases"])

    @router.get(
        "", summary="Leases: which process works on which partition", response_model=LeaseList
    )
    async def leases(
        source: Annotated[str | None, Query(description="Only leases of this source.")] = None,
        status: Annotated[Status | None, Query(description="Only leases in this status.")] = None,
        owner: Annotated[
            str | None, Query(description="Only leases of this owner, with or without its process.")
        ] = None,
        prefix: Annotated[str, Query(description="Only keys with this prefix.")] = "",
        older_than_seconds: Annotated[
            float, Query(ge=0, le=_AGE_SECONDS, description="Only leases of at least this age.")
        ] = 0,
        limit: Annotated[int, Query(ge=1, le=_MAX_LIST, description="Leases at most.")] = _LIST,
        after: Annotated[str | None, Query(description="`after` of the previous page.")] = None,
    ) -> dict[str, Any]:
        wanted = LeaseFilter(source, status, owner, prefix, round(older_than_seconds * 1000))
        page = await (await admin()).page(wanted, after=after, limit=limit)
        rows = [entry.spelled(whole=False) for entry in page.entries]
        return {"leases": rows, "after": page.after, "unreadable": sorted(page.unreadable)}

    @router.get("/one", summary="One lease, with its progress", response_model=WholeLease)
    async def one(source: _Source, key: _Key) -> dict[str, Any]:
        return (await (await admin()).show(source, key)).spelled(whole=True)

    @router.post("/reset", summary="Free a lease, whatever its status", response_model=WholeLease)
    async def reset(
        source: _Source,
        key: _Key,
        forget: Annotated[bool, Query(description="Also discard its progress.")] = False,
        force: _Force = False,
    ) -> dict[str, Any]:
        found = await (await admin()).reset(source, key, forget=forget, force=force)
        return found.spelled(whole=True)

    @router.post(
        "/reopen",
        summary="Reopen finished work; it restarts from its saved progress",
        response_model=WholeLease,
    )
    async def reopen(source: _Source, key: _Key) -> dict[str, Any]:
        return (await (await admin()).reopen(source, key)).spelled(whole=True)

    @router.post(
        "/fail",
        summary="Block a partition for all workers until it is reset",
        response_model=WholeLease,
    )
    async def fail(
        source: _Source,
        key: _Key,
        reason: Annotated[str, Query(description="The reason, shown in lists and status.")],
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
            float, Query(ge=0, le=_AGE_SECONDS, description="Completed at least this long ago.")
        ],
    ) -> dict[str, Any]:
        older_than_ms = round(older_than_seconds * 1000)
        return {"purged": await (await admin()).purge(source, older_than_ms=older_than_ms)}

    return router


class LeasesOfStore:
    """Returns the admin of all leases at each call, and opens the partitions at the first call."""

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
        """Returns the administration of log pipelines, whose checkpoints are partitions."""
        await self._start()
        return self._pipelines

    async def _start(self) -> None:
        async with self._starting:
            if not self._started:
                await self._partitions.start()
                self._started = True


@asynccontextmanager
async def open_leases(
    settings: SourceCoordination, environment: Environment
) -> AsyncIterator[LeasesOfStore]:
    """Opens leases while the block runs. It asks no server. Raises `InvalidInput`."""
    opening = open_partitions(
        settings.store,
        environment.store,
        environment.clock,
        environment.entropy,
        newest_date=environment.newest_date,
        ageing_ms=settings.limits.ageing_ms,
    )
    async with opening as partitions:
        time = StoreTime(environment.clock, environment.newest_date)
        pipelines = PipelinesAdmin(
            environment.store,
            partitions,
            environment.clock,
            lambda: ulid.fresh_text(environment.clock, environment.entropy),
            prefix=settings.prefix,
        )
        leases = StoredLeases(environment.store, environment.clock, environment.entropy, time)
        yield LeasesOfStore(partitions, leases, pipelines)


OpenPipelines: TypeAlias = Callable[[], Awaitable[PipelinesAdmin]]
"""Returns the administration of pipelines in the service's stores. Raises `StoreUnavailable`."""

State: TypeAlias = Literal["running", "paused", "evicted", "disabled", "damaged"]
_Appender = Annotated[str, Query(description="The appender's name.")]


class AppenderRow(BaseModel):
    """A part of an appender, at its last checkpoint. Counts begin with its first start.

    `lag_seconds` is the age of the oldest stored segment that it has not read. `replay` is the id
    of its running replay. `error` says why it fails; it is tried again.
    """

    pipeline: str
    appender: str
    part: str
    state: State
    reason: str | None
    error: str | None
    owner: str | None
    segments_behind: int
    bytes_behind: int
    lag_seconds: float
    checkpoint_at: int | None
    replay: str | None
    events: int
    late: int
    forced: int
    clamped: int
    copies: int
    deleted: int
    dead: int
    again: int
    lost: int
    refused: int
    redelivered: int


class PipelineRow(BaseModel):
    """A pipeline: its state, that of its slowest part, and its parts."""

    pipeline: str
    state: State
    reason: str | None
    segments_behind: int
    lag_seconds: float
    appenders: list[AppenderRow]


class LogPipelineList(BaseModel):
    """All pipelines that a process has begun to run, by name."""

    pipelines: list[PipelineRow]


class ReplayedPipeline(PipelineRow):
    """The pipeline, the id of the replay, and the lowest ULID that it gives; null if it skips."""

    replay: str
    low: str | None


class RedeliveredPipeline(PipelineRow):
    """The pipeline, and the id under which dead letters are sent again."""

    redelivery: str


def pipeline_routes(admin: OpenPipelines) -> APIRouter:
    """Returns the routes that show pipelines and steer them."""
    router = APIRouter(prefix="/pipelines", tags=["pipelines"])

    @router.get("", summary="List log pipelines and their progress", response_model=LogPipelineList)
    async def pipelines() -> dict[str, Any]:
        return {"pipelines": [one.spelled() for one in await (await admin()).all()]}

    @router.get(
        "/{name}", summary="Show a log pipeline and its progress", response_model=PipelineRow
    )
    async def pipeline(name: str) -> dict[str, Any]:
        return (await (await admin()).show(name)).spelled()

    @router.post(
        "/{name}/pause", summary="Pause a pipeline in every process", response_model=PipelineRow
    )
    async def pause(name: str) -> dict[str, Any]:
        return (await (await admin()).pause(name, paused=True)).spelled()

    @router.post("/{name}/resume", summary="Resume a paused pipeline", response_model=PipelineRow)
    async def resume(name: str) -> dict[str, Any]:
        return (await (await admin()).pause(name, paused=False)).spelled()

    @router.post(
        "/{name}/replay",
        summary="Replay a pipeline's events from a given time",
        response_model=ReplayedPipeline,
    )
    async def replay(
        name: str,
        start: Annotated[
            str,
            Query(alias="from", description="A time in any form, or a ULID; `0` means all events."),
        ],
    ) -> dict[str, Any]:
        asked, found = await (await admin()).replay(name, start)
        return {**found.spelled(), "replay": asked.id, "low": asked.low}

    @router.post(
        "/{name}/skip",
        summary="Skip the events that a pipeline missed; it continues with new ones",
        response_model=ReplayedPipeline,
    )
    async def skip(name: str) -> dict[str, Any]:
        asked, found = await (await admin()).replay(name, None)
        return {**found.spelled(), "replay": asked.id, "low": asked.low}

    @router.post(
        "/{name}/disable",
        summary="Disable an appender; its events go to its dead-letter file",
        response_model=PipelineRow,
    )
    async def disable(
        name: str,
        appender: _Appender,
        reason: Annotated[
            str, Query(description="The reason, shown in lists and status.")
        ] = "by hand",
    ) -> dict[str, Any]:
        return (await (await admin()).disable(name, appender, reason)).spelled()

    @router.post("/{name}/enable", summary="Enable a disabled appender", response_model=PipelineRow)
    async def enable(name: str, appender: _Appender) -> dict[str, Any]:
        return (await (await admin()).enable(name, appender)).spelled()

    @router.post(
        "/{name}/redeliver",
        summary="Resend an appender's dead letters",
        response_model=RedeliveredPipeline,
    )
    async def redeliver(name: str, appender: _Appender) -> dict[str, Any]:
        asked, found = await (await admin()).redeliver(name, appender)
        return {**found.spelled(), "redelivery": asked}

    return router


_LISTED_DELETIONS, _MOST_DELETIONS = 20, 200


class DeletionRow(BaseModel):
    """A deletion of a run, or of a pipeline's runs if `run` is null; expired runs are deleted too.

    `deleted`: no reader of Tailrace shows its lines. `purged`: the table does not have them.
    `erased`: no place of the store and no node's disk has them. `left`: places that may have some.
    """

    fqn: str
    run: str | None
    at: str
    state: Literal["deleted", "purged", "erased"]
    left: list[str]


class DeletionList(BaseModel):
    """Some deletions; `after` continues, null at the end."""

    deletions: list[DeletionRow]
    after: str | None


def deletion_routes(erasure: Callable[[], Erasure]) -> APIRouter:
    """Returns the route that reports how far deletions are."""
    router = APIRouter(tags=["operation"])

    @router.get(
        "/deletions",
        summary="List deletions, and the places that may still hold their lines",
        response_model=DeletionList,
    )
    async def deletions(
        fqn: Annotated[str | None, Query(description="Only deletions of this pipeline.")] = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_DELETIONS)] = _LISTED_DELETIONS,
        after: Annotated[str | None, Query(description="`after` of the previous page.")] = None,
    ) -> DeletionList:
        looks = erasure()
        found = [one for one in await looks.deletions() if fqn in (None, one.deletion.fqn)]
        start = 0
        if after is not None:
            keys = [one.key for one in found]
            if after not in keys:
                raise InvalidCursor(
                    "`after` does not name an existing deletion",
                    field="after",
                    hint="Begin again without `after`.",
                )
            start = keys.index(after) + 1
        page = found[start : start + limit]
        more = start + limit < len(found)
        return DeletionList(
            deletions=[_row(one) for one in await looks.states(page)],
            after=page[-1].key if more else None,
        )

    return router


def _row(one: DeletionState) -> DeletionRow:
    deletion = one.stored.deletion
    return DeletionRow(
        fqn=deletion.fqn,
        run=deletion.run,
        at=rfc3339(one.stored.modified_ms),
        state=one.state,
        left=list(one.left),
    )
