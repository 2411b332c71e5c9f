"""Clients of every kind that the torture has write: what each sends, and what it was promised.

- `Named`: under an id of its own, in any encoding and durability; sent again until it is
  acknowledged.
- `Nameless`: small, as text or JSON, so mostly on the fast path; never sent again, as by
  OpenMetadata's second generation: it does not know what became of it.
- `FirstGeneration`: OpenMetadata's first, with an opening call, cookies, JSON of base64 of gzip;
  sent again without an id.

An acknowledged batch is in the run once, in the order in which it was sent. Of one that nobody
knows of there is one copy or none.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import httpx
import zstandard

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import BatchIds, differences, run_path

_RETRY_SECONDS: Final = 0.05
_FRESH_IDS: Final = 200
_REFUSED: Final = (429, 503, 507)

Holds = Callable[[RunKey, bytes], Awaitable[bool]]
"""Whether a batch is in the object store, as `bulk` promises."""


@dataclass
class Sent:
    """A batch that a client sent, and whether it was told that it is stored."""

    text: bytes
    acknowledged: bool = False


class Writer(Protocol):
    """Sends the batches of one run, each after the answer to the one before."""

    retries: int

    async def send(self, batch: Sent) -> None:
        """Sends it as its kind does, and notes the acknowledgement."""
        ...

    async def end(self) -> None:
        """Lets go of its connections."""
        ...


def explain(sent: Sequence[Sent], found: bytes) -> str | None:
    """None if `found` is what was acknowledged, in order, with some of the rest; else why not."""
    at = 0
    for batch in sent:
        if found.startswith(batch.text, at):
            at += len(batch.text)
        elif batch.acknowledged:
            return differences(found[:at] + batch.text, found[: at + len(batch.text)])
    return None if at == len(found) else f"nobody sent {found[at : at + 200]!r}"


class Named:
    """A client that names its batches."""

    def __init__(
        self, client: httpx.AsyncClient, key: RunKey, dice: random.Random, holds: Holds
    ) -> None:
        self._client = client
        self._key = key
        self._dice = dice
        self._holds = holds
        self._ids = BatchIds()
        self.retries = 0
        self.faults: list[str] = []

    async def send(self, batch: Sent) -> None:
        durability = self._dice.choice(["fast", "durable", "durable", "bulk"])
        content, headers = encoded(batch.text, self._dice.choice(list(ENCODINGS)))
        headers |= {"Tailrace-Durability": durability, "Tailrace-Batch": self._ids.next()}
        for _ in range(_FRESH_IDS):
            reply, retries = await _answered(self._client, self._key, content, headers)
            self.retries += retries
            if reply.status_code == 200:
                break
            # An id of the millisecond of a deletion counts as deleted with it.
            headers["Tailrace-Batch"] = self._ids.next()
        else:
            raise RuntimeError(f"every fresh id of {self._key} is refused as deleted")
        batch.acknowledged = True
        if durability == "bulk" and not await self._holds(self._key, batch.text):
            self.faults.append(f"{self._key}: {batch.text[:80]!r}, sent as bulk, is in no segment")

    async def end(self) -> None:
        """Its connections are everybody's."""


class Nameless:
    """A client that neither names its batches nor sends them again."""

    def __init__(self, client: httpx.AsyncClient, key: RunKey, dice: random.Random) -> None:
        self._client = client
        self._key = key
        self._dice = dice
        self.retries = 0

    async def send(self, batch: Sent) -> None:
        content, headers = encoded(batch.text, self._dice.choice(["text", "string", "json"]))
        headers["Tailrace-Durability"] = self._dice.choice(["fast", "durable"])
        while True:
            try:
                reply = await self._client.post(
                    run_path(self._key), content=content, headers=headers
                )
            except httpx.ConnectError:  # nobody heard of it
                self.retries += 1
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            except httpx.TransportError:
                return
            if reply.status_code not in (200, *_REFUSED):
                raise RuntimeError(f"{reply.status_code}: {reply.text}")
            batch.acknowledged = reply.status_code == 200
            return

    async def end(self) -> None:
        """Its connections are everybody's."""


class FirstGeneration:
    """OpenMetadata's client before 1.12.9, but that it never gives up."""

    def __init__(self, url: str, key: RunKey, dice: random.Random) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=30)  # with cookies of its own
        self._key = key
        self._dice = dice
        self._name = f"host-{dice.getrandbits(32)}"
        self._opened = False
        self.retries = 0

    async def send(self, batch: Sent) -> None:
        if not self._opened:
            await self._post({})
            self._opened = True
        if self._dice.random() < 0.5:
            text = base64.b64encode(gzip.compress(batch.text, 1)).decode()
            await self._post({"logs": text, "compressed": True})
        else:
            await self._post({"logs": batch.text.decode()})
        batch.acknowledged = True

    async def _post(self, body: dict[str, object]) -> None:
        content = json.dumps({"connectorId": self._name, "timestamp": 1, **body}).encode()
        headers = {"Content-Type": "application/json"}
        reply, retries = await _answered(self._client, self._key, content, headers)
        self.retries += retries
        if reply.status_code != 200:
            raise RuntimeError(f"{reply.status_code}: {reply.text}")

    async def end(self) -> None:
        await self._client.aclose()


async def _answered(
    client: httpx.AsyncClient, key: RunKey, content: bytes, headers: dict[str, str]
) -> tuple[httpx.Response, int]:
    """The reply of 200, or of 409 `run-deleted`, and how many tries had another or none."""
    retries = 0
    while True:
        try:
            reply = await client.post(run_path(key), content=content, headers=headers)
        except httpx.TransportError:
            pass
        else:
            if reply.status_code == 200 or reply.json().get("type") == "run-deleted":
                return reply, retries
            if reply.status_code not in _REFUSED:
                raise RuntimeError(f"{reply.status_code}: {reply.text}")
        retries += 1
        await asyncio.sleep(_RETRY_SECONDS)


def _ndjson(text: bytes) -> bytes:
    lines = text.decode().split("\n")[:-1]
    return b"".join(json.dumps({"message": line}).encode() + b"\n" for line in lines)


ENCODINGS: Final[dict[str, tuple[Callable[[bytes], bytes], dict[str, str]]]] = {
    "text": (lambda text: text, {"Content-Type": "text/plain"}),
    "gzip": (
        lambda text: gzip.compress(text, 1),
        {"Content-Type": "text/plain", "Content-Encoding": "gzip"},
    ),
    "zstd": (
        lambda text: zstandard.ZstdCompressor(1).compress(text),
        {"Content-Type": "text/plain", "Content-Encoding": "zstd"},
    ),
    "ndjson": (_ndjson, {"Content-Type": "application/x-ndjson"}),
    "string": (
        lambda text: json.dumps(text.decode()).encode(),
        {"Content-Type": "application/json"},
    ),
    "json": (
        lambda text: json.dumps({"logs": text.decode(), "connectorId": "c"}).encode(),
        {"Content-Type": "application/json"},
    ),
}


def encoded(text: bytes, encoding: str) -> tuple[bytes, dict[str, str]]:
    """The body of a request, and its headers."""
    encode, headers = ENCODINGS[encoding]
    return encode(text), dict(headers)
