"""Pages, downloads, lists and deletion."""

from __future__ import annotations

import base64
import gzip
import re

import pytest

from service.ingest.batch import IncomingBatch
from tailrace.logstore.batch import RunKey
from tests.service.http.conftest import Serve, Served
from tests.service.http.memory_node import MemoryNode

KEY = RunKey("p", "r")


async def put(node: MemoryNode, text: bytes, key: RunKey = KEY) -> None:
    lines = text.count(b"\n")
    await node.append(IncomingBatch(key, text, lines, lines))


async def test_a_page_has_upstreams_shape_and_more(direct: Serve) -> None:
    served = await direct()
    await put(served.node, b"a\n\nc\xc3\xbc\n")
    page = (await served.get("/p/r?limit=2")).json()
    assert page == {
        "logs": "a\n",
        "after": "2",
        "total": 3,
        "totalLines": 3,
        "totalBytes": 7,
        "state": "open",
        "streaming": True,
        "before": None,
    }
    rest = (await served.get("/p/r?after=2")).json()
    assert (rest["logs"], rest["after"]) == ("cü", None)
    await served.node.close_run(KEY)
    closed = (await served.get("/p/r?offset=2")).json()
    assert (closed["total"], closed["logs"], "streaming" in closed) == (7, "cü", False)


async def test_a_run_that_never_was_is_an_empty_page(direct: Serve) -> None:
    served = await direct()
    await put(served.node, b"x\n", RunKey("p", "other"))
    page = (await served.get("/p/r")).json()
    assert (page["logs"], page["after"], page["total"]) == ("", None, 0)
    missing = await served.get("/p/r/download")
    assert (missing.status_code, missing.json()["type"]) == (404, "not-found")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?limit=0", "limit"),
        ("?limit=x", "limit"),
        ("?tail=-1", "tail"),
        ("?after=1&tail=2", "after"),
        ("?before=1&after=2", "after"),
    ],
)
async def test_bad_parameters_are_named(direct: Serve, query: str, field: str) -> None:
    served = await direct()
    response = await served.get("/p/r" + query)
    assert response.status_code == 400
    assert response.json()["field"] == field
    assert response.json()["hint"]


async def test_pages_backwards(direct: Serve) -> None:
    served = await direct()
    await put(served.node, b"".join(b"%d\n" % i for i in range(10)))
    assert (await served.get("/p/r?tail=3")).json()["logs"] == "7\n8\n9"
    assert (await served.get("/p/r?before=7&limit=2")).json()["logs"] == "5\n6"
    assert (await served.get("/p/r?before=nonsense")).json()["type"] == "invalid-cursor"


async def test_a_cursor_that_nobody_gave_out_is_the_start(direct: Serve) -> None:
    """As upstream: empty or not a number."""
    served = await direct()
    await put(served.node, b"a\nb\n")
    for query in ("?after=nonsense", "?after=", "?offset=x", "?after=-1"):
        assert (await served.get("/p/r" + query)).json()["logs"] == "a\nb"


async def test_a_page_is_compressed_for_who_asks(direct: Serve) -> None:
    """As upstream's client unpacks it: base64 of gzip."""
    served = await direct()
    await put(served.node, "ü\n".encode())
    page = (await served.get("/p/r?compressed=true")).json()
    assert page["compressed"] is True
    assert gzip.decompress(base64.b64decode(page["logs"])).decode() == "ü"
    assert "compressed" not in (await served.get("/p/r")).json()


async def test_a_pipeline_that_never_was_is_not_found(direct: Serve) -> None:
    served = await direct()
    for path in ("/p/r", "/p", "/p/last", "/p/last/download", "/p/r/download"):
        missing = await served.get(path)
        assert (missing.status_code, missing.json()["code"]) == (404, 404)
        assert missing.json()["message"]


async def closed_run(serve: Serve, text: bytes) -> Served:
    served = await serve()
    await put(served.node, text)
    await served.node.close_run(KEY)
    return served


TEXT = b"".join(b"line %d\n" % i for i in range(1000))
IDENTITY = {"accept_encoding": "identity"}


async def test_a_download_is_the_text(direct: Serve) -> None:
    served = await closed_run(direct, TEXT)
    response = await served.get("/p/r/download", **IDENTITY)
    assert response.content == TEXT
    assert response.headers["content-length"] == str(len(TEXT))
    assert response.headers["etag"] == f'"e{len(TEXT)}"'
    assert response.headers["content-disposition"] == 'attachment; filename="p_r.txt"'
    head = await served.client.head(str(response.url), headers={"accept-encoding": "identity"})
    assert (head.content, head.headers["content-length"]) == (b"", str(len(TEXT)))


async def test_a_download_is_compressed_on_request(direct: Serve) -> None:
    served = await closed_run(direct, TEXT)
    response = await served.get("/p/r/download", accept_encoding="gzip")
    assert response.headers["content-encoding"] == "gzip"
    assert response.content == TEXT
    assert response.headers["etag"].endswith('-gzip"')
    refused = await served.get("/p/r/download", accept_encoding="gzip;q=0")
    assert "content-encoding" not in refused.headers


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=5-9", 5, 9),
        ("bytes=8000-", 8000, len(TEXT) - 1),
        ("bytes=-7", len(TEXT) - 7, len(TEXT) - 1),
        ("bytes=-999999", 0, len(TEXT) - 1),
        ("bytes=10-999999", 10, len(TEXT) - 1),
    ],
)
async def test_a_range_gives_its_bytes(direct: Serve, asked: str, first: int, last: int) -> None:
    served = await closed_run(direct, TEXT)
    response = await served.get("/p/r/download", range=asked)
    assert response.status_code == 206
    assert response.content == TEXT[first : last + 1]
    assert response.headers["content-range"] == f"bytes {first}-{last}/{len(TEXT)}"


