"""A small JSON object as a request's body: what reports are sent as.

Bounded in bytes, values and depth, and that before it is parsed: a MiB of brackets would
become twenty of objects, and what is nested too deep could be stored and not be given back.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import orjson
from fastapi import Request

from logstore.errors import InvalidInput
from service.http.body import BodyTooLarge

MAX_BYTES = 1 << 20
MAX_VALUES = 20_000
MAX_DEPTH = 100
_HINT = "Send one JSON object of at most 1 MiB."
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
# `[` and `{` differ by one bit, and so do the brackets that close.
_ONE_BIT, _OPEN, _CLOSE = 0x20, ord("{"), ord("}")


async def json_object(request: Request) -> dict[str, Any]:
    """The object that the body holds, whatever its Content-Type.

    Raises `InvalidInput`, `BodyTooLarge`.
    """
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > MAX_BYTES:
            raise BodyTooLarge(MAX_BYTES)
        pieces.append(piece)
    return parse_object(b"".join(pieces))


def parse_object(body: bytes) -> dict[str, Any]:
    """The object that `body` holds. Raises `InvalidInput`."""
    _check_structure(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error}", field="body", hint=_HINT) from error
    if not isinstance(value, dict):
        raise InvalidInput("the body is not a JSON object", field="body", hint=_HINT)
    return value


def _check_structure(body: bytes) -> None:
    opened = body.count(b"[") + body.count(b"{")
    if opened <= MAX_DEPTH and opened + body.count(b",") <= MAX_VALUES:
        return
    bare = np.frombuffer(_STRING.sub(b"", body), dtype=np.uint8)
    either = bare | _ONE_BIT
    opens = either == _OPEN
    if int(np.count_nonzero(opens) + np.count_nonzero(bare == ord(","))) > MAX_VALUES:
        raise InvalidInput(
            f"the JSON has more than {MAX_VALUES} values", field="body", hint="Send less of it."
        )
    depth = np.cumsum(opens.astype(np.int32) - (either == _CLOSE))
    if len(depth) and int(depth.max()) > MAX_DEPTH:
        raise InvalidInput(
            f"the JSON is nested more than {MAX_DEPTH} deep", field="body", hint="Flatten it."
        )
