"""Over HTTP: runs that OpenMetadata wrote, and runs of which only segments are left."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.service.test_main import PLAIN, RUN, service, settings_for

FQN = "my_service.pipeline"
ID = "6f1c0e5e-0d1f-4b7c-8f3a-2a2f3a3b4c5d"
LOGS = "/api/v1/services/ingestionPipelines/logs"
TEXT = b"a\r\n\xffb\n\nlast"


def upstream(folder: Path, name: str, body: bytes) -> Path:
    path = folder / "data/store/pipeline-logs/my_service_pipeline" / ID / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return path


async def test_what_openmetadata_wrote_is_served_as_our_own(tmp_path: Path) -> None:
    upstream(tmp_path, "partial.txt", TEXT)
    run = f"{LOGS}/{FQN}/{ID}"
    async with service(settings_for(tmp_path)) as (client, _):
        listed = (await client.get(f"{LOGS}/{FQN}")).json()
        assert listed["runs"] == [ID]
        assert listed["details"][0]["lines"] is None
        page = (await client.get(run)).json()
        assert page["logs"] == "a\r\n\N{REPLACEMENT CHARACTER}b\n\nlast"
        assert (page["total"], page["streaming"]) == (4, True)
        assert (await client.get(f"{run}/download")).content == TEXT + b"\n"
        last = await client.get(f"{LOGS}/{FQN}/last")
        assert last.json()["ingestion_task"] == page["logs"]
        assert (await client.post(run, content=b"ours\n", headers=PLAIN)).status_code == 200
        assert (await client.post(f"{run}/close")).json()["state"] == "closed"
        stream = await client.get(f"{LOGS}/{FQN}/stream/{ID}")
        assert "ours" in stream.text
        assert "event: complete" in stream.text
        lines = await client.get(f"{LOGS}/{FQN}/stream/{ID}", params={"format": "text"})
        assert "data: \N{REPLACEMENT CHARACTER}b\n" in lines.text
        page = (await client.get(run)).json()
        assert page["total"] == len(TEXT + b"\nours\n")
        assert "streaming" not in page


async def test_a_deleted_run_of_openmetadatas_is_gone(tmp_path: Path) -> None:
    text = upstream(tmp_path, "logs.txt", TEXT)
    run = f"{LOGS}/{FQN}/{ID}"
    async with service(settings_for(tmp_path)) as (client, _):
        assert (await client.get(run)).json()["logs"].endswith("last")
        assert (await client.delete(run)).status_code == 200
        assert (await client.get(f"{LOGS}/{FQN}")).json().get("runs", []) == []
    assert not text.exists()


@pytest.mark.repairs(reason="all but the segments is taken away")
async def test_only_segments_are_left(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    async with service(settings) as (client, _):
        assert (await client.post(RUN, content=b"a\nb\n", headers=PLAIN)).status_code == 200
    for folder in ("runs", "pipeline-logs", ".meta"):
        shutil.rmtree(tmp_path / "data" / "store" / folder)
    async with service(settings) as (client, _):
        assert (await client.get(RUN)).json()["logs"] == "a\nb"
        assert (await client.post(RUN, content=b"c\n", headers=PLAIN)).status_code == 200
        assert (await client.get(RUN)).json()["logs"] == "a\nb\nc"
        assert (await client.get(f"{RUN}/download")).content == b"a\nb\nc\n"
