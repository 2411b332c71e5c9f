"""Clients as users write them: one that posts and retries, one that follows and resumes."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import quote

import httpx

from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tests.e2e.service_process import BASE

_RETRY_SECONDS = 0.05


def run_path(key: RunKey, *, verb: str = "") -> str:
    """The path of a run, or of a verb on it."""
    path = f"{BASE}/{quote(key.fqn, safe='')}/{quote(key.run, safe='')}"
    return f"{path}/{verb}" if verb else path


def stream_path(key: RunKey) -> str:
    """The path of a run's live tail."""
    return f"{BASE}/{quote(key.fqn, safe='')}/stream/{quote(key.run, safe='')}"


def whole_lines(data: bytes) -> bytes:
    """The bytes as Tailrace stores them: UTF-8, with a last newline."""
    text = data.decode("utf-8", "replace").encode()
    return text if text.endswith(b"\n") else text + b"\n"


def batches_of(data: bytes, dice: random.Random, *, largest: int = 200) -> list[bytes]:
    """Whole lines in batches of 1 to `largest` lines."""
    lines = data.split(b"\n")[:-1]
    batches, at = [], 0
    while at < len(lines):
        size = dice.randint(1, largest)
        batches.append(b"\n".join(lines[at : at + size]) + b"\n")
        at += size
    return batches


class BatchIds:
    """Batch ids as a client makes them: rising, with their low 25 bits zero."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> str:
        """An id above the last one."""
        now = time.time_ns() // 1_000_000
        fresh = now << 80 | secrets.randbits(55) << 25
        self._last = fresh if fresh > self._last else self._last + (1 << 25)
        return ulids.encode(self._last)


async def post_all(
    client: httpx.AsyncClient, key: RunKey, batches: Iterable[bytes], *, pause: float = 0.0
) -> int:
    """Posts every batch under an id of its own, again and again until it is acknowledged.

    Gives the number of retries.
    """
    ids = BatchIds()
    retries = 0
    for batch in batches:
        headers = {"Tailrace-Batch": ids.next(), "Content-Type": "text/plain"}
        while True:
            try:
                reply = await client.post(run_path(key), content=batch, headers=headers)
            except httpx.TransportError:
                pass
            else:
                if reply.status_code == 200:
                    break
                if reply.status_code not in (429, 503, 507):
                    raise RuntimeError(f"{reply.status_code}: {reply.text}")
            retries += 1
            await asyncio.sleep(_RETRY_SECONDS)
        if pause:
            await asyncio.sleep(pause)
    return retries


class Follower:
    """A reader of the live tail that reconnects with the last id it has seen.

    `text` is what it was given, one frame after another: lines that were lost or
    repeated show as other bytes. `node` gives the address for the next connection, if
    it is not the client's own.
    """

    def __init__(
        self, client: httpx.AsyncClient, key: RunKey, node: Callable[[], str] = lambda: ""
    ) -> None:
        self._client = client
        self._key = key
        self._node = node
        self._last_id: str | None = None
        self._pieces: list[bytes] = []
        self.connections = 0
        self.last_error: str | None = None
        self.complete = asyncio.Event()

    def __str__(self) -> str:
        told = f", told {self.last_error!r}" if self.last_error else ""
        times = f"connected {self.connections} times"
        return f"the reader of {self._key} at {self._last_id}, {times}{told}"

    @property
    def text(self) -> bytes:
        """All that came so far."""
        return b"".join(self._pieces)

    async def run(self) -> None:
        """Follows until the stream says that it is complete."""
        while not self.complete.is_set():
            try:
                await self._connect()
            except httpx.TransportError:
                await asyncio.sleep(_RETRY_SECONDS)

    async def _connect(self) -> None:
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        parameters = {} if self._last_id else {"after": "0"}
        timeout = httpx.Timeout(10, read=60)
        url = f"{self._node()}{stream_path(self._key)}"
        async with self._client.stream(
            "GET", url, headers=headers, params=parameters, timeout=timeout
        ) as reply:
            if reply.status_code != 200:
                self.last_error = f"{reply.status_code}: {(await reply.aread()).decode()}"
                await asyncio.sleep(_RETRY_SECONDS)
                return
            self.connections += 1
            frame: dict[str, str] = {}
            async for line in reply.aiter_lines():
                if line:
                    name, _, value = line.partition(":")
                    frame[name] = value.removeprefix(" ")
                elif frame:
                    self._take(frame)
                    frame = {}

    def _take(self, frame: dict[str, str]) -> None:
        if frame.get("event") == "logs":
            self._pieces.append(json.loads(frame["data"])["logs"].encode())
        elif frame.get("event") == "error":
            self.last_error = frame["data"]
        elif frame.get("event") == "complete":
            self.complete.set()
        if frame.get("id"):
            self._last_id = frame["id"]


async def read_pages(client: httpx.AsyncClient, key: RunKey, *, limit: int) -> bytes:
    """The whole text of a run, page by page."""
    pieces: list[str] = []
    after: str | None = None
    while True:
        parameters = {"limit": str(limit), **({"after": after} if after else {})}
        page = await _get_json(client, run_path(key), parameters)
        if page["logs"]:
            pieces.append(page["logs"] + "\n")
        after = page["after"]
        if after is None:
            return "".join(pieces).encode()


async def download(client: httpx.AsyncClient, key: RunKey) -> bytes:
    """The whole text of a run in one reply."""
    reply = await client.get(run_path(key, verb="download"), timeout=120)
    reply.raise_for_status()
    return reply.content


async def query_text(client: httpx.AsyncClient, key: RunKey) -> bytes:
    """The run's lines as the query gives them, oldest first; asks until the reply is complete."""
    parameters = {
        "from": "0",
        "fqn": key.fqn,
        "run": key.run,
        "order": "asc",
        "format": "text",
        "limit": "1000000000",
    }
    async with asyncio.timeout(300):
        while True:
            reply = await client.get("/query", params=parameters, timeout=300)
            reply.raise_for_status()
            if reply.status_code == httpx.codes.OK:
                return reply.content
            await asyncio.sleep(_RETRY_SECONDS)


async def close_run(client: httpx.AsyncClient, key: RunKey) -> None:
    """Closes a run and waits until it is closed."""
    while True:
        try:
            reply = await client.post(run_path(key, verb="close"), timeout=60)
        except httpx.TransportError:
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        if reply.status_code == 200 and reply.json()["state"] == "closed":
            return
        await asyncio.sleep(_RETRY_SECONDS)


async def _get_json(
    client: httpx.AsyncClient, path: str, parameters: dict[str, str]
) -> dict[str, str | None]:
    reply = await client.get(path, params=parameters, timeout=60)
    reply.raise_for_status()
    value: dict[str, str | None] = reply.json()
    return value


def differences(expected: bytes, found: bytes) -> str | None:
    """A sentence on how `found` differs from `expected`, None if it does not."""
    if expected == found:
        return None
    wanted, got = expected.split(b"\n"), found.split(b"\n")
    at = next((i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b), None)
    where = min(len(wanted), len(got)) if at is None else at
    return (
        f"{len(wanted) - 1} lines expected, {len(got) - 1} found; they part at line {where}: "
        f"{_line(wanted, where)!r} became {_line(got, where)!r}"
    )


def _line(lines: Sequence[bytes], number: int) -> bytes:
    return lines[number][:200] if number < len(lines) else b"(nothing)"
