"""Where `tailrace tail` begins: so many lines before the end, or at a time."""

from __future__ import annotations

import json

import httpx

from logstore.errors import NotFound
from tailrace.remote.api import RUNS, check, component


async def where(
    client: httpx.AsyncClient, fqn: str, run: str, wanted: int | None, since: str | None
) -> str | None:
    """The number of the line to begin at, as the stream's `after`; None: where the service does.

    `wanted` is a number of lines, -1 for all; of both, what begins later. A run that is not there
    yet begins with its first line. Raises what the service answers.
    """
    if wanted is None and since is None:
        return None
    total = await _total(client, fqn, run)
    if not total:
        return "0"
    first = 0 if wanted in (None, -1) else max(0, total - (wanted or 0))
    if since is not None:
        first = max(first, await _line_at(client, fqn, run, since, total))
    return str(first)


async def has_no_lines(client: httpx.AsyncClient, fqn: str, run: str) -> bool:
    """Whether a follower is to wait for the first line. Raises what the service answers."""
    return await _total(client, fqn, run) == 0


async def _total(client: httpx.AsyncClient, fqn: str, run: str) -> int:
    try:
        return (await _page(client, fqn, run, {"tail": "1"}))["totalLines"]
    except NotFound:
        return 0


async def _line_at(client: httpx.AsyncClient, fqn: str, run: str, since: str, total: int) -> int:
    asked = {"fqn": fqn, "run": run, "from": since, "order": "asc", "limit": "1"}
    response = await client.get("/query", params=asked)
    check(response)
    found = [json.loads(line) for line in response.text.split("\n") if line]
    if not found or "ulid" not in found[0]:
        return total
    page = await _page(client, fqn, run, {"at": found[0]["ulid"], "limit": "1"})
    return int(page["line"])


async def _page(
    client: httpx.AsyncClient, fqn: str, run: str, asked: dict[str, str]
) -> dict[str, int]:
    path = f"{RUNS}/{component(fqn)}/{component(run)}"
    response = await client.get(path, params=asked)
    check(response)
    page: dict[str, int] = response.json()
    return page
