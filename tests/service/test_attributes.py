"""What a client sends beside a message, from its POST to completion and search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import orjson

from tests.service.test_main import RUN, service, settings_for

NDJSON = {"Content-Type": "application/x-ndjson"}
RECORDS: list[dict[str, Any]] = [
    {"message": "a", "attributes": {"region": "eu", "a key": "1"}},
    {"message": "b", "attributes": {"region": "us"}},
    {"message": "c", "attributes": {"region": "eu"}},
    {"message": "d"},
]


async def compared(client: httpx.AsyncClient) -> None:
    """What completion lists is what a search finds."""
    listed = (await client.get("/query/fields", params={"from": "0"})).json()
    found = {field["name"]: field for field in listed["fields"]}
    assert found["attributes.region"] == {
        "name": "attributes.region",
        "records": 3,
        "kind": "text",
    }
    assert found['attributes."a key"']["records"] == 1
    asked = {"from": "0", "field": "attributes.region"}
    values = (await client.get("/query/values", params=asked)).json()["values"]
    assert [(value["value"], value["records"]) for value in values] == [("eu", 2), ("us", 1)]
    for query, messages in [
        ("attributes.region:eu", ["a", "c"]),
        ('attributes."a key":1', ["a"]),
        ("NOT attributes.region:*", ["d"]),
    ]:
        reply = await client.get("/query", params={"from": "0", "order": "asc", "q": query})
        records = [orjson.loads(line) for line in reply.content.splitlines()[:-1]]
        assert [record["message"] for record in records] == messages, query


async def test_attributes_are_listed_as_they_are_found(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    async with service(settings) as (client, _):
        body = b"".join(orjson.dumps(record) + b"\n" for record in RECORDS)
        assert (await client.post(RUN, content=body, headers=NDJSON)).status_code == 200
        await compared(client)  # in the journal
    assert list((tmp_path / "data" / "store" / "segments").rglob("*.parquet"))
    async with service(settings) as (client, _):
        await compared(client)  # in a segment
