"""A pool of services as one service, for a client that sends one request after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from forwarder.delivery.pool import Pool
from forwarder.delivery.requests import Again
from tailrace_client.errors import (
    NotAuthorized,
    NotFound,
    Redirected,
    TailraceError,
    Unavailable,
)
from tailrace_client.service import Answer, Service

_RETRIED = (Unavailable, NotAuthorized, Redirected)


class Balanced(Service):
    """Each request goes to the place that works, and on to the next one if that fails.

    `url` names all of them together: the spool's queues belong to it. Raises what the last place
    answered; `Unavailable` with the time to wait if all of them rest. `new_token` is called when
    the token was refused, and says whether there is another one now.
    """

    def __init__(
        self, url: str, pool: Pool, *, new_token: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(url)
        self._pool = pool
        self._new_token = new_token

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Answer:
        error: TailraceError | None = None
        while True:
            place, seconds = self._pool.pick()
            if place is None:
                raise error or Unavailable("all services rest", retry_after=seconds)
            try:
                answer = place.service.request(
                    method, path, body, headers, timeout_seconds=timeout_seconds
                )
            except (NotFound, *_RETRIED) as failed:
                error = failed
                again = Again(failed)
                if isinstance(failed, NotFound) and failed.type == "not-found":
                    self._pool.worked(place)
                    raise
                if again.token and self._new_token():
                    self._pool.renew()
                    continue
                if not again.of_place:
                    self._pool.skip(place)
                    raise
                self._pool.failed(place, str(failed), failed.retry_after)
            else:
                self._pool.worked(place)
                return answer

    def close(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.close()
