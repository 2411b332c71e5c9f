"""DuckDB on S3: the extension that its package brings, and a secret for one prefix.

Nothing is downloaded: `duckdb-extension-httpfs` carries the signed extension of exactly the
pinned DuckDB. Names are taken as they stand: patterns, and options behind a `?` that would
send a request and its signature to another server, are switched off. So is what the environment
says of S3. All settings are of the database, for a session has none of the others.

The secret holds the keys of the moment at which the database is opened, and signs requests
for the store's prefix only; a search is over long before they are renewed, and the next one
does not get a database of other keys than those of its own moment (`pool`).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import duckdb

from logstore.errors import Unavailable
from logstore.objects.s3.blocking import BlockingBucket
from logstore.objects.s3.credentials import Credentials
from logstore.objects.s3.settings import S3Settings
from service.query.process import ProcessConnection

_PACKAGE: Final = "duckdb_extension_httpfs"
_OF_THE_ENVIRONMENT: Final = (
    *("access_key_id", "secret_access_key", "session_token", "kms_key_id"),
    *("region", "endpoint", "use_ssl", "requester_pays"),
)

Get: TypeAlias = Callable[[str, str], bytes]
"""Gives an object by its `s3://` address: a range of it, as HTTP spells it, or all of it.

It raises `NotFound`, `StoreUnavailable`, and blocks.
"""


def extension_path() -> str:
    """The extension's file. Raises `Unavailable` if its package is not installed."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise Unavailable(
            "searches on S3 need DuckDB's httpfs extension",
            hint=f"Install duckdb-extension-httpfs=={duckdb.__version__}.",
        )
    folder = os.path.join(os.path.dirname(found.origin), "extensions", f"v{duckdb.__version__}")
    return os.path.join(folder, "httpfs.duckdb_extension")


@dataclass(frozen=True, slots=True)
class Bucket:
    """How searches read below `place`, an `s3://` address without a slash at its end.

    `silent`: whether the server is known not to answer.
    """

    place: str
    settings: S3Settings
    credentials: Credentials
    silent: Callable[[], bool] = lambda: False

    def key(self) -> Hashable:
        """The keys of now. Raises `StoreUnavailable`, `InvalidInput`."""
        return self.credentials.frozen()

    def reader(self) -> Get:
        """Reads without DuckDB, for several threads."""
        name, _, _ = self.place.removeprefix("s3://").partition("/")
        requests, root = BlockingBucket(self.settings, self.credentials, name), f"s3://{name}/"
        requests.gives_up = self.silent
        return lambda uri, range_: requests.get(f"get {uri}", uri.removeprefix(root), range_)

    def attach(self, connection: duckdb.DuckDBPyConnection | ProcessConnection) -> None:
        """Before the connection is locked. Raises `StoreUnavailable`, `InvalidInput`."""
        path = extension_path().replace("'", "''")
        connection.execute(f"LOAD '{path}'")
        for name in _OF_THE_ENVIRONMENT:  # which the secret leaves open if it is empty there
            connection.execute(f"RESET GLOBAL s3_{name}")
        connection.execute("SET GLOBAL s3_url_compatibility_mode = true")
        timeout, retries = self.settings.read_timeout_seconds, self.settings.attempts - 1
        connection.execute("SET GLOBAL http_timeout = $value", {"value": max(round(timeout), 1)})
        connection.execute("SET GLOBAL http_retries = $value", {"value": retries})
        pause = self.settings.backoff_milliseconds
        connection.execute("SET GLOBAL http_retry_wait_ms = $value", {"value": pause})
        connection.execute("SET GLOBAL http_retry_backoff = 2")
        wanted = self._secret()
        options = ", ".join(f"{name} ${name}" for name in wanted)
        connection.execute(f"CREATE SECRET store (TYPE s3, PROVIDER config, {options})", wanted)

    def _secret(self) -> dict[str, Any]:
        key = self.credentials.frozen()
        scheme, _, host = self.settings.endpoint_url.rstrip("/").partition("://")
        wanted: dict[str, Any] = {
            "scope": f"{self.place}/",
            "key_id": key.access_key_id,
            "secret": key.secret_access_key,
            "session_token": key.session_token,
            "region": self.credentials.region,
            "endpoint": host,
            "url_style": "path" if self.settings.path_style else "vhost",
        }
        return {name: value for name, value in wanted.items() if value} | {
            "use_ssl": scheme != "http"
        }
