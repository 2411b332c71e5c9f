"""Requests to a bucket that block their own thread: for readers that work outside an event loop.

botocore retries requests itself; a body that breaks off half-way is requested again here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import Any, Final, TypeVar

import botocore.session
from botocore import xform_name
from botocore.config import Config
from botocore.credentials import Credentials as BotocoreCredentials
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import ClientError, ResponseStreamingError
from urllib3.exceptions import HTTPError

from logstore.errors import StoreUnavailable
from logstore.objects.s3.client import loader
from logstore.objects.s3.credentials import Credentials
from logstore.objects.s3.errors import failure_of
from logstore.objects.s3.settings import S3Settings

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
    """Where a listing goes on behind a page that was cut. Raises `StoreUnavailable`."""
    if "NextContinuationToken" not in page:
        raise StoreUnavailable(f"{what}: the server cut the list and gave no token")
    return str(page["NextContinuationToken"])


class _Asked(BotocoreCredentials):  # type: ignore[misc]
    """Credentials for botocore, which asks for the current key before each signature."""

    def __init__(self, credentials: Credentials) -> None:
        super().__init__("", "")
        self._credentials = credentials

    def load_credentials(self) -> _Asked:
        """Returns the credentials; botocore calls it first."""
        return self

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """The current key, which `Credentials` renews in time."""
        return self._credentials.read_only()


def _client(settings: S3Settings, credentials: Credentials) -> Any:
    session = botocore.session.Session(profile=settings.profile or None)
    session.register_component("data_loader", loader())
    session.register_component("credential_provider", _Asked(credentials))
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
