"""Lists pipelines and runs, deletes runs, and serves the last run of a pipeline.

`GET /logs/{fqn}/last` and `/last/download` serve the last run as OpenMetadata's page reads it. The
reply is a flat object of strings: the text under a key by the pipeline's type, `total`, `after` if
more follows, `streaming` while the run is being written. The page appends texts to each other as
they are, so a text that another one follows ends with a newline. The page takes unknown keys for
tasks, so headers carry the rest: `Tailrace-Run` has the run's id, `Tailrace-Silent` the nodes that
did not answer, `Tailrace-Damaged` the runs that cannot be read and may be later ones. The status is
206 if `Tailrace-Damaged` is set.

The page looks for the log under a key by the pipeline's type (`task_key`): the type in the request,
else in the run's status (`metadata.pipelineType`, or the type of its source's configuration), else
that of a metadata pipeline.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from service.http.api import NodeApi
from service.http.authorization import visible
from service.http.download import answer, not_said, without_body
from service.http.pages import (
    DAMAGED,
    Plain,
    header_names,
    more_lines,
    must_know,
    named,
    page_from_start,
    page_response,
    silence,
    total_of,
)
from service.http.targets import BASE, one_of_each, refuse_unknown, run_key
from service.http.targets import name as component_name
from service.run_log.cursors import LinePage
from service.run_log.listing import ListedRun, RunFilter, TimeSpan
from service.settings import PageSettings
from service.status.reports import FILTERS
from service.status.status import LastRun, NoRuns, last_run
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import InvalidInput, NotFound
from tailrace.logstore.patterns import TextTest, name_test
from tailrace.logstore.runs.report import RunReport
from tailrace.logstore.search.conditions import TIME_FORMS, parse_moment

_MAX_RUNS = 10_000
_READ_SECONDS: Final = 0.001
_STATES: Final = ("open", "closing", "closed")
_SPANS: Final = ("began_from", "began_to", "last_from", "last_to")
_RUN_PARAMETERS: Final = ("limit", "after", "state", "outcome", "name", "from", "to", *_SPANS)
_PIPELINE_PARAMETERS: Final = ("limit", "after", "name")
_AFTER: Final = "`after` of the previous page."
_NAME: Final = "`*` matches any text, `?` one character; without either, the value is a prefix."
_TIME: Final = f"{TIME_FORMS}; inclusive."


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The times of a request for a list of runs."""

    start: Annotated[
        str | None,
        Query(alias="from", description=f"Runs with lines at or after this time: {_TIME}"),
    ] = None
    end: Annotated[
        str | None,
        Query(alias="to", description=f"Runs with lines at or before this time: {_TIME}"),
    ] = None
    began_from: Annotated[
        str | None, Query(description=f"Runs that began at or after this time: {_TIME}")
    ] = None
    began_to: Annotated[
        str | None, Query(description=f"Runs that began at or before this time: {_TIME}")
    ] = None
    last_from: Annotated[
        str | None, Query(description=f"Runs whose last line came at or after this time: {_TIME}")
    ] = None
    last_to: Annotated[
        str | None, Query(description=f"Runs whose last line came at or before this time: {_TIME}")
    ] = None

    def within(self, wanted: RunFilter, now_ms: int) -> RunFilter:
        """Returns a filter with these times. Raises `InvalidInput`."""

        def moment(text: str | None, field: str) -> int | None:
            return parse_moment(text, now_ms=now_ms, field=field) if text else None

        high_ms = moment(self.end, "to")
        return replace(
            wanted,
            low_ms=moment(self.start, "from"),
            # Ids may be ahead of the clock: "up to now" has no bound.
            high_ms=high_ms if high_ms is not None and high_ms < now_ms else None,
            began=TimeSpan(
                moment(self.began_from, "began_from"), moment(self.began_to, "began_to")
            ),
            last=TimeSpan(moment(self.last_from, "last_from"), moment(self.last_to, "last_to")),
        )


class RunDetails(BaseModel):
    """A run in a list. Times are milliseconds since the epoch, null for an empty run."""

    runId: str  # noqa: N815 -- the wire's spelling
    state: str
    outcome: Literal["succeeded", "failed", "cancelled", "lost", "unknown"] | None
    """How the run ended; null while it runs. `unknown`: it was closed without an outcome."
      " `lost`: its client died; null again after its next sign of life."""
    reported: str | None
    """The `pipelineState` of the run's status; null if its client has sent none."""
    began: int
    """When its first line or its first status came, the earlier one: by it runs are in order."""
    started: int | None
    """When the run began: `startDate` of its status; null if its client did not say."""
    ended: int | None
    """When it ended: `endDate` of its status; null if its client did not say."""
    took: int | None
    """Milliseconds from `started` to `ended`; without both from `first` to `last`."""
    tookFrom: Literal["reported", "lines"] | None  # noqa: N815
    """What `took` is from; null without it."""
    attempt: int | None
    """`attempt` of the run's status, or of its `metadata`; null if it does not say."""
    lines: int | None
    """Null for a run that OpenMetadata wrote and that was not read or written since."""
    bytes: int
    first: int | None
    last: int | None


