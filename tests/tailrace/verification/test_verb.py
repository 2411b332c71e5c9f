"""The verb: what it prints, its exit status, a service that runs meanwhile, and a store on S3."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from service.runtime.identity import DataFolder
from tailrace.cli.main import main
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.config import open_store
from tailrace.logstore.table.schema import ROW_GROUP_ROWS
from tailrace.logstore.table.table import open_table
from tests.reshaped import Reshape, with_column_mapping, with_deletion_vector
from tests.servers.minio import Bucket
from tests.tailrace.verification.world import (
    World,
    ingest,
    live,
    live_large,
    live_on,
    look,
    settings_for,
)


def test_a_sound_store(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--data", world.settings.data]) == 0
    compared, verdict = capsys.readouterr().out.splitlines()
    assert "1822 segment lines" in compared
    assert verdict == "no fault"


def test_a_fault_is_a_line_and_the_status(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    gone = world.segments()[1]
    gone.unlink()
    assert main(["verify", "--data", world.settings.data]) == 1
    first, *_, verdict = capsys.readouterr().out.splitlines()
    assert first.startswith("fault: segment-missing: segments/")
    assert verdict == "faults: 1 segment-missing"


def test_json(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.set_aside(2, "it was broken")
    assert main(["verify", "--data", world.settings.data, "--json", "--repair"]) == 0
    fault, last = map(orjson.loads, capsys.readouterr().out.splitlines())
    assert fault["kind"] == "segment-aside"
    assert fault["repaired"].startswith("brought back")
    assert last["summary"]["sound"]
    assert last["summary"]["repaired"] == {"segment-aside": 1}
    assert last["summary"]["compared"]["runs"] == 5


def test_repair_and_json_are_not_needed_to_refuse_a_file_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--config", str(tmp_path / "none.yaml")]) == 1
    assert "error: " in capsys.readouterr().err


def test_while_a_service_runs_the_store_alone_is_compared(world: World) -> None:
    holder = DataFolder(Disk(), world.settings.data, SystemClock(), system_entropy())
    found = world.look(repair=True)
    assert found.faults == []
    assert "a service holds" in found.findings.notes[0]
    assert "journal files" not in found.findings.compared
    holder.release()
    assert world.look().findings.notes == []


def test_files_of_an_older_layout_are_no_fault_and_are_told(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(live_large(world.settings))
    asyncio.run(ingest(world.store, world.table))
    (large,) = [file for file in world.table.snapshot().files if file.rows > ROW_GROUP_ROWS]
    count = len(world.table.snapshot().files)
    assert main(["verify", "--data", world.settings.data]) == 0
    note, *_, verdict = capsys.readouterr().out.splitlines()
    assert note.startswith(
        f"note: 1 of {count} table files, {large.size} bytes, are in the layout of an older version"
    )
    assert verdict == "no fault"


@pytest.mark.in_turn(3)
@pytest.mark.minio
def test_on_s3(bucket: Bucket, tmp_path: Path) -> None:
    place = bucket.settings
    settings = settings_for(tmp_path / "data", store=place.store, s3=place.s3)

    async def made() -> None:
        await live(settings)
        async with open_store(settings, SystemClock(), system_entropy(), Disk()) as store:
            await ingest(store, open_table(settings))
        await live_on(settings)

    asyncio.run(made())
    found = look(settings, tmp_path / "spill")
    assert found.faults == []
    assert found.findings.compared["table lines"] == 1820
    assert found.findings.compared["text lines"] == 1242

    async def damaged() -> None:
        async with open_store(settings, SystemClock(), system_entropy(), Disk()) as store:
            listed = [info.key async for info in store.list("")]
            segment = min(key for key in listed if key.startswith("segments/"))
            text = next(key for key in listed if key.endswith("p/closed/logs.txt"))
            body = (await store.get(segment))[1]
            await store.put(segment, body[:-40] + b"x" + body[-39:])
            lines = (await store.get(text))[1]
            await store.put(text, lines[:-4] + b"?" + lines[-3:])
            await store.delete([next(key for key in listed if key.endswith("-00000.parquet"))])

    asyncio.run(damaged())
    found = look(settings, tmp_path / "spill", repair=True)
    assert {"segment-damaged", "chunk-changed", "chunk-damaged"} <= found.kinds
    assert {"line-differs", "table-file-missing"} <= found.kinds
    assert "segment-aside" in look(settings, tmp_path / "spill").kinds


@pytest.mark.parametrize("change", [with_deletion_vector, with_column_mapping])
def test_a_table_of_another_shape_is_not_compared(
    world: World, capsys: pytest.CaptureFixture[str], change: Reshape
) -> None:
    change(Path(world.table.uri))
    for flags in ([], ["--repair"]):
        assert main(["verify", "--data", world.settings.data, *flags]) == 1
        said = capsys.readouterr()
        assert "has another shape and is not read" in said.err
        assert "A table of another shape" in said.err
        assert "no fault" not in said.out
