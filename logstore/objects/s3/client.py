"""The client of S3, opened inside the running loop and closed with it.

It sends each request once; `logstore.objects.s3.requests` does the retries. This covers
aiohttp, which would silently send a PUT a second time when a kept connection breaks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final

import aioboto3
import aiobotocore.session
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from botocore.exceptions import BotoCoreError
from botocore.loaders import create_loader
from botocore.utils import determine_content_length

from logstore.clock import Clock
from logstore.errors import InvalidInput
from logstore.objects.s3.credentials import Credentials, Renewed
from logstore.objects.s3.settings import S3Settings

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
    session.register_component("data_loader", loader())
    session.register_component("credential_provider", Renewed(credentials, clock))
    try:
        made = aioboto3.Session(botocore_session=session).client(
            "s3",
            region_name=credentials.region,
            endpoint_url=settings.endpoint_url or None,
            config=_config(settings),
        )
        client = await made.__aenter__()
    except (BotoCoreError, ValueError) as error:
        raise InvalidInput(f"s3: {error}") from error
    client.meta.events.register("before-call.s3", _ask_leave_for_large_bodies)
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
