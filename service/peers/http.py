"""Questions over HTTP: `POST {url}/internal/{verb}`; pooled connections.

The shared secret, or the certificate that a node shows, says that it is one.
"""

from __future__ import annotations

import ssl
from typing import Final

import aiohttp

from service.peers.transport import Address, PeerRefused, PeerSilent

PATH: Final = "/internal/"
INSTANCE: Final = "tailrace-instance"
_PER_NODE = 64
_OK = 200
_SHOWN = 300
_ENDED = 500


class HttpTransport:
    """The HTTP client of one node. Made inside the running loop; `close` it."""

    def __init__(self, secret: str, tls: ssl.SSLContext | None = None) -> None:
        """`tls` is what it shows and whom it trusts; None: as any program."""
        self._headers = {"authorization": f"Bearer {secret}"} if secret else {}
        self._tls: ssl.SSLContext | bool = True if tls is None else tls
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def ask(self, address: Address, verb: str, body: bytes, seconds: float) -> bytes:
        """The body of a reply with status 200. Raises `PeerSilent`, `PeerRefused`."""
        if not address.url:
            raise PeerSilent(f"{address.node} has left no address")
        if self._closed:
            raise PeerSilent(f"{address.node} is not asked any more: this node is stopping")
        try:
            async with self._open().post(
                f"{address.url}{PATH}{verb}",
                data=body,
                headers={INSTANCE: address.instance},
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,
            ) as reply:
                answer = await reply.read()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise PeerSilent(f"{address.node} at {address.url} is silent: {why}") from error
        if reply.status == _OK:
            return answer
        said = answer[:_SHOWN].decode(errors="replace")
        kind = PeerRefused if reply.status < _ENDED else PeerSilent
        raise kind(f"{address.node} at {address.url} answered {reply.status}: {said}")

    async def close(self) -> None:
        """Ends all connections; nobody is asked any more."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, limit_per_host=_PER_NODE, ssl=self._tls),
                headers=self._headers,
                auto_decompress=False,
            )
        return self._session
