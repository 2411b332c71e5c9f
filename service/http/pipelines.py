"""Routes of log pipelines: how far each is, and what operators have it do.

Processes of `tailrace pipelines` are not asked: what is shown is stored, and so is what is said. A
process that runs a pipeline looks at it every `pipelines.poll_seconds`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import APIRouter, Query
from pydantic import BaseModel

from coordination.pipelines.admin import PipelinesAdmin

OpenPipelines: TypeAlias = Callable[[], Awaitable[PipelinesAdmin]]
"""Gives the administration of the pipelines in the service's stores. Raises `StoreUnavailable`."""

State: TypeAlias = Literal["running", "paused", "evicted", "disabled", "damaged"]
_Appender = Annotated[str, Query(description="The appender's name.")]


class AppenderRow(BaseModel):
    """A part of an appender as of its last checkpoint. Counts are since it began.

    `lag_seconds` is for how long the oldest segment is stored that it has not read, `replay` the id
    of the replay that it is in, `error` why it fails and is tried again.
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


class PipelineList(BaseModel):
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
    """The routes that show pipelines and steer them."""
    router = APIRouter(prefix="/pipelines", tags=["pipelines"])

    @router.get("", summary="Log pipelines: how far each is", response_model=PipelineList)
    async def pipelines() -> dict[str, Any]:
        return {"pipelines": [one.spelled() for one in await (await admin()).all()]}

    @router.get("/{name}", summary="One log pipeline", response_model=PipelineRow)
    async def pipeline(name: str) -> dict[str, Any]:
        return (await (await admin()).show(name)).spelled()

    @router.post(
        "/{name}/pause", summary="Stop a pipeline wherever it runs", response_model=PipelineRow
    )
    async def pause(name: str) -> dict[str, Any]:
        return (await (await admin()).pause(name, paused=True)).spelled()

    @router.post(
        "/{name}/resume", summary="Let a paused pipeline go on", response_model=PipelineRow
    )
    async def resume(name: str) -> dict[str, Any]:
        return (await (await admin()).pause(name, paused=False)).spelled()

    @router.post(
        "/{name}/replay",
        summary="Give a pipeline's events again, from a time on",
        response_model=ReplayedPipeline,
    )
    async def replay(
        name: str,
        start: Annotated[
            str, Query(alias="from", description="A time in any form, or a ULID; `0` is all.")
        ],
    ) -> dict[str, Any]:
        asked, found = await (await admin()).replay(name, start)
        return {**found.spelled(), "replay": asked.id, "low": asked.low}

    @router.post(
        "/{name}/skip",
        summary="Let a pipeline go on with what comes",
        response_model=ReplayedPipeline,
    )
    async def skip(name: str) -> dict[str, Any]:
        asked, found = await (await admin()).replay(name, None)
        return {**found.spelled(), "replay": asked.id, "low": asked.low}

    @router.post(
        "/{name}/disable",
        summary="Give an appender's events to its dead-letter file",
        response_model=PipelineRow,
    )
    async def disable(
        name: str,
        appender: _Appender,
        reason: Annotated[str, Query(description="Why, for whoever looks at it.")] = "by hand",
    ) -> dict[str, Any]:
        return (await (await admin()).disable(name, appender, reason)).spelled()

    @router.post(
        "/{name}/enable", summary="Let a disabled appender go on", response_model=PipelineRow
    )
    async def enable(name: str, appender: _Appender) -> dict[str, Any]:
        return (await (await admin()).enable(name, appender)).spelled()

    @router.post(
        "/{name}/redeliver",
        summary="Send an appender's dead letters again",
        response_model=RedeliveredPipeline,
    )
    async def redeliver(name: str, appender: _Appender) -> dict[str, Any]:
        asked, found = await (await admin()).redeliver(name, appender)
        return {**found.spelled(), "redelivery": asked}

    return router
