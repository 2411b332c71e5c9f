"""Keeps web pages from using the service through the browser of a person who can reach it.

A page of another site can make a visitor's browser send requests here, and by DNS rebinding
(its own name suddenly resolves to our address) read the answers as well. Two checks prevent
it, before a request reaches any route:

- `Host` must name this service. Rebinding needs a name that the attacker controls, so an IP
  address is always one of ours, and so is `localhost`. A service that listens beyond the
  loopback interface may have names that it does not know; it also accepts those that no public
  name server can return (one label, `.internal`, `.svc`, …). Every other name is a setting.
- A request from a page of another origin is refused if it changes something, opens a WebSocket
  (a page of any origin may read those), or is no plain visit. Browsers say so in
  `Sec-Fetch-Site`, older ones in `Origin`; programs send neither and are not affected.

Invariants: a request without `Host` is accepted (no browser sends one), and nothing is
looked up in the DNS. `accepted` holds `Host` values as they were sent, for the fast path.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from service.http.errors import HttpError

log = logging.getLogger(__name__)

_SAFE: Final = frozenset(["GET", "HEAD", "OPTIONS"])
_LEASES: Final = frozenset(["/segments/next"])  # a GET that changes state
_OURS: Final = frozenset([b"same-origin", b"none"])
_REMEMBERED: Final = 64
_LONGEST: Final = 255
# Suffixes that IANA and ICANN keep out of the public DNS, and suffixes that clusters use.
_PRIVATE: Final = (".internal", ".local", ".home.arpa", ".svc", ".cluster.local", ".test")

HOST_HINT: Final = (
    "If clients or a proxy use this name for the service, add it to the setting "
    "server.allowed_hosts (TAILRACE_SERVER__ALLOWED_HOSTS)."
)
ORIGIN_HINT: Final = (
    "Programs send neither Origin nor Sec-Fetch-Site. For a page behind a proxy that changes "
    "Host, add its origin to the setting server.allowed_origins."
)


class BrowserGuard:
    """The checks.

    `names` are this machine's own, `hosts` and `origins` are the operator's additions.

    A host is a name, `.example.com` for the name and all names below it, or `*` for any. An origin
    is `scheme://host[:port]`. With `private`, names that are never public are accepted.
    """

    def __init__(
        self,
        *,
        names: Iterable[str] = (),
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        private: bool = False,
    ) -> None:
        listed = [host.lower().removeprefix("*").rstrip(".") or "*" for host in hosts]
        self._any = "*" in listed
        self._names = {"localhost", *(name.lower() for name in names if name), *listed}
        self._suffixes = (".localhost", *(host for host in listed if host.startswith(".")))
        if private:
            self._suffixes += _PRIVATE
        self._private = private
        self._origins = {origin.lower().rstrip("/").encode() for origin in origins}
        self._said: set[bytes] = set()
        self._plain = {name.encode() for name in self._names if not name.startswith((".", "*"))}
        self.accepted: set[bytes | None] = {None, *self._plain}
        """`Host` values that were checked, byte for byte; None is a request without one."""

    def check(
        self, method: str, path: str, fields: Iterable[tuple[bytes, bytes]]
    ) -> HttpError | None:
        """Returns the error that refuses a request: 421 for its `Host`, 403 for its origin."""
        headers = dict(fields)
        host = headers.get(b"host")
        if host not in self.accepted and host is not None and not self._accepts(host):
            self._say(host)
            return HttpError(421, f"this service is not {_shown(host)}", hint=HOST_HINT)
        if b"origin" not in headers and b"sec-fetch-site" not in headers and path not in _LEASES:
            return None
        if self._foreign(method, path, host, headers):
            origin = headers.get(b"origin") or headers.get(b"referer") or b"another site"
            return HttpError(403, f"sent by a page of {_shown(origin)}", hint=ORIGIN_HINT)
        return None

    def _accepts(self, host: bytes) -> bool:
        name = _name_of(host)
        if name is None or not (self._any or self._known(name)):
            return False
        if len(self.accepted) >= _REMEMBERED:  # ports and capitals make many spellings of one name
            self.accepted.clear()
            self.accepted.update([None, *self._plain])
        self.accepted.add(host)
        return True

    def _known(self, name: str) -> bool:
        if name in self._names or _is_address(name):
            return True
        dotted = f".{name}"
        return dotted.endswith(self._suffixes) or (self._private and "." not in name)

    def _foreign(
        self, method: str, path: str, host: bytes | None, headers: Mapping[bytes, bytes]
    ) -> bool:
        """Returns true if a page of another origin sent the request, other than a visit."""
        origin = headers.get(b"origin")
        if origin is not None and origin.lower() in self._origins:
            return False
        changes = method not in _SAFE or path in _LEASES or b"sec-websocket-key" in headers
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            visit = headers.get(b"sec-fetch-mode") == b"navigate"
            visit &= headers.get(b"sec-fetch-dest", b"document") == b"document"
            return site not in _OURS and (changes or not visit)
        if origin is None and path in _LEASES:
            origin = headers.get(b"referer")
        return changes and origin is not None and not _same(origin, host)

    def _say(self, host: bytes) -> None:
        """Logs a refused name for the operator, who may have forgotten it: a few, each once."""
        if host not in self._said and len(self._said) < _REMEMBERED:
            self._said.add(host)
            log.warning("refused a request for the host %s. %s", _shown(host), HOST_HINT)


def _name_of(host: bytes) -> str | None:
    """Returns the name or address in a `Host`, in lower case, without port.

    None if it is invalid.
    """
    if len(host) > _LONGEST or not host.isascii():
        return None
    try:
        parts = urlsplit(f"//{host.decode()}")
        _ = parts.port
    except ValueError:
        return None
    if parts.netloc.encode() != host or parts.username is not None:
        return None
    return (parts.hostname or "").removesuffix(".") or None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same(origin: bytes, host: bytes | None) -> bool:
    """Returns true if an origin or a referring page has this `Host`.

    A proxy may terminate our TLS.
    """
    try:
        return host is not None and urlsplit(origin.lower()).netloc == host.lower()
    except ValueError:
        return False


def _shown(text: bytes) -> str:
    return ascii(text[:80].decode("latin-1"))
