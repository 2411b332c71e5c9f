"""Serves the routes for machines and operators: health, version, metrics, and verification.

`GET /api/v1/system/version` returns the version that OpenMetadata's client compares with its own.
The client refuses to work with a server of another major.minor version, so the reported version is
a setting: the version of the clients.

The route of verification starts `tailrace verify` as a child process and passes its lines on as
they come. The command line imports the service and not the other way round, so the service runs it
as a command and never imports it. A child keeps verification away from ingestion: it has memory of
its own and a lower priority, and it does not outlive the service. One verification runs at a time.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Annotated, Any, Final, TypeAlias

import orjson
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.responses import StreamingResponse

from service.compaction import environment_of
from service.http.api import NodeApi
from service.http.authorization import AccessControl
from service.http.body import Receive, Scope, Send
from service.runtime.concurrency import SharedCalls
from service.runtime.process import module_command, start_session, stop_session
from service.settings import Settings
from tailrace.logstore.errors import Conflict, NodeNotReady, TailraceError, Unavailable


class Version(BaseModel):
    """`version` is that of the OpenMetadata API; `tailrace` is ours."""

    version: str
    revision: str
    timestamp: int
    tailrace: str


def version_routes(reported: str, own: str) -> APIRouter:
    """Returns the version route."""
    router = APIRouter(tags=["operation"])

    @router.get("/api/v1/system/version", summary="Versions", response_model=Version)
    async def system_version() -> dict[str, Any]:
        return {"version": reported, "revision": "", "timestamp": 0, "tailrace": own}

    return router


class Health(BaseModel):
    """`status` is live or ready; `problems` are sentences for people."""

    status: str
    problems: list[str]


def health_routes(
    node: NodeApi,
    scrape: Callable[[], Awaitable[bytes]] | None,
    control: AccessControl | None = None,
) -> APIRouter:
    """Returns the routes of health and metrics; `scrape` returns the metrics in Prometheus' format.

    If access rules exist, only callers that the rules know see the problems.
    """

    def problems_for(request: Request) -> list[str]:
        if control is None:
            return list(node.problems())
        if not control.knows(request):
            return []
        return [*node.problems(), *control.problems()]

    router = APIRouter(tags=["operation"])

    @router.get("/health/live", summary="Liveness: the process answers", response_model=Health)
    async def live(request: Request) -> dict[str, Any]:
        return {"status": "live", "problems": problems_for(request)}

    @router.get(
        "/health/ready", summary="Readiness: the node fulfils its role", response_model=Health
    )
    async def ready(request: Request) -> Response:
        problems = problems_for(request)
        if not node.ready:
            raise NodeNotReady("; ".join(problems) or "the node is starting or stopping")
        return JSONResponse({"status": "ready", "problems": problems})

    calls = SharedCalls()

    @router.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
    async def metrics() -> Response:
        # A scrape takes the event loop for a while: requests that come meanwhile share the next.
        content = b"" if scrape is None else await calls.call("metrics", scrape)
        return Response(content, media_type=CONTENT_TYPE_LATEST)

    return router


# --- Verification -------------------------------------------------------------------------------


Verifier: TypeAlias = "Callable[[], VerificationCommand]"
_MEDIA_TYPE = "application/x-ndjson"
_DESCRIPTION = """
As `tailrace verify --json`: a line `{"kind", "place", "detail", "lines", "repaired"}` for each
fault when it is found, last `{"summary": {"sound", "compared", "faults", "repaired", "notes"}}`.
A report without a summary is of a comparison that broke off: its last line is `{"error", "hint"}`,
or it was cut off. While nothing is found, `{"progress": {"seconds"}}` says every 15 seconds that
work goes on. Whoever closes the connection ends the work. One at a time: 409 for a second.
This node's journal is not compared, because it is in use.
"""
_LONGEST_LINE: Final = 1 << 20
_KEPT_ERRORS: Final = 20  # lines
_SUMMARY: Final = b'{"summary":'
_UNDER_WAY: Final = "The report of the one under way says how far it is; ask again at its end."


def verify_routes(verification: Verifier) -> APIRouter:
    """Returns the route that verifies and, with `repair`, repairs what can be repaired."""
    router = APIRouter(tags=["operation"])

    @router.post(
        "/verify",
        summary="Check all stored data for damage and gaps, line by line",
        description=_DESCRIPTION,
        response_class=StreamingResponse,
        responses={200: {"content": {_MEDIA_TYPE: {}}, "description": "Faults, then a summary"}},
    )
    async def verify(
        repair: Annotated[
            bool,
            Query(
                description="Quarantine damaged segments, restore intact ones; nothing is deleted."
            ),
        ] = False,
    ) -> StreamingResponse:
        return _Report(await verification().begin(repair=repair))

    return router


class _Report(StreamingResponse):
    """Ends the work when the connection ends, even if no client reads."""

    def __init__(self, lines: ReportLines) -> None:
        super().__init__(lines, media_type=_MEDIA_TYPE)
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._lines.aclose()


def verify_command(settings: Settings) -> list[str]:
    """Returns the command that verifies the store.

    `-P` ignores modules in the working directory.
    """
    data = os.path.abspath(settings.data)
    return [*module_command("tailrace"), "verify", "--json", "--data", data]


def verify_environment(settings: Settings) -> dict[str, str]:
    """Returns the environment of the command: the settings that have no flag."""
    return environment_of(settings, ["query", "runs", "source_coordination"])


class ReportLines:
    """A report as it grows. Its owner closes it, whether it was read or not."""

    def __init__(self, first: bytes, others: AsyncGenerator[bytes, None]) -> None:
        self._first = first
        self._others = others

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        """Iterates over the lines, once."""
        try:
            yield self._first
            async for line in self._others:
                yield line
        except TailraceError as error:
            yield _line({"error": str(error), "hint": error.hint})

    async def aclose(self) -> None:
        """Ends the verification."""
        await self._others.aclose()


class VerificationCommand:
    """Starts the verification command on request.

    A report is silent for at most `quiet_seconds`. A command that was asked to stop is killed after
    `stop_seconds`. `answers` raises `StoreUnavailable` if the store does not answer.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        answers: Callable[[], Awaitable[None]] | None = None,
        quiet_seconds: float = 15.0,
        stop_seconds: float = 10.0,
    ) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        self._quiet_seconds = quiet_seconds
        self._stop_seconds = stop_seconds
        self._answers = answers
        self._under_way = False

    async def begin(self, *, repair: bool) -> ReportLines:
        """Starts a verification and returns its report, line by line of JSON.

        The lines are those of `tailrace verify --json`, `{"progress": {"seconds": S}}` after a
        while without another line, and `{"error": …, "hint": …}` last if it broke off. Raises
        `Conflict` while another verification runs, `StoreUnavailable` if the store does not answer,
        `Unavailable` if it breaks off before its first line.
        """
        if self._answers is not None:
            await self._answers()
        if self._under_way:
            raise Conflict("the store is being verified", hint=_UNDER_WAY)
        self._under_way = True
        lines = self._lines(repair=repair)
        try:
            first = await anext(lines)
        except BaseException:
            await lines.aclose()
            raise
        return ReportLines(first, lines)

    async def _lines(self, *, repair: bool) -> AsyncGenerator[bytes, None]:
        try:
            child = await self._start(["--repair"] if repair else [])
        except BaseException as error:
            self._under_way = False
            if isinstance(error, OSError):
                raise Unavailable(f"verifying cannot be started: {error}") from error
            raise
        errors: deque[bytes] = deque(maxlen=_KEPT_ERRORS)
        reading = asyncio.create_task(_read(child.stderr, errors))
        try:
            last = b""
            async with aclosing(self._said(child)) as said:
                async for line in said:
                    yield line
                    last = line
            await child.wait()
            await reading
            if not last.startswith(_SUMMARY):
                raise _reason(errors, child.returncode)
        finally:
            reading.cancel()
            try:
                await stop_session(child, self._stop_seconds)  # it then removes its spill files
            finally:
                self._under_way = False

    async def _start(self, flags: Sequence[str]) -> asyncio.subprocess.Process:
        return await start_session(
            [*self._command, *flags],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
            limit=_LONGEST_LINE,
        )

    async def _said(self, child: asyncio.subprocess.Process) -> AsyncGenerator[bytes, None]:
        assert child.stdout is not None
        loop = asyncio.get_running_loop()
        quiet: float | None = self._quiet_seconds
        began = loop.time()
        reading = asyncio.ensure_future(child.stdout.readline())
        try:
            while True:
                done, _ = await asyncio.wait({reading}, timeout=quiet)
                if not done:
                    yield _line({"progress": {"seconds": round(loop.time() - began)}})
                    continue
                if not (line := reading.result()):
                    return
                reading = asyncio.ensure_future(child.stdout.readline())
                if line.startswith(_SUMMARY):
                    quiet = None  # no line follows, however long the command takes to end
                yield line
        finally:
            reading.cancel()


async def _read(stream: asyncio.StreamReader | None, kept: deque[bytes]) -> None:
    assert stream is not None
    with suppress(ValueError):  # a line without an end
        while line := await stream.readline():
            kept.append(line)


def _reason(errors: Sequence[bytes], code: int | None) -> Unavailable:
    """Returns the text after `error:` and `hint:` in the command's output."""
    said = dict(line.decode(errors="replace").strip().partition(": ")[::2] for line in errors)
    found = said.get("error", f"it ended with status {code} and without a word")
    return Unavailable(f"verifying broke off: {found}", hint=said.get("hint", ""))


def _line(value: dict[str, object]) -> bytes:
    return orjson.dumps(value) + b"\n"
