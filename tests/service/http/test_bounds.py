"""Bodies that would cost more than they are: bounded in memory, linear, ended between two pieces.

Large documents are cut up before they are parsed; what comes out is what a parser would say.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import orjson
import pytest
import zstandard

from service.http.body import Bounds
from service.http.decode import decode
from service.journal.format import decode_meta
from tailrace.logstore import errors
from tests.gzipped import gzipped
from tests.seeds import seeds

MIB = 1 << 20
BOUNDS = Bounds(64 * MIB)
# What an escape, a pair of surrogates and a character of several bytes can be split at.
_TOKENS = [
    "\\",
    '"',
    '\\"',
    "\n",
    "\t",
    "é",
    "€",
    "😀",
    "\\u0041",
    "plain text ",
    ",[{",
    "/",
    "\x7f",
]


def _nasty(dice: random.Random, size: int) -> str:
    runs = (dice.choice(_TOKENS) * dice.choice([1, 1, 1, 2, 3, 50, 70]) for _ in range(20_000))
    text = "".join(runs)
    return (text * (size // max(1, len(text)) + 1))[:size]


@pytest.mark.parametrize("seed", seeds(5))
def test_a_long_text_is_what_a_parser_makes_of_it(seed: int) -> None:
    dice = random.Random(seed)
    text = _nasty(dice, dice.randrange(600_000, 1_500_000))
    value = {"a": [1, {"logs": "not this"}], "logs": text, "connectorId": "me", "z": "\\"}
    body = json.dumps(value, ensure_ascii=dice.random() < 0.5, indent=dice.choice([None, 2]))
    stored = text.encode() if text.endswith("\n") else text.encode() + b"\n"

    decoded = decode(body.encode(), "json", None, BOUNDS)
    assert decoded.text == stored
    assert (decoded.connector, decoded.replaced) == ("me", 0)
    assert decode(json.dumps(text).encode(), "json", None, BOUNDS).text == stored

    record = json.dumps({"level": "warn", "message": text, "attributes": {"k": ["\\", "é"]}})
    decoded = decode(b'{"message":"before"}\n' + record.encode(), "records", None, BOUNDS)
    assert decoded.text == b"before\n" + text.encode() + b"\n"
    meta = decode_meta(decoded.meta)
    assert list(meta.ends) == [7, len(decoded.text)]
    assert list(meta.levels) == [None, "WARN"]
    assert list(meta.attributes) == [None, {"k": '["\\\\","é"]'}]


@pytest.mark.parametrize("seed", seeds(5))
def test_what_is_no_utf8_is_replaced_as_in_one_piece(seed: int) -> None:
    dice = random.Random(seed)
    some = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\x80", "ü😀".encode(), b"text\n"]
    raw = b"".join(dice.choice(some) for _ in range(200_000)) * 4
    whole = raw.decode("utf-8", "replace").encode()
    decoded = decode(raw, "text", None, BOUNDS)
    assert decoded.text == (whole if whole.endswith(b"\n") else whole + b"\n")
    assert decoded.replaced == whole.count("\ufffd".encode())


def test_records_of_many_pieces_keep_all_they_carry() -> None:
    records = [
        {"message": f"{i}é" * (i % 7), "ts": 1_780_000_000 + i, "attributes": {"i": i}}
        for i in range(20_000)
    ]
    decoded = decode(b"\n\n".join(map(orjson.dumps, records)), "records", None, BOUNDS)
    meta = decode_meta(decoded.meta)
    ends = [0, *meta.ends]
    found = [decoded.text[a:b].decode() for a, b in pairwise(ends)]
    assert found == [f"{record['message']}\n" for record in records]
    assert list(meta.ts) == [(1_780_000_000 + i) * 1_000_000 for i in range(20_000)]
    assert list(meta.attributes) == [{"i": str(i)} for i in range(20_000)]


def test_the_record_that_is_wrong_is_named_also_far_behind() -> None:
    body = b'{"message":"x"}\n' * 50_000 + b"[]\n"
    with pytest.raises(errors.InvalidInput, match="record 50001 is not an object"):
        decode(body, "records", None, BOUNDS)


def test_compressed_text_in_json_is_read_in_pieces() -> None:
    text = random.Random(1).randbytes(2 * MIB).hex().encode() + b"\n"
    logs = base64.b64encode(gzip.compress(text, 1)).decode()
    for body in ({"logs": logs, "compressed": True}, {"compressed": True, "logs": logs}):
        escaped = orjson.dumps(body).replace(b"/", b"\\/")
        for sent in (orjson.dumps(body), escaped):
            assert decode(sent, "json", None, BOUNDS).text == text
    broken = logs[:MIB] + "==" + logs[MIB:]
    for wrong in (broken, logs[:-2] + "é" + logs[-2:], logs[:-3], logs[: -MIB - MIB % 4]):
        with pytest.raises(errors.InvalidInput):
            decode(orjson.dumps({"logs": wrong, "compressed": True}), "json", None, BOUNDS)


def _nested(size: int) -> bytes:
    return b"[" + b"[]," * (size // 3) + b"[]]"


_EMPTY_FRAME = zstandard.ZstdCompressor().compress(b"")
_EMPTY_BLOCKS = zstandard.ZstdCompressor().compress(b"")[:5] + b"\x20\x00" + b"\0\0\0" * 300_000
BOMBS: dict[str, tuple[Callable[[], bytes], str, bytes | None]] = {
    "nested": (lambda: gzipped(_nested(60 * MIB)), "json", b"gzip"),
    "deep": (lambda: gzipped(b"[" * 60 * MIB), "json", b"gzip"),
    "keys": (lambda: b'{"":1,' + b'"a":1,' * (5 * MIB) + b'"":1}', "json", None),
    "strings": (lambda: b"[" + b'"",' * (10 * MIB) + b'""]', "json", None),
    "beside the text": (
        lambda: b'{"logs":"' + b"x" * MIB + b'","more":' + _nested(30 * MIB) + b"}",
        "json",
        None,
    ),
    "a record's": (
        lambda: gzipped(b'{"message":"","attributes":{"a":' + _nested(60 * MIB) + b"}}"),
        "records",
        b"gzip",
    ),
    "records": (lambda: gzipped(b'{"message":"","ts":1}\n' * (MIB // 8)), "records", b"gzip"),
    "attributes": (
        lambda: b'{"message":"","attributes":{"a":"","b":"","c":""}}\n' * (MIB // 16),
        "records",
        None,
    ),
    "gzip members": (lambda: gzip.compress(b"") * (MIB // 2), "text", b"gzip"),
    "zstd frames": (lambda: _EMPTY_FRAME * 300_000, "text", b"zstd"),
    "zstd blocks": (lambda: _EMPTY_BLOCKS, "text", b"zstd"),
    "members in JSON": (
        lambda: orjson.dumps(
            {"logs": base64.b64encode(gzip.compress(b"") * (MIB // 2)).decode(), "compressed": True}
        ),
        "json",
        None,
    ),
}


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_before_it_is_made_objects_of(bomb: str) -> None:
    make, kind, encoding = BOMBS[bomb]
    body = make()
    inflated = 0 if encoding is None else 2 * 64 * MIB
    tracemalloc.start()
    try:
        with pytest.raises(errors.InvalidInput) as refused:
            decode(body, kind, encoding, Bounds(64 * MIB, meta_bytes=MIB))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.hint
    assert most < inflated + 2 * len(body) + 48 * MIB


class Over(Exception):
    """The process is to end."""


LONG: dict[str, tuple[Callable[[], bytes], str, bytes | None]] = {
    "records": (lambda: b'{"message":"of many"}\n' * 100_000, "records", None),
    "text in JSON": (lambda: b'{"logs":"' + b"a line\\n" * MIB + b'"}', "json", None),
    "gzip": (lambda: gzipped(b"a line\n" * 2 * MIB), "text", b"gzip"),
    "zstd": (lambda: zstandard.ZstdCompressor().compress(b"a line\n" * MIB), "text", b"zstd"),
    "gzip in JSON": (
        lambda: orjson.dumps(
            {
                "logs": base64.b64encode(gzipped(b"a line\n" * 2 * MIB)).decode(),
                "compressed": True,
            }
        ),
        "json",
        None,
    ),
}


@pytest.mark.parametrize("form", LONG)
def test_decoding_ends_between_two_pieces(form: str) -> None:
    make, kind, encoding = LONG[form]
    body = make()
    asked = 0

    def count() -> None:
        nonlocal asked
        asked += 1

    assert decode(body, kind, encoding, Bounds(64 * MIB, go_on=count)).lines > 0
    pieces = asked
    assert pieces >= 5

    def end_soon() -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise Over

    asked = 0
    with pytest.raises(Over):
        decode(body, kind, encoding, Bounds(64 * MIB, go_on=end_soon))
    assert asked == 3


def test_a_bomb_stops_at_the_limit() -> None:
    bomb = gzipped(b"\0" * 200_000_000, 9)
    with pytest.raises(errors.TooLarge):
        decode(bomb, "text", b"gzip", Bounds(1_000_000))


def test_more_lines_than_a_batch_has_ids_are_refused() -> None:
    with pytest.raises(errors.TooLarge, match="lines"):
        decode(b"\n" * ((1 << 25) + 1), "text", None, Bounds(64 << 20))
    assert decode(b"\n" * (1 << 25), "text", None, Bounds(64 << 20)).lines == 1 << 25
