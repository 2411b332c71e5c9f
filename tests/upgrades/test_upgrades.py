"""Data that earlier versions wrote: this one reads each line, adds to it, and finds no fault."""

from __future__ import annotations

import asyncio
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from service.settings import Settings
from tailrace.cli.doctor import Diagnosis, Examination
from tests.service.test_main import service
from tests.tailrace.verification.world import BASE, NODE, PLAIN, look
from tests.upgrades.make_data import FOLDER, RUNS

FILES = sorted(FOLDER.glob("data-*.tar.xz"))


def settings_for(data: Path) -> Settings:
    """Those of a service that lets nothing expire, since the files grow old."""
    sections: dict[str, Any] = {
        "server": {"port": 0},
        "compaction": {"enabled": False},
        "runs": {"expiration_days": 0, "close_wait_seconds": 100},
    }
    return Settings(data=str(data), node_id=NODE, **sections)


async def found(client: httpx.AsyncClient, words: str) -> list[str]:
    asked: dict[str, str | int]
    asked = {"q": words, "from": "0", "order": "asc", "limit": 10_000}
    lines = (await client.get("/query", params=asked)).text.splitlines()
    return [orjson.loads(line)["message"] for line in lines[:-1]]


def test_this_version_left_data_for_the_next_one() -> None:
    assert f"data-{version('tailrace')}.tar.xz" in [file.name for file in FILES]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
async def test_what_an_earlier_version_wrote_is_read_and_goes_on(
    file: Path, tmp_path: Path
) -> None:
    with tarfile.open(file) as tar:
        tar.extractall(tmp_path, filter="tar")
    texts = orjson.loads((tmp_path / "texts.json").read_bytes())
    assert texts.keys() == set(RUNS)
    settings = settings_for(tmp_path / "data")
    async with service(settings) as (client, _):
        for run, text in texts.items():
            assert (await client.get(f"{BASE}/{run}/download")).text == text, run
        for run in ("open", "late", "waiting"):
            (name,) = [each for each in RUNS if each.endswith(run)]
            assert await found(client, f"run:{run} {run}") == texts[name].splitlines()
        assert await found(client, "gone") == []
        answer = await client.post(f"{BASE}/p/open", content=b"from the next\n", headers=PLAIN)
        assert answer.status_code == 200
        assert (await client.post(f"{BASE}/p/open/close")).status_code == 200
        whole = (await client.get(f"{BASE}/p/open/download")).text
        assert whole == f"{texts['p/open']}from the next\n"
    findings: list[Diagnosis] = []
    await Examination(settings, findings.append).run()
    assert [one for one in findings if one.severity == "fault"] == []
    assert (await asyncio.to_thread(look, settings, tmp_path / "spill")).faults == []
