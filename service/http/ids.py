"""Identifiers of requests and batches on the wire: ULIDs in headers, echoes in cookies.

The reply to an append sets two cookies, which OpenMetadata's client returns:
`PIPELINE_SESSION` as upstream names it, and ours,

    tailrace={last ULID}.{16 hex digits: XXH3 of the run's name}

whose second half says which run the ULID belongs to: one client may serve several.
"""

from __future__ import annotations

import re

import xxhash

from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import InvalidInput

_COOKIE = b"tailrace="
_ULID_CHARACTERS = 26
# int() takes base 32 in C, but with other digits, and with spaces, signs and underscores.
_TO_BASE_32 = bytes(
    b"0123456789abcdefghijklmnopqrstuv"[ulids.ALPHABET.index(chr(c).upper())]
    if chr(c).upper() in ulids.ALPHABET
    else ord("!")
    for c in range(256)
)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


def parse_ulid(text: bytes) -> int:
    """Parses a ULID of 26 bytes. Raises `InvalidInput` with the reason from `ulid.parse`."""
    if len(text) == _ULID_CHARACTERS:
        try:
            value = int(text.translate(_TO_BASE_32), 32)
        except ValueError:
            value = 1 << 128
        if not value >> 128:
            return value
    return int(ulids.parse(text.decode("latin-1")))


def parse_batch_id(text: bytes) -> int:
    """Parses the batch id in `Tailrace-Batch`. Raises `InvalidInput`."""
    try:
        value = parse_ulid(text)
    except InvalidInput as error:
        raise InvalidInput(
            f"Tailrace-Batch: {error}", field="Tailrace-Batch", hint=_BATCH_HINT
        ) from error
    if value & ulids.LINE_MASK:
        raise InvalidInput(
            "Tailrace-Batch: the low 25 bits of a batch id are zero",
            field="Tailrace-Batch",
            hint=_BATCH_HINT,
        )
    return value


def run_tag(key: RunKey) -> bytes:
    """The tag of a run in a cookie."""
    name = f"{len(key.fqn)}:{key.fqn}/{key.run}"
    return xxhash.xxh3_64_hexdigest(name.encode("utf-8", "surrogatepass")).encode()


def session_cookie(key: RunKey) -> bytes:
    """The cookie that upstream sets on every append."""
    fqn = re.sub(r"[^a-zA-Z0-9]", "_", key.fqn)
    run = re.sub(r"[^a-zA-Z0-9-]", "_", key.run)
    return f"PIPELINE_SESSION={fqn}_{run}; Path=/; Max-Age=86400".encode()


def echoed(cookies: bytes, tag: bytes) -> int:
    """The ULID that our cookie carries for the run of `tag`; 0 if it has none."""
    start = cookies.find(_COOKIE)
    if start < 0:
        return 0
    start += len(_COOKIE)
    end = start + _ULID_CHARACTERS
    if cookies[end + 1 : end + 1 + len(tag)] != tag:
        return 0
    try:
        return parse_ulid(cookies[start:end])
    except InvalidInput:
        return 0  # a cookie that somebody made up is no reason to refuse lines


def request_id(headers: list[tuple[bytes, bytes]], fresh: str) -> str:
    """The client's `X-Request-Id` if it is a plain token, else `fresh`."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode()
    return fresh


_BATCH_HINT = (
    "A batch id is a ULID of 26 characters whose last five are 00000; "
    "leave the header out to let the service choose."
)
