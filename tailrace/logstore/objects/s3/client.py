"""Clients of S3: one for an event loop, and one that blocks its own thread.

`open_client` opens a client inside the running loop and closes it with the loop. It sends each
request once; `tailrace.logstore.objects.s3.requests` does the retries. This covers aiohttp, which
would silently send a PUT a second time when a kept connection breaks. `BlockingBucket` is for
threads, and lets botocore retry.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from threading import Lock
from typing import Any, Final, TypeVar

import aioboto3
import aiobotocore.session
import botocore.session
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from botocore import xform_name
from botocore.config import Config
from botocore.credentials import Credentials as BotocoreCredentials
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import BotoCoreError, ClientError, ResponseStreamingError
from botocore.loaders import create_loader
from botocore.utils import determine_content_length
from urllib3.exceptions import HTTPError

from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import InvalidInput, StoreUnavailable
from tailrace.logstore.objects.s3.credentials import Credentials, RenewedCredentials
from tailrace.logstore.objects.s3.requests import failure_of
from tailrace.logstore.objects.s3.settings import S3Settings

# Shorter than any server's: one that was closed meanwhile costs a try.
KEEP_SECONDS: Final = 10
# From here on a refusal that comes before the body is worth waiting for.
_LARGE_BYTES: Final = 1 << 20


class OneSend(AIOHTTPSession):  # type: ignore[misc]
    """A connector that sends once, whatever the method and the connection."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        session._retry_connection = False  # aiohttp has no public switch
        return session


@asynccontextmanager
async def open_client(
    settings: S3Settings, credentials: Credentials, clock: Clock
) -> AsyncIterator[Any]:
    """A client of `s3`. Raises `InvalidInput` for settings that botocore refuses."""
    session = aiobotocore.session.AioSession(profile=settings.profile or None)
    place = settings.endpoint_url, credentials.region
    async with client_of("s3", session, credentials, clock, *place, _config(settings)) as client:
        client.meta.events.register("before-call.s3", _ask_leave_for_large_bodies)
        yield client


@asynccontextmanager
async def client_of(
    service: str,
    session: aiobotocore.session.AioSession,
    credentials: Credentials,
    clock: Clock,
    endpoint: str,
    region: str,
    config: AioConfig,
) -> AsyncIterator[Any]:
    """A client of a service of AWS. Raises `InvalidInput` for settings that botocore refuses."""
    session.register_component("data_loader", loader())
    session.register_component("credential_provider", RenewedCredentials(credentials, clock))
    try:
        made = aioboto3.Session(botocore_session=session).client(
            service, region_name=region, endpoint_url=endpoint or None, config=config
        )
        client = await made.__aenter__()
    except (BotoCoreError, ValueError) as error:
        raise InvalidInput(f"{service}: {error}") from error
    try:
        yield client
    finally:
        await made.__aexit__(None, None, None)


def _ask_leave_for_large_bodies(params: dict[str, Any], **_: Any) -> None:
    """Asks for `100 Continue` before large bodies only; botocore waits for it before every body."""
    if (determine_content_length(params["body"]) or 0) < _LARGE_BYTES:
        params["headers"].pop("Expect", None)


@cache
def loader() -> Any:
    """The loader of botocore's service descriptions, megabytes that a process reads once."""
    return create_loader()


def _config(settings: S3Settings) -> AioConfig:
    return AioConfig(
        connect_timeout=settings.connect_timeout_seconds,
        read_timeout=settings.read_timeout_seconds,
        max_pool_connections=settings.max_connections,
        connector_args={"keepalive_timeout": KEEP_SECONDS},
        http_session_cls=OneSend,
        retries={"total_max_attempts": 1, "mode": "standard"},
        s3={"addressing_style": "path" if settings.path_style else "virtual"},
        # The signature covers the body, and our formats have checksums of their own; not
        # every server knows the newer ones.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        user_agent_extra="tailrace",
    )


# For readers that work outside an event loop: botocore retries requests itself; a body that breaks
# off half-way is requested again by `BlockingBucket`.


T = TypeVar("T")

