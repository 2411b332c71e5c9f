"""Serves files: the page of people at `GET /`, and the routes as a page at `GET /docs`.

`/` is the page in which people watch and search runs. Its files are in the package `service.page`,
built from `page/`. All of them are read once, when the routes are made. A script or a style has its
hash in its name, so a browser keeps it for ever; the page itself has an ETag. Its policy lets the
browser load and ask this service only, run no inline script or style, and show the page in no other
page's frame.

`/docs` is made by Swagger UI from `/openapi.json`. All its files come from this service: Swagger
UI's files are in the package `fastapi-swagger`, of which no code is imported. Its policy lets the
browser load, run and ask nothing else, and show the page in no other page's frame.
"""

from __future__ import annotations

import importlib.util
import os
from hashlib import sha256
from typing import Final

from fastapi import APIRouter, Request
from isal import igzip
from starlette.responses import FileResponse, HTMLResponse, Response

from service import page
from tailrace.logstore.errors import NotFound, Unavailable

_PACKAGE: Final = "fastapi_swagger"
_FILES: Final = {
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
    "favicon-32x32.png": "image/png",
}
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tailrace: routes</title>
<link rel="icon" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START: Final = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
});
"""
# Swagger UI draws its icons from `data:` addresses and sets `style` on elements.
DOCS_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS: Final = {"content-security-policy": DOCS_POLICY}


def docs_routes() -> APIRouter:
    """Returns the routes of the page and its files, which are not in the schema."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def page() -> Response:
        return HTMLResponse(_PAGE, headers=_HEADERS)

    @router.get("/docs/start.js")
    async def start() -> Response:
        return Response(_START, media_type="text/javascript", headers=_HEADERS)

    @router.get("/docs/{name}")
    async def file(name: str) -> Response:
        kind = _FILES.get(name)
        if kind is None:
            raise NotFound(f"the page has no file {name[:100]!r}", hint="See /docs.")
        return FileResponse(os.path.join(_folder(), name), media_type=kind, headers=_HEADERS)

    return router


def _folder() -> str:
    """Returns the folder of Swagger UI's files. Raises `Unavailable` if it is not installed."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise Unavailable(
            "the page needs the package fastapi-swagger",
            hint="Install Tailrace again; openapi.yaml says the same as the page.",
        )
    return os.path.join(os.path.dirname(found.origin), "resources")


# --- The page for people ------------------------------------------------------------------------


_KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX: Final = "index.html"
PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types tailrace"
)
# In addition to the headers that the server adds to every reply.
HEADERS: Final = {
    "content-security-policy": PAGE_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "vary": "accept-encoding",
}


class _StaticFile:
    """One file, plain and compressed, and how a browser may cache it."""

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
        """Returns the file, or 304 for a browser that has it."""
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
    """Returns the routes of the page and its files, which are not in the schema."""
    router = APIRouter(include_in_schema=False)
    folder = os.path.dirname(page.__file__)
    files = {
        name: _StaticFile(os.path.join(folder, name))
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
