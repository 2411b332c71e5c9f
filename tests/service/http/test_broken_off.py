"""A reply that cannot be read on ends its connection, and the log says so without a traceback."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import httpx
import pytest
import yaml

from tailrace.logstore.errors import NodeNotReady
from tests.service.http.breaks_off import BreaksOff
from tests.service.http.conftest import RUNS, Serve
from tests.service.http.memory_node import MemoryNode
from tests.waiting import PATIENCE_SECONDS

OPENAPI = Path(__file__).parents[3] / "openapi.yaml"


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_a_download_that_breaks_off_is_no_whole_reply(
    serve: Serve, encoding: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = NodeNotReady("the node goes on under another name since this was begun")
    served = await serve(MemoryNode(run_logs=BreaksOff(error)))
    text = "".join(f"line {number}\n" for number in range(1_000))
    assert (await served.post("/p/r", text, content_type="text/plain")).status_code == 200
    headers = {"accept-encoding": encoding}
    with pytest.raises(httpx.RemoteProtocolError):
        await served.client.get(f"{RUNS}/p/r/download", headers=headers)
    said = [record for record in caplog.records if "broke off" in record.getMessage()]
    assert [record.levelname for record in said] == ["WARNING"]
    assert all(record.exc_info is None for record in caplog.records)
    assert (await served.get("/p/r")).status_code == 200


def routes_with_bodies() -> list[tuple[str, str]]:
    """Method and path of every route that takes a body."""
    found: list[tuple[str, str]] = []
    for path, operations in yaml.safe_load(OPENAPI.read_text())["paths"].items():
        for method, operation in operations.items():
            if "requestBody" in operation:
                filled = re.sub(r"\{\w+\}", "r", path)
                found.append((method.upper(), filled))
    return found


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    served = await serve(MemoryNode())
    address = httpx.URL(served.url)
    # Searches are not part of this service.
    routes = [route for route in routes_with_bodies() if "/query" not in route[1]]
    assert len(routes) >= 4
    for method, path in routes:
        before = served.counters.disconnects
        _, writer = await asyncio.open_connection(address.host, address.port)
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f'{head}Content-Length: 100\r\n\r\n{{"half":'.encode())
        await writer.drain()
        await asyncio.sleep(0.05)  # the service has its head and half of its body
        writer.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while served.counters.disconnects == before:
                await asyncio.sleep(0.01)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert not {status for _, _, status in served.counters.request_seconds} & {"400", "500"}
