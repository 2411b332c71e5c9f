"""Readers that go from node to node: a live stream, pages by cursor, and a group of the queue."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import httpx

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import Follower, run_path
from tests.nodes.torture.nodes import Nodes
from tests.nodes.torture.producers import Given

_PATIENCE_SECONDS = 120
_PAUSE_SECONDS = 0.1
_LONGEST_VISIT_SECONDS = 4.0


class LiveReader(Follower):
    """Follows a run at one node after another, also when it was complete and went on."""

    def __init__(
        self, client: httpx.AsyncClient, key: RunKey, nodes: Nodes, dice: random.Random
    ) -> None:
        super().__init__(client, key, nodes.any_url)
        self._dice = dice
        self.given: list[Given] = []
        self._following = asyncio.create_task(self.run())

    async def run(self) -> None:
        """Until it is ended: a run that was complete may go on."""
        while True:
            visit = self._dice.uniform(0.2, _LONGEST_VISIT_SECONDS)
            with suppress(TimeoutError, httpx.TransportError):
                async with asyncio.timeout(visit):
                    await self._connect()
            await asyncio.sleep(_PAUSE_SECONDS)

    def _take(self, frame: dict[str, str]) -> None:
        if frame.get("event") == "logs":
            value = json.loads(frame["data"])
            if value.get("replay"):  # the store answers, and has lines before some that came
                self._pieces.clear()
                self.given.clear()
            lines = value["logs"].splitlines()
            self.given.append(Given(lines, self._last_id, self.connections, frame.get("id")))
        super()._take(frame)

    @property
    def seen(self) -> list[str]:
        """The lines that came, in their order."""
        return self.text.decode().splitlines()

    async def end(self, lines: Counter[str]) -> None:
        """Follows no more, once it has these lines or a long time has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while lines - Counter(self.seen) and not self._following.done():
                    await asyncio.sleep(_PAUSE_SECONDS)
        await self.cancel()

    async def cancel(self) -> None:
        """Follows no more. Raises what ended the following."""
        self._following.cancel()
        with suppress(asyncio.CancelledError):
            await self._following


class PageReader:
    """Reads a run page by page, while it grows.

    A page that is the newest has no cursor: it is read again, until another one follows it or it
    has the last lines. What nodes hold while the store is silent counts once the store answers,
    unless that page begins `again` before it.
    """

    def __init__(
        self, client: httpx.AsyncClient, key: RunKey, nodes: Nodes, dice: random.Random
    ) -> None:
        self._client = client
        self._key = key
        self._nodes = nodes
        self._dice = dice
        self._after: str | None = None
        self._wanted: Counter[str] | None = None
        self._held: list[Given] = []
        self.given: list[Given] = []
        """What it was given, without held lines that it was told to drop."""
        self._reading = asyncio.create_task(self._read())

    async def end(self, lines: Counter[str]) -> None:
        """Reads what is left, up to these lines or for a long time. Raises what ended it."""
        self._wanted = lines
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._reading

    async def _read(self) -> None:
        while True:
            page = await self._page()
            lines = [] if page is None else str(page["logs"]).splitlines()
            if page is not None and "store" in page:
                if page["after"] is not None:
                    self._held.append(Given(lines, self._after, upto=page["after"]))
                    self._after = str(page["after"])
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if page is not None and (
                page["after"] is not None or self._are_last(lines, again="again" in page)
            ):
                if "again" not in page:
                    self.given += self._held
                self._held = []
                self.given.append(Given(lines, self._after, upto=page["after"]))
                if page["after"] is None:
                    return
                self._after = str(page["after"])
            else:
                await asyncio.sleep(self._dice.uniform(0.0, 2 * _PAUSE_SECONDS))

    def _are_last(self, lines: list[str], *, again: bool) -> bool:
        if self._wanted is None:
            return False
        before = self.given if again else [*self.given, *self._held]
        seen = Counter(line for piece in before for line in piece.lines)
        return not self._wanted - seen - Counter(lines)

    async def _page(self) -> dict[str, Any] | None:
        """The next page from some node; None if there is none just now."""
        limit = self._dice.choice([1, 7, 50, 1000])
        after = {} if self._after is None else {"after": self._after}
        url = f"{self._nodes.any_url()}{run_path(self._key)}"
        try:
            reply = await self._client.get(url, params={"limit": limit, **after}, timeout=5)
        except httpx.TransportError:
            return None
        if reply.status_code in (404, 500, 503):  # what a node logs of a 500 is a fault
            return None
        reply.raise_for_status()
        page: dict[str, Any] = reply.json()
        return page


class QueueReader:
    """A group that takes segment after segment at any node, and remembers the records in them."""

    def __init__(self, client: httpx.AsyncClient, nodes: Nodes) -> None:
        self._client = client
        self._nodes = nodes
        self._ended = False
        self.records: dict[tuple[RunKey, str], str] = {}
        self.taken: list[str] = []
        self.faults: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def end(self) -> None:
        """Takes what is left. Raises what ended the reading."""
        self._ended = True
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await self._reading

    def lines(self, key: RunKey) -> list[str]:
        """The lines of a run, each a record with an id of its own, by ULID."""
        found = [(ulid, text) for (run, ulid), text in self.records.items() if run == key]
        return [text for _, text in sorted(found)]

    async def _read(self) -> None:
        while True:
            last = self._ended
            try:
                if not await self._next() and last and await self._has_all():
                    return
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                if isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in (
                    *(409, 500, 503),
                ):
                    raise
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _next(self) -> bool:
        """Takes a segment; gives whether there was one."""
        parameters = {"group": "torture", "wait": "1", "lease_seconds": "10"}
        lease = await self._asked("POST", "/segments/next", parameters)
        if lease.status_code == 204:
            return False
        segment, epoch = lease.json()["id"], lease.json()["epoch"]
        body = await self._asked("GET", f"/segments/{segment}", {"format": "ndjson"})
        self._take(body.text)
        wanted = body.headers.get("tailrace-rows")
        rows = len(body.text.splitlines())
        if wanted is not None and int(wanted) != rows:
            self.faults.append(f"{segment} has {rows} records, and said {wanted}")
        done = {"group": "torture", "epoch": f"{epoch}"}
        await self._asked("POST", f"/segments/{segment}/commit", done)
        self.taken.append(segment)
        return True

    def _take(self, text: str) -> None:
        for record in map(json.loads, text.splitlines()):
            identity = RunKey(record["fqn"], record["run_id"]), record["ulid"]
            if self.records.setdefault(identity, record["message"]) != record["message"]:
                self.faults.append(f"the queue has two records {identity}")

    async def _has_all(self) -> bool:
        """Whether nothing is left; what failed, since harm came at each attempt, is tried again."""
        group = (await self._asked("GET", "/segments/groups/torture", {})).json()
        if group["failed"]:
            await self._asked("POST", "/segments/groups/torture/retry", {})
            return False
        return int(group["lag"]["segments"]) == 0

    async def _asked(self, method: str, path: str, parameters: dict[str, str]) -> httpx.Response:
        url = f"{self._nodes.any_url()}{path}"
        reply = await self._client.request(method, url, params=parameters, timeout=8)
        reply.raise_for_status()
        return reply
