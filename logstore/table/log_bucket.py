"""The files of a table's log in a bucket, by a client that blocks only its own thread.

botocore retries requests itself; a body that breaks off half-way is requested again here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Final, TypeVar

import botocore.session
from botocore.config import Config
from botocore.credentials import Credentials as BotocoreCredentials
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import ResponseStreamingError
from urllib3.exceptions import HTTPError

from logstore.errors import StoreUnavailable
from logstore.objects.s3.client import loader
from logstore.objects.s3.credentials import Credentials
from logstore.objects.s3.errors import failure_of
from logstore.objects.s3.settings import S3Settings
from logstore.table.log_folder import LogFile, Look, commit_name

T = TypeVar("T")

_PAGE: Final = 1_000
_MORE_TRIES: Final = 3


@dataclass(slots=True)
class BucketLogFolder:
    """The files below `prefix`, which ends in `/`. The client is made at the first request."""

    settings: S3Settings
    credentials: Credentials
    bucket: str
    prefix: str
    _client: Any = None
    _making: Lock = field(default_factory=Lock)

    def list(self, start: str) -> Iterator[LogFile]:
        """As `LogFolder.list`, with a thousand files per request."""
        more = {"StartAfter": self.prefix + start}  # no name is just a version
        while True:
            page = self._ask("list the table's log", partial(self._page, more))
            for entry in page.get("Contents", []):
                name = entry["Key"][len(self.prefix) :]
                modified_ms = int(entry["LastModified"].timestamp() * 1000)
                yield LogFile(name, int(entry["Size"]), modified_ms, entry.get("ETag", ""))
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def get(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """As `LogFolder.get`."""
        end = "" if size is None else offset + size - 1
        wanted = {"Range": f"bytes={offset}-{end}"} if offset or size is not None else {}

        def once() -> bytes:
            answer = self._made().get_object(Bucket=self.bucket, Key=self.prefix + name, **wanted)
            try:
                return bytes(answer["Body"].read())
            except HTTPError as error:  # of which botocore takes only some for its own
                raise ResponseStreamingError(error=error) from error
            finally:
                answer["Body"].close()

        return self._ask(f"get {name} of the table's log", once)

    def look(self, version: int) -> Look:
        """As `LogFolder.look`, by one listing."""
        current, name, newer, rest = None, commit_name(version), False, []
        for file in self.list(f"{version:020}"):
            if file.name == name:
                current = file
            elif file.name[0].isdigit():
                newer = newer or file.name.endswith(".json")
                rest.append(file)
        return Look(current, newer, tuple(rest))

    def _page(self, more: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._made().list_objects_v2(
            Bucket=self.bucket, Prefix=self.prefix, MaxKeys=_PAGE, **more
        )
        return found

    def _ask(self, what: str, once: Callable[[], T]) -> T:
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
                if failure.code or not left:
                    raise failure.error(what) from error
                left -= 1

    def _made(self) -> Any:
        with self._making:
            if self._client is None:
                self._client = _client(self.settings, self.credentials)
            return self._client


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
            connect_timeout=settings.connect_timeout_seconds,
            read_timeout=settings.read_timeout_seconds,
            retries={"total_max_attempts": settings.attempts, "mode": "standard"},
            s3={"addressing_style": "path" if settings.path_style else "virtual"},
            response_checksum_validation="when_required",
            user_agent_extra="tailrace",
        ),
    )
