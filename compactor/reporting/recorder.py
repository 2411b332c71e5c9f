"""Records metrics of passes while they run: in a file, at a Prometheus push gateway, or both.

The push gateway is for compactors that nobody can scrape. `PUT
{gateway}/metrics/job/tailrace-compactor/instance/{host}` replaces what this host pushed before. The
gateway keeps it when this process has ended; `reported_timestamp_seconds` says how old it is.
"""

from __future__ import annotations

from typing import Protocol
from urllib.parse import quote

import httpx

from compactor.report import Report
from compactor.reporting.metrics import Samples, add, counts, gauges
from compactor.reporting.textfile import Textfile, render, total
from logstore.clock import Clock
from logstore.errors import InvalidInput, Unavailable

JOB = "tailrace-compactor"
_SECONDS = 5.0  # within which a gateway has to answer


class Totals(Protocol):
    """Counters that add up over passes, and the newest gauges."""

    def read(self) -> Samples:
        """All samples. Raises `Unavailable`."""
        ...

    def change(self, counted: Samples, gauges: Samples) -> Samples:
        """Adds to the counters, sets the gauges, returns all samples. Raises `Unavailable`."""
        ...


class InMemory:
    """The totals of this process alone."""

    def __init__(self) -> None:
        self._samples: Samples = {}

    def read(self) -> Samples:
        return self._samples

    def change(self, counted: Samples, gauges: Samples) -> Samples:
        self._samples = total(self._samples, counted, gauges)
        return self._samples


class MetricsListener:
    """Adds what is new in a report to the totals, each count once.

    Counts that could not be written are written with the next ones.
    """

    every_seconds = 10.0

    def __init__(
        self, clock: Clock, file: Textfile | None, gateway: PushGateway | None = None
    ) -> None:
        self._clock = clock
        self.totals: Totals = file or InMemory()
        self._gateway = gateway
        self._unwritten: Samples = {}
        self._written: Samples = {}

    async def look(self, report: Report) -> None:
        """Writes what is new. Raises `Unavailable`."""
        await self._write(report, over=False)

    async def over(self, report: Report) -> None:
        """Writes the rest of this pass. Raises `Unavailable`."""
        try:
            await self._write(report, over=True)
        finally:
            self._written = {}

    async def _write(self, report: Report, *, over: bool) -> None:
        self._count(counts(report, over=over))
        # Not in a thread: a pass that ends while a change is on its way must not make it twice.
        before = self.totals.read()
        now = gauges(report, before, over=over, now_ms=self._clock.now_ms())
        samples = self.totals.change(self._unwritten, now)
        self._unwritten = {}
        if self._gateway is not None:
            await self._gateway.push(render(samples))

    def _count(self, counted: Samples) -> None:
        add(self._unwritten, {key: n - self._written.get(key, 0) for key, n in counted.items()})
        self._written = counted


class PushGateway:
    """A gateway at an address, which may have a name and password in it.

    Raises `InvalidInput` for an invalid address.
    """

    def __init__(self, address: str, instance: str) -> None:
        try:
            url = httpx.URL(address)
        except httpx.InvalidURL as error:
            raise InvalidInput(
                f"compaction.push_gateway is no address: {error}", field="compaction.push_gateway"
            ) from error
        path = url.path.rstrip("/")
        self._auth = httpx.BasicAuth(url.username, url.password) if url.username else None
        self._url = url.copy_with(
            userinfo=b"", path=f"{path}/metrics/job/{JOB}/instance/{quote(instance, safe='')}"
        )

    async def push(self, content: bytes) -> None:
        """Sends metrics in the text format. Raises `Unavailable` if the gateway refuses them."""
        try:
            async with httpx.AsyncClient(timeout=_SECONDS, auth=self._auth) as client:
                answer = await client.put(
                    self._url,
                    content=content,
                    headers={"Content-Type": "text/plain; version=0.0.4"},
                )
        except httpx.HTTPError as error:
            raise self._failed(str(error) or type(error).__name__) from error
        if answer.status_code >= 300:
            raise self._failed(f"{answer.status_code} {answer.text[:200]}".strip())

    def _failed(self, reason: str) -> Unavailable:
        return Unavailable(
            f"the push gateway {self._url.scheme}://{self._url.netloc.decode()} did not take the"
            f" metrics: {reason}",
            hint="See that compaction.push_gateway is its address, as http://host:9091.",
        )