@pytest.mark.parametrize("asked", ["bytes=9-5", "lines=1-2", "bytes=0-1,4-5", "bytes=-", "x"])
async def test_a_range_that_is_none_gives_everything(direct: Serve, asked: str) -> None:
    served = await closed_run(direct, TEXT)
    response = await served.get("/p/r/download", range=asked, **IDENTITY)
    assert (response.status_code, response.content) == (200, TEXT)


@pytest.mark.parametrize("asked", [f"bytes={len(TEXT)}-", "bytes=-0"])
async def test_a_range_past_the_end_is_refused(direct: Serve, asked: str) -> None:
    served = await closed_run(direct, TEXT)
    response = await served.get("/p/r/download", range=asked)
    assert response.status_code == 416
    assert response.headers["content-range"] == f"bytes */{len(TEXT)}"
    assert response.json()["code"] == 416


async def test_validators_decide(direct: Serve) -> None:
    served = await closed_run(direct, TEXT)
    etag = f'"e{len(TEXT)}"'
    assert (await served.get("/p/r/download", if_none_match=etag)).status_code == 304
    assert (await served.get("/p/r/download", if_none_match='"old"')).status_code == 200
    with_range = {"range": "bytes=0-1"}
    assert (await served.get("/p/r/download", if_range=etag, **with_range)).status_code == 206
    assert (await served.get("/p/r/download", if_range='"old"', **with_range)).status_code == 200


async def test_an_open_run_downloads_whole_and_by_ranges_of_what_is_stored(serve: Serve) -> None:
    served = await serve()
    await put(served.node, TEXT)
    response = await served.get("/p/r/download", **IDENTITY)
    assert response.content == TEXT
    assert "etag" not in response.headers
    part = await served.get("/p/r/download", range="bytes=1-")
    stored = len(TEXT) // 2
    assert part.headers["content-range"] == f"bytes 1-{stored - 1}/*"
    assert part.content == TEXT[1:stored]


async def test_a_range_of_a_run_of_which_nothing_is_stored_gives_everything(
    direct: Serve,
) -> None:
    served = await direct()
    await put(served.node, b"\n")
    response = await served.get("/p/r/download", range="bytes=0-", **IDENTITY)
    assert (response.status_code, response.content) == (200, b"\n")


async def test_a_large_download_survives_gzip_over_the_wire(serve: Serve) -> None:
    served = await closed_run(serve, TEXT * 20)
    async with served.client.stream(
        "GET",
        "/api/v1/services/ingestionPipelines/logs/p/r/download",
        headers={"accept-encoding": "gzip"},
    ) as response:
        packed = b"".join([piece async for piece in response.aiter_raw()])
    assert gzip.decompress(packed) == TEXT * 20


async def test_lists_of_runs_and_pipelines(direct: Serve) -> None:
    served = await direct()
    for run in ("1", "2", "3"):
        await put(served.node, b"x\n", RunKey("a/b c", run))
    await put(served.node, b"y\n", RunKey("other", "1"))
    found = (await served.get("/a%2Fb%20c?limit=2")).json()
    assert found["runs"] == ["3", "2"]
    assert found["details"][0] == {
        "runId": "3",
        "state": "open",
        "outcome": None,
        "reported": None,
        "began": 1,
        "started": None,
        "ended": None,
        "took": 1,
        "tookFrom": "lines",
        "attempt": None,
        "lines": 1,
        "bytes": 2,
        "first": 1,
        "last": 2,
    }
    assert (await served.get("")).json() == {"pipelines": ["a/b c", "other"], "after": None}


@pytest.mark.parametrize("path", ["/a/b/r", "/a%2Fb/r"])
async def test_reading_takes_names_as_writing_does(direct: Serve, path: str) -> None:
    served = await direct()
    await served.post("/a/b/r", b"x", content_type="text/plain")
    assert (await served.get(path)).json()["logs"] == "x"
    assert (await served.get(path + "/download", **IDENTITY)).content == b"x\n"
    deleted = await served.client.delete("/api/v1/services/ingestionPipelines/logs" + path)
    assert deleted.json()["runs"] == ["r"]
    assert (await served.get(path)).status_code == 404


async def test_a_pipeline_is_deleted_with_all_runs(direct: Serve) -> None:
    served = await direct()
    for run in ("1", "2"):
        await put(served.node, b"x\n", RunKey("p", run))
    reply = await served.client.delete("/api/v1/services/ingestionPipelines/logs/p")
    assert sorted(reply.json()["runs"]) == ["1", "2"]
    assert (await served.get("/p")).status_code == 404


async def test_health_and_version(direct: Serve) -> None:
    node = MemoryNode()
    served = await direct(node)
    assert (await served.client.get("/health/live")).json()["status"] == "live"
    assert (await served.client.get("/health/ready")).json()["status"] == "ready"
    node.ready = False
    refused = await served.client.get("/health/ready")
    assert (refused.status_code, refused.json()["detail"]) == (503, "the node is starting")
    assert int(refused.headers["retry-after"]) > 0
    version = (await served.client.get("/api/v1/system/version")).json()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version["version"])


async def test_a_failure_nobody_foresaw_is_a_problem(direct: Serve) -> None:
    served = await direct()
    served.node.run_logs.failures.append(ZeroDivisionError())
    response = await served.get("/p/r")
    assert (response.status_code, response.json()["type"]) == (500, "internal")