class RunList(BaseModel):
    """Ids as upstream lists them, and details in the same order: the run that began last first."""

    runs: list[str]
    details: list[RunDetails]
    after: str | None
    """Where the next page begins; null at the end. Even a page with few runs may have one."""
    silent: list[str] = []
    """Nodes that did not answer; runs with lines only there are not listed. Absent without any."""
    store: str = ""
    """`silent` if the object store did not answer; only runs with lines at nodes are listed."
      " Else absent."""
    damaged: list[str] = []
    """Runs that are not listed, or whose `reported` is missing, because what is stored of them
    cannot be read. Else not there."""


class PipelineList(BaseModel):
    """Names of pipelines that have runs."""

    pipelines: list[str]
    after: str | None
    """Where the next page begins; null at the end."""
    silent: list[str] = []
    """Nodes that did not answer; pipelines with lines only there are not listed. Absent without"
      " any."""
    store: str = ""
    """`silent` if the object store did not answer: only pipelines of which nodes hold lines. Else
    absent."""


class Deleted(BaseModel):
    """The runs that a deletion removed, and the nodes that do not know of it yet."""

    message: str
    runs: list[str]
    silent: list[str] = []


_UNACKNOWLEDGED: Final[dict[int | str, dict[str, Any]]] = {
    202: {"model": Deleted, "description": "Deleted; the nodes in `silent` do not know it yet."}
}


_PARTIAL: Final[dict[int | str, dict[str, Any]]] = {
    206: {
        "description": "The object store did not answer: what the nodes hold (`store`). Or what is"
        " stored of some runs cannot be read (`damaged`)."
    }
}


def _name_test(name: str | None) -> TextTest | None:
    """Returns the test of the names that a request wants; None for all. Raises `InvalidInput`."""
    if not name:
        return None
    try:
        return name_test(name)
    except ValueError as error:
        raise InvalidInput(f"name {error}", field="name", hint="Write a simpler one.") from None


def is_partial(response: Response, *, held: bool) -> None:
    """Sets status and headers for a silent store, if the list has only lines `held` by nodes."""
    if held:
        response.status_code = 206
        response.headers.update(silence((), held=True))


def listing_routes(node: NodeApi, settings: PageSettings, clock: Clock) -> APIRouter:
    """Returns the routes of lists and deletions."""
    router = APIRouter(prefix=BASE, tags=["runs"])

    @router.get(
        "",
        summary="Pipelines that have runs",
        response_model=PipelineList,
        responses=_PARTIAL,
        response_model_exclude_unset=True,
    )
    async def pipelines(
        request: Request,
        response: Response,
        limit: Annotated[int, Query(ge=1, description="Pipelines at most.")] = _MAX_RUNS,
        after: Annotated[str | None, Query(description=_AFTER)] = None,
        name: Annotated[str | None, Query(description=_NAME)] = None,
    ) -> dict[str, Any]:
        refuse_unknown(request, _PIPELINE_PARAMETERS)
        wanted, seen = _name_test(name), visible(request)
        found = await node.run_logs.listing.pipeline_page(
            wanted if seen is None else seen.within(wanted),
            min(limit, _MAX_RUNS),
            after or None,
            reported=node.status,
        )
        is_partial(response, held=found.held)
        about = named(found.silent, held=found.held)
        return {"pipelines": sorted(found.names), "after": found.after} | about

    @router.get(
        "/{fqn}",
        summary="Runs of a pipeline, newest first",
        response_model=RunList,
        responses=_PARTIAL,
        response_model_exclude_unset=True,
    )
    async def runs(
        fqn: str,
        request: Request,
        response: Response,
        times: Annotated[RunTimes, Depends()],
        limit: Annotated[int, Query(ge=1, description="Runs at most.")] = settings.run_list,
        after: Annotated[str | None, Query(description=_AFTER)] = None,
        state: Annotated[
            str | None, Query(description=f"{', '.join(_STATES)}; several with commas.")
        ] = None,
        outcome: Annotated[
            str | None, Query(description=f"{', '.join(FILTERS)}; several with commas.")
        ] = None,
        name: Annotated[str | None, Query(description=_NAME)] = None,
    ) -> dict[str, Any]:
        refuse_unknown(request, _RUN_PARAMETERS)
        pipeline, now_ms = component_name(fqn.encode(), "fqn"), clock.now_ms()
        wanted = RunFilter(
            states=one_of_each(state, "state", _STATES, f"States are {', '.join(_STATES)}."),
            outcomes=one_of_each(
                outcome, "outcome", FILTERS, f"Outcomes are {', '.join(FILTERS)}."
            ),
            name=_name_test(name),
        )
        found = await node.run_logs.listing.run_page(
            pipeline,
            times.within(wanted, now_ms),
            min(limit, _MAX_RUNS),
            after or None,
            now_ms=now_ms,
            reported=node.status,
        )
        is_partial(response, held=found.held)
        if found.damaged:
            response.status_code = 206
        elif not found.runs and not after and not found.silent and not found.held:
            await must_know(node, pipeline)
        details = [_details(run) for run in found.runs]
        return {
            "runs": [run["runId"] for run in details],
            "details": details,
            "after": found.after,
            **named(found.silent, held=found.held),
            **({"damaged": list(found.damaged)} if found.damaged else {}),
        }

    @router.delete(
        "/{fqn}/{runId}",
        summary="Delete a run",
        response_model=Deleted,
        response_model_exclude_unset=True,
        responses=_UNACKNOWLEDGED,
    )
    async def delete_run(
        fqn: str,
        runId: str,  # noqa: N803
        request: Request,
        response: Response,
    ) -> dict[str, Any]:
        key = run_key(fqn, runId)
        await node.delete_run(key, partial(_waits, request))
        return said("Run deleted", [key.run], node.unacknowledged(*key), response)

    @router.delete(
        "/{fqn}",
        summary="Delete all runs of a pipeline",
        response_model=Deleted,
        response_model_exclude_unset=True,
        responses=_UNACKNOWLEDGED,
    )
    async def delete_pipeline(fqn: str, request: Request, response: Response) -> dict[str, Any]:
        pipeline = component_name(fqn.encode(), "fqn")
        deleted = await node.delete_pipeline(pipeline, partial(_waits, request))
        return said("Pipeline deleted", deleted, node.unacknowledged(pipeline, None), response)

    def said(
        message: str, runs: Sequence[str], silent: Sequence[str], response: Response
    ) -> dict[str, Any]:
        if not silent:
            return {"message": message, "runs": list(runs)}
        response.status_code = 202
        message += ", but for the nodes that are silent: they hide its lines when they return"
        return {"message": message, "runs": list(runs), "silent": list(silent)}

    return router


