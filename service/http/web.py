"""`GET /`: the page in which people watch and search runs, and the files that it loads.

The files are in the package `service.page`, built from `page/`. All of them are read once, when
the routes are made. A script or a style has its hash in its name, so a browser keeps it for ever;
the page itself has an ETag. The policy lets the browser load and ask this service only, run no
inline script or style, and show the page in no other page's frame.
"""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Final

from fastapi import APIRouter, Request
from isal import igzip
from starlette.responses import Response

from logstore.errors import NotFound
from service import page

_KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX: Final = "index.html"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types tailrace"
)
# Beside those that the server adds to every reply.
HEADERS: Final = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "vary": "accept-encoding",
}


class _File:
    """One file, plain and compressed, and how a browser may keep it."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._plain = file.read()
        name = os.path.basename(path)
        self._gzip = igzip.compress(self._plain)
        self._etag = f'"{sha256(self._plain).hexdigest()[:32]}"'
        self._kind = _KINDS[os.path.splitext(name)[1]]
        fresh = "no-cache" if name == _INDEX else "public, max-age=31536000, immutable"
        self._headers = HEADERS | {"cache-control": fresh}

    def response(self, request: Request) -> Response:
        """The file, or 304 for a browser that has it."""
        zipped = "gzip" in request.headers.get("accept-encoding", "")
        etag = f'{self._etag[:-1]}-gz"' if zipped else self._etag
        headers = self._headers | {"etag": etag}
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if zipped:
            headers["content-encoding"] = "gzip"
        return Response(
            self._gzip if zipped else self._plain, media_type=self._kind, headers=headers
        )


def web_routes() -> APIRouter:
    """The routes of the page and its files, which are not in the schema."""
    router = APIRouter(include_in_schema=False)
    folder = os.path.dirname(page.__file__)
    files = {
        name: _File(os.path.join(folder, name))
        for name in sorted(os.listdir(folder))
        if os.path.splitext(name)[1] in _KINDS
    }

    @router.get("/")
    async def index(request: Request) -> Response:
        return files[_INDEX].response(request)

    @router.get("/page/{name}")
    async def file(name: str, request: Request) -> Response:
        found = files.get(name)
        if found is None:
            raise NotFound(
                f"the page has no file {name[:100]!r}",
                hint="The service was updated: load the page again.",
            )
        return found.response(request)

    return router
