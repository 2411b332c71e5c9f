"""Pages of other origins: which ones a browser lets read replies (CORS). None, unless set.

A page of an origin in `server.cors_origins` sends a token as a header, as every client does. It may
not use cookies and other credentials of the browser. The fast path never meets such a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE")
_REMEMBERED_SECONDS: Final = 600


def with_cors(app: Any, origins: Sequence[str]) -> ASGIApp:
    """The app, and replies that pages of these origins may read."""
    if not origins:
        return cast("ASGIApp", app)
    return CORSMiddleware(
        cast("ASGIApp", app),
        allow_origins=[origin.lower().rstrip("/") for origin in origins],
        allow_methods=_METHODS,
        allow_headers=("*",),
        expose_headers=("*",),
        max_age=_REMEMBERED_SECONDS,
    )