def _details(listed: ListedRun) -> dict[str, Any]:
    run, report, outcome = listed
    said = None if report is None else report.said
    started, ended = (None, None) if said is None else (said.started_ms, said.ended_ms)
    took, source = None, None
    if started is not None and ended is not None:
        took, source = max(ended - started, 0), "reported"
    elif run.first_ms is not None and run.last_ms is not None:
        took, source = run.last_ms - run.first_ms, "lines"
    return {
        "runId": run.run,
        "state": run.state,
        "outcome": outcome,
        "reported": None if said is None else said.state,
        "began": run.began_ms,
        "started": started,
        "ended": ended,
        "took": took,
        "tookFrom": source,
        "attempt": None if report is None else _attempt(report.value),
        "lines": run.lines,
        "bytes": run.bytes,
        "first": run.first_ms,
        "last": run.last_ms,
    }


def _attempt(status: Mapping[str, Any]) -> int | None:
    metadata = status.get("metadata")
    said = [status.get("attempt"), metadata.get("attempt") if isinstance(metadata, dict) else None]
    return next((attempt for attempt in said if type(attempt) is int), None)


async def _waits(request: Request) -> bool:
    """Returns true if the client of a request without a body still waits for the reply.

    The loop first reads the data that has arrived: after a pause, the request and its end arrive
    together.
    """
    await asyncio.sleep(_READ_SECONDS)
    for _ in range(2):  # the first message is the empty body
        if await request.is_disconnected():
            return False
    return True


# --- The last run -------------------------------------------------------------------------------


DEFAULT: Final = "ingestion_task"
TASKS: Final = {
    "metadata": DEFAULT,
    "policyAgent": DEFAULT,
    "profiler": "profiler_task",
    "autoClassification": "auto_classification_task",
    "lineage": "lineage_task",
    "usage": "usage_task",
    "dbt": "dbt_task",
    "TestSuite": "test_suite_task",
    "dataInsight": "data_insight_task",
    "elasticSearchReindex": "elasticsearch_reindex_task",
    "application": "application_task",
}
# The types of source configurations that do not end in `Metadata`.
_CONFIGURED: Final = {
    "Profiler": "profiler",
    "AutoClassification": "autoClassification",
    "DatabaseLineage": "lineage",
    "DatabaseUsage": "usage",
    "DBT": "dbt",
    "TestSuite": "TestSuite",
    "MetadataToElasticSearch": "elasticSearchReindex",
    "Application": "application",
}
_PATH = ("source", "sourceConfig", "config", "type")


