"""`tailrace deletions` at a real service, whose disk is searched for the deleted text."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.cli.main import main
from tests.marker import holds
from tests.service.test_main import service, settings_for

RUNS = "/api/v1/services/ingestionPipelines/logs"
PLAIN = {"content-type": "text/plain"}
MARKER = "MARKER-5e0d"


async def told(client: httpx.AsyncClient, *words: str) -> int:
    """The exit status of the verb; what it prints goes to this process's output."""
    url = str(client.base_url)
    return await asyncio.to_thread(main, ["deletions", "--url", url, *words])


def marked(folder: Path) -> set[str]:
    """The parts of the data folder that have the marker, whatever it is packed in."""
    parts = set()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        try:
            body = path.read_bytes()
        except FileNotFoundError:
            continue
        if holds(body, MARKER.encode()):
            parts.add(path.relative_to(folder).parts[0])
    return parts


async def test_they_are_erased_from_the_journal_of_an_idle_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(
        tmp_path,
        journal={"erase_seconds": 0.01},
        flush={"segment_seconds": 0.05},
        runs={"partial_flush_interval_minutes": 0.001},
    )
    async with service(settings) as (client, _):
        assert await told(client) == 0
        assert capsys.readouterr().out == "No deletions are recorded.\n"
        text = f"{MARKER}\n" * 20
        path = f"{RUNS}/shop.orders/gone"
        assert (await client.post(path, content=text, headers=PLAIN)).status_code == 200
        assert "journal" in marked(tmp_path / "data")
        assert (await client.delete(path)).status_code == 200

        async def row() -> dict[str, Any]:
            await told(client, "--json")
            found: dict[str, Any] = json.loads(capsys.readouterr().out)
            return found

        async with asyncio.timeout(120):
            while "the journal of this node" in (await row())["left"]:
                await asyncio.sleep(0.1)  # between two looks at what the service does
        found = await row()
        assert (found["fqn"], found["run"], found["state"]) == ("shop.orders", "gone", "purged")
        assert [left.partition("/")[0] for left in found["left"]] == ["segments"]
        assert marked(tmp_path / "data") == {"store"}, "in a segment that no table has"
        assert await told(client, "shop.orders") == 1
        line = capsys.readouterr().out
        assert "purged   shop.orders/gone  may be in: segments/" in line
        assert await told(client, "another.pipeline") == 0
        refused = await client.get("/deletions", params={"after": "nothing"})
        assert (refused.status_code, refused.json()["type"]) == (400, "invalid-cursor")
