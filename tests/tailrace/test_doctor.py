"""`tailrace doctor` on set-ups that were broken on purpose: it finds each, and says what to do."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from service.peers.register import NodeEntry, encode_entry
from service.runtime.identity import UNFINISHED
from service.settings import Settings
from tailrace.cli.doctor import Diagnosis, Examination
from tailrace.cli.main import main
from tailrace.coordination.groups import ConsumerGroup, GroupStart, State, encode_group
from tailrace.logstore import keys
from tailrace.logstore.clock import Clock, SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.table.table import open_table
from tests.servers.minio import Bucket
from tests.servers.ports import free_port
from tests.servers.small_disks import small_disk
from tests.service.test_main import service
from tests.simulation.clocks import ShiftedClock

_SECRET = {"nodes": {"secret": "a-secret-of-all-nodes"}}
_NODE = "node-01-01KAYZ8Y5T9R3M2N1P0Q7S6V4W"
_INSTANCE = "01KAYZ8Y5T9R3M2N1P0Q7S6V4X"


def settings_for(folder: Path, **sections: Any) -> Settings:
    """Those of a service that is not there."""
    given: dict[str, Any] = {"data": str(folder / "data"), "compaction": {"enabled": False}}
    return Settings(**given | {"server": {"port": free_port()}} | sections)


def on(bucket: Bucket, folder: Path, **s3: str) -> Settings:
    """Those of a service on a bucket."""
    named = bucket.settings.s3.model_copy(update=s3)
    return settings_for(folder, store=bucket.settings.store, s3=named)


async def examine(settings: Settings, clock: Clock | None = None) -> list[Diagnosis]:
    found: list[Diagnosis] = []
    await Examination(settings, found.append, clock or SystemClock()).run()
    return found


def look(settings: Settings, clock: Clock | None = None) -> list[Diagnosis]:
    return asyncio.run(examine(settings, clock))


def bad(found: Sequence[Diagnosis]) -> list[Diagnosis]:
    return [one for one in found if one.severity != "ok"]


def faults(found: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Without warnings: how fast and how full the disk is, is the machine's."""
    return [one for one in found if one.severity == "fault"]


def expect(found: Sequence[Diagnosis], area: str, severity: str, finding: str, advice: str) -> None:
    """One of them is this one; both texts are patterns."""
    assert any(
        (one.area, one.severity) == (area, severity)
        and re.search(finding, one.finding)
        and re.search(advice, one.advice)
        for one in found
    ), bad(found)


def store_of(settings: Settings) -> LocalStore:
    return LocalStore(settings.store_folder, Disk(), SystemClock(), system_entropy())


async def ready(client: httpx.AsyncClient) -> None:
    while not (await client.get("/health/ready")).is_success:
        await asyncio.sleep(0.02)


# --- what is sound --------------------------------------------------------------------------------


async def test_a_running_service_is_sound_and_stays_as_it_is(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, node_id="node-01", **_SECRET)
    async with service(settings) as (client, _):
        await ready(client)
        found = await examine(settings)
        assert faults(found) == []
        assert {one.area for one in found} >= {"disk", "service", "store", "peers", "queue"}
        assert any(one.finding.endswith("is ready") for one in found)
        assert [path for path in tmp_path.rglob("*") if re.search("doctor|probe", path.name)] == []


def test_nothing_is_made_where_nothing_is(tmp_path: Path) -> None:
    assert faults(look(settings_for(tmp_path))) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.minio
def test_a_bucket_is_sound_and_stays_empty(bucket: Bucket, tmp_path: Path) -> None:
    assert faults(look(on(bucket, tmp_path))) == []
    client = bucket.client()
    assert client.list_objects_v2(Bucket=bucket.name)["KeyCount"] == 0
    client.close()


# --- settings, process, Java ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "finding"),
    [
        ("server: {port: [8790", "cannot be read"),
        ("server: {prot: 8790}", "server.prot"),
        ("server: {host: 0.0.0.0}", "no rules of access"),
    ],
)
def test_settings_that_do_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, finding: str
) -> None:
    file = tmp_path / "tailrace.yaml"
    file.write_text(content)
    assert main(["doctor", "--config", str(file), "--json"]) == 1
    first, summary = map(orjson.loads, capsys.readouterr().out.splitlines())
    assert (first["area"], first["severity"]) == ("settings", "fault")
    assert finding in first["finding"]
    assert first["advice"]
    assert summary == {"summary": {"faults": 1, "warnings": 0}}


