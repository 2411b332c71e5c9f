"""What somebody takes out of the store is counted: noticed, made again, or lost for good."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree

import pytest

from tests.service.metrics.test_moves import MOVE_BY_REPAIR
from tests.service.test_main import PLAIN, RUN, scrape, service, settings_for


@pytest.mark.repairs(reason="a chunk is taken away")
async def test_the_metrics_of_what_vanished(tmp_path: Path) -> None:
    store = tmp_path / "data" / "store"
    async with service(settings_for(tmp_path)) as (client, _):
        for run in (RUN, RUN + "2"):
            await client.post(run, content=b"a\nb\n", headers=PLAIN)
            assert (await client.post(run + "/close")).json()["state"] == "closed"
        before = await scrape(client)
    texts = store / "pipeline-logs" / "p"
    (texts / "r" / "logs.txt").unlink()
    rmtree(texts / "r2")
    (store / "runs" / "p" / "r2.json").unlink()
    async with service(settings_for(tmp_path)) as (client, _):
        for run in (RUN, RUN + "2"):
            answer = (await client.get(run)).json()
            assert answer.get("logs") == "a\nb", (run, answer)
        after = await scrape(client)
        rmtree(texts / "r")
        rmtree(store / "segments")
        await client.get(RUN)
        lost = await scrape(client)
    assert after["tailrace_chunks_vanished_total"] > before["tailrace_chunks_vanished_total"]
    assert after["tailrace_chunks_repaired_total"] > before["tailrace_chunks_repaired_total"]
    assert after["tailrace_runs_rebuilt_total"] > before["tailrace_runs_rebuilt_total"]
    assert lost["tailrace_chunks_lost"] > after["tailrace_chunks_lost"] == 0
    assert after["tailrace_chunks_mended_total"] == after["tailrace_chunks_repaired_total"]
    assert after["tailrace_runs_remade_total"] == after["tailrace_runs_rebuilt_total"]
    assert {name.removesuffix("_total") for name in lost} >= MOVE_BY_REPAIR
