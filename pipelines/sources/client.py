"""Requests to a service: its token, its certificates, and what its answers mean."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpx

from logstore.credentials import hint_of_trust, read_token, trust
from logstore.errors import (
    Damaged,
    GroupEvicted,
    InvalidInput,
    LeaseLost,
    NotFound,
    StoreUnavailable,
)

_ERRORS: Final[Mapping[str, type[Exception]]] = {
    "lease-lost": LeaseLost,
    "group-evicted": GroupEvicted,
    "not-found": NotFound,
    "damaged": Damaged,
}
_SAID: Final = 300


class ServiceClient:
    """A client of one service, by its URL.

    The token is read from its file for each request, so a file that is replaced counts at once.
    """

    def __init__(
        self, url: str, *, token_file: str = "", ca_file: str = "", seconds: float = 60.0
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(
                "pipelines.source_url must be http://HOST:PORT or https://HOST:PORT",
                field="pipelines.source_url",
            )
        if parts.username or parts.password:
            raise InvalidInput(
                "pipelines.source_url has a user or password in it",
                field="pipelines.source_url",
                hint="Use pipelines.source_token_file.",
            )
        self._url = url.rstrip("/")
        self._token_file = token_file
        verify = trust(ca_file, field="pipelines.source_ca_file") if ca_file else True
        self._client = httpx.AsyncClient(verify=verify, timeout=seconds)
        self._token()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str | float],
        *,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """The answer, of status 200, 204 or 304.

        Raises `NotFound`, `Damaged`, `LeaseLost`, `GroupEvicted`, and `StoreUnavailable` for
        everything that may be otherwise later: no answer, a refused token.
        """
        sent = {**(headers or {}), **self._authorization()}
        try:
            answer = await self._client.request(
                method, f"{self._url}{path}", params=dict(parameters), headers=sent
            )
        except httpx.HTTPError as error:
            raise StoreUnavailable(
                f"{self._url} does not answer: {type(error).__name__}: {error}",
                hint=hint_of_trust(error, "pipelines.source_ca_file")
                or "pipelines.source_url is where the service is.",
            ) from error
        if answer.status_code in (200, 204, 304):
            return answer
        raise self._error(answer)

    def _error(self, answer: httpx.Response) -> Exception:
        problem: dict[str, Any] = {}
        if "json" in answer.headers.get("content-type", ""):
            found = answer.json()
            problem = found if isinstance(found, dict) else {}
        kind = str(problem.get("type", "")).rpartition(":")[2].rpartition("/")[2]
        said = str(problem.get("detail") or problem.get("message") or answer.text)[:_SAID]
        known = _ERRORS.get(kind)
        if known is not None:
            return known(said)
        hint = "Tailrace tries again."
        if answer.status_code in (401, 403):
            hint = "pipelines.source_token_file is to hold a token with the scope `consume`."
        return StoreUnavailable(f"{self._url} answers {answer.status_code}: {said}", hint=hint)

    def _authorization(self) -> dict[str, str]:
        try:
            token = self._token()
        except InvalidInput as error:  # it is being replaced
            raise StoreUnavailable(str(error), hint=error.hint) from error
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _token(self) -> str:
        if not self._token_file:
            return ""
        return read_token(self._token_file, field="pipelines.source_token_file")
