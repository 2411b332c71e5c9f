"""Who we are on S3, as keys: for engines that sign their requests themselves (delta-rs, DuckDB).

They have chains of their own to find credentials, each a little different. Asking one chain
for all of them, botocore's, makes every engine the same somebody as the store: the given keys,
else a profile, the environment, a web identity, the container's or the machine's role; and
then a role that is assumed with those.

Temporary keys are renewed a quarter of an hour before they end, so keys are asked for anew
whenever a table or a database is opened. Finding them may take a request, so call it off the
loop; calls from several threads are safe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session

from logstore.errors import StoreUnavailable
from logstore.objects.s3_settings import S3Settings

DEFAULT_REGION: Final = "us-east-1"


@dataclass(frozen=True, slots=True)
class Keys:
    """What signs a request; `session_token` is empty for keys that last."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


KeySource: TypeAlias = "Callable[[], Keys]"
"""The keys of now. Raises `StoreUnavailable` if none are found."""


def key_source(settings: S3Settings) -> KeySource:
    """Where the keys of these settings come from; nothing is looked up before the first call."""
    found: list[Any] = []

    def keys() -> Keys:
        try:
            if not found:
                found.append(_credentials(settings))
            frozen = found[0].get_frozen_credentials()
        except (BotoCoreError, ClientError) as error:
            raise StoreUnavailable(f"no credentials for S3: {error}") from error
        return Keys(frozen.access_key, frozen.secret_key, frozen.token or "")

    return keys


def region_of(settings: S3Settings) -> str:
    """The bucket's region: the setting, else the environment's, else `us-east-1`."""
    if settings.region:
        return settings.region
    found = Session(profile=settings.profile or None).get_config_variable("region")
    return found or DEFAULT_REGION


def _credentials(settings: S3Settings) -> Any:
    session = Session(profile=settings.profile or None)
    if settings.access_key_id:
        secret, token = settings.secret_access_key, settings.session_token
        session.set_credentials(
            settings.access_key_id, secret.get_secret_value(), token.get_secret_value() or None
        )
    base = session.get_credentials()
    if base is None:
        raise StoreUnavailable(
            "no credentials for S3 are found",
            hint="Set s3.access_key_id and s3.secret_access_key, s3.profile, or AWS's variables.",
        )
    return _assumed(session, base, settings) if settings.role_arn else base


def _assumed(session: Any, base: Any, settings: S3Settings) -> Any:
    asked = {
        "RoleSessionName": settings.role_session_name,
        "ExternalId": settings.role_external_id,
        "SourceIdentity": settings.role_source_identity,
    }

    def client(*args: Any, **options: Any) -> Any:
        where = settings.sts_endpoint_url or settings.endpoint_url or None
        region = region_of(settings)
        return session.create_client(*args, region_name=region, endpoint_url=where, **options)

    fetcher = AssumeRoleCredentialFetcher(
        client_creator=client,
        source_credentials=base,
        role_arn=settings.role_arn,
        extra_args={name: value for name, value in asked.items() if value},
    )
    return DeferredRefreshableCredentials(fetcher.fetch_credentials, method="assume-role")