def task_key(asked: str | None, report: RunReport | None) -> str:
    """Returns the key; an unknown type counts as that of a metadata pipeline."""
    return TASKS.get(asked or _reported(report) or "", DEFAULT)


def _reported(report: RunReport | None) -> str | None:
    if report is None:
        return None
    metadata = report.value.get("metadata")
    said = metadata.get("pipelineType") if isinstance(metadata, Mapping) else None
    if isinstance(said, str):
        return said
    return _CONFIGURED.get(_at(report.value.get("config"), _PATH))


def _at(value: Any, path: tuple[str, ...]) -> str:
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""


_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_BYTES = {"schema": {"type": "string", "format": "binary"}}


def last_routes(node: NodeApi, settings: PageSettings, clock: Clock) -> APIRouter:
    """Returns the routes of the last run: its page, and its whole text."""
    router = APIRouter(prefix=BASE, tags=["runs"])

    async def newest(fqn: str) -> LastRun:
        return await last_run(
            node.status, node.run_logs.listing, component_name(fqn.encode(), "fqn")
        )

    @router.get(
        "/{fqn}/last",
        summary="Lines of a pipeline's last run, as OpenMetadata's page reads them",
        response_class=JSONResponse,
        responses={
            200: {
                "description": "All values are strings.",
                "content": {"application/json": {"schema": _STRINGS}},
            }
        },
    )
    async def last(
        fqn: str,
        after: Annotated[str | None, Query(description="Line offset or cursor.")] = None,
        limit: Annotated[int, Query(description="Lines at most.", ge=1)] = settings.default_lines,
        type: Annotated[  # noqa: A002
            str | None, Query(description=f"Of the pipeline: {', '.join(TASKS)}.")
        ] = None,
    ) -> Response:
        try:
            key, report, silent, held, damaged = await newest(fqn)
        except NoRuns as error:
            if not error.silent:
                raise
            return _nothing(task_key(type, None), silence(error.silent))
        task, headers = task_key(type, report), _named(key.run, damaged)
        try:
            page = await page_from_start(node, key, after, min(limit, settings.max_lines))
        except NotFound:  # the run has a status and no line yet
            nothing = _nothing(task, headers | silence(silent, held=held))
            return as_partial(nothing, damaged)
        silent = (*silent, *page.silent)
        headers |= silence(silent, held=held or page.held, again=page.again)
        more = partial(more_lines, node, key)
        response = page_response(
            more, page, task, _rest, encoder=Plain(), headers=headers, joinable=True
        )
        return as_partial(response, damaged)

    @router.get(
        "/{fqn}/last/download",
        summary="The whole text of a pipeline's last run",
        response_class=Response,
        responses={
            200: {"description": "All lines.", "content": {"application/octet-stream": _BYTES}}
        },
    )
    @router.head("/{fqn}/last/download", include_in_schema=False)
    async def download(fqn: str, request: Request) -> Response:
        try:
            key, _, silent, held, damaged = await newest(fqn)
        except NoRuns as error:
            if not error.silent:
                raise
            raise not_said(f"{fqn} has no known run", error.silent) from error
        size = await node.run_logs.reader.size(key)
        response = answer(node, key, size, request.headers)
        response.headers.update(silence([*silent, *size.silent], held=held or size.held))
        response.headers.update(_named(key.run, damaged))
        if response.status_code in (200, 206):
            response.headers["content-type"] = "application/octet-stream"
            file = f"ingestion_logs_{_short(key.fqn)}_{clock.now_ms()}.txt"
            response.headers["content-disposition"] = f'attachment; filename="{file}"'
        response = as_partial(response, damaged)
        return without_body(response) if request.method == "HEAD" else response

    return router


def _rest(_: LinePage, last: LinePage) -> dict[str, str]:
    value = {"total": str(total_of(last))}
    if last.after is not None:
        value["after"] = last.after
    if last.streaming:
        value["streaming"] = "true"
    return value


def _nothing(task: str, headers: Mapping[str, str]) -> Response:
    return JSONResponse({task: "", "total": "0"}, headers=headers)


def _named(run: str, damaged: Sequence[str]) -> dict[str, str]:
    """Headers that name the run, and runs that cannot be read and may be later ones."""
    named = {"tailrace-run": header_names([run])}
    return named | ({DAMAGED: header_names(damaged)} if damaged else {})


def as_partial(response: Response, damaged: Sequence[str]) -> Response:
    """Sets the status 206 if the response may be of another run than the last."""
    if damaged and response.status_code == 200:
        response.status_code = 206
    return response


def _short(fqn: str) -> str:
    """Returns the pipeline's own name, without its service's, for a file name."""
    quoted = re.search(r'(?:^|\.)"([^"]+)"$', fqn)
    own = quoted[1] if quoted else fqn.rpartition(".")[2]
    return re.sub(r"[^A-Za-z0-9._-]", "_", own)[:150]
