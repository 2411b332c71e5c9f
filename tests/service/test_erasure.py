"""A deletion through its stages at one node, idle from then on; all bytes are looked at."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from service.erasure import DeletionState, Erasure
from tailrace.logstore import keys
from tailrace.logstore.table.snapshot import TableSnapshot
from tests.marker import holds
from tests.openmetadata.server import OTHER, RUN, Server, numbered, play
from tests.servers.minio import Bucket, Minio
from tests.service.test_main import PLAIN, service, settings_for
from tests.settings import changed

MARKER = "MARKER-44e0"


async def erasure_of(server: Server) -> DeletionState:
    node = server.node
    erasure = Erasure(
        server.disk_store,
        lambda: TableSnapshot("nowhere"),
        lambda: node.places,
        lambda: node.members.peers,
        lambda: (node.identity.node, *node.identity.parents),
        texts=keys.PREFIX,
    )
    return (await erasure.states(await erasure.deletions()))[0]


def marked(server: Server) -> list[str]:
    """The parts of the disk with the marker."""
    found = [path for path, body in server.fs.contents("/data") if holds(body, MARKER.encode())]
    return sorted({path.split("/")[3 if "/store/" in path else 2] for path in found})


def test_a_deleted_run_leaves_every_place_and_the_state_says_when() -> None:
    async def scenario(server: Server) -> None:
        await server.append(numbered(0, 50, MARKER))
        await server.append("kept\n", OTHER)
        await server.passes(minutes=5)
        await server.append(numbered(50, 60, MARKER))
        assert marked(server) != []
        await server.delete(RUN)
        one = await erasure_of(server)
        assert one.state != "erased"
        assert "the journal of this node" in one.left
        await server.passes(minutes=6)
        one = await erasure_of(server)
        assert [left.partition("/")[0] for left in one.left] == ["segments"] * len(one.left)
        assert one.left
        listed = server.disk_store.list(keys.SEGMENTS)
        await server.disk_store.delete([info.key async for info in listed])  # as the compactor
        assert marked(server) == []
        assert (await erasure_of(server)).state == "erased"
        assert await server.text(OTHER) == "kept\n"
        await server.restart()
        await server.passes(minutes=3)
        assert marked(server) == []
        assert (await erasure_of(server)).state == "erased"

    play(scenario)


def test_a_copy_of_damage_counts_until_somebody_removes_it() -> None:
    async def scenario(server: Server) -> None:
        await server.append("line\n")
        await server.delete(RUN)
        await server.passes(minutes=6)
        listed = server.disk_store.list(keys.SEGMENTS)
        await server.disk_store.delete([info.key async for info in listed])
        aside = "/data/journal/aside"
        server.fs.make_folders(aside)
        server.fs.open(f"{aside}/X-0.bin", "create").close()
        assert (await erasure_of(server)).left == (
            "copies of damage in journal/aside of this node",
        )
        server.fs.unlink(f"{aside}/X-0.bin")
        assert (await erasure_of(server)).state == "erased"

    play(scenario)


@pytest.mark.in_turn(3)
async def test_a_servers_disk_has_no_byte_of_a_deleted_run(minio: Minio, tmp_path: Path) -> None:
    """Not the objects are looked at, but the files in which the server keeps them."""
    bucket = minio.bucket()
    settings = changed(
        settings_for(tmp_path, flush={"segment_seconds": 0.2}, journal={"erase_seconds": 0.1}),
        store=bucket.settings.store,
        s3=bucket.settings.s3,
    )
    path = "/api/v1/services/ingestionPipelines/logs/shop.orders"
    async with service(settings) as (client, _):
        for run in ("gone", "kept"):
            text = f"{MARKER} of {run}\n".encode()
            assert (await client.post(f"{path}/{run}", content=text, headers=PLAIN)).is_success
            while (await client.post(f"{path}/{run}/close")).json()["state"] != "closed":
                pass
        assert {"pipeline-logs", "segments"} <= on_disk(minio, bucket, "gone")
        assert (await client.delete(f"{path}/gone")).status_code == 200
        async with bucket.open() as store:  # as the compactor, once the table has their lines
            await store.delete([info.key async for info in store.list(keys.SEGMENTS)])
        async with asyncio.timeout(60):
            while on_disk(minio, bucket, "gone"):
                await asyncio.sleep(0.1)
            while any(holds(file.read_bytes(), b"of gone") for file in journals(tmp_path)):
                await asyncio.sleep(0.1)
        assert "pipeline-logs" in on_disk(minio, bucket, "kept")
        assert (await client.get(f"{path}/kept")).json()["logs"] == f"{MARKER} of kept"


def on_disk(minio: Minio, bucket: Bucket, run: str) -> set[str]:
    """The parts of the store with the text of the run; the server's trash is its own."""
    found, folder = set[str](), Path(minio.folder, bucket.name)
    for file in folder.rglob("*"):
        try:
            body = file.read_bytes() if file.is_file() else b""
        except FileNotFoundError:  # it was just removed
            continue
        if f"{MARKER} of {run}".encode() in body:
            found.add(file.relative_to(folder).parts[1])
    return found


def journals(folder: Path) -> list[Path]:
    return [file for file in (folder / "data" / "journal").iterdir() if file.is_file()]
