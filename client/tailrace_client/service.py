"""The service as the client sees it: an address, a token, and requests with clear errors.

The token is sent to this address alone. Redirects are not followed, proxies of the environment
are not used, and neither `repr` nor any message has the token in it.

Connections are kept and used again, each by one thread at a time. A forked child opens its own.
"""

from __future__ import annotations

import gzip
import http.client
import os
import socket
import ssl
from collections import deque
from contextlib import contextmanager, suppress
from typing import Any, Deque, Iterator, Mapping, NamedTuple, Optional, Tuple
from urllib.parse import quote, urlsplit

from tailrace_client import system
from tailrace_client.errors import InvalidRequest, Redirected, Unavailable, from_answer
from tailrace_client.system import parse_http_date, parse_retry_after

ROOT = "/api/v1/services/ingestionPipelines"
_VERBS = frozenset({"close", "download", "last", "next", "prev", "stream"})
_GZIP_FROM = 1 << 10
_GZIP_LEVEL = 1
_MOST_ANSWER = 64 << 20
_PRINTABLE = range(0x21, 0x7F)
_LOST = (OSError, http.client.HTTPException)


class Answer(NamedTuple):
    """A success: its status, headers and body, and the service's time in ms, if it said it."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Service:
    """Requests to `url`, `http://host:port` or `https://…`, with a path if a proxy wants one.

    `ca_file` has the certificates that are trusted, instead of the machine's.
    `connect_to` is one of the addresses of the url's host, and a port: connections go there, and
    nothing else changes, neither the `Host` header nor the name that a certificate must have.
    Raises `InvalidRequest` for an address or a token that cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Optional[str] = None,
        timeout_seconds: float = 30.0,
        ssl_context: Optional[ssl.SSLContext] = None,
        ca_file: Optional[str] = None,
        compress: bool = True,
        connect_to: Optional[Tuple[str, int]] = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None:
            raise InvalidRequest("the address has a user or password in it", hint="Use token=.")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"{url!r} is not an address", hint="Use http://host:port.")
        if parts.query or parts.fragment:
            raise InvalidRequest("the address has a query or a fragment", hint="Leave it out.")
        if token is not None and not (token and all(ord(c) in _PRINTABLE for c in token)):
            raise InvalidRequest("the token is empty, or has characters that a header cannot hold")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.timeout_seconds = timeout_seconds
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._tls: Optional[ssl.SSLContext] = None
        if parts.scheme == "https":
            self._tls = ssl_context or _trusting(ca_file)
        self._token = token
        self._compress = compress
        self._connect_to = connect_to
        self._idle: Deque[http.client.HTTPConnection] = deque()
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"Service({self.url!r})"

    def request(
        self,
        method: str,
        path: str,
        body: Optional[bytes] = None,
        headers: Optional[Mapping[str, str]] = None,
        *,
        timeout_seconds: Optional[float] = None,
    ) -> Answer:
        """One request, below the service's root. Raises `TailraceError` for every other answer."""
        sent = self._headers(headers)
        if body is not None and self._compress and len(body) >= _GZIP_FROM:
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
            sent["Content-Encoding"] = "gzip"
        connection, used = self._connection(timeout_seconds)
        try:
            response, sent_ms = self._begin(connection, used, method, path, body, sent)
            answer = _whole(response)
        except _LOST as error:
            connection.close()
            raise self._no_answer(error) from error
        except BaseException:
            connection.close()
            raise
        if response.will_close or not response.isclosed():
            connection.close()
        else:
            self._idle.append(connection)
        self._check(response, answer, sent_ms)
        return Answer(response.status, dict(_lower(response)), answer)

    @contextmanager
    def stream(
        self, path: str, headers: Mapping[str, str], *, timeout_seconds: float
    ) -> Iterator[http.client.HTTPResponse]:
        """A GET whose body is read as it comes, on a connection of its own."""
        connection = self._open(timeout_seconds)
        try:
            try:
                headers = self._headers(headers)
                response, sent_ms = self._begin(connection, False, "GET", path, None, headers)
                if response.status != 200:
                    self._check(response, _whole(response), sent_ms)
                    raise InvalidRequest(f"{self.url} answered {response.status} to a stream")
                yield response
            except _LOST as error:
                raise self._no_answer(error) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Closes the connections that nobody uses."""
        while self._idle:
            self._idle.pop().close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def after_fork(self) -> None:
        """In a forked child: leaves the parent's connections to the parent."""
        self._idle = deque()
        self._process = os.getpid()

    def _connection(self, timeout: Optional[float]) -> tuple[http.client.HTTPConnection, bool]:
        if self._process != os.getpid():
            self.after_fork()
        seconds = self.timeout_seconds if timeout is None else timeout
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._open(seconds), False
        connection.timeout = seconds
        if connection.sock is not None:
            connection.sock.settimeout(seconds)
        return connection, True

    def _open(self, seconds: float) -> http.client.HTTPConnection:
        connection: Any
        if self._tls is not None:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=seconds, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        if self._connect_to is not None:
            address = self._connect_to
            connection._create_connection = lambda _, *more: socket.create_connection(
                address, *more
            )
        return connection  # type: ignore[no-any-return]

    def _begin(
        self,
        connection: http.client.HTTPConnection,
        used: bool,
        method: str,
        path: str,
        body: Optional[bytes],
        headers: Mapping[str, str],
    ) -> Tuple[http.client.HTTPResponse, int]:
        """The head of the answer, and when the request that it answers was sent."""
        sent_ms = system.steady_ms()
        try:
            connection.request(method, self._path + path, body, dict(headers))
            return connection.getresponse(), sent_ms
        except _LOST:
            connection.close()
            if not used:
                raise
        # The service may close a connection that was idle; every request may be repeated.
        sent_ms = system.steady_ms()
        connection.request(method, self._path + path, body, dict(headers))
        return connection.getresponse(), sent_ms

    def _headers(self, more: Optional[Mapping[str, str]]) -> dict[str, str]:
        headers = {"User-Agent": "tailrace-client", **(more or {})}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _check(self, response: http.client.HTTPResponse, body: bytes, sent_ms: int) -> None:
        status = response.status
        if 200 <= status < 300:
            return
        if 300 <= status < 400:
            where = urlsplit(response.getheader("Location") or "")
            target = f"{where.scheme}://{where.hostname}" if where.hostname else "another path"
            raise Redirected(
                f"{self.url} redirects to {target}",
                status=status,
                hint="Redirects are not followed: use the address that it redirects to.",
            )
        error = from_answer(
            status,
            body,
            retry_after=parse_retry_after(response.getheader("Retry-After")),
            where=self.url,
        )
        error.service_ms = parse_http_date(response.getheader("Date"))
        error.sent_ms = sent_ms
        raise error

    def _no_answer(self, error: Exception) -> Unavailable:
        reason = str(error) or type(error).__name__
        hint = ""
        if isinstance(error, ssl.SSLCertVerificationError):
            hint = "Name the certificate of its authority with ca_file, --ca-file or SSL_CERT_FILE."
        return Unavailable(f"no answer from {self.url}: {reason}", hint=hint)


def _trusting(ca_file: Optional[str]) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise InvalidRequest(
            f"the certificates in {ca_file} cannot be read: {error}", hint="It is a PEM file."
        ) from None


def _whole(response: http.client.HTTPResponse) -> bytes:
    """The body. Raises `IncompleteRead` for one that broke off, or is too long."""
    body = response.read(_MOST_ANSWER)
    if response.length:  # `read` with a size does not say that there is less than announced
        raise http.client.IncompleteRead(body, response.length)
    return body


def _lower(response: http.client.HTTPResponse) -> Iterator[tuple[str, str]]:
    return ((name.lower(), value) for name, value in response.getheaders())


def name(text: str) -> str:
    """A name as one part of a path, and never as a verb. Raises `InvalidRequest`."""
    if not text:
        raise InvalidRequest("the name of a pipeline or a run is empty")
    if text in _VERBS:
        return f"%{ord(text[0]):02X}{text[1:]}"
    return quote(text, safe="")
