"""The unfinished lines of a run on a terminal: one line below all others, which shows the newest.

The line is taken away before anything else is written, and comes back below it. It is never longer
than the terminal is wide, so that it can be taken away. Its stream is an addition: where it is lost
it is opened again, and a service that does not have it is not asked again.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final

import httpx

from logstore.clock import Clock
from tailrace.remote.api import RUNS, component
from tailrace.remote.events import EventParser
from tailrace.tailing.lines import Lines

_PAUSE_SECONDS: Final = 2.0
_UNKNOWN: Final = range(400, 500)


async def show_unfinished(
    client: httpx.AsyncClient, clock: Clock, fqn: str, run: str, lines: Lines
) -> None:
    """Shows them until cancelled, or until the run is over."""
    path = f"{RUNS.removesuffix('/logs')}/unfinished/{component(fqn)}/stream/{component(run)}"
    while True:
        try:
            async with client.stream("GET", path) as response:
                if response.status_code in _UNKNOWN:
                    return
                parser = EventParser()
                async for line in response.aiter_lines():
                    for event in parser.feed([line]):
                        if event.name == "complete":
                            return
                        lines.show(last_text(event.data))
        except httpx.HTTPError:
            lines.show("")
        await clock.sleep(_PAUSE_SECONDS)


def last_text(data: str) -> str:
    """The newest of the lines in an event."""
    try:
        found = json.loads(data)["lines"]
        return str(max(found, key=lambda line: line["number"])["text"]) if found else ""
    except (ValueError, KeyError, TypeError):
        return ""


async def end(task: asyncio.Task[None] | None, lines: Lines) -> None:
    """Takes the line away for good."""
    if task is not None:
        task.cancel()
        await asyncio.wait({task})
        lines.show("")