def test_rules_of_access_that_do_not_read(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("tokens: 7")
    settings = settings_for(tmp_path, access={"rules": str(tmp_path / "rules.yaml")})
    expect(look(settings), "access", "fault", "rules.yaml", ".")


def test_too_few_descriptors_in_a_process_of_its_own(tmp_path: Path) -> None:
    """And no Java, and what a person reads."""
    few = ["sh", "-c", 'ulimit -n 512; exec "$@"', "sh", sys.executable, "-m", "tailrace"]
    done = subprocess.run(
        [*few, "doctor", "--data", str(tmp_path / "data")],
        env={**os.environ, "JAVA_HOME": "/nowhere", "TAILRACE_SERVER__PORT": str(free_port())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    for finding in (
        r"^fault: process: it may open 512 files.*\n  do: .*LimitNOFILE",
        r"^warning: java: .*JAVA_HOME is /nowhere.*\n  do: Install",
    ):
        assert re.search(finding, done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"\n1 fault, \d+ warnings?\n$", done.stdout)


# --- disks ----------------------------------------------------------------------------------------


@pytest.mark.small_disks
def test_a_read_only_folder(tmp_path: Path) -> None:
    with small_disk(tmp_path / "data") as disk:
        disk.make_read_only()
        expect(look(settings_for(tmp_path)), "disk", "fault", "Read-only", "mount it for writing")


@pytest.mark.small_disks
def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "data") as disk:
        disk.fill()
        expect(look(settings_for(tmp_path)), "disk", "fault", "No space left", "Make room")


@pytest.mark.small_disks
def test_a_disk_with_too_little_room_for_a_batch(tmp_path: Path) -> None:
    with small_disk(tmp_path / "data"):
        expect(look(settings_for(tmp_path)), "disk", "fault", "nearly full", "Make room: 64 MiB")


@pytest.mark.small_disks
def test_a_disk_without_inodes(tmp_path: Path) -> None:
    with small_disk(tmp_path / "data", inodes=16) as disk:
        disk.fill_inodes()
        expect(look(settings_for(tmp_path)), "disk", "fault", "no inode", "more inodes")


def test_a_data_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    expect(look(settings_for(tmp_path)), "disk", "fault", "is a file", "another folder")


def test_a_restore_that_did_not_end(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / UNFINISHED).touch()
    expect(look(settings_for(tmp_path)), "disk", "fault", "did not end", "tailrace restore")


def test_an_identity_that_does_not_read(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "node.json").write_text("{}")
    expect(look(settings_for(tmp_path)), "disk", "fault", "node.json", "Restore the file")


def test_a_folder_of_another_node(tmp_path: Path) -> None:
    async def both() -> list[Diagnosis]:
        settings = settings_for(tmp_path, node_id="node-01")
        async with service(settings):
            pass
        return await examine(settings.model_copy(update={"node_id": "node-02"}))

    expect(asyncio.run(both()), "disk", "warning", "holds the node node-01", "its own folder")


# --- the running service --------------------------------------------------------------------------


def test_another_program_at_the_port(tmp_path: Path) -> None:
    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi")
        await writer.drain()
        writer.close()

    async def both() -> list[Diagnosis]:
        async with await asyncio.start_server(hear, "127.0.0.1", 0) as other:
            port = other.sockets[0].getsockname()[1]
            return await examine(settings_for(tmp_path, server={"port": port}))

    expect(asyncio.run(both()), "service", "fault", "another program", "another server.port")


async def test_what_a_running_service_reports(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, node_id="node-01", **_SECRET)
    async with service(settings) as (client, _):
        await _register(settings, _NODE, f"http://127.0.0.1:{free_port()}")
        while not (await client.get("/health/ready")).json().get("problems"):
            await asyncio.sleep(0.05)  # it reads the register again
        found = await examine(settings)
    expect(found, "service", "fault", f"reports: the node {_NODE} is silent", "outages.md")


# --- the store ------------------------------------------------------------------------------------


@pytest.mark.minio
def test_a_wrong_key(bucket: Bucket, tmp_path: Path) -> None:
    settings = on(bucket, tmp_path, access_key_id="nobody")
    expect(look(settings), "store", "fault", "(?i)access key", "s3")


@pytest.mark.minio
def test_a_bucket_that_does_not_exist(bucket: Bucket, tmp_path: Path) -> None:
    settings = on(Bucket(bucket.endpoint_url, "nowhere"), tmp_path)
    expect(look(settings), "store", "fault", "nowhere", "bucket|store")


def test_a_store_that_does_not_answer(bucket_of_nobody: Bucket, tmp_path: Path) -> None:
    expect(look(on(bucket_of_nobody, tmp_path)), "store", "fault", "was not checked", ".")


@pytest.fixture
def bucket_of_nobody() -> Bucket:
    return Bucket(f"http://127.0.0.1:{free_port()}", "nowhere")


@pytest.mark.minio
def test_a_wrong_clock(bucket: Bucket, tmp_path: Path) -> None:
    found = look(on(bucket, tmp_path), ShiftedClock(3 * 3_600_000))
    expect(found, "clock", "fault", r"10(799|800|801) s ahead", "time service")


async def _register(settings: Settings, node: str, url: str) -> None:
    entry = NodeEntry(node, _INSTANCE, url, renewed_ms=SystemClock().now_ms())
    await store_of(settings).put(keys.peer(node, _INSTANCE), encode_entry(entry))


def test_a_peer_that_does_not_answer(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, **_SECRET)
    asyncio.run(_register(settings, _NODE, f"http://127.0.0.1:{free_port()}"))
    found = look(settings)
    expect(found, "peers", "fault", f"{_NODE} is silent: it cannot be", "leases forget-node")


def test_a_peer_that_hangs(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, nodes={**_SECRET["nodes"], "timeout_seconds": 0.2})
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        asyncio.run(_register(settings, _NODE, url))
        expect(look(settings), "peers", "fault", f"{_NODE} is silent: it gives no", "forget-node")


def test_a_node_without_the_secret_of_others(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    asyncio.run(_register(settings, _NODE, f"http://127.0.0.1:{free_port()}"))
    expect(look(settings), "peers", "fault", f"has more: {_NODE}", "nodes.secret")


async def test_two_nodes_with_one_name_and_one_with_another_secret(tmp_path: Path) -> None:
    store = {"store": str(tmp_path / "store"), "node_id": "node-01"}
    both = [settings_for(tmp_path / name, **store, **_SECRET) for name in ("a", "b")]
    async with AsyncExitStack() as stack:
        for settings in both:
            await ready((await stack.enter_async_context(service(settings)))[0])
        found = await examine(both[0])
        expect(found, "peers", "fault", "2 nodes have the name node-01", "node_id")
        other = settings_for(tmp_path / "c", **store, nodes={"secret": "another-secret-of-ours"})
        found = await examine(other)
        expect(found, "peers", "fault", "whose nodes.secret is not", "nodes.secret")


def test_a_damaged_table_log(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    open_table(settings).create()
    (entry,) = Path(settings.store_folder, keys.TABLE, "_delta_log").glob("*.json")
    entry.write_bytes(entry.read_bytes()[:40])
    found = look(settings)
    expect(found, "table", "fault", f"table-log-damaged: .*{entry.name}", "Put an intact version")


def test_groups_that_do_not_read_and_that_were_evicted(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    evicted = ConsumerGroup("siem", State.EVICTED, GroupStart.OLDEST, 0, 0, version=_INSTANCE)

    async def put() -> None:
        await store_of(settings).put(evicted.key, encode_group(evicted))
        await store_of(settings).put(keys.group("broken"), b"{")

    asyncio.run(put())
    found = look(settings)
    expect(found, "queue", "warning", "siem was evicted", "Reset the group")
    expect(found, "queue", "fault", "broken cannot be read", "tailrace verify")
