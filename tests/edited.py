"""State objects as another program would have written them: with other members, and a checksum."""

from __future__ import annotations

from typing import Any

from tailrace.logstore.state import decode_checked, encode_checked


def edited(body: bytes, **members: Any) -> bytes:
    """The object with these members in the place of its own."""
    return encode_checked(decode_checked(body) | members)


def flips(body: bytes) -> list[bytes]:
    """The bytes with each of their bits turned, one at a time."""
    return [
        body[:at] + bytes([body[at] ^ 1 << bit]) + body[at + 1 :]
        for at in range(len(body))
        for bit in range(8)
    ]
