"""Lists of pipelines and runs, and their deletion."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from service.http.node import NodeApi
from service.http.pages import must_know
from service.http.settings import PageSettings
from service.http.targets import BASE, name, run_key
from service.runs.listing import RunSummary

_MAX_RUNS = 10_000


class RunDetails(BaseModel):
    """A run in a list. Times are milliseconds since the epoch, null for an empty run."""

    runId: str  # noqa: N815 -- the wire's spelling
    state: str
    lines: int | None
    """Null for a run that OpenMetadata wrote and that nobody has read or written since."""
    bytes: int
    first: int | None
    last: int | None


class RunList(BaseModel):
    """Ids as upstream lists them, newest first, and details in the same order."""

    runs: list[str]
    details: list[RunDetails]


class PipelineList(BaseModel):
    """Names of the pipelines that have runs."""

    pipelines: list[str]


class Deleted(BaseModel):
    """What was deleted."""

    message: str
    runs: list[str]


def listing_routes(node: NodeApi, settings: PageSettings) -> APIRouter:
    """Lists and deletions."""
    router = APIRouter(prefix=BASE, tags=["runs"])

    @router.get("", summary="Pipelines that have runs", response_model=PipelineList)
    async def pipelines() -> dict[str, Any]:
        return {"pipelines": list(await node.run_logs.listing.pipelines())}

    @router.get("/{fqn}", summary="Runs of a pipeline, newest first", response_model=RunList)
    async def runs(
        fqn: str,
        limit: Annotated[int, Query(ge=1, description="Runs at most.")] = settings.run_list,
    ) -> dict[str, Any]:
        pipeline = name(fqn.encode(), "fqn")
        found = await node.run_logs.listing.runs(pipeline, min(limit, _MAX_RUNS))
        if not found:
            await must_know(node, pipeline)
        return {"runs": [run.run for run in found], "details": [_details(run) for run in found]}

    @router.delete("/{fqn}/{runId}", summary="Delete a run", response_model=Deleted)
    async def delete_run(fqn: str, runId: str) -> dict[str, Any]:  # noqa: N803
        key = run_key(fqn, runId)
        await node.delete_run(key)
        return {"message": "Run deleted", "runs": [key.run]}

    @router.delete("/{fqn}", summary="Delete all runs of a pipeline", response_model=Deleted)
    async def delete_pipeline(fqn: str) -> dict[str, Any]:
        deleted = await node.delete_pipeline(name(fqn.encode(), "fqn"))
        return {"message": "Pipeline deleted", "runs": list(deleted)}

    return router


def _details(run: RunSummary) -> dict[str, Any]:
    return {
        "runId": run.run,
        "state": run.state,
        "lines": run.lines,
        "bytes": run.bytes,
        "first": run.first_ms,
        "last": run.last_ms,
    }