_MORE_TRIES: Final = 3
_PAST_THE_END: Final = 416


class BlockingBucket:
    """Requests about one bucket, for several threads. The client is made at the first of them."""

    def __init__(self, settings: S3Settings, credentials: Credentials, name: str) -> None:
        self.name = name
        self._settings = settings
        self._credentials = credentials
        self._client: Any = None
        self._making = Lock()
        self.sent: Callable[[str], None] = lambda _: None
        """Is told of each request, every try, by the name of its operation."""
        self.gives_up: Callable[[], bool] = lambda: False
        """Whether a request that failed is not to be tried again: the server is known to hang."""

    def ask(self, what: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one of botocore's operations; `what` is for errors.

        Raises `NotFound`, `InvalidInput`, `StoreUnavailable`.
        """
        return self._again(what, lambda: self._once(operation, parameters))

    def pages(self, what: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """A listing of objects, page by page. Raises as `ask`."""
        while True:
            page = self.ask(what, "list_objects_v2", **parameters)
            yield page
            if not page.get("IsTruncated"):
                return
            parameters.pop("StartAfter", None)
            parameters["ContinuationToken"] = following(what, page)

    def get(self, what: str, key: str, range_: str = "") -> bytes:
        """The object, or a range of it as HTTP spells it, of which nothing may be there.

        Raises as `ask`.
        """
        parameters = {"Key": key} | ({"Range": range_} if range_ else {})

        def once() -> bytes:
            try:
                body = self._once("get_object", parameters)["Body"]
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] == _PAST_THE_END:
                    return b""
                raise
            try:
                return bytes(body.read())
            except HTTPError as error:  # of which botocore takes only some for its own
                raise ResponseStreamingError(error=error) from error
            finally:
                body.close()

        return self._again(what, once)

    def _once(self, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = getattr(self._made(), operation)(Bucket=self.name, **parameters)
        return answer

    def _again(self, what: str, once: Callable[[], T]) -> T:
        left = _MORE_TRIES
        while True:
            try:
                return once()
            except StoreUnavailable:  # no key to sign with
                raise
            except Exception as error:
                failure = failure_of(error)
                if failure is None:
                    raise
                if failure.code or not left or self.gives_up():
                    raise failure.error(what) from error
                left -= 1

    def _made(self) -> Any:
        with self._making:
            if self._client is None:
                self._client = _client(self._settings, self._credentials)
                self._client.meta.events.register("before-send.s3", self._note_sent)
            return self._client

    def _note_sent(self, event_name: str, **_: Any) -> None:
        self.sent(xform_name(event_name.rpartition(".")[2]))


def following(what: str, page: Mapping[str, Any]) -> str:
    """Returns the place where a listing goes on after a page. Raises `StoreUnavailable`."""
    if "NextContinuationToken" not in page:
        raise StoreUnavailable(f"{what}: the server cut the list and gave no token")
    return str(page["NextContinuationToken"])


class _CurrentCredentials(BotocoreCredentials):  # type: ignore[misc]
    """Credentials for botocore, which asks for the current key before each signature."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__("", "")
        self._credentials = credentials

    def load_credentials(self) -> _CurrentCredentials:
        """Returns the credentials; botocore calls it first."""
        return self

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """The current key, which `Credentials` renews in time."""
        return self._credentials.read_only()


def _client(settings: S3Settings, credentials: Credentials) -> Any:
    session = botocore.session.Session(profile=settings.profile or None)
    session.register_component("data_loader", loader())
    session.register_component("credential_provider", _CurrentCredentials(credentials))
    return session.create_client(
        "s3",
        region_name=credentials.region,
        endpoint_url=settings.endpoint_url or None,
        config=Config(
            max_pool_connections=settings.max_connections,
            connect_timeout=settings.connect_timeout_seconds,
            read_timeout=settings.read_timeout_seconds,
            retries={"total_max_attempts": settings.attempts, "mode": "standard"},
            s3={"addressing_style": "path" if settings.path_style else "virtual"},
            response_checksum_validation="when_required",
            user_agent_extra="tailrace",
        ),
    )
