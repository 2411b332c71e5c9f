"""Every form of body and every bad input of the append route."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
import zstandard

from service.journal.format import decode_meta
from tailrace.logstore import errors
from tailrace.logstore.batch import RunKey
from tests.gzipped import gzipped
from tests.service.http.conftest import Serve
from tests.service.http.memory_node import MemoryNode

JSON = {"content_type": "application/json"}
PLAIN = {"content_type": "text/plain"}
NDJSON = {"content_type": "application/x-ndjson"}
BATCH = "01HZZZZZZZZZZZZZZZZZZ00000"


def packed(text: str) -> str:
    return base64.b64encode(gzipped(text.encode())).decode()


@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    ("body", "headers", "text"),
    [
        (b'"a\\nb\\n"', JSON, b"a\nb\n"),
        (b'"no newline"', {}, b"no newline\n"),
        (b'{"logs":"a\\r\\n\\nb"}', JSON, b"a\r\n\nb\n"),
        (json.dumps({"logs": packed("x\ny"), "compressed": True}).encode(), JSON, b"x\ny\n"),
        (b'{"logs":"a","compressed":false,"timestamp":1,"lineCount":2}', JSON, b"a\n"),
        (b"a\nb", PLAIN, b"a\nb\n"),
        (b"a\0b\n", {"content_type": "text/plain; charset=utf-8"}, b"a\0b\n"),
        (gzipped(b"z\n"), PLAIN | {"content_encoding": "gzip"}, b"z\n"),
        (
            gzipped(b"1\n") + gzipped(b"2"),
            PLAIN | {"content_encoding": "gzip"},
            b"1\n2\n",
        ),
        (gzipped(b"1\n") + bytes(999), PLAIN | {"content_encoding": "gzip"}, b"1\n"),
        (
            gzipped(b"1\n") + bytes(7) + gzipped(b"2\n") + bytes(1 << 19),
            PLAIN | {"content_encoding": "gzip"},
            b"1\n2\n",
        ),
        (
            "süß €\n".encode("cp1252"),
            {"content_type": "text/plain; charset=windows-1252"},
            "süß €\n".encode(),
        ),
        (
            "süß\n".encode("latin-1"),
            {"content_type": 'text/plain;charset="ISO-8859-1"'},
            "süß\n".encode(),
        ),
        (
            gzipped("süß\n".encode("utf-16")),
            {"content_type": "text/plain; charset=UTF-16", "content_encoding": "gzip"},
            "süß\n".encode(),
        ),
        (b"a\0\n\0", {"content_type": "text/plain; charset=utf-16le"}, b"a\n"),
        (
            '{"logs":"ü"}'.encode("latin-1"),
            {"content_type": "application/json; charset=iso-8859-1"},
            "ü\n".encode(),
        ),
        (
            "\u3042\n".encode("shift_jis") + b"\x81",
            {"content_type": "text/plain; charset=sjis"},
            "\u3042\n\N{REPLACEMENT CHARACTER}\n".encode(),
        ),
        (b"a\n", {"content_type": "text/plain; charset=UTF8"}, b"a\n"),
        (zstandard.compress(b"z\n"), PLAIN | {"content_encoding": "zstd"}, b"z\n"),
        (gzipped(b'"j"'), JSON | {"content_encoding": "gzip"}, b"j\n"),
        (b'{"message":"a"}\n\n{"message":"b\\nc"}\n', NDJSON, b"a\nb\nc\n"),
        (
            "süß \N{OLD PERSONAL COMPUTER}\n".encode(),
            PLAIN,
            "süß \N{OLD PERSONAL COMPUTER}\n".encode(),
        ),
        (b"\xff\xfea\n", PLAIN, "\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}a\n".encode()),
        (b'"\\ud800a"', JSON, "\N{REPLACEMENT CHARACTER}a\n".encode()),
        (b'"\xffa"', JSON, "\N{REPLACEMENT CHARACTER}a\n".encode()),
        (b'"\\ud83d\\ude00"', JSON, "\N{GRINNING FACE}\n".encode()),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", PLAIN, b"a\n\xef\xbb\xbfb\n"),
        (b'\xef\xbb\xbf{"logs":"a"}', JSON, b"a\n"),
        (b'"\\ufeffa"', JSON, b"a\n"),
        (b'\xef\xbb\xbf{"message":"a"}', NDJSON, b"a\n"),
        (json.dumps({"logs": packed("\ufeffx"), "compressed": True}).encode(), JSON, b"x\n"),
        (gzipped(b"\xef\xbb\xbfz\n"), PLAIN | {"content_encoding": "gzip"}, b"z\n"),
    ],
)
async def test_every_form_of_body_is_stored_as_its_lines(
    direct: Serve, body: bytes, headers: dict[str, str], text: bytes
) -> None:
    served = await direct()
    response = await served.post("/p/r", body, **headers)
    assert response.status_code == 200, response.text
    [batch] = served.node.batches
    assert batch.text == text
    assert batch.lines == text.count(b"\n")
    assert response.json()["lines"] == batch.records
    replaced = text.count("\N{REPLACEMENT CHARACTER}".encode())
    assert response.json().get("replaced") == (replaced or None)
    assert served.counters.replaced == replaced


async def test_the_reply_names_the_batch_and_its_last_line(direct: Serve) -> None:
    served = await direct()
    response = await served.post("/p.q/r-1", b"a\nb\nc\n", tailrace_batch=BATCH, **PLAIN)
    assert response.json() == {
        "batch": BATCH,
        "lines": 3,
        "duplicate": False,
        "durability": "durable",
        "last": BATCH[:-1] + "2",
    }
    assert response.headers["tailrace-last"] == BATCH[:-1] + "2"
    cookies = response.headers.get_list("set-cookie")
    assert cookies[0] == "PIPELINE_SESSION=p_q_r-1; Path=/; Max-Age=86400"
    assert cookies[1].startswith(f"tailrace={BATCH[:-1]}2.")


async def test_a_batch_sent_twice_is_a_duplicate_and_other_bytes_conflict(direct: Serve) -> None:
    served = await direct()
    for duplicate in (False, True):
        response = await served.post("/p/r", b"a\n", tailrace_batch=BATCH, **PLAIN)
        assert response.json()["duplicate"] is duplicate
    refused = await served.post("/p/r", b"b\n", tailrace_batch=BATCH, **PLAIN)
    assert (refused.status_code, refused.json()["type"]) == (409, "batch-conflict")
    assert len(served.node.batches) == 1


async def test_the_cookie_is_echoed_for_its_own_run_only(direct: Serve) -> None:
    served = await direct()
    first = await served.post("/p/r", b"a\n", **PLAIN)
    last = first.json()["last"]
    await served.post("/p/r", b"b\n", **PLAIN)
    await served.post("/p/other", b"c\n", **PLAIN)
    served.client.cookies.set("tailrace", "nonsense")
    above = [batch.above for batch in served.node.batches]
    assert above[0] == 0
    assert above[1] > 0
    assert above[2] == 0
    assert last.endswith("00000")


@pytest.mark.parametrize(
    "body", [b'{"connectorId":"h-1","timestamp":1}', b'{"logs":""}', b'""', b""]
)
async def test_nothing_to_store_is_a_success(direct: Serve, body: bytes) -> None:
    served = await direct()
    response = await served.post("/p/r", body, **JSON)
    assert response.status_code == 200
    assert response.json()["lines"] == 0
    assert served.node.batches == []


async def test_records_keep_their_time_level_and_attributes(direct: Serve) -> None:
    served = await direct()
    records = [
        {"message": "a\nb", "ts": "2026-01-31T12:00:00.5+01:00", "level": "warn"},
        {"message": "ü", "ts": 1_769_857_200, "attributes": {"k": "v", "n": {"x": 1}}},
        {"message": "", "ts": 1_769_857_200_250},
    ]
    body = "\n".join(json.dumps(record) for record in records)
    response = await served.post("/p/r", body, **NDJSON)
    assert response.json()["lines"] == 3
    [batch] = served.node.batches
    assert batch.text == "a\nb\nü\n\n".encode()
    assert (batch.records, batch.lines) == (3, 4)
    meta = decode_meta(batch.meta)
    assert list(meta.ends) == [4, 7, 8]
    assert list(meta.ts) == [
        1_769_857_200_500_000,
        1_769_857_200_000_000,
        1_769_857_200_250_000,
    ]
    assert list(meta.levels) == ["WARN", None, None]
    assert list(meta.attributes) == [None, {"k": "v", "n": '{"x":1}'}, None]


async def test_a_level_of_another_spelling_is_taken_and_an_unknown_one_kept(direct: Serve) -> None:
    served = await direct()
    records: list[dict[str, Any]] = [
        {"message": "a", "level": "Information"},
        {"message": "b", "level": 50},
        {"message": "c", "level": "audit"},
        {"message": "d", "level": ["x"], "attributes": {"level": "mine"}},
        {"message": "e", "level": "x" * 100},
        {"message": "f", "level": ""},
    ]
    body = "\n".join(json.dumps(record) for record in records)
    response = await served.post("/p/r", body, **NDJSON)
    assert response.json()["unknownLevels"] == ["audit", '["x"]', "x" * 32]
    [batch] = served.node.batches
    meta = decode_meta(batch.meta)
    assert list(meta.levels) == ["INFO", "ERROR", None, None, None, None]
    assert list(meta.attributes) == [
        *(None, None, {"level": "audit"}),
        *({"level": "mine", "level_text": '["x"]'}, {"level": "x" * 100}, None),
    ]
    known = await served.post("/p/r", '{"message":"a","level":"warn"}', **NDJSON)
    assert "unknownLevels" not in known.json()


@pytest.mark.parametrize("name", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("headers", [PLAIN, NDJSON, JSON])
async def test_utf_16_that_is_not_declared_is_refused_with_a_hint(
    direct: Serve, name: str, headers: dict[str, str]
) -> None:
    served = await direct()
    body = '{"message":"a","logs":"b"}\n'.encode(name)
    response = await served.post("/p/r", body, **headers)
    assert response.status_code == 400
    assert "UTF-16" in response.json()["detail"]
    assert "UTF-8" in response.json()["hint"]
    assert served.node.batches == []


BAD: list[tuple[bytes, dict[str, str], int, str, str | None]] = [
    (b"{", JSON, 400, "invalid-input", "body"),
    (b"[1]", JSON, 400, "invalid-input", "body"),
    (b'{"logs":3}', JSON, 400, "invalid-input", "logs"),
    (b'{"logs":"a","compressed":"yes"}', JSON, 400, "invalid-input", "compressed"),
    (b'{"logs":"a","connectorId":7}', JSON, 400, "invalid-input", "connectorId"),
    (b'{"logs":"!","compressed":true}', JSON, 400, "invalid-input", "logs"),
    (b'{"logs":"YWJj","compressed":true}', JSON, 400, "invalid-input", "logs"),
    (b"plain", PLAIN | {"content_encoding": "gzip"}, 400, "invalid-input", "body"),
    (
        gzipped(b"cut")[:-3],
        PLAIN | {"content_encoding": "gzip"},
        400,
        "invalid-input",
        "body",
    ),
    (
        gzipped(b"x") + b"junk",
        PLAIN | {"content_encoding": "gzip"},
        400,
        "invalid-input",
        "body",
    ),
    (b"plain", PLAIN | {"content_encoding": "zstd"}, 400, "invalid-input", "body"),
    (
        zstandard.compress(b"cut" * 99)[:-3],
        PLAIN | {"content_encoding": "zstd"},
        400,
        "invalid-input",
        "body",
    ),
    (b"x", PLAIN | {"content_encoding": "br"}, 415, "unsupported-media-type", None),
    (b"x", {"content_type": "image/png"}, 415, "unsupported-media-type", None),
    (b"x", {"content_type": "text/plain; charset=klingon"}, 415, "unsupported-media-type", None),
    (b"x", {"content_type": "text/plain; charset=base64"}, 415, "unsupported-media-type", None),
    (bytes(9) + gzipped(b"x"), PLAIN | {"content_encoding": "gzip"}, 400, "invalid-input", "body"),
    (b"not json", {}, 415, "unsupported-media-type", None),
    (b'{"message":"a"}\n{"message":', NDJSON, 400, "invalid-input", "body[2]"),
    (b'{"message":"a"},{"message":"b"}', NDJSON, 400, "invalid-input", "body[1]"),
    (b'{"text":"a"}', NDJSON, 400, "invalid-input", "body[1]"),
    (b'{"message":"a","ts":"yesterday"}', NDJSON, 400, "invalid-input", "body[1]"),
    (b'{"message":"a","ts":true}', NDJSON, 400, "invalid-input", "body[1]"),
    (b'{"message":"a","ts":1e308}', NDJSON, 400, "invalid-input", "body[1]"),
    (b'{"message":"a","ts":-1e308}', NDJSON, 400, "invalid-input", "body[1]"),
    (
        b'{"message":"a"}\n{"message":"a","attributes":{"x":' + b"[" * 300 + b"]" * 300 + b"}}",
        NDJSON,
        400,
        "invalid-input",
        "body[2]",
    ),
    (b"x", PLAIN | {"tailrace_batch": BATCH[:-1] + "1"}, 400, "invalid-input", "Tailrace-Batch"),
    (b"x", PLAIN | {"tailrace_batch": "short"}, 400, "invalid-input", "Tailrace-Batch"),
    (b"x", PLAIN | {"tailrace_batch": "U" * 26}, 400, "invalid-input", "Tailrace-Batch"),
    (b"x", PLAIN | {"tailrace_batch": "8" + BATCH[1:]}, 400, "invalid-input", "Tailrace-Batch"),
    (b"x", PLAIN | {"tailrace_batch": "_" * 26}, 400, "invalid-input", "Tailrace-Batch"),
    (b"x", PLAIN | {"tailrace_durability": "maybe"}, 400, "invalid-input", "Tailrace-Durability"),
]


@pytest.mark.parametrize(("body", "headers", "status", "kind", "field"), BAD)
async def test_bad_input_is_refused_with_a_hint_and_stores_nothing(
    direct: Serve, body: bytes, headers: dict[str, str], status: int, kind: str, field: str | None
) -> None:
    served = await direct()
    response = await served.post("/p/r", body, **headers)
    problem = response.json()
    assert (response.status_code, problem["type"]) == (status, kind)
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["code"] == problem["status"] == status
    assert problem["message"] == problem["detail"] != ""
    assert problem["hint"]
    assert problem["request_id"] == response.headers["x-request-id"]
    assert problem.get("field") == field
    assert served.node.batches == []
    assert served.counters.append_refused == 1


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.BatchTooOld("x"), 400, "batch-too-old"),
        (errors.BatchFromTheFuture("x"), 400, "batch-from-the-future"),
        (errors.RunDeleted("x"), 409, "run-deleted"),
        (errors.JournalFull("x"), 507, "journal-full"),
        (errors.JournalFailed("x"), 500, "journal-failed"),
        (errors.NodeNotReady("x"), 503, "node-not-ready"),
        (errors.StoreUnavailable("x"), 503, "store-unavailable"),
        (errors.OutcomeUnknown("x"), 503, "outcome-unknown"),
        (RuntimeError("x"), 500, "internal"),
    ],
)
async def test_a_nodes_refusal_becomes_a_problem(
    direct: Serve, error: Exception, status: int, kind: str
) -> None:
    served = await direct(MemoryNode(refusal=error))
    response = await served.post("/p/r", b"x", x_request_id="mine", **PLAIN)
    assert (response.status_code, response.json()["type"]) == (status, kind)
    assert response.json()["request_id"] == "mine"
    assert ("retry-after" in response.headers) is (status in (503, 507))


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/a/b/c/run", RunKey("a/b/c", "run")),
        ("/a%2Fb/run", RunKey("a/b", "run")),
        ("/..%2F../%2E%2E.", RunKey("../..", "...")),
        ("/n%00ul/r%00", RunKey("n\0ul", "r\0")),
        (f"/{'x' * 2000}/{'y' * 2000}", RunKey("x" * 2000, "y" * 2000)),
        ("/%F0%9F%90%8D/%C3%BC", RunKey("\N{SNAKE}", "ü")),
        ("/a%20b/r", RunKey("a b", "r")),
        ("/p/%63lose", RunKey("p", "close")),
    ],
)
async def test_names_are_taken_from_the_right_and_as_they_are(
    direct: Serve, path: str, key: RunKey
) -> None:
    served = await direct()
    for _ in range(2):
        response = await served.post(path, b"x\n", **PLAIN)
        assert response.status_code == 200, response.text
    assert {batch.key for batch in served.node.batches} == {key}


@pytest.mark.parametrize("path", ["/p/%2E", "/p/%2E%2E", "/%2E%2E/r", "/%2E/r"])
async def test_no_run_begins_with_a_name_that_urls_leave_out(direct: Serve, path: str) -> None:
    served = await direct()
    response = await served.post(path, b"x\n", **PLAIN)
    assert response.status_code == 400
    assert "folder" in response.json()["detail"]
    assert "another name" in response.json()["hint"]
    assert (await served.post(f"{path}/close", b"")).status_code == 200, "one that is there can end"
    assert not served.node.batches


async def test_an_unknown_charset_is_named_in_the_hint(direct: Serve) -> None:
    served = await direct()
    response = await served.post("/p/r", b"x\n", content_type="text/plain; charset=klingon")
    assert "'klingon'" in response.json()["hint"]


@pytest.mark.parametrize(
    ("path", "status"),
    [("/only", 404), ("/", 404), ("/%FF/r", 400), ("/p/", 400), ("/" + "x" * 5000 + "/r", 400)],
)
async def test_a_path_without_a_run_is_refused_without_a_redirect(
    direct: Serve, path: str, status: int
) -> None:
    served = await direct()
    response = await served.post(path, b"x", **PLAIN)
    assert response.status_code == status
    assert response.json()["code"] == status


async def test_close_is_idempotent_and_for_any_run(direct: Serve) -> None:
    served = await direct()
    for _ in range(2):
        response = await served.post("/a/b/r/close", b'{"connectorId":"x"}', **JSON)
        assert response.json() == {
            "message": "Log stream closed successfully",
            "state": "closed",
        }
    assert served.node.run_logs.closed == {RunKey("a/b", "r")}
    assert served.counters.close_requests == 2


async def test_limits_are_kept_on_the_wire_and_once_decompressed(serve: Serve) -> None:
    served = await serve(max_body_bytes=10_000, max_text_bytes=20_000)
    cases: list[tuple[Any, dict[str, str]]] = [
        (b"x" * 10_001, PLAIN),
        (gzipped(b"x" * 30_000), PLAIN | {"content_encoding": "gzip"}),
        (zstandard.compress(b"x" * 30_000), PLAIN | {"content_encoding": "zstd"}),
        (json.dumps({"logs": packed("x" * 30_000), "compressed": True}).encode(), JSON),
    ]
    for body, headers in cases:
        response = await served.post("/p/r", body, **headers)
        assert (response.status_code, response.json()["type"]) == (413, "too-large")
    assert served.node.batches == []
    assert (await served.post("/p/r", b"x" * 9_999, **PLAIN)).status_code == 200


async def test_a_chunked_body_is_stopped_at_the_limit(serve: Serve) -> None:
    served = await serve(max_body_bytes=200_000)

    async def endless() -> Any:
        for _ in range(3):
            yield b"x" * 100_000

    response = await served.client.post(
        "/api/v1/services/ingestionPipelines/logs/p/r",
        content=endless(),
        headers={"content-type": "text/plain"},
    )
    assert response.status_code == 413
    assert served.node.batches == []


async def test_a_large_line_is_stored_exactly(direct: Serve) -> None:
    served = await direct()
    line = b"x" * 30_000_000
    assert (await served.post("/p/r", line, **PLAIN)).status_code == 200
    assert served.node.batches[0].text == line + b"\n"


async def test_a_client_that_leaves_in_the_middle_stores_nothing(serve: Serve) -> None:
    served = await serve()
    host, port = served.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /api/v1/services/ingestionPipelines/logs/p/r HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: text/plain\r\ncontent-length: 100\r\n\r\nhalf a bo"
    )
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.close()
    await writer.wait_closed()
    while not served.counters.disconnects:
        await asyncio.sleep(0.01)
    assert served.node.batches == []
    assert (await served.post("/p/r", b"x", **PLAIN)).status_code == 200


@pytest.mark.parametrize("sent", [b"", b"begun"])
async def test_a_body_that_never_ends_is_given_up(serve: Serve, sent: bytes) -> None:
    served = await serve(body_timeout_seconds=0.1)
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /api/v1/services/ingestionPipelines/logs/p/r HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: text/plain\r\ncontent-length: 100\r\n\r\n" + sent
    )
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body-timeout" in answer
    writer.close()


async def test_a_full_budget_makes_bodies_wait_and_refuses_none(serve: Serve) -> None:
    node = MemoryNode(gate=asyncio.Event())
    served = await serve(node, in_flight_bytes=250_000)
    posts = [asyncio.create_task(served.post("/p/r", b"x" * 100_000, **PLAIN)) for _ in range(6)]
    await asyncio.sleep(0.1)
    assert node.gate is not None
    node.gate.set()
    replies = await asyncio.gather(*posts)
    assert [reply.status_code for reply in replies] == [200] * 6


async def test_unknown_routes_and_methods_are_problems(direct: Serve) -> None:
    served = await direct()
    for method, path, status in [
        ("GET", "/nowhere", 404),
        ("PATCH", "/api/v1/services/ingestionPipelines/logs/a/b", 405),
        ("GET", "/api/v1/services/ingestionPipelines/logs/", 404),
    ]:
        response = await served.client.request(method, path)
        assert response.status_code == status
        assert response.json()["code"] == status
        assert response.json()["hint"]
