"""`GET /segments/{id}`: formats, lengths, ranges, ETags, and what was deleted."""

from __future__ import annotations

import io
from typing import Any

import httpx
import orjson
import pyarrow.parquet as pq
import pytest

from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.segments.reader import verify_segment
from tests.service.http.queue_client import NOW_MS, QueueClient, batch, queue_client

ONE, TWO = RunKey("svc.one", "r1"), RunKey("svc.two", "r2")
PARQUET = "application/vnd.apache.parquet"


async def mixed(queue: QueueClient) -> bytes:
    return await queue.put(
        "a",
        [
            batch(ONE, 1, b"one 1\none 2\n"),
            batch(TWO, 2, "zwei 1 \u00e4\n".encode()),
            batch(ONE, 3, b"one 3\n"),
        ],
    )


async def get(queue: QueueClient, name: str = "a-1", **headers: str) -> httpx.Response:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return await queue.client.get(f"/segments/{name}", headers=named)


def messages(body: bytes) -> list[str]:
    with pq.ParquetFile(io.BytesIO(body)) as file:
        return list(file.read().column("message").to_pylist())


async def test_parquet_is_what_is_stored_with_its_length_and_ranges() -> None:
    async with queue_client() as queue:
        body = await mixed(queue)
        whole = await get(queue, accept=PARQUET)
        assert whole.content == body
        assert int(whole.headers["content-length"]) == len(body)
        assert whole.headers["tailrace-rows"] == "4"
        assert verify_segment(whole.content).rows == 4
        part = await get(queue, accept=PARQUET, range="bytes=10-19")
        assert (part.status_code, part.content) == (206, body[10:20])
        assert part.headers["content-range"] == f"bytes 10-19/{len(body)}"
        etag = whole.headers["etag"]
        assert (await get(queue, accept=PARQUET, if_none_match=etag)).status_code == 304
        assert (await get(queue, accept=PARQUET, range="bytes=999999-")).status_code == 416
        other = await get(queue, accept=PARQUET, range="bytes=0-1", if_range='"other"')
        assert (other.status_code, other.content) == (200, body)
        given = await queue.next()
        assert etag == f'"{given["etag"]}"'


async def test_ndjson_and_text_in_order_of_ulid() -> None:
    async with queue_client() as queue:
        await mixed(queue)
        text = await queue.client.get("/segments/a-1?format=text")
        assert text.text == "one 1\none 2\nzwei 1 \u00e4\none 3\n"
        assert text.headers["content-type"] == "text/plain; charset=utf-8"
        records = [orjson.loads(line) for line in (await get(queue)).content.splitlines()]
        assert [(r["fqn"], r["run_id"], r["message"]) for r in records] == [
            ("svc.one", "r1", "one 1"),
            ("svc.one", "r1", "one 2"),
            ("svc.two", "r2", "zwei 1 \u00e4"),
            ("svc.one", "r1", "one 3"),
        ]
        assert [r["ulid"] for r in records] == sorted(r["ulid"] for r in records)
        assert set(records[0]) == {
            "ulid", "ts", "fqn", "run_id", "level", "connector_id", "pos", "message", "attributes",
        }  # fmt: skip


async def test_a_head_has_the_headers_and_no_body() -> None:
    async with queue_client() as queue:
        body = await mixed(queue)
        head = await queue.client.head("/segments/a-1", headers={"accept": PARQUET})
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) == len(body)


@pytest.mark.parametrize(
    ("deletion", "left"),
    [
        (("svc.one", "r1", (NOW_MS << 80) | 1 << 25 | 1), ["zwei 1 \u00e4", "one 3"]),
        (("svc.one", None, (NOW_MS << 80) | 1 << 25), ["one 2", "zwei 1 \u00e4", "one 3"]),
        (("svc.two", None, NOW_MS + 1 << 80), ["one 1", "one 2", "one 3"]),
    ],
)
async def test_deleted_rows_are_in_no_format(deletion: Any, left: list[str]) -> None:
    async with queue_client() as queue:
        body = await mixed(queue)
        before = await get(queue, accept=PARQUET)
        queue.deletions.append(deletion)
        after = await get(queue, accept=PARQUET)
        assert messages(after.content) == left
        assert after.headers["etag"] != before.headers["etag"]
        assert int(after.headers["content-length"]) == len(after.content) != len(body)
        assert "tailrace-rows" not in after.headers
        part = await get(queue, accept=PARQUET, range="bytes=5-14")
        assert (part.status_code, part.content) == (206, after.content[5:15])
        text = await queue.client.get("/segments/a-1?format=text")
        assert text.text.splitlines() == left
        records = [orjson.loads(line) for line in (await get(queue)).content.splitlines()]
        assert [r["message"] for r in records] == left


async def test_a_deletion_elsewhere_leaves_the_bytes_as_they_are() -> None:
    async with queue_client() as queue:
        body = await mixed(queue)
        queue.deletions += [("svc.one", "other", 1 << 127), ("svc.one", "r1", 1)]
        assert (await get(queue, accept=PARQUET)).content == body


async def test_what_is_not_there_or_not_whole_is_a_problem() -> None:
    async with queue_client() as queue:
        body = await mixed(queue)
        for name in ("a-2", "b-1", "a-0", "a", "..%2F..-1", "a%2Fb-1"):
            answer = await get(queue, name)
            assert (answer.status_code, answer.json()["type"]) == (404, "not-found"), name
        await queue.store.put(keys.segment("a", 1), body[:-40])
        for kind in (PARQUET, "text/plain", "application/x-ndjson"):
            answer = await get(queue, accept=kind)
            assert (answer.status_code, answer.json()["type"]) == (500, "damaged")


async def test_a_changed_byte_is_a_problem_before_the_first_record() -> None:
    async with queue_client() as queue:
        body = bytearray(await mixed(queue))
        body[100] ^= 1
        await queue.store.put(keys.segment("a", 1), bytes(body))
        for kind in ("text/plain", "application/x-ndjson"):
            answer = await get(queue, accept=kind)
            assert (answer.status_code, answer.json()["type"]) == (500, "damaged")


async def test_consumers_learn_what_is_deleted_by_pages() -> None:
    async with queue_client() as queue:
        highest = [ulids.encode(n) for n in range(3)]
        queue.deletions += [("svc.b", None, 2), ("svc.a", "r2", 1), ("svc.a", "r1", 0)]
        whole = await queue.client.get("/segments/deletions")
        rows = [
            {"fqn": "svc.a", "run": "r1", "ulid": highest[0]},
            {"fqn": "svc.a", "run": "r2", "ulid": highest[1]},
            {"fqn": "svc.b", "run": None, "ulid": highest[2]},
        ]
        assert whole.json() == {"deletions": rows, "next": None}
        first = (await queue.client.get("/segments/deletions?limit=2")).json()
        assert first["deletions"] == rows[:2]
        params = {"limit": 2, "after": first["next"]}
        rest = (await queue.client.get("/segments/deletions", params=params)).json()
        assert rest == {"deletions": rows[2:], "next": None}
        known = {"if-none-match": whole.headers["etag"]}
        assert (await queue.client.get("/segments/deletions", headers=known)).status_code == 304
        queue.deletions.append(("svc.c", "r", 1))
        assert (await queue.client.get("/segments/deletions", headers=known)).status_code == 200
