"""From the acknowledgement at one node to the event at a live reader of a node."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import httpx
import numpy as np
import orjson

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path, stream_path

_RATE: Final = 50.0
_BATCH: Final = 10


class Delays:
    """When batches were acknowledged, and how much later each reader had them."""

    def __init__(self) -> None:
        self.acked: dict[int, float] = {}
        self.came: list[tuple[int, float]] = []
        self.faults = 0

    def told(self) -> str:
        """In words."""
        delays = [came - self.acked[number] for number, came in self.came]
        p50, p99, top = np.percentile(delays, [50, 99, 100]) * 1000
        return (
            f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {top:.1f} ms of {len(delays)} events,"
            f" {self.faults} lines lost or repeated"
        )


async def ack_to_event(
    writer: str, reader: str, key: RunKey, *, readers: int, seconds: float
) -> Delays:
    """A run that is written at one node and followed at another, or at the same one."""
    delays = Delays()
    async with httpx.AsyncClient(timeout=60) as client:
        following = [
            asyncio.create_task(_follow(client, reader, key, delays)) for _ in range(readers)
        ]
        await asyncio.sleep(1)
        batches = await _write(client, writer, key, seconds, delays)
        ends = await asyncio.gather(*following)
    delays.faults += sum(end != batches * _BATCH for end in ends)
    return delays


async def _write(
    client: httpx.AsyncClient, url: str, key: RunKey, seconds: float, delays: Delays
) -> int:
    begin = time.monotonic()
    number = 0
    while time.monotonic() - begin < seconds:
        lines = [f"{number * _BATCH + i} {number} {'x' * 80}\n" for i in range(_BATCH)]
        reply = await client.post(
            f"{url}{run_path(key)}",
            content="".join(lines),
            headers={"Content-Type": "text/plain"},
        )
        delays.acked[number] = time.monotonic()
        reply.raise_for_status()
        number += 1
        await asyncio.sleep(begin + number / _RATE - time.monotonic())
    (await client.post(f"{url}{run_path(key, verb='close')}")).raise_for_status()
    return number


async def _follow(client: httpx.AsyncClient, url: str, key: RunKey, delays: Delays) -> int:
    """The number of lines that came."""
    expected = 0
    async with client.stream("GET", f"{url}{stream_path(key)}") as reply:
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            now, event = time.monotonic(), orjson.loads(line[6:])
            if event["eventType"] == "complete":
                break
            numbers = [text.split()[:2] for text in event.get("logs", "").splitlines()]
            delays.came += [(int(batch), now) for _, batch in numbers[-1:]]
            delays.faults += [int(number) for number, _ in numbers] != list(
                range(expected, expected + len(numbers))
            )
            expected += len(numbers)
    return expected
