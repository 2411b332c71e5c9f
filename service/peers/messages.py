"""How questions and answers are written: a head of JSON, then parts of bytes.

    length of the head, u32 | head | the parts, one after another

The head has `format` 1, `parts` (the lengths of the parts) and what the question says. A reader
that meets a higher format, or bytes that make no sense, raises `PeerRefused`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from service.peers.transport import AskOutcome, PeerRefused

FORMAT = 1
_LENGTH = struct.Struct("<I")


class Message(NamedTuple):
    """A question or an answer."""

    head: Mapping[str, Any]
    parts: Sequence[bytes] = ()


def encode(head: Mapping[str, Any], parts: Sequence[bytes] = ()) -> bytes:
    """The bytes of a message."""
    value = orjson.dumps({**head, "format": FORMAT, "parts": [len(part) for part in parts]})
    return b"".join([_LENGTH.pack(len(value)), value, *parts])


def decode(body: bytes) -> Message:
    """The message that the bytes hold. Raises `PeerRefused`."""
    try:
        (length,) = _LENGTH.unpack_from(body)
        at = _LENGTH.size + length
        head = orjson.loads(body[_LENGTH.size : at])
        if head["format"] > FORMAT:
            raise PeerRefused(
                f"a message of format {head['format']}: this node is older", AskOutcome.UNREADABLE
            )
        parts = []
        for size in head["parts"]:
            parts.append(body[at : at + size])
            at += size
        if at != len(body):
            raise ValueError(f"{len(body)} bytes instead of {at}")
        return Message(head, parts)
    except (ValueError, TypeError, KeyError, struct.error) as error:
        raise PeerRefused(f"not a message between nodes: {error}", AskOutcome.UNREADABLE) from error
