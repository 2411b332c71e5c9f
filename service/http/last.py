"""`GET /logs/{fqn}/last` and `/last/download`: the last run, as OpenMetadata's page reads it.

A flat object of strings: the text under a key by the pipeline's type, `total`, `after`
when there is more, `streaming` while the run is being written. OpenMetadata's page appends texts to
each other as they are, so a text that another one follows ends with a newline. The run's id is in
the header `Tailrace-Run`, and nodes that did not answer in `Tailrace-Silent`, since the page takes
unknown keys for tasks. Runs that cannot be read, and may be later ones, are in `Tailrace-Damaged`.
The status is 206 then.

The page looks for the log of a run under a key by the pipeline's type. The type is that of the
request, else that of the run's status (`metadata.pipelineType`, or the type of its
source's configuration), else that of a metadata pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from logstore.clock import Clock
from logstore.errors import NotFound
from logstore.runs.report import Report
from service.http.download import answer, not_said, without_body
from service.http.node import NodeApi
from service.http.page_bodies import DAMAGED, Plain, header_names, page_response, silence
from service.http.pages import more_lines, page_from_start, total_of
from service.http.settings import PageSettings
from service.http.targets import BASE, name
from service.runs.pages import Page
from service.status.status import LastRun, NoRuns, last_run

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
# The types of source configurations, as far as they do not end in `Metadata`.
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


def task_key(asked: str | None, report: Report | None) -> str:
    """The key; an unknown type counts as that of a metadata pipeline."""
    return TASKS.get(asked or _reported(report) or "", DEFAULT)


def _reported(report: Report | None) -> str | None:
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
    """The routes of the last run: its page, and its whole text."""
    router = APIRouter(prefix=BASE, tags=["runs"])

    async def newest(fqn: str) -> LastRun:
        return await last_run(node.status, node.run_logs.listing, name(fqn.encode(), "fqn"))

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
        except NotFound:  # a status came, and no line yet
            nothing = _nothing(task, headers | silence(silent, held=held))
            return as_partial(nothing, damaged)
        headers |= silence([*silent, *page.silent], held=held or page.held)
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


def _rest(_: Page, last: Page) -> dict[str, str]:
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
    """The response with status 206, if it may be of another run than the last."""
    if damaged and response.status_code == 200:
        response.status_code = 206
    return response


def _short(fqn: str) -> str:
    """The pipeline's own name, without its service's, for a file name."""
    quoted = re.search(r'(?:^|\.)"([^"]+)"$', fqn)
    own = quoted[1] if quoted else fqn.rpartition(".")[2]
    return re.sub(r"[^A-Za-z0-9._-]", "_", own)[:150]
