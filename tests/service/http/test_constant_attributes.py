"""`Tailrace-Attributes`: attributes that all lines of a text batch have."""

from __future__ import annotations

import json

import pytest

from service.http.decode import TEXT_AND_ATTRIBUTES, parse_attributes
from service.journal.format import decode_attributes
from tailrace.logstore.errors import InvalidInput
from tests.service.http.conftest import Serve
from tests.service.http.test_append import JSON, NDJSON, PLAIN

BAD: list[tuple[bytes, dict[str, str], int, str]] = [
    *[
        (b"x", PLAIN | {"tailrace_attributes": value}, status, kind)
        for value, status, kind in [
            ("k=v", 400, "invalid-input"),
            ("", 400, "invalid-input"),
            ('["k"]', 400, "invalid-input"),
            ('{"k":"\\ud800"}', 400, "invalid-input"),
            ('{"k":' + "[" * 300 + "]" * 300 + "}", 400, "invalid-input"),
            (json.dumps({"k": "v" * 8200}), 413, "too-large"),
            (json.dumps({str(number): "" for number in range(65)}), 413, "too-large"),
        ]
    ],
    *[
        (body, kind | {"tailrace_attributes": "{}"}, 400, "invalid-input")
        for body, kind in [(b'"x"', JSON), (b'{"message":"x"}', NDJSON), (b'"x"', {})]
    ],
]


@pytest.mark.parametrize("size", [1, 40_000])
async def test_lines_of_text_share_the_attributes_of_the_header(direct: Serve, size: int) -> None:
    served = await direct()
    shared = {"k": "\u00fc \0", "n": {"x": 1}, "": ""}
    response = await served.post(
        "/p/r", b"a\nb\n" * size, tailrace_attributes=json.dumps(shared), **PLAIN
    )
    assert response.json()["lines"] == 2 * size
    [batch] = served.node.batches
    assert (batch.records, batch.lines) == (2 * size, 2 * size)
    assert decode_attributes(batch.meta) == {"k": "\u00fc \0", "n": '{"x":1}', "": ""}


@pytest.mark.parametrize(
    "kind", [TEXT_AND_ATTRIBUTES.decode(), 'Text/Plain;charset="UTF-8";attributes=header']
)
@pytest.mark.parametrize("size", [1, 40_000])
async def test_a_content_type_that_speaks_of_the_header_needs_it(
    direct: Serve, kind: str, size: int
) -> None:
    served = await direct()
    response = await served.post("/p/r", b"a\nb\n" * size, content_type=kind)
    problem = response.json()
    assert (response.status_code, problem["type"]) == (415, "unsupported-media-type")
    assert "application/x-ndjson" in problem["hint"]
    assert served.node.batches == []
    response = await served.post(
        "/p/r", b"a\nb\n" * size, content_type=kind, tailrace_attributes='{"k":"v"}'
    )
    assert response.json()["lines"] == 2 * size
    assert decode_attributes(served.node.batches[0].meta) == {"k": "v"}


async def test_no_attributes_are_none(direct: Serve) -> None:
    served = await direct()
    await served.post("/p/r", b"a\n", tailrace_attributes="{}", **PLAIN)
    assert served.node.batches[0].meta == b""


@pytest.mark.parametrize(("body", "headers", "status", "kind"), BAD)
async def test_what_is_wrong_is_refused_with_a_hint_and_stores_nothing(
    direct: Serve, body: bytes, headers: dict[str, str], status: int, kind: str
) -> None:
    served = await direct()
    response = await served.post("/p/r", body, **headers)
    problem = response.json()
    assert (response.status_code, problem["type"]) == (status, kind)
    assert problem["field"] == "Tailrace-Attributes"
    assert problem["hint"]
    assert served.node.batches == []


def test_a_header_that_is_not_ascii_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ASCII"):
        parse_attributes('{"k":"\xfc"}'.encode("latin-1"), "text")
