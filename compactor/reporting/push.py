"""Metrics pushed to a Prometheus push gateway, for compactors that nobody can scrape.

`PUT {gateway}/metrics/job/tailrace-compactor/instance/{host}` takes the place of what this
host pushed before. The gateway keeps it when we are gone: see by
`reported_timestamp_seconds` how old it is.
"""

from __future__ import annotations

from urllib.parse import quote

import httpx

from logstore.errors import InvalidInput, Unavailable

_SECONDS = 5.0
JOB = "tailrace-compactor"


class PushGateway:
    """A gateway at an address, which may have a name and password in it.

    Raises `InvalidInput` for what is no address.
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
        """Raises `Unavailable` if it does not take it."""
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
