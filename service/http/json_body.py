"""A small JSON object as a request's body: what reports are sent as."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import Request

from logstore.errors import InvalidInput
from service.http.body import BodyTooLarge

MAX_BYTES = 1 << 20
_HINT = "Send one JSON object of at most 1 MiB."


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
    try:
        value = orjson.loads(b"".join(pieces))
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error}", field="body", hint=_HINT) from error
    if not isinstance(value, dict):
        raise InvalidInput("the body is not a JSON object", field="body", hint=_HINT)
    return value
