"""Ships a run through OpenMetadata's own handler; run inside an environment of its client.

    python driver.py '{"url": …, "fqn": …, "run": …, "rows": 2000, "portion": 250}'

It does what a workflow does around its logs: asks for the version, reports `running`,
ships, reports the end *before* its last lines, closes. Before the last portion it says
`holding` and waits for a line of input. Meanwhile it follows the run with
the client's SSE reader, and at the end it reads all of it with the client's page reader.
Nothing of the client is replaced. The last line of its output is JSON: what every row
looked like to the handler's formatter, and what the readers gave.

It imports nothing of ours, and works with the first and the second generation.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import uuid
from typing import Any

from metadata.generated.schema.entity.services.connections.metadata.openMetadataConnection import (  # type: ignore[import-not-found]
    AuthProvider,
    OpenMetadataConnection,
)
from metadata.generated.schema.entity.services.ingestionPipelines.ingestionPipeline import (  # type: ignore[import-not-found]
    PipelineState,
    PipelineStatus,
)
from metadata.generated.schema.security.client.openMetadataJWTClientConfig import (  # type: ignore[import-not-found]
    OpenMetadataJWTClientConfig,
)
from metadata.ingestion.ometa.client import APIError  # type: ignore[import-not-found]
from metadata.ingestion.ometa.ometa_api import OpenMetadata  # type: ignore[import-not-found]
from metadata.utils.streamable_logger import (  # type: ignore[import-not-found]
    cleanup_streamable_logging,
    setup_streamable_logging_for_workflow,
)

PAGE_LINES = 300
ROUTE = "/services/ingestionPipelines"


def row(number: int) -> str:
    """A record's message: some are long, empty but for their number, or of several lines."""
    if number % 97 == 0:
        return f'row {number} Traceback (most recent call last):\n  File "x.py"\n\nValueError'
    if number % 89 == 0:
        return f"row {number} " + "x" * 20_000
    if number % 31 == 0:
        return f"row {number} süß \U0001f600 \u2028 tab\tand\r carriage return"
    return f"row {number} " + "a line as they are " * (number % 5)


class Seen(logging.Handler):
    """What each row looks like to the shipping handler's formatter."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # The first generation talks of itself to the same logger.
        if record.getMessage().startswith("row "):
            self.rows.append(self.format(record))


class Follower(threading.Thread):
    """The client's own SSE reader, to its end."""

    def __init__(self, metadata: Any, path: str) -> None:
        super().__init__(daemon=True)
        self._metadata = metadata
        self._path = path
        self.text = ""
        self.ended_with = ""

    def run(self) -> None:
        try:
            # From the first line, however many were shipped before the connection stood.
            for event in self._metadata.stream("GET", self._path, {"after": "0"}):
                self._take(event)
        except Exception as error:  # noqa: BLE001 -- reported
            self.ended_with = repr(error)

    def _take(self, event: dict[str, Any]) -> None:
        content = json.loads(event["data"]) if event.get("data") else {}
        if content.get("eventType") == "logs":
            self.text += content["logs"]
        elif event.get("event"):
            self.ended_with = event["event"]


def say(what: str) -> None:
    """Tells our side how far it is."""
    print(what, flush=True)


def report(metadata: Any, job: dict[str, Any], state: Any) -> None:
    """Puts the pipeline's status, as a workflow does."""
    now = int(time.time() * 1000)
    status = PipelineStatus(runId=job["run"], pipelineState=state, startDate=now, timestamp=now)
    metadata.create_or_update_pipeline_status(job["fqn"], status)


def ship(log: logging.Logger, handler: Any, job: dict[str, Any], start: int, end: int) -> None:
    """Logs rows in portions, each flushed as the handler offers it."""
    for first in range(start, end, job["portion"]):
        for number in range(first, min(first + job["portion"], end)):
            log.info(row(number))
        handler.flush()
        say(f"shipped {min(first + job['portion'], end)}")
        time.sleep(job["pause"])


def read_all(metadata: Any, job: dict[str, Any]) -> str:
    """The run by the client's page reader, which speaks of offsets and limits."""
    text, offset = "", 0
    while True:
        page = metadata.get_logs_from_s3(
            job["fqn"], uuid.UUID(job["run"]), offset=offset, limit=PAGE_LINES
        )
        if not page:
            return text
        text += page + "\n"
        offset += page.count("\n") + 1


def refusal(metadata: Any, job: dict[str, Any]) -> tuple[int, str]:
    """What the client makes of an error: without `code` in it, it would count as success."""
    try:
        metadata.client.post(f"{ROUTE}/logs/{job['fqn']}/{job['run']}", data="7")
    except APIError as error:
        return error.code, str(error)
    return 0, "taken"


def counters(handler: Any) -> dict[str, Any]:
    """What the handler itself believes."""
    if hasattr(handler, "metrics"):
        return dict(handler.metrics)
    names = ("shipped_records", "shipped_batches", "failed_posts", "dropped_overflow")
    return {name: getattr(handler, name) for name in names}


def main() -> None:
    """The run, from its first call to the last page."""
    job = json.loads(sys.argv[1])
    metadata = OpenMetadata(
        OpenMetadataConnection(
            hostPort=job["url"] + "/api",
            authProvider=AuthProvider.openmetadata,
            securityConfig=OpenMetadataJWTClientConfig(jwtToken="any"),
        )
    )
    # A second client for reading: its session has cookies of its own.
    reader = OpenMetadata(metadata.config)
    report(metadata, job, PipelineState.running)
    follower = Follower(reader, f"{ROUTE}/logs/{job['fqn']}/stream/{job['run']}")
    follower.start()
    handler = setup_streamable_logging_for_workflow(
        metadata, job["fqn"], uuid.UUID(job["run"]), logging.INFO, enable_streaming=True
    )
    log = logging.getLogger("metadata.Ingestion")
    log.setLevel(logging.INFO)
    seen = Seen()
    seen.setFormatter(handler.formatter)
    log.addHandler(seen)
    say("ready")
    last = job["rows"] - job["portion"]
    ship(log, handler, job, 0, last)
    say("holding")
    sys.stdin.readline()
    report(metadata, job, PipelineState.success)
    ship(log, handler, job, last, job["rows"])
    cleanup_streamable_logging()
    say("closed")
    follower.join(job["follow_seconds"])
    status = reader.get_pipeline_status(job["fqn"], job["run"])
    result = {
        "rows": seen.rows,
        "counters": counters(handler),
        "followed": follower.text,
        "follower_ended": not follower.is_alive(),
        "follower_ended_with": follower.ended_with,
        "pages": read_all(reader, job),
        "refusal": refusal(reader, job),
        "state": None if status is None else status.pipelineState.value,
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
