"""Runs as ndjson over HTTP: the records that a search gives, at every stage of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tests.service.test_main import PLAIN, RUN, STREAM, service, settings_for

NDJSON = {"content-type": "application/x-ndjson"}
Record = dict[str, Any]


def parsed(text: str) -> tuple[list[Record], Record]:
    """Records, and the stats behind them."""
    *records, last = [json.loads(line) for line in text.rstrip("\n").split("\n")]
    return records, last["stats"]


async def searched(client: httpx.AsyncClient) -> list[Record]:
    found = await client.get("/query", params={"from": "0", "order": "asc"})
    return parsed(found.text)[0]


async def paged(client: httpx.AsyncClient, **parameters: str) -> list[Record]:
    records: list[Record] = []
    after: dict[str, str] = {}
    while True:
        given = {"format": "ndjson", "limit": "3", **parameters, **after}
        reply = await client.get(RUN, params=given)
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "application/x-ndjson"
        some, stats = parsed(reply.text)
        assert (stats["complete"], stats["records"]) == (True, len(some))
        records += some
        if stats["after"] is None:
            return records
        after = {"after": stats["after"]}


async def downloaded(client: httpx.AsyncClient, **parameters: str) -> list[Record]:
    given = {"format": "ndjson", **parameters}
    records, stats = parsed((await client.get(f"{RUN}/download", params=given)).text)
    assert (stats["complete"], stats["records"]) == (True, len(records))
    return records


async def streamed(
    client: httpx.AsyncClient, count: int, after: str | None = None
) -> list[tuple[str, Record]]:
    """The first `count` events of a live stream that has no line before them, with their ids."""
    found: list[tuple[str, Record]] = []
    given = {"format": "ndjson", "after": "0" if after is None else after}
    async with client.stream("GET", STREAM, params=given) as response:
        name = ""
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                name = line[4:]
            elif line.startswith("data: {"):
                found.append((name, json.loads(line[6:])))
                if len(found) == count:
                    break
    return found


async def send(client: httpx.AsyncClient, *records: Record, connector: str = "") -> None:
    body = "\n".join(json.dumps(record) for record in records)
    reply = await client.post(RUN, content=body, headers=NDJSON)
    assert reply.status_code == 200, connector


async def every_way_agrees(client: httpx.AsyncClient) -> None:
    expected = await searched(client)
    assert await paged(client) == expected
    assert await paged(client, order="ulid") == expected
    assert await downloaded(client) == expected
    assert await downloaded(client, order="ulid") == expected
    events = await streamed(client, len(expected))
    assert [record for _, record in events] == expected
    for number, (name, _) in enumerate(events[:-1]):
        again = await streamed(client, 1, after=name)
        assert again[0][1] == expected[number + 1]


async def test_each_record_is_what_a_search_says_unflushed_flushed_and_closed(
    tmp_path: Path,
) -> None:
    settings = settings_for(tmp_path, flush={"segment_seconds": 3600})
    async with service(settings) as (client, _):
        await client.post(
            RUN, content=b"2026-01-31 10:00:00 ERROR a\n  at b\nplain\n", headers=PLAIN
        )
        await send(
            client,
            {
                "message": "one\ntwo\n",
                "level": "warn",
                "ts": 1_770_000_000,
                "attributes": {"k": "v"},
            },
            {"message": "", "attributes": {"n": 1}},
            {"message": "\u2028 and \x7f", "level": "DEBUG"},
        )
        envelope = {"logs": "INFO of a connector\n", "connectorId": "c-1"}
        assert (await client.post(RUN, json=envelope)).status_code == 200
        assert len(await searched(client)) == 7
        await every_way_agrees(client)
        assert (await client.post(f"{RUN}/close")).status_code == 200
        await every_way_agrees(client)
        await send(client, {"message": "late\nagain", "level": "FATAL"})
        await every_way_agrees(client)
    async with service(settings) as (client, _):
        await every_way_agrees(client)


async def test_records_arrive_live(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        await client.post(RUN, content=b"first\n", headers=PLAIN)
        async with client.stream("GET", STREAM, params={"format": "ndjson"}) as response:
            lines = response.aiter_lines()
            data = [json.loads(line[6:]) async for line in _data(lines, 1)]
            await send(client, {"message": "a\nb", "level": "ERROR", "attributes": {"k": "v"}})
            data += [json.loads(line[6:]) async for line in _data(lines, 1)]
            await client.post(f"{RUN}/close")
            rest = [line async for line in lines]
        assert data == await searched(client)
        assert "event: complete" in rest


async def _data(lines: Any, count: int) -> Any:
    while count:
        line = await anext(lines)
        if line.startswith("data: {"):
            count -= 1
            yield line


async def test_what_openmetadata_wrote_is_records_too(tmp_path: Path) -> None:
    root = str(tmp_path / "data" / "store")
    store = LocalStore(root, Disk(), SystemClock(), system_entropy())
    text = b"2026-01-31 10:00:00 ERROR old\nsecond\n"
    await store.put("pipeline-logs/p/r/logs.txt", text)
    async with service(settings_for(tmp_path)) as (client, _):
        for _ in range(2):
            records = await paged(client)
            assert [record["message"] for record in records] == text.decode().splitlines()
            assert [record["level"] for record in records] == ["ERROR", None]
            assert records[0]["ts"] == "2026-01-31T10:00:00.000000Z"
            assert len({record["ulid"] for record in records}) == 2
            assert await downloaded(client, order="ulid") == records
            page = await client.get(RUN, params={"at": records[1]["ulid"], "format": "ndjson"})
            found, stats = parsed(page.text)
            assert (found, stats["line"]) == (records, 1)


async def test_text_in_the_order_of_producers(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        late, early = (await _fresh_ids(client))[:2]
        for name, text in ((early, "second\n"), (late, "first 1\nfirst 2\n")):
            headers = {**PLAIN, "tailrace-batch": name}
            assert (await client.post(RUN, content=text, headers=headers)).status_code == 200
        for _ in range(2):
            page = (await client.get(RUN, params={"order": "ulid"})).json()
            assert page["logs"] == "first 1\nfirst 2\nsecond"
            assert (page["after"], page["before"], page["totalLines"]) == (None, None, 3)
            first = (await client.get(RUN, params={"order": "ulid", "limit": "1"})).json()
            assert first["logs"] == "first 1"
            rest = {"order": "ulid", "after": first["after"]}
            assert (await client.get(RUN, params=rest)).json()["logs"] == "first 2\nsecond"
            whole = await client.get(f"{RUN}/download", params={"order": "ulid"})
            assert whole.text == "first 1\nfirst 2\nsecond\n"
            assert (await client.get(f"{RUN}/download")).text == "second\nfirst 1\nfirst 2\n"
            await client.post(f"{RUN}/close")


async def _fresh_ids(client: httpx.AsyncClient) -> list[str]:
    """Ids of batches of another run, the first one lowest."""
    other = RUN.removesuffix("/r") + "/other"
    return [
        (await client.post(other, content=b"x\n", headers=PLAIN)).json()["batch"] for _ in range(2)
    ]


async def test_what_cannot_be_is_refused_with_its_field(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        await client.post(RUN, content=b"a\n", headers=PLAIN)
        for path, parameters, field in (
            (STREAM, {"order": "ulid"}, "order"),
            (RUN, {"order": "time"}, "order"),
            (RUN, {"order": "ulid", "after": "1"}, "after"),
            (RUN, {"format": "ndjson", "after": "what"}, "cursor"),
            (RUN, {"format": "ndjson", "compressed": "true"}, "compressed"),
            (f"{RUN}/download", {"format": "parquet"}, "format"),
        ):
            reply = await client.get(path, params=parameters)
            assert (reply.status_code, reply.json()["field"]) == (400, field), path
        empty = await client.get(RUN.removesuffix("/r") + "/none", params={"format": "ndjson"})
        assert parsed(empty.text)[1]["state"] == "none"


@pytest.mark.parametrize("path", [RUN, f"{RUN}/download"])
async def test_accept_asks_for_records(tmp_path: Path, path: str) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        await client.post(RUN, content=b"a\nb\n", headers=PLAIN)
        reply = await client.get(path, headers={"accept": "application/x-ndjson"})
        assert [record["message"] for record in parsed(reply.text)[0]] == ["a", "b"]
        head = await client.head(path, headers={"accept": "application/x-ndjson"})
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == "application/x-ndjson"


async def test_what_cannot_be_read_is_said_and_no_record_is_left_out(tmp_path: Path) -> None:
    bad = keys.segment("other-node", 1)
    root = str(tmp_path / "data" / "store")
    store = LocalStore(root, Disk(), SystemClock(), system_entropy())
    await store.put(bad, b"no segment" * 99)
    async with service(settings_for(tmp_path)) as (client, _):
        await send(client, {"message": "a", "level": "ERROR"}, {"message": "b"})
        held = await client.get(RUN, params={"format": "ndjson"})
        assert (held.status_code, parsed(held.text)[1]["complete"]) == (200, True), "no need of it"
        assert (await client.post(f"{RUN}/close")).json()["state"] == "closed"
        for path in (RUN, f"{RUN}/download"):
            reply = await client.get(path, params={"format": "ndjson"})
            found, stats = parsed(reply.text)
            assert reply.status_code == 206
            assert [record["message"] for record in found] == ["a", "b"]
            assert (stats["complete"], stats["missing"]) == (False, [bad])
