"""A reply that cannot be read on ends its connection, and the log says so without a traceback."""

from __future__ import annotations

import httpx
import pytest

from logstore.errors import NodeNotReady
from tests.service.http.breaks_off import BreaksOff
from tests.service.http.conftest import RUNS, Serve
from tests.service.http.memory_node import MemoryNode


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
