"""What must hold after OpenMetadata's client shipped a run: sentences on what does not."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import differences, run_path
from tests.e2e.openmetadata.proxy import Sent

ROWS = 2000
_CLOSED_SECONDS = 90.0


@dataclass
class Shipped:
    """What the driver says, and what the service has."""

    told: dict[str, Any]
    text: str
    state: str

    @property
    def rows(self) -> list[str]:
        """Every row as the client's handler formatted it."""
        return [str(row) for row in self.told["rows"]]


def fetch(url: str, key: RunKey, output: str) -> Shipped:
    """Reads the run by our own download, once the driver is through and the run is closed."""
    deadline = time.monotonic() + _CLOSED_SECONDS
    with httpx.Client(base_url=url, timeout=60) as client:
        state = _state(client, key)
        while state != "closed" and time.monotonic() < deadline:
            time.sleep(0.2)
            state = _state(client, key)
        text = client.get(run_path(key, verb="download")).raise_for_status().content.decode()
    return Shipped(json.loads(output), text, state)


def _state(client: httpx.Client, key: RunKey) -> str:
    page = client.get(run_path(key), params={"limit": "1"}).raise_for_status()
    return str(page.json()["state"])


def common(shipped: Shipped) -> Iterator[str]:
    """What holds for every client in every story."""
    if shipped.state != "closed":
        yield f"the run is {shipped.state}"
    if shipped.told["state"] != "success":
        yield f"its status is {shipped.told['state']}"
    if not shipped.told["follower_ended"]:
        yield "the client's SSE reader did not end"
    if shipped.told["follower_ended_with"] != "complete":
        yield f"its SSE reader ended with {shipped.told['follower_ended_with']!r}"
    for name in ("followed", "pages"):
        fault = differences(shipped.text.encode(), shipped.told[name].encode())
        if fault is not None:
            yield f"{name}: {fault}"


def all_rows_once(shipped: Shipped) -> Iterator[str]:
    """Every row, whole, once, in order; between them stands what the client says itself."""
    if len(shipped.rows) != ROWS:
        yield f"{len(shipped.rows)} rows were logged"
    at = 0
    for number, row in enumerate(shipped.rows):
        found = shipped.text.find(f"{row}\n", at)
        if found < 0:
            yield f"row {number} is missing, or out of order: {row[:100]!r}"
            return
        at = found + len(row) + 1
    times = Counter(re.findall(r" - row (\d+) ", shipped.text))
    more = {number: count for number, count in times.items() if count > 1}
    if more:
        yield f"{len(more)} rows are there more than once, the first: {next(iter(more.items()))}"


def as_sent(shipped: Shipped, sent: Sequence[Sent], *, retries: bool) -> Iterator[str]:
    """The text is what went over the wire, a batch that was sent again once."""
    expected, before = "", Sent("")
    for batch in sent:
        again = retries and not before.heard and before.text == batch.text
        if batch.taken and not (again and before.taken):
            expected += batch.text
        batch.taken = batch.taken or (again and before.taken)
        before = batch
    fault = differences(expected.encode(), shipped.text.encode())
    if fault is not None:
        yield f"text as it was sent: {fault}"
