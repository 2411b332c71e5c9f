"""Many producers, each with a run and a connection of its own: a small batch a second.

They are one process; a producer is a socket and a few lines, so that they cost little. Each begins
at a moment of its own.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import numpy as np

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path

_BATCH: Final = 5
_LINE: Final = "2026-01-31T12:00:00Z INFO worker-%04d step %06d of the load was done: %s"
_PERIOD_SECONDS: Final = 1.0
_OK: Final = b" 200 "


@dataclass
class Acks:
    """Seconds from a batch to its acknowledgement, batches that got none, and late ones.

    A producer whose answer takes longer than a second is behind with the next batch.
    """

    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    behind: int = 0

    def told(self) -> str:
        """In words."""
        p50, p99 = np.percentile(self.seconds, [50, 99]) * 1000
        return (
            f"{len(self.seconds)} batches, p50 {p50:.1f} ms, p99 {p99:.1f} ms,"
            f" {self.refused} refused, {self.behind} sent late"
        )


async def produce(urls: Sequence[str], count: int, seconds: float) -> Acks:
    """So many producers, each at some node, for so long."""
    acks = Acks()
    dice = random.Random(count)
    await asyncio.gather(
        *[_one(urls[number % len(urls)], number, seconds, acks, dice) for number in range(count)]
    )
    return acks


async def _one(url: str, number: int, seconds: float, acks: Acks, dice: random.Random) -> None:
    where = urlsplit(url)
    begin = time.monotonic()
    end = begin + seconds
    due = begin + dice.random() * _PERIOD_SECONDS
    await asyncio.sleep(due - time.monotonic())
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    path = run_path(RunKey(f"bench.nodes-{number % 100}", f"run-{number}"))
    step = 0
    while due < end:
        await asyncio.sleep(due - time.monotonic())
        now = time.monotonic()
        acks.behind += now - due > _PERIOD_SECONDS
        writer.write(_request(path, number, step))
        status = await _status(reader)
        acks.seconds.append(time.monotonic() - now)
        acks.refused += _OK not in status
        step += 1
        due += _PERIOD_SECONDS
    writer.close()


def _request(path: str, number: int, step: int) -> bytes:
    lines = [_LINE % (number, step * _BATCH + i, "x" * 40) for i in range(_BATCH)]
    body = "\n".join(lines).encode() + b"\n"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _status(reader: asyncio.StreamReader) -> bytes:
    """The status line of an answer, which is read whole."""
    status = await reader.readline()
    size = 0
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            size = int(value)
    await reader.readexactly(size)
    return status
