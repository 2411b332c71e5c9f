"""HTTP requests to addresses from a pipeline's file, which cannot reach the private network.

The name is resolved for every request, and a request connects only to an address that was checked:
a name that resolves to something else a moment later changes nothing. Private addresses are refused
unless `allow_private` says otherwise. Always refused are addresses of this link and others where
clouds serve credentials of machines, multicast and unspecified addresses, also inside of addresses
that translators and tunnels take apart (NAT64, 6to4, Teredo, ISATAP). Redirects are not followed,
proxies of the environment are not used, and messages about failures have the host alone, since
addresses and headers hold secrets.

An answer of 400, 404, 413 or 422 is about the posted events, and stays the same however often they
are posted: `deliver` finds the refused events, and refuses them alone.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

import pyarrow as pa
from pydantic import AfterValidator, Field, field_validator

from tailrace.logstore.filesystem import hint_of_trust
from tailrace.pipelines.appenders.contract import AppenderFailed, Refuse
from tailrace.pipelines.section import Seconds, Section, setting

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_ANSWER_BYTES: Final = 65_536
_STEPS: Final = 6
_LASTING: Final = frozenset({400, 404, 413, 422})
_DETAIL_CHARACTERS: Final = 500
_EMBEDDING: Final = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
"""IPv6 whose last 32 bits are an address of IPv4: NAT64, IPv4-compatible, IPv4-translated."""
_LOCAL_NAT64: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
"""NAT64 of a network's own: RFC 6052 has several places for the address of IPv4 in it."""
_LENGTHS: Final = (48, 56, 64, 96)
"""Bits of the prefix in front of it."""
_WHOLE_BITS: Final = 128
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})
_PRIVATE: Final = tuple(map(ipaddress.ip_network, ("fec0::/10", "64:ff9b:1::/48", "192.0.0.0/24")))
"""Private networks that Python takes for public ones."""
_MACHINES: Final = frozenset(
    map(ipaddress.ip_address, ("168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)
"""Where clouds serve credentials of machines, and that are not addresses of the link."""
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OURS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection"})


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an address with http:// or https:// and a host")
    if parts.username or parts.password:
        raise ValueError("must not contain a user or password: put them into headers")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("must be ASCII without spaces")
    _ = parts.port  # raises `ValueError` for none
    return url


Url = Annotated[str, AfterValidator(_checked_url), Field(repr=False)]


class HttpTargetSettings(Section):
    """Where requests go."""

    url: Url = setting(..., "address that requests are posted to")
    headers: Annotated[dict[str, str], Field(repr=False)] = setting({}, "headers of each request")
    timeout: Seconds = setting(
        10.0, "limit for each step of a request; the whole request may take six times as long"
    )
    allow_private: bool = setting(False, "whether `url` may lead to a private address")
    ca_file: str = setting("", "certificates (PEM) that are trusted instead of the machine's")

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, text in value.items():
            if not _HEADER.fullmatch(name) or name.lower() in _OURS:
                raise ValueError(f"{name!r} is not a header that can be set")
            if not text.isprintable() or not text.isascii():
                raise ValueError(f"{name} must be printable ASCII")
        return value


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A status of 200 to 299, and the beginning of the body."""

    status: int
    body: bytes


class BodyRefused(AppenderFailed):
    """The target refuses the posted body for good; `detail` is the text of its answer."""

    def __init__(self, said: str, detail: str) -> None:
        super().__init__(said)
        self.detail = detail


def deliver(events: pa.Table, post: Callable[[pa.Table], None], refuse: Refuse) -> None:
    """Posts events. Of events that the target refuses, each half is posted by itself, to the last.

    `post` raises `BodyRefused` for events that the target refuses for good; other exceptions are
    passed on.
    """
    try:
        post(events)
    except BodyRefused as error:
        if events.num_rows <= 1:
            refuse(events, str(error), error.detail)
            return
        half = events.num_rows // 2
        deliver(events.slice(0, half), post, refuse)
        deliver(events.slice(half), post, refuse)


class Poster:
    """Posts bodies to one address. Calls block."""

    def __init__(self, settings: HttpTargetSettings) -> None:
        self._settings = settings
        self._url: SplitResult = urlsplit(settings.url)
        self._tls: ssl.SSLContext | None = None

    @property
    def host(self) -> str:
        """The host, for people."""
        return self._url.netloc

    def post(self, body: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        """The answer. Raises `AppenderFailed` for any other than a status of 200 to 299.

        That is a `BodyRefused` if it is about the body, and lasts.
        """
        connection = self._connection()
        whole = threading.Timer(self._settings.timeout * _STEPS, _break_off, [connection])
        whole.daemon = True
        whole.start()
        path = f"{self._url.path or '/'}{f'?{self._url.query}' if self._url.query else ''}"
        try:
            connection.request("POST", path, body, {**headers, **self._settings.headers})
            response = connection.getresponse()
            answer = HttpAnswer(response.status, response.read(_ANSWER_BYTES))
        except (OSError, http.client.HTTPException) as error:
            raise AppenderFailed(
                f"{self.host} did not answer: {type(error).__name__}: {error}",
                hint=hint_of_trust(error, "the appender's ca_file"),
            ) from error
        finally:
            whole.cancel()
            connection.close()
        if 300 <= answer.status < 400:
            raise AppenderFailed(
                f"{self.host} answered {answer.status}: redirects are not followed",
                hint="Put the address that it redirects to into the pipeline's file.",
            )
        if answer.status in _LASTING:
            said = f"{self.host} answered {answer.status} {response.reason}"
            raise BodyRefused(said, _printable(answer.body))
        if not 200 <= answer.status < 300:
            raise AppenderFailed(f"{self.host} answered {answer.status} {response.reason}")
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        tls = self._url.scheme == "https"
        host = self._url.hostname or ""
        port = self._url.port or (443 if tls else 80)
        addresses = self._addresses(host, port)
        timeout = self._settings.timeout
        if not tls:
            return _Plain(host, port, addresses, timeout)
        if self._tls is None:
            try:
                self._tls = ssl.create_default_context(cafile=self._settings.ca_file or None)
            except OSError as error:
                raise AppenderFailed(f"ca_file cannot be read: {error}") from error
        return _Secure(host, port, addresses, timeout, self._tls)

    def _addresses(self, host: str, port: int) -> list[str]:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise AppenderFailed(f"{host} cannot be resolved: {error}") from error
        addresses = list(dict.fromkeys([str(one[4][0]) for one in found]))
        allowed = [
            one for one in addresses if is_allowed(one, private=self._settings.allow_private)
        ]
        if not allowed:
            meant = "" if addresses == [host] else f" ({', '.join(addresses)})"
            raise AppenderFailed(
                f"no request is sent to {host}{meant}",
                hint="Private addresses need allow_private: true. Link-local addresses, which serve"
                " credentials of machines, and multicast addresses are never allowed.",
            )
        return allowed


def _printable(body: bytes) -> str:
    """The beginning of an answer, on one line."""
    text = body[: _DETAIL_CHARACTERS * 4].decode(errors="replace")[:_DETAIL_CHARACTERS]
    return "".join([one if one.isprintable() else " " for one in text]).strip()


def _break_off(connection: http.client.HTTPConnection) -> None:
    """Ends a request that takes too long, though each of its steps is in time."""
    with suppress(OSError, AttributeError):  # it is over, or was not connected yet
        connection.sock.shutdown(socket.SHUT_RDWR)


def is_allowed(text: str, *, private: bool) -> bool:
    """Whether a request may go to this address; `private`: also to one of a private network."""
    written = ipaddress.ip_address(text.partition("%")[0])
    address = _meant(written)
    if address.is_unspecified or any(map(_is_forbidden, (address, *_tunnelled(written)))):
        return False
    hidden = any(address in network for network in _PRIVATE)
    if address.is_global and not hidden:
        return True
    return private and (hidden or address.is_private or address.is_loopback)


def _is_forbidden(address: Address) -> bool:
    return (
        address.is_link_local
        or address.is_multicast
        or address in _MACHINES
        or address == ipaddress.IPv4Address("255.255.255.255")
    )


def _tunnelled(address: Address) -> list[ipaddress.IPv4Address]:
    """Addresses of version 4 to which a translator or a tunnel may lead from one of version 6."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found, whole = list(address.teredo or ()), int(address)
    if address in _LOCAL_NAT64:
        found += [ipaddress.IPv4Address(bits) for bits in map(partial(_at, whole), _LENGTHS)]
    if whole >> 32 & 0xFFFFFFFF in _ISATAP:
        found.append(ipaddress.IPv4Address(whole & 0xFFFFFFFF))
    return found


def _at(whole: int, length: int) -> int:
    """The address of version 4 behind a prefix of so many bits, which leaves out bits 64 to 71."""
    if length == _WHOLE_BITS - 32:
        return whole & 0xFFFFFFFF
    without = whole >> 64 << 56 | whole & (1 << 56) - 1
    return without >> (_WHOLE_BITS - 8 - 32 - length) & 0xFFFFFFFF


def _meant(address: Address) -> Address:
    """The address of version 4 that one of version 6 stands for, or the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inside = address.ipv4_mapped or address.sixtofour
    if inside is None and any(address in network for network in _EMBEDDING):
        inside = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    plain = address.is_loopback or address.is_unspecified
    return address if inside is None or plain else inside


class _Plain(http.client.HTTPConnection):
    """A connection to addresses that were checked, whatever the name resolves to now."""

    def __init__(self, host: str, port: int, addresses: Sequence[str], timeout: float) -> None:
        super().__init__(host, port, timeout=timeout)
        self._addresses = addresses

    def connect(self) -> None:
        self.sock = _connected(self._addresses, self.port, self.timeout)


class _Secure(http.client.HTTPSConnection):
    """The same with TLS: the certificate must be that of the name."""

    def __init__(
        self, host: str, port: int, addresses: Sequence[str], timeout: float, tls: ssl.SSLContext
    ) -> None:
        super().__init__(host, port, timeout=timeout, context=tls)
        self._addresses, self._tls = addresses, tls

    def connect(self) -> None:
        plain = _connected(self._addresses, self.port, self.timeout)
        self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)


def _connected(addresses: Sequence[str], port: int, timeout: float | None) -> socket.socket:
    failure: OSError | None = None
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout)
        except OSError as error:
            failure = error
    assert failure is not None
    raise failure
