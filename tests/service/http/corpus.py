"""Requests to the append route, as bytes, with what they are answered and what they leave.

All are to runs that are known, so that the fast path may take what it likes. None is
compressed: that is never for the fast path, and is decoded in threads, whose time is their own.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.logstore import ulid as ulids
from tests.service.http.wires import RUNS, post
from tests.service.simulated_node import START_MS

BATCH = f"Tailrace-Batch: {ulids.encode(ulids.lowest_at(START_MS) | 5 << ulids.LINE_BITS)}"
CHUNKED = "Transfer-Encoding: chunked"
JSON = "Content-Type: application/json"
UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
DELETE = f"DELETE {RUNS}/p/r HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


class Entry(NamedTuple):
    """Requests of one connection: the statuses of the replies, and the texts that are stored."""

    name: str
    sent: bytes
    statuses: tuple[int, ...] = (200,)
    stored: tuple[bytes, ...] = ()
    fast_path: bool = False
    """Whether all of it is for the fast path."""
    once: bool = False
    """Whether what is stored is stored by the first of many."""


def _stored(name: str, sent: bytes, *stored: bytes, fast_path: bool = False) -> Entry:
    return Entry(name, sent, (200,) * len(stored), stored, fast_path)


def _refused(name: str, status: int, sent: bytes) -> Entry:
    return Entry(name, sent, (status,))


def _raw(*lines: str, body: bytes = b"") -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


_POST = f"POST {RUNS}/p/r HTTP/1.1"

STORED = (
    _stored("one line", post(b"a\n"), b"a\n", fast_path=True),
    _stored("no newline at the end", post(b"a"), b"a\n", fast_path=True),
    _stored("json", post(b'{"logs": "a\\nb"}', JSON), b"a\nb\n", fast_path=True),
    _stored("no UTF-8", post(b"\xff\n"), b"\xef\xbf\xbd\n", fast_path=True),
    _stored("fast", post(b"a\n", "Tailrace-Durability: fast"), b"a\n", fast_path=True),
    _stored("three in a row", post(b"1\n") + post(b"2\n") + post(b"3\n"), b"1\n", b"2\n", b"3\n"),
    _stored("to two runs", post(b"1\n") + post(b"2\n", path="/p/other"), b"1\n", b"2\n"),
    _stored("HTTP/1.0", post(b"a\n", version="1.0"), b"a\n", fast_path=True),
    _stored(
        "HTTP/1.0 that would stay",
        post(b"a\n", "Connection: keep-alive", version="1.0"),
        b"a\n",
        fast_path=True,
    ),
    Entry(
        "no more after close", post(b"1\n", "Connection: close") + post(b"2\n"), (200,), (b"1\n",)
    ),
    _stored("chunked", post(b"2\r\na\n\r\n3;x=y\r\nbc\n\r\n0\r\n\r\n", CHUNKED), b"a\nbc\n"),
    _stored(
        "trailers are no headers",
        post(b"2\r\na\n\r\n0\r\nTailrace-Durability: never\r\nHost: 127.0.0.1\r\n\r\n", CHUNKED)
        + post(b"b\n"),
        *(b"a\n", b"b\n"),
    ),
    _stored("expect", post(b"a\n", "Expect: something"), b"a\n"),
    _stored("an upgrade", post(b"a\n", *UPGRADE), b"a\n", fast_path=True),
    _stored("an upgrade, then more", post(b"a\n", *UPGRADE) + post(b"b\n"), b"a\n", b"b\n"),
    _stored("requests in a body", post(DELETE, *UPGRADE), DELETE, fast_path=True),
    _stored(
        "requests in a chunked body",
        post(b"%x\r\n%b\r\n0\r\n\r\n" % (len(DELETE), DELETE), CHUNKED, *UPGRADE),
        DELETE,
    ),
    _stored(
        "a websocket",
        post(b"a\n", "Connection: upgrade", "Upgrade: websocket"),
        b"a\n",
        fast_path=True,
    ),
    _stored("an upgrade that is not meant", post(b"a\n", "Upgrade: h2c"), b"a\n"),
    Entry("an id", post(b"a\n", BATCH), (200,), (b"a\n",), once=True),
    Entry("an empty line before", b"\r\n" + post(b"a\n"), (200,), (b"a\n",), fast_path=True),
    Entry("nothing", post(b""), (200,)),
    Entry("half a body", post(b"ab", "Content-Length: 10"), ()),
    Entry("half a chunk", post(b"9\r\nab", CHUNKED), ()),
    Entry("half a head", post(b"")[:-3], ()),
)
REFUSED = (
    _refused("no HTTP", 400, b"hello\r\n\r\n"),
    _refused("HTTP/2", 400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    _refused("a version that is none", 400, post(b"a\n", version="9.9")),
    _refused("a length that is none", 400, post(b"a\n", "Content-Length: 2x")),
    _refused("a negative length", 400, post(b"a\n", "Content-Length: -2")),
    _refused("two lengths", 400, post(b"a\n", "Content-Length: 2", "Content-Length: 2")),
    _refused("length and chunks", 400, post(b"0\r\n\r\n", "Content-Length: 5", CHUNKED)),
    _refused("a chunk that is none", 400, post(b"2\r\na\n\r\nzz\r\n", CHUNKED)),
    _refused(
        "a header without a colon",
        400,
        _raw(_POST, "Host: localhost", "nonsense", "Content-Length: 0"),
    ),
    _refused("a space before the colon", 400, post(b"a\n", "X-One : 1")),
    _refused("a folded header", 400, post(b"a\n", "X-One: 1\r\n two")),
    _refused(
        "a bare line feed", 400, post(b"a\n").replace(b"Host: localhost\r\n", b"Host: localhost\n")
    ),
    _refused("two hosts", 400, post(b"a\n", "Host: 127.0.0.1")),
    _refused("two types", 400, post(b"a\n", "Content-Type: text/plain", "Content-Type: text/html")),
    _refused("two keys", 400, post(b"a\n", "Authorization: a", "authorization: b")),
    _refused("two ids", 400, post(b"a\n", BATCH, BATCH)),
    _refused(
        "two durabilities",
        400,
        post(b"a\n", "Tailrace-Durability: bulk", "Tailrace-Durability: fast"),
    ),
    _refused("two hosts and an upgrade", 400, post(b"a\n", "Host: 127.0.0.1", *UPGRADE)),
    _refused("a proxy's CONNECT", 405, b"CONNECT x:1 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    _refused("a durability that is none", 400, post(b"a\n", "Tailrace-Durability: never")),
    _refused("a type that is none", 415, post(b"a\n", "Content-Type: image/png")),
    _refused("an id that is none", 400, post(b"a\n", "Tailrace-Batch: x")),
    _refused("no JSON", 400, post(b"{", JSON)),
    _refused("a URL that is too long", 414, post(b"a\n", path="/p/" + "r" * 600)),
    _refused("a head that is too large", 431, post(b"a\n", "X-One: " + "1" * 1200)),
    Entry("stored, then no HTTP", post(b"1\n") + b"hello\r\n\r\n", (200, 400), (b"1\n",)),
    Entry(
        "stored, then two hosts, then one that is dropped",
        post(b"1\n") + post(b"2\n", "Host: 127.0.0.1") + post(b"3\n"),
        (200, 400),
        (b"1\n",),
    ),
    Entry(
        "refused by its route, then stored",
        post(b"{", JSON) + post(b"1\n"),
        (400, 200),
        (b"1\n",),
    ),
)
CORPUS = STORED + REFUSED
