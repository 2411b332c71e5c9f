"""Every way to read one run at one node, and what each says: ended or not, lines, silent nodes.

`statements` asks all of them, `disagreements` compares what they said. The live streams are read up
to `complete`, or up to the second heartbeat after the first silence: by then a stream has sent all
that it has. The service must send heartbeats often (`HEARTBEATS`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path, stream_path
from tests.e2e.service_process import BASE

HEARTBEATS: Final = {"TAILRACE_SSE__HEARTBEAT_SECONDS": "1"}
_TIMEOUT_SECONDS: Final = 60.0
_ALL: Final = "10000"
_QUIET: Final = 2
"""Heartbeats without a line."""


@dataclass(frozen=True)
class Statement:
    """What one way says of a run; None: it does not say that."""

    door: str
    ended: bool | None = None
    """Whether no line follows: `closed`, `complete`."""
    state: str | None = None
    lines: int | None = None
    silent: tuple[str, ...] | None = None


async def statements(url: str, key: RunKey) -> list[Statement]:
    """What all ways to read the run say, one after another."""
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_SECONDS) as client:
        return [await ask(client, key) for ask in _DOORS]


async def lines_found(url: str, key: RunKey) -> int:
    """How many lines a search finds."""
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_SECONDS) as client:
        return (await _query(client, key)).lines or 0


def disagreements(said: Sequence[Statement], lines: int | None = None) -> list[str]:
    """Where ways contradict each other; `lines` are all of the run, if it is to have ended."""
    found = []
    ended = [one for one in said if one.ended]
    goes_on = [one for one in said if one.ended is False]
    if ended and goes_on:
        found.append(f"it has ended: {_names(ended)}; it has not: {_names(goes_on)}")
    states = {one.state for one in said if one.state is not None}
    if len(states) > 1:
        found.append(f"its state is {', '.join(sorted(states))}")
    naming = {one.silent for one in said if one.silent is not None}
    if len(naming) > 1:
        found.append(f"silent nodes are {sorted(naming)}")
    if ended and naming - {()}:
        found.append(f"it has ended, and nodes are silent: {sorted(naming)}")
    counts = {one.lines for one in said if one.lines is not None and one.door != "search"}
    if ended and lines is not None:
        counts |= {lines, *[one.lines or 0 for one in said if one.door == "search"]}
    if len(counts) > 1:
        found.append(f"its lines are {sorted(counts)}")
    return [f"{sentence} ({', '.join(map(str, said))})" for sentence in found]


def _names(said: Sequence[Statement]) -> str:
    return ", ".join([one.door for one in said])


async def _page(client: httpx.AsyncClient, key: RunKey) -> Statement:
    page = (await client.get(run_path(key), params={"limit": _ALL})).raise_for_status().json()
    return _of_page("page", page)


async def _records(client: httpx.AsyncClient, key: RunKey) -> Statement:
    params = {"limit": _ALL, "format": "ndjson"}
    reply = (await client.get(run_path(key), params=params)).raise_for_status()
    stats = json.loads(reply.text.splitlines()[-1])["stats"]
    assert stats["complete"] == (reply.status_code == 200)
    return _of_page("page of records", stats)


async def _page_by_ulid(client: httpx.AsyncClient, key: RunKey) -> Statement:
    params = {"limit": _ALL, "order": "ulid"}
    page = (await client.get(run_path(key), params=params)).raise_for_status().json()
    return _of_page("page by ULID", page)


def _of_page(door: str, page: dict[str, Any]) -> Statement:
    state = str(page["state"])
    silent = tuple(page.get("silent", ()))
    return Statement(door, state == "closed", state, int(page["totalLines"]), silent)


async def _download(client: httpx.AsyncClient, key: RunKey) -> Statement:
    reply = (await client.get(run_path(key, verb="download"))).raise_for_status()
    return Statement("download", lines=len(reply.text.splitlines()), silent=_header(reply))


async def _download_records(client: httpx.AsyncClient, key: RunKey) -> Statement:
    path, params = run_path(key, verb="download"), {"format": "ndjson"}
    reply = (await client.get(path, params=params)).raise_for_status()
    *records, last = reply.text.splitlines()
    stats = json.loads(last)["stats"]
    assert stats["complete"] == (reply.status_code == 200)
    assert tuple(stats.get("silent", ())) == _header(reply)
    return Statement("download of records", lines=len(records), silent=_header(reply))


async def _list(client: httpx.AsyncClient, key: RunKey) -> Statement:
    listed = (await client.get(f"{BASE}/{key.fqn}")).raise_for_status().json()
    (run,) = [one for one in listed["details"] if one["runId"] == key.run]
    state = str(run["state"])
    # The list is of all runs of the pipeline: a node may be silent although this run has ended.
    silent = None if state == "closed" else tuple(listed.get("silent", ()))
    return Statement("list", state == "closed", state, int(run["lines"]), silent)


async def _last(client: httpx.AsyncClient, key: RunKey) -> Statement:
    path, params = f"{BASE}/{key.fqn}/last", {"limit": _ALL}
    reply = (await client.get(path, params=params)).raise_for_status()
    if reply.headers["tailrace-run"] != key.run:
        return Statement("last run")
    (text,) = [value for name, value in reply.json().items() if name.endswith("_task")]
    return Statement("last run", lines=len(text.splitlines()))


async def _next(client: httpx.AsyncClient, key: RunKey) -> Statement:
    params = {"max": _ALL, "fromOffset": "0" * 26}
    reply = (await client.get(run_path(key, verb="next"), params=params)).raise_for_status()
    return Statement("next", lines=len(reply.json()), silent=_header(reply))


def _header(reply: httpx.Response) -> tuple[str, ...]:
    names = reply.headers.get("tailrace-silent", "")
    return tuple(names.split(", ")) if names else ()


async def _query(client: httpx.AsyncClient, key: RunKey) -> Statement:
    params = {"fqn": key.fqn, "run": key.run, "from": "0", "limit": _ALL}
    reply = (await client.get("/query", params=params)).raise_for_status()
    return Statement("search", lines=len(reply.text.splitlines()) - 1)


async def _stream(client: httpx.AsyncClient, key: RunKey) -> Statement:
    lines = quiet = 0
    silent: tuple[str, ...] = ()
    name = ""
    params = {"format": "text", "after": "0"}
    async with client.stream("GET", stream_path(key), params=params) as reply:
        async for line in reply.raise_for_status().aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith(":"):
                quiet += 1
                if quiet > _QUIET:
                    break
            elif line.startswith("data: ") and name == "silent":
                silent = tuple(json.loads(line.removeprefix("data: "))["nodes"])
            elif line.startswith("data: ") and name == "complete":
                return Statement("live stream", True, None, lines, silent)
            elif line.startswith("data: "):
                lines, quiet = lines + 1, 0
            elif not line:
                name = ""
    return Statement("live stream", False, None, lines, silent)


_DOORS: Final[Sequence[Callable[[httpx.AsyncClient, RunKey], Awaitable[Statement]]]] = (
    _page,
    _records,
    _page_by_ulid,
    _download,
    _download_records,
    _list,
    _last,
    _next,
    _stream,
    _query,
)


def look(url: str, key: RunKey) -> list[Statement]:
    """`statements`, for tests without a loop."""
    return asyncio.run(statements(url, key))
