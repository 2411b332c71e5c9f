"""Questions over HTTP: `POST {url}/internal/{verb}`; pooled connections.

The shared secret, or the certificate that a node shows, says that it is one. During a rotation a
node that refuses the secret is asked with the previous one. Next time it is asked with that first.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import aiohttp
import orjson

from service.peers.transport import Address, AskOutcome, PeerRefused, PeerSilent

PATH: Final = "/internal/"
INSTANCE: Final = "tailrace-instance"
ASKER: Final = "tailrace-asker"
"""The header with the URL at which the asking node is asked."""
_PER_NODE = 64
_OK = 200
_SHOWN = 300
_ENDED = 500
_OUTCOMES: Final = {401: AskOutcome.NOT_ADMITTED, 403: AskOutcome.NOT_ADMITTED}
_KINDS: Final[Mapping[str, AskOutcome]] = {
    "another-process": AskOutcome.ANOTHER_PROCESS,
    "not-found": AskOutcome.UNKNOWN_QUESTION,
}


class HttpTransport:
    """The HTTP client of one node. Made inside the running loop; `close` it."""

    def __init__(
        self,
        secret: str,
        tls: ssl.SSLContext | None = None,
        *,
        previous_secret: str = "",
        own_url: str = "",
    ) -> None:
        """`tls` is what it shows and whom it trusts; None: as any program."""
        self._secrets = [one for one in (secret, previous_secret) if one]
        self._taken: dict[str, str] = {}
        """For each node that refused the secret, which one it took."""
        self._headers = {ASKER: own_url} if own_url else {}
        self._tls: ssl.SSLContext | bool = True if tls is None else tls
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def ask(self, address: Address, verb: str, body: bytes, seconds: float) -> bytes:
        """The body of a reply with status 200. Raises `PeerSilent`, `PeerRefused`."""
        if not address.url:
            raise PeerSilent(f"{address.node} has left no address")
        if self._closed:
            raise PeerSilent(f"{address.node} is not asked any more: this node is stopping")
        where = f"{address.node} at {address.url}"
        try:
            async with asyncio.timeout(seconds):
                status, answer = await self._ask(address, verb, body)
        except TimeoutError as error:
            why = f"{where} is silent: no answer within {seconds:g} s"
            raise PeerSilent(why, AskOutcome.TIMED_OUT) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
            raise PeerSilent(f"{where} is silent: {why}") from error
        if status == _OK:
            return answer
        said = answer[:_SHOWN].decode(errors="replace")
        sentence = f"{where} answered {status}: {said}"
        if status >= _ENDED:
            raise PeerSilent(sentence, AskOutcome.FAILED)
        raise PeerRefused(sentence, _outcome(status, answer))

    async def _ask(self, address: Address, verb: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of the reply to the first secret that is taken."""
        first = self._taken.get(address.url)
        secrets = sorted(self._secrets, key=lambda one: one != first) or [""]
        status, answer = 0, b""
        for secret in secrets:
            headers = {INSTANCE: address.instance}
            if secret:
                headers["authorization"] = f"Bearer {secret}"
            async with self._open().post(
                f"{address.url}{PATH}{verb}", data=body, headers=headers, allow_redirects=False
            ) as reply:
                status, answer = reply.status, await reply.read()
            if status not in _OUTCOMES:
                if len(secrets) > 1:
                    self._taken[address.url] = secret
                break
        return status, answer

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
                timeout=aiohttp.ClientTimeout(total=None),  # each question has a deadline
                auto_decompress=False,
            )
        return self._session


def _outcome(status: int, answer: bytes) -> AskOutcome:
    """Why a node refuses, by the status and the problem document that it sent."""
    if status in _OUTCOMES:
        return _OUTCOMES[status]
    problem: Any = None
    with suppress(ValueError):
        problem = orjson.loads(answer)
    kind = str(problem.get("type", "")) if isinstance(problem, dict) else ""
    return _KINDS.get(kind.rpartition("/")[2].rpartition(":")[2], AskOutcome.DECLINED)
