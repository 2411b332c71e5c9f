"""Where the services are: targets as the configuration names them, and what their names stand for.

| target | stands for |
| --- | --- |
| `host:port`, `host` | `http://host:port`; the port is 8790 if none is given |
| `http://host:port`, `https://host/path` | each address of the host; the path is one of a proxy |
| `srv+http://name`, `srv+https://name` | each address of each host of its SRV records |

All targets have the same store. A host whose name has several addresses counts as so many places.
The `Host` header and the name that a certificate must have are the host's, not the address.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from logstore.clock import Entropy
from logstore.errors import InvalidInput

DEFAULT_PORT = 8790
_PORTS = {"http": 80, "https": 443}
_SRV = "srv+"
_HINT = "Use host:port, http://host:port, https://host or srv+http://name."
_LOCAL = "localhost"
_BITS = 32


class Target(NamedTuple):
    """A service as it is named: with `srv`, `host` is the name of SRV records."""

    scheme: str
    host: str
    port: int
    path: str
    srv: bool


class Address(NamedTuple):
    """One place to connect to; without `ip`, wherever the url's host leads."""

    url: str
    ip: str
    port: int


class ServiceRecord(NamedTuple):
    """One SRV record."""

    priority: int
    weight: int
    host: str
    port: int


class Resolver(Protocol):
    """Looks up names. Raises `OSError` if that is not possible now."""

    def addresses(self, host: str) -> Sequence[str]:
        """The addresses of a host, each once."""
        ...

    def service_records(self, name: str) -> Sequence[ServiceRecord]:
        """The SRV records of a name; none if it has none."""
        ...


def parse_target(text: str) -> Target:
    """Raises `InvalidInput` for a text that is no target."""
    with_scheme = text if "://" in text else f"http://{text}"
    scheme, _, _ = with_scheme.partition("://")
    srv = scheme.startswith(_SRV)
    try:
        parts = urlsplit(with_scheme.removeprefix(_SRV))
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInput(f"{text!r} is no target: {error}", hint=_HINT) from None
    if parts.scheme not in _PORTS or not host or parts.query or parts.fragment:
        raise InvalidInput(f"{text!r} is no target", hint=_HINT)
    if "@" in parts.netloc:
        raise InvalidInput("a target has a user or password in it", hint="Use `token_file`.")
    if srv and port is not None:
        raise InvalidInput(f"{text!r} has a port", hint="SRV records say the port: leave it out.")
    if port is None:
        port = _PORTS[parts.scheme] if "://" in text else DEFAULT_PORT
    return Target(parts.scheme, host, port, parts.path.rstrip("/"), srv)


def addresses_of(target: Target, resolver: Resolver, dice: Entropy) -> Iterator[Address]:
    """Where a target is now, in the order in which to try. Raises `OSError`."""
    if not target.srv:
        yield from _of_host(target, target.host, target.port, resolver, dice)
        return
    records = resolver.service_records(target.host)
    if not records:
        raise OSError(f"{target.host} has no SRV records")
    for record in sorted(records, key=lambda one: _drawn(one, dice)):
        yield from _of_host(target, record.host, record.port, resolver, dice)


def _of_host(
    target: Target, host: str, port: int, resolver: Resolver, dice: Entropy
) -> Iterator[Address]:
    shown = f"[{host}]" if ":" in host else host
    url = f"{target.scheme}://{shown}:{port}{target.path}"
    found = list(resolver.addresses(host))
    if not found:
        raise OSError(f"{host} has no addresses")
    if host == _LOCAL:  # the same machine, by one protocol or the other
        yield Address(url, "", port)
        return
    for ip in sorted(found, key=lambda _: dice.getrandbits(_BITS)):
        yield Address(url, ip, port)


def _drawn(record: ServiceRecord, dice: Entropy) -> tuple[int, float]:
    """Lower priorities first; within one, chance in proportion to the weights (RFC 2782)."""
    part = (dice.getrandbits(_BITS) + 1) / (1 << _BITS)
    return record.priority, -math.log(part) / max(record.weight, 0.01)


class SystemResolver:
    """The machine's resolver; SRV records by dnspython, since the standard library has none.

    `nameserver` is a server to ask for SRV records instead of the machine's: address and port.
    """

    def __init__(self, nameserver: tuple[str, int] | None = None) -> None:
        self._nameserver = nameserver

    def addresses(self, host: str) -> Sequence[str]:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    def service_records(self, name: str) -> Sequence[ServiceRecord]:
        import dns.exception  # 4 MB, which only SRV needs
        import dns.resolver

        try:
            resolver = dns.resolver.Resolver(configure=self._nameserver is None)
            if self._nameserver is not None:
                resolver.nameservers, resolver.port = [self._nameserver[0]], self._nameserver[1]
            answer = resolver.resolve(name, "SRV")
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return []
        except (dns.exception.DNSException, ValueError) as error:
            raise OSError(f"SRV records of {name}: {str(error) or type(error).__name__}") from error
        return [
            ServiceRecord(
                one.priority, one.weight, one.target.to_text(omit_final_dot=True), one.port
            )
            for one in answer
        ]
