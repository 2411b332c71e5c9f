"""The credentials for S3: from keys, profile, role, environment or machine to a key that signs.

botocore finds the credentials and renews those that expire; a role is assumed with the
credentials that were found first. One `Credentials` serves the async client (`RenewedCredentials`)
and, by `frozen`, programs that need a plain key, such as Spark.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

import botocore.session
from aiobotocore.credentials import AioCredentials
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    DeferredRefreshableCredentials,
    ReadOnlyCredentials,
)
from botocore.exceptions import BotoCoreError, ClientError

from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import InvalidInput, StoreUnavailable
from tailrace.logstore.objects.s3.requests import failure_of
from tailrace.logstore.objects.s3.settings import S3Settings

_DEFAULT_REGION: Final = "us-east-1"
_FRESH_SECONDS: Final = 30.0
_HINT: Final = (
    "Set s3.access_key_id and s3.secret_access_key, s3.profile, or AWS_ACCESS_KEY_ID and its like."
)


@dataclass(frozen=True, slots=True)
class Frozen:
    """A key that signs now. Its repr shows no secret."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)


class Credentials:
    """The settings' credentials. Calls block: they may ask a role's server or the machine."""

    def __init__(self, settings: S3Settings, *, of: str = "s3", hint: str = _HINT) -> None:
        """`of` is the section that errors name. Raises `InvalidInput` for an unknown profile."""
        self._settings = settings
        self._of, self._hint = of, hint
        try:
            self._session = botocore.session.Session(profile=settings.profile or None)
            self._session.get_scoped_config()  # says now if there is no such profile
            self.region: str = (
                settings.region or self._session.get_config_variable("region") or _DEFAULT_REGION
            )
        except BotoCoreError as error:
            raise InvalidInput(f"{of}: {error}", hint=hint) from error
        secret = settings.secret_access_key.get_secret_value()
        if settings.access_key_id:
            token = settings.session_token.get_secret_value() or None
            self._session.set_credentials(settings.access_key_id, secret, token)
        self._found: Any = None

    def frozen(self) -> Frozen:
        """The current key. Raises `InvalidInput` if there is none, `StoreUnavailable`."""
        key = self.read_only()
        return Frozen(key.access_key, key.secret_key, key.token or "")

    def read_only(self) -> ReadOnlyCredentials:
        """The same as `frozen`, in botocore's shape."""
        try:
            if self._found is None:
                self._found = self._find()
            return self._found.get_frozen_credentials()
        except (BotoCoreError, ClientError) as error:
            failure = failure_of(error)
            assert failure is not None
            text = f"{self._of} credentials: {failure.message}"
            raise StoreUnavailable(text, hint=self._hint) from error

    def _find(self) -> Any:
        found = self._session.get_credentials()
        if found is None:
            text = f"there are no credentials for {self._of}"
            raise InvalidInput(text, field=self._of, hint=self._hint)
        return self._assumed(found) if self._settings.role_arn else found

    def _assumed(self, source: Any) -> Any:
        settings = self._settings
        extra = {
            "RoleSessionName": settings.role_session_name,
            "ExternalId": settings.role_external_id,
            "SourceIdentity": settings.role_source_identity,
        }
        fetcher = AssumeRoleCredentialFetcher(
            client_creator=self._sts_client,
            source_credentials=source,
            role_arn=settings.role_arn,
            extra_args={name: value for name, value in extra.items() if value},
        )
        return DeferredRefreshableCredentials(
            method="assume-role", refresh_using=fetcher.fetch_credentials
        )

    def _sts_client(self, service: str, **key: Any) -> Any:
        settings = self._settings
        return self._session.create_client(
            service,
            region_name=self.region,
            endpoint_url=settings.sts_endpoint_url or settings.endpoint_url or None,
            config=Config(
                connect_timeout=settings.connect_timeout_seconds,
                read_timeout=settings.read_timeout_seconds,
                retries={"total_max_attempts": settings.attempts, "mode": "standard"},
            ),
            **key,
        )


class RenewedCredentials(AioCredentials):  # type: ignore[misc]
    """Credentials for aiobotocore, which asks before each signature.

    A thread renews them in time.
    """

    def __init__(self, credentials: Credentials, clock: Clock) -> None:
        super().__init__("", "")
        self._credentials = credentials
        self._clock = clock
        self._frozen: ReadOnlyCredentials | None = None
        self._until = 0.0
        self._renewing = asyncio.Lock()

    async def load_credentials(self) -> RenewedCredentials:
        """Returns the credentials; aiobotocore calls it first."""
        return self

    async def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """The current key. botocore renews it minutes before its end, so half a minute is fresh."""
        if self._frozen is not None and self._clock.monotonic() < self._until:
            return self._frozen
        async with self._renewing:
            if self._frozen is None or self._clock.monotonic() >= self._until:
                self._frozen = await asyncio.to_thread(self._credentials.read_only)
                self._until = self._clock.monotonic() + _FRESH_SECONDS
        return self._frozen
