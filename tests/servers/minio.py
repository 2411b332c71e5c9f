"""Real servers for tests: MinIO, found or built, started once for the run, killed at its end.

MinIO is built by Go from a pinned version into the user's cache, once for a machine. It has
a key store, so that AES256 and aws:kms are taken, and the classes STANDARD and
REDUCED_REDUNDANCY. What tests store is gone with the run, so it is kept in memory where there
is room: each write to a disk is synced, which takes most of the time of a small put.

    @pytest.mark.minio
    async def test_it(bucket: Bucket) -> None:
        async with bucket.open() as store: ...
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import boto3

from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.config import StoreSettings, open_store
from tailrace.logstore.objects.s3.settings import S3Settings
from tailrace.logstore.objects.store import ObjectStore
from tests.servers.cached import TRIES, alone, cache_folder
from tests.servers.ports import free_port

MODULE = "github.com/minio/minio"
VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
KMS_KEY = "tailrace-key"
ACCESS_KEY, SECRET_KEY = "tailrace-tests", "tailrace-tests-secret"
START_SECONDS = 180
_MEMORY = "/dev/shm"
_MEMORY_BYTES = 4 << 30


@cache
def why_no_minio() -> str | None:
    """A sentence that says why MinIO cannot be had here; None if it can. Builds it if need be."""
    if find_minio() is not None:
        return None
    if shutil.which("go") is None:
        return "no Go found to build it"
    with alone(_cache()):
        return None if find_minio() is not None else _build()


def _build() -> str | None:
    module, folder = f"{MODULE}@{VERSION}", _cache()
    print(f"building {module}, once for this machine", file=sys.stderr, flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    # Built aside and renamed: this run may be killed.
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        for _ in range(TRIES):
            done = subprocess.run(
                # Nothing for debuggers: a sixth of the time.
                [*("go", "install", "-ldflags=-s -w", "-gcflags=all=-dwarf=false"), module],
                env={**os.environ, "GOBIN": aside, "CGO_ENABLED": "0"},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                break
        else:
            return f"go install failed: {done.stderr.strip()[-300:]}"
        os.replace(f"{aside}/minio", folder / "minio")
    return None


def find_minio() -> str | None:
    """The server's program: built earlier, or by `go install` of the same version."""
    built = _cache() / "minio"
    if built.is_file():
        return str(built)
    bin_ = os.environ.get("GOBIN") or os.path.join(
        os.environ.get("GOPATH") or os.path.expanduser("~/go"), "bin"
    )
    found = f"{bin_}/minio"
    if not os.path.isfile(found) or shutil.which("go") is None:
        return None
    about = subprocess.run(
        ["go", "version", "-m", found], capture_output=True, text=True, check=False
    )
    return found if VERSION in about.stdout else None


def _cache() -> Path:
    return cache_folder(f"minio-{VERSION}")


@dataclass(frozen=True)
class Bucket:
    """An empty place on a server: settings that name it, and a client of botocore's own.

    Of simple types, so that it can be sent to another process.
    """

    endpoint_url: str
    name: str
    prefix: str = ""
    s3: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> StoreSettings:
        """What a program would be told."""
        keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
        s3 = {"endpoint_url": self.endpoint_url, **keys, **self.s3}
        return StoreSettings(
            store=f"s3://{self.name}/{self.prefix}", s3=S3Settings.model_validate(s3)
        )

    @property
    def environment(self) -> dict[str, str]:
        """The same for a process."""
        found = {"TAILRACE_STORE": f"s3://{self.name}/{self.prefix}"}
        found["TAILRACE_S3__ENDPOINT_URL"] = self.endpoint_url
        found["TAILRACE_S3__ACCESS_KEY_ID"] = ACCESS_KEY
        found["TAILRACE_S3__SECRET_ACCESS_KEY"] = SECRET_KEY
        return found | {f"TAILRACE_S3__{name.upper()}": str(it) for name, it in self.s3.items()}

    def open(self) -> AbstractAsyncContextManager[ObjectStore]:
        """The store, for as long as the block runs."""
        return open_store(self.settings, SystemClock(), system_entropy(), Disk())

    def through(self, endpoint_url: str, **s3: Any) -> Bucket:
        """The same place by way of a proxy, or with other settings of the section `s3`."""
        return Bucket(endpoint_url, self.name, self.prefix, self.s3 | s3)

    def client(self) -> Any:
        """boto3's, to look behind the store's back. Its caller closes it."""
        return client_of(self.endpoint_url)


def client_of(endpoint_url: str) -> Any:
    """boto3's client of a server that tests started."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )


class Minio:
    """A running server. `bucket` makes a new one each time."""

    def __init__(self, endpoint_url: str, process: subprocess.Popen[bytes], folder: str) -> None:
        """`folder` is what it has on its disk."""
        self.endpoint_url = endpoint_url
        self.process = process
        self.folder = folder
        self._buckets = 0
        self._client = client_of(endpoint_url)

    def close(self) -> None:
        """Lets go of its connections."""
        self._client.close()

    def bucket(self, *, prefix: str = "store", **s3: Any) -> Bucket:
        """A bucket that nobody used; `s3` are settings of that section."""
        self._buckets += 1
        name = f"tailrace-{self._buckets:05d}"
        self._client.create_bucket(Bucket=name)
        return Bucket(self.endpoint_url, name, prefix, s3)


def memory_folder() -> str | None:
    """Where files are in memory, if enough fits there for a run of tests in several processes."""
    try:
        free = shutil.disk_usage(_MEMORY).free
    except OSError:
        return None
    return _MEMORY if free >= _MEMORY_BYTES and os.access(_MEMORY, os.W_OK) else None


@dataclass(frozen=True)
class Place:
    """Where a server runs: its address, and a command that runs another one there."""

    host: str = "127.0.0.1"
    within: tuple[str, ...] = ()


HERE = Place()


@contextmanager
def running_minio(within: str | None = None, place: Place = HERE) -> Iterator[Minio]:
    """A server with an empty disk, as long as the block runs: below `within`, else on the disk."""
    program = find_minio()
    assert program is not None, why_no_minio()
    with tempfile.TemporaryDirectory(prefix="tailrace-minio-", dir=within) as folder:
        address = f"{place.host}:{free_port()}"
        with open(f"{folder}/log", "wb") as log:
            process = subprocess.Popen(
                [
                    *place.within,
                    program,
                    "server",
                    "--quiet",
                    "--address",
                    address,
                    f"{folder}/data",
                ],
                env=_environment(folder),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            _wait(f"http://{address}", process, f"{folder}/log")
            minio = Minio(f"http://{address}", process, f"{folder}/data")
            try:
                yield minio
            finally:
                minio.close()
        finally:
            process.kill()
            process.wait()


def _environment(folder: str) -> dict[str, str]:
    key = base64.b64encode(bytes(range(32))).decode()
    return {
        "HOME": folder,
        "PATH": os.environ.get("PATH", ""),
        "MINIO_ROOT_USER": ACCESS_KEY,
        "MINIO_ROOT_PASSWORD": SECRET_KEY,
        "MINIO_KMS_SECRET_KEY": f"{KMS_KEY}:{key}",
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
        "MINIO_CI_CD": "1",  # takes a disk that is the system's
    }


def _wait(url: str, process: subprocess.Popen[bytes], log: str) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            with urlopen(f"{url}/minio/health/cluster", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError(f"MinIO did not start: {Path(log).read_text()[-2000:]}")
