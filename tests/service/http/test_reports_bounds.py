"""Reports that would cost more than they are, or could be stored and not be given back."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest

from service.http.body import MAX_DEPTH, MAX_VALUES, parse_object
from service.settings import OpenMetadataSettings
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import InvalidInput
from tests.edited import edited
from tests.service.http.conftest import Serve, Served
from tests.service.http.memory_node import MemoryNode
from tests.settings import changed

ROOT = "/api/v1/services/ingestionPipelines"
KIND = {
    "status": ("PUT", f"{ROOT}/p/pipelineStatus"),
    "progress": ("PUT", f"{ROOT}/progress/p/r"),
    "metrics": ("POST", f"{ROOT}/metrics/p/r"),
}


def nested(depth: int) -> bytes:
    return b'{"runId":"r","x":' + b"[" * depth + b"]" * depth + b"}"


def wide(values: int) -> bytes:
    return b'{"runId":"r","x":[' + b"[]," * values + b"[]]}"


async def send(served: Served, kind: str, body: bytes) -> httpx.Response:
    method, url = KIND[kind]
    return await served.client.request(method, url, content=body)


async def stored(served: Served, kind: str) -> list[dict[str, Any]]:
    key = RunKey("p", "r")
    status = served.node.status
    if kind == "metrics":
        return [report.value for report in (await status.metrics(key)).reports]
    report = await (status.get(key) if kind == "status" else status.progress(key))
    return [] if report is None else [report.value]


@pytest.mark.parametrize("kind", KIND)
@pytest.mark.parametrize(
    "body",
    [nested(300), nested(MAX_DEPTH), wide(MAX_VALUES), nested(5000), b'{"runId":"r","x":"' + b"["],
)
async def test_what_is_nested_or_wide_is_refused_and_not_stored(
    direct: Serve, kind: str, body: bytes
) -> None:
    served = await direct()
    reply = await send(served, kind, body)
    assert (reply.status_code, reply.json()["type"]) == (400, "invalid-input")
    assert await stored(served, kind) == []


@pytest.mark.parametrize("kind", KIND)
async def test_what_is_within_the_bounds_comes_back_as_it_was(direct: Serve, kind: str) -> None:
    served = await direct()
    commas = '[{"' * 40_000 + '\\"' + ", " * 40_000
    value = {"runId": "r", "deep": orjson.loads(nested(MAX_DEPTH - 1))["x"], "text": commas}
    reply = await send(served, kind, orjson.dumps(value))
    assert reply.status_code == 200, reply.text
    assert await stored(served, kind) == [value]
    path = f"{ROOT}/p/pipelineStatus/r" if kind == "status" else f"{ROOT}/{kind}/p/r"
    found = (await served.client.get(path)).json()
    assert found == ({"data": [value]} if kind == "metrics" else value)


@pytest.mark.parametrize("state", [[], {}, [["running"]], 1, "x" * 100_000, ["running"] * 10_000])
async def test_a_state_that_is_none_is_refused(direct: Serve, state: object) -> None:
    served = await direct()
    body = orjson.dumps({"runId": "r", "pipelineState": state})
    reply = await send(served, "status", body)
    assert (reply.status_code, reply.json()["field"]) == (400, "pipelineState")
    assert len(reply.content) < 1000
    assert await stored(served, "status") == []


def test_brackets_inside_strings_are_no_structure() -> None:
    text = '[[{{\\"]}' * 50_000
    assert parse_object(orjson.dumps({"a": text})) == {"a": text}
    assert parse_object(b'{"a":"' + b"\\\\" * 1000 + b'"}') == {"a": "\\" * 1000}
    for wrong in (b'{"a":"\\"' + b"[" * 5000, b'"' + b"[" * 5000, b"[" * 5000, b"]" * 5000):
        with pytest.raises(InvalidInput):
            parse_object(wrong)


def _few(reply_bytes: int, cache_bytes: int) -> MemoryNode:
    return MemoryNode(
        openmetadata=changed(
            OpenMetadataSettings(), report_cache_bytes=cache_bytes, report_reply_bytes=reply_bytes
        )
    )


async def test_lists_of_reports_come_in_pages_of_so_many_bytes(direct: Serve) -> None:
    served = await direct(_few(100_000, 50_000))
    for number in range(12):
        value = {"runId": f"r{number}", "timestamp": number // 2, "text": "x" * 30_000}
        assert (await send(served, "status", orjson.dumps(value))).status_code == 200
        value = {"number": number, "text": "x" * 30_000}
        assert (await send(served, "metrics", orjson.dumps(value))).status_code == 200

    async def pages(path: str, query: str, name: str) -> list[Any]:
        found: list[Any] = []
        following = ""
        for _ in range(12):
            reply = await served.client.get(f"{path}?{query}{following}")
            assert reply.status_code == 200
            assert len(reply.content) < 110_000
            found += [entry[name] for entry in reply.json()["data"]]
            after = reply.json().get("paging", {}).get("next")
            if after is None:
                return found
            following = f"&next={after}"
        raise AssertionError("pages without end")

    listed = await pages(f"{ROOT}/p/pipelineStatus", "startTs=0", "runId")
    assert sorted(listed) == sorted(f"r{number}" for number in range(12))
    assert [int(run[1:]) // 2 for run in listed] == [5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0]
    assert await pages(f"{ROOT}/metrics/p/r", "", "number") == list(range(12))
    assert await pages(f"{ROOT}/metrics/p/r", "limit=5", "number") == list(range(12))


@pytest.mark.parametrize(
    "wrong", ["x", "1.x", "9" * 5000, f"{'9' * 5000}.{'0' * 26}", "1.8" + "Z" * 25]
)
async def test_a_page_that_nobody_named_is_refused(direct: Serve, wrong: str) -> None:
    served = await direct()
    for path in (f"{ROOT}/p/pipelineStatus", f"{ROOT}/metrics/p/r"):
        reply = await served.client.get(path, params={"next": wrong})
        assert reply.status_code == 400
        assert reply.json()["type"] in ("invalid-cursor", "invalid-input")


async def test_an_older_report_that_is_nested_deeply_still_reads(direct: Serve) -> None:
    """It was stored before there was a bound."""
    served = await direct()
    await send(served, "status", b'{"runId":"r"}')
    key = keys.run_report(keys.STATUS, RunKey("p", "r"))
    info, body = await served.node.store.get(key)
    await served.node.store.put(
        key, edited(body, value=orjson.loads(nested(240))), if_match=info.etag
    )
    assert (await served.client.get(f"{ROOT}/p/pipelineStatus/r")).content == nested(240)
    listed = await served.client.get(f"{ROOT}/p/pipelineStatus")
    assert listed.json()["data"] == [orjson.loads(nested(240))]
