"""Values and requests that nobody sends in good faith, for every route of the app.

`Hostile(seed)` makes the same requests for the same seed. A request is a list of pieces of bytes as
they go over the wire; where `cut` is set, the connection ends behind the last piece, in the middle
of the request.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, Final, cast
from urllib.parse import quote_from_bytes

import zstandard
from starlette.routing import Route

from service.doors.routes import OPERATIONS
from service.http.app import documented
from tests.gzipped import gzipped

MIB: Final = 1 << 20
_LEFT_OUT: Final = frozenset({"/verify"})
"""It starts a process that reads the whole store; one such call is enough."""

PATTERNS: Final = (
    b"*?" * 60 + b"X",
    b"*a" * 200 + b"*b",
    b"*" * 4000,
    b"{a,b}" * 12,
    b"[!" * 300,
    b"[[:digit:]]*[[:^alpha:]]",
    b"/(a+)+$/",
    b"/((a*)*)*b/",
    b"/(?:a?){500}a{500}/",
    b"/a{1000}{1000}/",
    b"/(x+x+)+y/",
    b"/\\pL{1000}/",
    b"/(?i:\xc3\xa4\xc3\xb6\xc3\xbc){900}/",
    b"/" + b"(" * 1000 + b"a" + b")*" * 1000 + b"/",
    b"/[^a]*[^b]*[^c]*[^d]*[^e]*$/",
)
SEARCHES: Final = (
    b"(" * 5000,
    b"(" * 2000 + b"a" + b")" * 2000,
    b"NOT " * 2400 + b"a",
    b"a AND (" * 1200,
    b"a OR b AND " * 900 + b"c",
    b'"' * 9999,
    b"\\" * 9999,
    b"a:" * 4900,
    b"*a" * 4900,
    b"level:" + b"(" * 4000,
    b"ts:[* TO " * 1000,
    b"x" * 10_000,
    b"x" * 10_001,
    b"message:/(x+x+)+y/ AND message:/(a|a)*$/",
    b"attributes." + b"a." * 4000 + b":1",
    b"-" * 9000 + b"a",
    b"a^" + b"9" * 5000,
    b"a~" + b"9" * 400,
)
NUMBERS: Final = (
    b"-1",
    b"0",
    b"1" + b"0" * 400,
    b"9" * 4000,
    b"-" + b"9" * 30,
    b"9223372036854775808",
    b"-9223372036854775809",
    b"18446744073709551616",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e400",
    b"1e-400",
    b"0x7f",
    b"\xef\xbc\x91\xef\xbc\x92",
    b"1_000",
    b" 7 ",
    b"+7",
    b"1.5",
    b"now-99999999999d",
    b"now-1d/d" * 500,
    b"0000-00-00T00:00:00Z",
    b"9999-12-31T23:59:60Z",
    b"2026-02-30T25:61:61+99:99",
    b"-9999-01-01",
)
TEXTS: Final = (
    b"",
    b"a",
    b"\x00",
    b"a\x00b",
    b"\xff\xfe\xfd",
    b"\xed\xa0\x80",
    b"\xc0\xaf..\xc0\xaf",
    b"\xf4\x90\x80\x80",
    b"../../../etc/passwd",
    b"..",
    b".",
    b"/" * 4000,
    b"%" * 300,
    b"%25" * 300,
    b"\r\nX: y",
    "\u202e\u2066\u200f".encode(),
    "\ufeff".encode(),
    "\U0010ffff".encode() * 200,
    "é".encode() * 128,
    "a\u0301".encode() * 2000,
    b"\x1b[2J\x9b\x9d",
    b"'; DROP TABLE lines; --",
    b"$(id)${HOME}{{7*7}}",
    *(b"a" * size for size in (200, 201, 255, 256, 1024, 4096, 7900, 60_000)),
    b"eyJhbGciOiJub25lIn0." * 400,
    b"0" * 26,
    b"7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
    b"ZZZZZZZZZZZZZZZZZZZZZZZZZZ",
    b"eyJ" * 2600,
)


def deep(size: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """JSON that is nested `size` times."""
    return opening * size + b"1" + closing * size


@cache
def _bodies() -> dict[str, bytes]:
    wide = b"{" + b",".join(b'"%d":%d' % (n, n) for n in range(50_000)) + b"}"
    return {
        "empty": b"",
        "brackets": b"[" * MIB,
        "deep 99": b'{"runId":"r","x":%b}' % deep(97),
        "deep 100": b'{"runId":"r","x":%b}' % deep(99),
        "deep 5000": b'{"runId":"r","x":%b}' % deep(5000),
        "deep objects": deep(100_000, b'{"a":', b"}"),
        "wide": wide,
        "wide list": b'{"x":[' + b"1," * 400_000 + b"1]}",
        "values": b'{"runId":"r","x":[' + b"[]," * 19_000 + b"1]}",
        "quotes": b'{"a":"' + b'\\"' * 500_000,
        "quotes in brackets": b"[" * 101 + b'\\"' * 490_000,
        "lines of backslashes": (b"\\" * 300_000 + b"\n") * 3,
        "backslashes": b'{"a":"' + b"\\" * 1_000_001 + b'","b":' + deep(200) + b"}",
        "unclosed strings": b'"' * 999_999,
        "odd strings": b'["' + b'",["' * 200_000,
        "digits": b'{"x":' + b"1" * 900_000 + b"}",
        "exponents": b'{"x":[' + b"1e999999999," * 1600 + b"1e-999999999]}",
        "infinite": b'{"x":NaN,"y":Infinity,"runId":"r"}',
        "surrogates": b'{"runId":"\\ud800","logs":"\\udfff\\ud800","message":"\\ud800"}',
        "no UTF-8": b'{"logs":"\xff\xfe\xed\xa0\x80"}\n' * 1000,
        "NUL": b"\x00" * 100_000,
        "BOM": b"\xef\xbb\xbf" + b'{"logs":"a"}',
        "UTF-16": "a line\n".encode("utf-16") * 5000,
        "twice": b'{"logs":"a","logs":"b","runId":"r","runId":"s"}',
        "long key": b'{"' + b"k" * 900_000 + b'":1}',
        "line ends": b"\n" * 900_000,
        "returns": b"\r" * 900_000,
        "one line": b"x" * (4 * MIB),
        "escapes": b"\x1b[31m" * 200_000 + b"\n",
        "levels": b"ERROR 2026-11-30T00:00:00.000Z [WARN] level=fatal\n" * 20_000,
        "times": b"[" * 300_000 + b" 2026-11-30T00:00:00,000 " * 2000 + b"\n",
        "digits and dots": b"1.2:3-4/5T6 " * 80_000 + b"\n",
        "tracebacks": b"Traceback (most recent call last):\n  File \n" * 20_000,
        "records": b'{"message":"a","ts":"9999","level":"\\u0000","attributes":{"a":"b"}}\n' * 9000,
        "wide record": b'{"message":"","attributes":' + wide + b"}",
        "deep record": b'{"message":"","attributes":{"a":' + deep(3000) + b"}}",
        "empty records": b"{}\n" * 300_000,
        "number records": b"1e400\n" * 100_000,
        "statuses": b'{"runId":"r","pipelineState":' + b'"x"' * 100_000 + b"}",
        "search": b'{"q":' + json.dumps(SEARCHES[1].decode()).encode() + b"}",
        "base64": b'{"compressed":true,"logs":"' + b"H4sI" * 100_000 + b'"}',
        "condition": b'{"condition":' + deep(90, b'{"all":[', b"]}") + b"}",
        "form": b"a=b&" * 100_000,
        "multipart": b"--x\r\ncontent-disposition: form-data; name=a\r\n\r\n" * 3000,
    }


def _message(*parts: bytes) -> bytes:
    """A field of protocol buffers with the number 1, whose value has a length."""
    value, size = b"".join(parts), b""
    length = len(value)
    while length > 0x7F:
        size += bytes((length & 0x7F | 0x80,))
        length >>= 7
    return b"\x0a" + size + bytes((length,)) + value


@cache
def door_bodies(times: int = 100) -> dict[str, tuple[str, bytes, bytes]]:
    """Paths of doors, content types, and bodies that they understand: much of little, `times`."""
    otlp, loki, bulk, splunk = "/v1/logs", "/loki/api/v1/push", "/_bulk", "/services/collector"
    protobuf, js, record = b"application/x-protobuf", b"application/json", b"\x12\x00"
    wide = b"".join(_message(b"\x0a\x04%04x" % n) for n in range(200 * times))
    item = b'{"create":{"_index":"hostile"}}\n{}\n'
    named = b'{"index":{"_index":"hostile","_id":"%d"}}\n{"message":"a"}\n'
    stream = b'{"stream":{"job":"hostile","tailrace_run_id":"%d"},"values":[["1","a"]]},'
    event = b'{"index":"hostile","event":"a","fields":{"tailrace.run.id":"%d"}}'
    streams = b"".join(stream % n for n in range(999))
    entries = b'{"streams":[{"stream":{"a":"b"},"values":[%b["1","a"]]}]}' % (
        b'["1","a"],' * 1000 * times
    )
    return {
        "resources": (otlp, protobuf, _message() * 4000 * times),
        "records": (otlp, protobuf, _message(b"\x12" + _message(record * 4000 * times)[1:])),
        "wide records": (otlp, protobuf, _message(_message(wide), b"\x12\xd0\x0f", record * 1000)),
        "streams": (loki, js, b'{"streams":[%b]}' % streams[:-1]),
        "entries": (loki, js, entries),
        "items": (bulk, b"application/x-ndjson", item * 300 * times),
        "ids": (bulk, b"application/x-ndjson", b"".join(named % n for n in range(150 * times))),
        "runs": (splunk, js, b"".join(event % n for n in range(999))),
        "events": (splunk, js, b'{"event":"a"}\n' * 400 * times),
        "wide event": (splunk, js, b'{"event":[' + b"[]," * 3000 * times + b"[]]}"),
        "empty lines": (f"{splunk}/raw", js, b"\n" * 10_000 * times),
        "lines": (f"{splunk}/raw", js, b"a\n" * 2500 * times),
    }


@cache
def _packed(size: int) -> dict[tuple[str, bytes], bytes]:
    text, zeros = b"a line of text\n" * (size // 16), b"\x00" * size
    nested = b"[" * size
    records = b'{"message":""}\n' * (size // 16)
    zstd = zstandard.ZstdCompressor()
    return {
        ("text", b"gzip"): gzipped(text, 1),
        ("zeros", b"gzip"): gzipped(zeros, 1),
        ("nested", b"gzip"): gzipped(nested, 1),
        ("records", b"gzip"): gzipped(records, 1),
        ("members", b"gzip"): gzip.compress(b"") * 20_000,
        ("half", b"gzip"): gzipped(text, 1)[: 1 << 15],
        ("none", b"gzip"): b"\x1f\x8b\x08" + b"\x00" * 100_000,
        ("text", b"zstd"): zstd.compress(text),
        ("zeros", b"zstd"): zstd.compress(zeros),
        ("frames", b"zstd"): zstd.compress(b"") * 300_000,
        ("window", b"zstd"): bytes.fromhex("28b52ffd00a8") + b"\x00" * 1000,
        ("half", b"zstd"): zstd.compress(text)[:900],
        ("text", b"gzip, gzip"): gzipped(gzipped(text, 1), 1),
        ("text", b"br"): b"\x1b" * 1000,
        ("text", b"deflate"): b"\x78" * 1000,
    }


TYPES: Final = (
    b"application/json",
    b"text/plain",
    b"application/x-ndjson",
    b"text/plain; charset=utf-16",
    b"text/plain; charset=" + b"x" * 1000,
    b"text/plain" + b"; a=b" * 3000,
    b"application/x-www-form-urlencoded",
    b"multipart/form-data; boundary=x",
    b"\xff\xfe/\x80",
    b"",
)
HEADS: Final = (
    b"x: " + b"y" * 60_000,
    b"\r\n".join(b"x%d: y" % n for n in range(250)),
    b"\r\n".join(b"x%d: y" % n for n in range(5000)),
    b"cookie: " + b"a=b; " * 12_000,
    b"cookie: tailrace=" + b"." * 30_000,
    b"cookie: " + b'a="\\"; ' * 8000,
    b"x: a\r\n folded",
    b"x : spaced",
    b"x\x00: nul",
    b"x: \x00\x01\x7f\xff",
    b"tailrace-batch: " + b"Z" * 26,
    b"tailrace-batch: " + b"0" * 30_000,
    b"tailrace-attributes: " + deep(20_000),
    b"tailrace-attributes: {" + b'"a":"b",' * 7000 + b'"z":"y"}',
    b"tailrace-durability: bulk",
    b"tailrace-durability: " + b"fast" * 2000,
    b"range: bytes=" + b"0-1," * 8000 + b"5-",
    b"range: bytes=999999999999999999999-",
    b"range: bytes=-" + b"9" * 4000,
    b"range: lines=" + b"9" * 4000,
    b"if-none-match: " + b'"a",' * 10_000,
    b"if-modified-since: " + b"Mon, " * 5000,
    b"last-event-id: " + b"eyJ" * 9000,
    b"last-event-id: " + b"9" * 5000,
    b"accept: " + b"text/html;q=0.1," * 3000,
    b"accept-encoding: " + b"gzip;q=1," * 6000,
    b"expect: 100-continue",
    b"upgrade: h2c\r\nconnection: upgrade, http2-settings",
    b"connection: " + b"close, " * 5000,
    b"x-request-id: " + b"a\tb" * 5000,
    b"forwarded: " + b"for=1;" * 5000,
    b"origin: null",
    b"origin: http://" + b"a." * 10_000,
    b"sec-fetch-site: cross-site",
    b"host: " + b"a." * 10_000,
    b"traceparent: 00-" + b"0" * 5000,
)
AUTHORIZATIONS: Final = (
    b"Bearer " + b" " * 60_000 + b"x",
    b"Bearer " + b"eyJhbGciOiJSUzI1NiJ9." * 700,
    b"Bearer eyJhbGciOiJSUzI1NiJ9.eyJleHAiOk5hTn0.x",
    b"Bearer eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjFlNDAwLCJpc3MiOiJpIn0.x",
    b"Bearer trl_every_" + b"0" * 16_000,
    b"Bearer \xff\xfe\xfd",
    b"Basic " + b"A" * 50_000,
    b"Bearer",
    b"",
)


@dataclass(frozen=True)
class Shot:
    """Bytes as they go over the wire. `replies` is how many requests they have."""

    name: str
    pieces: Sequence[bytes]
    cut: bool = False
    unread: bool = False
    replies: int = 1
    streams: bool = False

    @property
    def is_head(self) -> bool:
        """Whether its replies have no body, whatever length they name."""
        return self.name.startswith("HEAD ")


@dataclass
class Operation:
    """A route and a method of the app."""

    path: str
    method: str
    names: list[str]
    query: list[str]
    required: list[str]
    has_body: bool
    streams: bool = field(init=False)

    def __post_init__(self) -> None:
        self.streams = "/stream" in self.path

    @property
    def label(self) -> str:
        return f"{self.method} {self.path}"


def operations() -> list[Operation]:
    """All that the app routes, but those that are left out."""
    return [one for one in every_operation() if one.path not in _LEFT_OUT]


def every_operation() -> list[Operation]:
    """All that the app routes."""
    app = documented()
    documents: Mapping[str, Any] = app.openapi()["paths"]
    found = [
        Operation(
            path,
            method.upper(),
            [one["name"] for one in told.get("parameters", []) if one["in"] == "path"],
            [one["name"] for one in told.get("parameters", []) if one["in"] == "query"],
            [one["name"] for one in told.get("parameters", []) if one.get("required")],
            method.upper() in ("POST", "PUT", "DELETE", "PATCH"),
        )
        for path, methods in documents.items()
        for method, told in methods.items()
    ]
    known = {one.label: one for one in found}
    for route in cast("list[Route]", app.routes):
        for method in sorted(route.methods or ()):
            if f"{method} {route.path_format}" not in known:
                like = known.get(f"GET {route.path_format}")
                names = sorted(route.param_convertors)
                found.append(
                    Operation(
                        route.path_format,
                        method,
                        names,
                        like.query if like else [],
                        like.required if like else names,
                        has_body=False,
                    )
                )
    return found


class Hostile:
    """Makes requests with the tokens, and some without; bodies inflate to some `bomb_bytes`."""

    def __init__(self, seed: int, tokens: Sequence[str], bomb_bytes: int = MIB) -> None:
        self._packed = _packed(bomb_bytes)
        self._random = Random(seed)
        self._tokens = [f"Bearer {token}".encode() for token in tokens]
        self._operations = operations()
        self._next = 0
        self._ways: list[Callable[[str, bytes, bytes], Shot]] = [
            self._whole,
            self._whole,
            self._whole,
            self._cut,
            self._cut,
            self._in_pieces,
            self._sent_ahead,
            self._unread,
            self._chunked,
        ]

    def shot(self) -> Shot:
        """The next one: each route in its turn."""
        operation = self._operations[self._next % len(self._operations)]
        self._next += 1
        body, headers = self._body(operation) if operation.has_body else (b"", [])
        random = self._random
        if random.random() < 0.2:
            headers.append(random.choice(HEADS))
        if (kind := random.random()) < 0.8:
            headers.append(b"authorization: " + random.choice(self._tokens))
        elif kind < 0.85:
            headers.append(b"authorization: " + random.choice(AUTHORIZATIONS))
        head = b"%b %b HTTP/1.1\r\nhost: localhost\r\n%b" % (
            operation.method.encode(),
            self._target(operation),
            b"".join(header + b"\r\n" for header in headers),
        )
        name = f"{operation.label} {len(body)} bytes"
        if operation.streams:
            return self._unread(name, head, body)
        return random.choice(self._ways)(name, head, body)

    def drip(self) -> bytes:
        """A request that is sent a byte at a time."""
        way = self._random.randrange(3)
        path = b"/api/v1/services/ingestionPipelines/logs/slow/r"
        token = self._tokens[-1]
        if way == 0:
            return b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 1000
        head = b"POST %b HTTP/1.1\r\nhost: localhost\r\nauthorization: %b\r\n" % (path, token)
        if way == 1:
            return head + b"content-length: 60000\r\n\r\n" + b"x" * 60_000
        return head + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 9000

    # --- parts of a request --------------------------------------------------------

    def text(self) -> bytes:
        """A value of any kind."""
        kind = self._random.choice((PATTERNS, SEARCHES, NUMBERS, TEXTS))
        return self._random.choice(kind)

    def _target(self, operation: Operation) -> bytes:
        random, path = self._random, operation.path.encode()
        for name in operation.names:
            known = {"fqn": b"hostile", "runId": b"r", "group": b"g"}.get(name, b"x")
            wanted = known if random.random() < 0.6 else quote_from_bytes(self._short(), "")
            path = path.replace(b"{%b}" % name.encode(), _bytes(wanted))
        query = []
        for name in operation.query:
            if random.random() < 0.5:
                value = random.choice((b"1", b"a", b"*")) if random.random() < 0.3 else self.text()
                query.append(b"%b=%b" % (name.encode(), _bytes(quote_from_bytes(value, ""))))
        if random.random() < 0.1:
            query.append(_bytes(quote_from_bytes(self.text(), "=&")))
        return path + (b"?" + b"&".join(query) if query else b"")

    def _short(self) -> bytes:
        """A value for a name; most are short enough for the limit of a URL."""
        value = self.text()
        return value[:2600] if self._random.random() < 0.9 else value

    def _body(self, operation: Operation) -> tuple[bytes, list[bytes]]:
        random = self._random
        if operation.path in OPERATIONS and random.random() < 0.5:
            of_door = [each for each in door_bodies().values() if each[0] == operation.path]
            _, kind, body = random.choice(of_door or list(door_bodies().values()))
            return body, [b"content-type: " + kind]
        kind = random.choice(TYPES[:3]) if random.random() < 0.8 else random.choice(TYPES)
        headers = [b"content-type: " + kind]
        if random.random() < 0.2:
            (_, encoding), body = random.choice(list(self._packed.items()))
            headers.append(b"content-encoding: " + encoding)
            return body, headers
        return random.choice(list(_bodies().values())), headers

    # --- ways to send it -----------------------------------------------------------

    def _whole(self, name: str, head: bytes, body: bytes) -> Shot:
        return Shot(name, [_with_length(head, body) + body])

    def _cut(self, name: str, head: bytes, body: bytes) -> Shot:
        whole = _with_length(head, body) + body
        at = self._random.randrange(1, len(whole))
        if body and self._random.random() < 0.7:
            at = len(whole) - self._random.randrange(1, len(body) + 1)
        return Shot(f"{name}, cut at {at}", [whole[:at]], cut=True)

    def _in_pieces(self, name: str, head: bytes, body: bytes) -> Shot:
        whole, random = _with_length(head, body) + body, self._random
        ends = sorted(random.randrange(1, len(whole)) for _ in range(20))
        pieces = [whole[a:b] for a, b in zip([0, *ends], [*ends, len(whole)], strict=True)]
        return Shot(f"{name}, in pieces", pieces)

    def _sent_ahead(self, name: str, head: bytes, body: bytes) -> Shot:
        if len(body) > MIB:
            return self._whole(name, head, body)
        count = self._random.choice((2, 40))
        body = body if count == 2 else b""
        one = _with_length(head, body) + body
        return Shot(f"{name}, {count} ahead", [one * count], replies=count)

    def _unread(self, name: str, head: bytes, body: bytes) -> Shot:
        return Shot(f"{name}, unread", [_with_length(head, body) + body], unread=True, streams=True)

    def _chunked(self, name: str, head: bytes, body: bytes) -> Shot:
        random = self._random
        size = random.choice((1, 100, 65_536))
        body = body[: 20_000 if size == 1 else MIB]
        chunks = [
            b"%x\r\n%b\r\n" % (len(body[at : at + size]), body[at : at + size])
            for at in range(0, len(body), size)
        ]
        end = random.choice(
            (
                b"0\r\n\r\n",
                b"0\r\nx: y\r\n" * 500,
                b"ffffffffffffffff\r\n",
                b"-1\r\n\r\n",
                b"1;" + b"e=f;" * 5000 + b"\r\nx\r\n0\r\n\r\n",
            )
        )
        whole = head + b"transfer-encoding: chunked\r\n\r\n" + b"".join(chunks) + end
        return Shot(f"{name}, chunked by {size}", [whole], cut=end != b"0\r\n\r\n")


def _with_length(head: bytes, body: bytes) -> bytes:
    return head + (b"content-length: %d\r\n" % len(body) if body else b"") + b"\r\n"


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("ascii")
