"""Who we are at DynamoDB, and whose clock counts there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from tailrace.coordination.dynamodb.store import credentials_of
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import InvalidInput, StoreUnavailable
from tailrace.logstore.retry import Tries
from tests.contracts.partition_acquire import SOURCE, got, put
from tests.coordination.dynamodb.tables import settings_of, standing
from tests.servers.dynamodb import DynamoDb
from tests.simulation.clocks import ShiftedClock

pytestmark = pytest.mark.dynamodb

ROLE = "arn:aws:iam::123456789012:role/SourceCoordinationTableRole"
_ASSUMED = b"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleResult><Credentials><AccessKeyId>TEMPORARYKEY</AccessKeyId>
<SecretAccessKey>temporary</SecretAccessKey><SessionToken>token</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult>
</AssumeRoleResponse>"""
_REFUSED = b"""<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code>
<Message>not authorized to perform sts:AssumeRole</Message></Error></ErrorResponse>"""


class Sts:
    """A server that gives out one role to who knows its external id."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                asked.append({name: values[0] for name, values in parse_qs(body).items()})
                known = asked[-1].get("ExternalId") == "theirs"
                answer = _ASSUMED if known else _REFUSED
                self.send_response(200 if known else 403)
                self.send_header("Content-Type", "text/xml")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """It says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sts]:
    found = Sts()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    port = found.server.server_address[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{port}")
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


async def test_a_role_is_assumed_with_its_external_id(dynamodb: DynamoDb, sts: Sts) -> None:
    settings = settings_of(dynamodb, sts_role_arn=ROLE, sts_external_id="theirs")
    frozen = credentials_of(settings).frozen()
    assert (frozen.access_key_id, frozen.session_token) == ("TEMPORARYKEY", "token")
    async with standing(settings) as store:
        await put(store, "a")
        assert (await got(store, "a")).key == "a"
    assert {(one["RoleArn"], one["ExternalId"]) for one in sts.asked} == {(ROLE, "theirs")}
    assert len(sts.asked) == 2, "one for each client, however many requests it makes"


async def test_a_role_that_is_refused_is_a_store_that_is_away(dynamodb: DynamoDb, sts: Sts) -> None:
    settings = settings_of(dynamodb, sts_role_arn=ROLE)
    with pytest.raises(StoreUnavailable, match="AssumeRole") as caught:
        async with standing(settings, tries=Tries(2, 0.001)):
            pass
    assert "sts_role_arn" in caught.value.hint
    assert sts.asked


async def test_without_credentials_the_start_says_so(
    dynamodb: DynamoDb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(InvalidInput, match="no credentials for dynamodb") as caught:
        async with standing(settings_of(dynamodb)):
            pass
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


async def test_a_server_that_is_not_there_is_a_store_that_is_away() -> None:
    settings = settings_of(DynamoDb("http://127.0.0.1:9"))
    with pytest.raises(StoreUnavailable):
        async with standing(settings, tries=Tries(2, 0.001)):
            pass


@pytest.mark.parametrize("skew_ms", [-3_600_000, 60_000, 0])
async def test_the_time_is_the_servers(dynamodb: DynamoDb, skew_ms: int) -> None:
    async with standing(settings_of(dynamodb), clock=ShiftedClock(skew_ms)) as store:
        before_ms = SystemClock().now_ms()
        least_ms, most_ms = store.time.at_least_ms(), store.time.at_most_ms()
        await put(store, "a")
        made_ms = (await got(store, "a", SOURCE)).created_ms
        after_ms = SystemClock().now_ms()
        assert least_ms <= after_ms
        assert before_ms <= most_ms
        assert before_ms - 30_000 <= made_ms <= after_ms, "no earlier than a slow answer may be"
