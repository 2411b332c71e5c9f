"""Bodies of one-line entries that share attributes, made of blocks without a step per line.

The body is the lines themselves, and their attributes are in the request's header. With attributes
that are too large for that it is ndjson: the whole block is one string of JSON, in which a
character that it does not have stands for the newlines, and then becomes the end of one record and
the begin of the next.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from forwarder.entries.codec import clean_bytes
from forwarder.entries.entry import encode
from tailrace_client.records import attributes_header

BLANKS = b"\r\n\t "
"""What is trimmed, as OpenTelemetry does."""
# JSON leaves them as they are.
_MARKS = (b"\x7f", "\x80".encode(), "\x81".encode(), "\ue000".encode(), "\uffff".encode())


def longer_line(block: bytes, most: int) -> bool:
    """Whether a line has more than `most` bytes; it looks only at every `most`th byte or so."""
    at, size = 0, len(block)
    while size - at > most:
        newline = block.rfind(b"\n", at, at + most + 1)
        if newline < 0:
            return True
        at = newline + 1
    return False


def trimmed(block: bytes, *, leading: bool, trailing: bool) -> tuple[bytes, int]:
    """Each line without the white space around it, and the number of newlines.

    Of a line's end at least one `\\r` goes. Lines are counted on the way: that takes as long as to
    split them.
    """
    if not leading and not trailing:
        return block.replace(b"\r\n", b"\n"), block.count(b"\n")
    if _neat(block):
        return block, block.count(b"\n")
    lines = block.split(b"\n")
    if leading and trailing:
        return b"\n".join([line.strip(BLANKS) for line in lines]), len(lines) - 1
    if trailing:
        return b"\n".join([line.rstrip(BLANKS) for line in lines]), len(lines) - 1
    lines = block.replace(b"\r\n", b"\n").split(b"\n")
    return b"\n".join([line.lstrip(BLANKS) for line in lines]), len(lines) - 1


def _neat(block: bytes) -> bool:
    """Whether no line can have white space around it."""
    if b"\r" in block or b"\t" in block or block[:1] == b" " or block[-1:] == b" ":
        return False
    return b"\n " not in block and b" \n" not in block


def header(attributes: Mapping[str, str]) -> str | None:
    """As `Tailrace-Attributes` has them: empty for none; None if they are too large for it."""
    if not attributes:
        return ""
    named: dict[str, str] = orjson.loads(encode(dict(attributes)))  # as records would have them
    return attributes_header(named)


def record_body(block: bytes, attributes: Mapping[str, str]) -> tuple[bytes, int]:
    """Lines that each end with a newline, one at least, as records with these attributes."""
    lines, replaced = clean_bytes(block)
    head = b'{"attributes":%b,"message":"' % encode(dict(attributes))
    mark = next((one for one in _MARKS if one not in lines), None)
    if mark is None:
        rows = [
            b"%b%b}\n" % (head[:-1], orjson.dumps(row.decode())) for row in lines.split(b"\n")[:-1]
        ]
        return b"".join(rows), replaced
    joined = orjson.dumps(lines[:-1].replace(b"\n", mark).decode())
    return b"".join([head, joined[1:-1].replace(mark, b'"}\n' + head), b'"}\n']), replaced


def overhead(attributes: Mapping[str, str]) -> int:
    """Bytes that a record has beside its message."""
    return len(encode(dict(attributes))) + 30 if attributes else 0
