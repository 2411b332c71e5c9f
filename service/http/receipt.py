"""The answer to an append, as headers and body and, for the quick lane, as one piece of bytes."""

from __future__ import annotations

from logstore import ulid as ulids
from service.incoming import Receipt

JSON = (b"content-type", b"application/json")
_BOOLEANS = (b"false", b"true")
Headers = list[tuple[bytes, bytes]]


def receipt_reply(
    receipt: Receipt, tag: bytes, session: tuple[bytes, bytes], *, replaced: int = 0
) -> tuple[Headers, bytes]:
    """Headers and body; the run's `tag` and `session` cookie come from its route.

    `replaced` characters of the text were not UTF-8, which is said only where it is so.
    """
    last = ulids.encode(receipt.last).encode()
    # A batch id is its last line's ULID with five zeros at the end.
    body = b'{"batch":"%b00000","lines":%d,"duplicate":%b,"durability":"%b","last":"%b"%b}' % (
        last[:21],
        receipt.records,
        _BOOLEANS[receipt.duplicate],
        receipt.durability.encode(),
        last,
        b',"replaced":%d' % replaced if replaced else b"",
    )
    headers = [
        JSON,
        (b"content-length", b"%d" % len(body)),
        (b"tailrace-last", last),
        session,
        echo_cookie(last, tag),
    ]
    return headers, body


def echo_cookie(last: bytes, tag: bytes) -> tuple[bytes, bytes]:
    """The cookie by which a client says what the run's last reply to it was."""
    return (b"set-cookie", b"tailrace=%b.%b; Path=/; Max-Age=86400" % (last, tag))


def response_bytes(status_line: bytes, headers: Headers, body: bytes) -> bytes:
    """A whole HTTP/1.1 response; the status line has its line's end."""
    return b"%b%b\r\n%b" % (status_line, b"".join([b"%b: %b\r\n" % h for h in headers]), body)
