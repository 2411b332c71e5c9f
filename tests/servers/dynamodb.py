"""DynamoDB Local for tests: fetched by Maven, started once for the run, killed at its end.

Its jars go into the user's cache, once for a machine. It keeps tables in memory, checks
no signature, and knows conditions, indexes, limits and TTL as AWS does; indexes at once.

    @pytest.mark.dynamodb
    async def test_it(dynamodb: DynamoDb) -> None:
        client = dynamodb.client()
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import boto3

from tailrace.logstore.java import find_java, why_no_java
from tests.servers.cached import cache_folder, why_not_fetched
from tests.servers.ports import free_port

VERSION = "2.6.1"
REGION = "us-east-1"
ACCESS_KEY, SECRET_KEY = "tailracetests", "tailrace-tests-secret"
START_SECONDS = 180
_MAIN = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"
_POM = f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>tailrace</groupId><artifactId>tests</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>com.amazonaws</groupId><artifactId>DynamoDBLocal</artifactId>
    <version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""


@cache
def why_no_dynamodb() -> str | None:
    """Why DynamoDB Local cannot be had here; None if it can. Fetches it if need be."""
    reason = why_no_java()
    if reason is not None or _jars().is_dir():
        return reason
    if shutil.which("mvn") is None:
        return "no Maven found to fetch it"

    def copied(made: Path) -> list[str]:
        (made.parent / "pom.xml").write_text(_POM)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        return ["mvn", "-q", "-B", *goal, f"-DoutputDirectory={made}"]

    return why_not_fetched(_jars(), f"DynamoDB Local {VERSION}", copied)


def _jars() -> Path:
    return cache_folder(f"dynamodb-local-{VERSION}")


class DynamoDb:
    """A running server."""

    def __init__(self, endpoint_url: str) -> None:
        self.endpoint_url = endpoint_url
        self._tables = 0

    def table_name(self) -> str:
        """A name that no table had."""
        self._tables += 1
        return f"tailrace-{self._tables:05d}"

    def client(self) -> Any:
        """boto3's, to look behind the store's back. Its caller closes it."""
        return boto3.client(
            "dynamodb",
            endpoint_url=self.endpoint_url,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )


@contextmanager
def running_dynamodb() -> Iterator[DynamoDb]:
    """A server without tables, as long as the block runs."""
    java, jars, port = find_java(), _jars(), free_port()
    assert java is not None
    with tempfile.TemporaryDirectory(prefix="tailrace-dynamodb-") as folder:
        # Serial collection and the quick compiler: it starts in half the time.
        small = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        classes = [f"-Dsqlite4java.library.path={jars}", "-cp", f"{jars}/*", _MAIN]
        told = ["-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(port)]
        with open(f"{folder}/log", "wb") as log:
            process = subprocess.Popen(
                [java, *small, *classes, *told],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            _wait(f"http://127.0.0.1:{port}", process, f"{folder}/log")
            yield DynamoDb(f"http://127.0.0.1:{port}")
        finally:
            process.kill()
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: str) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            with urlopen(url, timeout=5):
                return
        except HTTPError as error:  # it wants a signature: it is there
            error.close()
            return
        except (URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError(f"DynamoDB Local did not start: {Path(log).read_text()[-2000:]}")
