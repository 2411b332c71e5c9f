"""While a node sheds, batches are refused whose clients send them again, and no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.metrics.declared import MetricSources
from service.metrics.scrape import METRICS
from tests.service.http.conftest import Serve, Served

MOVE_BY_SHEDDING = {"tailrace_appends_shed", "tailrace_shedding"}
PLAIN = {"content-type": "text/plain"}
BATCH = "01ARZ3NDEKTSV4RRFFQ6900000"


def shown(served: Served) -> dict[str, Any]:
    sources = cast("MetricSources", SimpleNamespace(http=served.counters, node=served.node))
    return {m.name: m.read(sources) for m in METRICS if m.name in MOVE_BY_SHEDDING}


@pytest.mark.parametrize("headers", [{"tailrace-durability": "durable"}, {"tailrace-batch": BATCH}])
async def test_a_client_that_sends_again_is_sent_elsewhere(
    serve: Serve, headers: dict[str, str]
) -> None:
    served = await serve()
    before = shown(served)
    await served.post("/p/r", "known\n", **PLAIN)
    served.node.shedding.active = True
    reply = await served.client.post(
        "/api/v1/services/ingestionPipelines/logs/p/r", content="a\n" * 9, headers=PLAIN | headers
    )
    assert (reply.status_code, reply.json()["type"]) == (429, "overloaded")
    assert reply.headers["retry-after"] == "1"
    assert "another node" in reply.json()["hint"]
    assert shown(served) == {name: value + 1 for name, value in before.items()}
    assert [batch.text for batch in served.node.batches] == [b"known\n"]


async def test_openmetadatas_clients_are_served_and_so_is_a_close(serve: Serve) -> None:
    served = await serve()
    served.node.shedding.active = True
    for _ in range(3):
        assert (await served.post("/p/r", "a\n", **PLAIN)).status_code == 200
    assert (await served.post("/p/r/close")).status_code == 200
    assert served.counters.shed == 0


async def test_all_are_served_again_afterwards(serve: Serve) -> None:
    served = await serve()
    for active, status in ((True, 429), (False, 200)):
        served.node.shedding.active = active
        reply = await served.post("/p/r", "a\n", tailrace_durability="bulk", **PLAIN)
        assert reply.status_code == status
