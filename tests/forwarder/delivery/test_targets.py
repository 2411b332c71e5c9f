"""What targets stand for: names with several addresses, SRV records, and what is no target."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random

import dns.message
import dns.rcode
import dns.rrset
import pytest

from tailrace.forwarder.delivery.targets import (
    DeliveryTarget,
    ServiceRecord,
    SystemResolver,
    TargetAddress,
    addresses_of,
    parse_target,
)
from tailrace.logstore.errors import InvalidInput


class Names:
    """Names that a test gives."""

    def __init__(
        self,
        hosts: Mapping[str, Sequence[str]],
        records: Mapping[str, Sequence[ServiceRecord]] | None = None,
    ) -> None:
        self.hosts = dict(hosts)
        self.records = dict(records or {})

    def addresses(self, host: str) -> Sequence[str]:
        if host not in self.hosts:
            raise OSError(f"{host} is not known")
        return self.hosts[host]

    def service_records(self, name: str) -> Sequence[ServiceRecord]:
        return self.records.get(name, [])


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("logs", DeliveryTarget("http", "logs", 8790, "", False)),
        ("logs:1234", DeliveryTarget("http", "logs", 1234, "", False)),
        ("[::1]:1234", DeliveryTarget("http", "::1", 1234, "", False)),
        ("http://logs", DeliveryTarget("http", "logs", 80, "", False)),
        ("https://logs/tailrace/", DeliveryTarget("https", "logs", 443, "/tailrace", False)),
        ("https://logs:8443", DeliveryTarget("https", "logs", 8443, "", False)),
        ("srv+http://_t._tcp.a.org", DeliveryTarget("http", "_t._tcp.a.org", 80, "", True)),
        ("srv+https://_t._tcp.a.org/x", DeliveryTarget("https", "_t._tcp.a.org", 443, "/x", True)),
    ],
)
def test_a_target_is_read(text: str, target: DeliveryTarget) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "http://", "ftp://logs", "tcp://logs:7651", "srv+tcp://logs", "logs:port"),
        *("logs:99999", "http://logs?x=1", "http://logs#x", "[::1", "srv+http://logs:80"),
    ],
)
def test_what_is_no_target_says_what_is(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_target(text)
    assert refused.value.hint


def test_a_password_in_a_target_is_refused_and_not_said() -> None:
    with pytest.raises(InvalidInput, match="password") as refused:
        parse_target("https://me:secret@logs")
    assert "secret" not in str(refused.value)


def test_each_address_of_a_name_is_a_place_and_the_order_is_drawn() -> None:
    names = Names({"logs": ["10.0.0.1", "10.0.0.2", "fe80::3"]})
    found = {
        tuple(addresses_of(parse_target("https://logs/x"), names, Random(seed)))
        for seed in range(100)
    }
    assert len(found) == 6
    url = "https://logs:443/x"
    assert {*next(iter(found))} == {
        TargetAddress(url, ip, 443) for ip in ("10.0.0.1", "10.0.0.2", "fe80::3")
    }


def test_srv_records_are_tried_by_priority_and_drawn_by_weight() -> None:
    records = [
        ServiceRecord(10, 30, "a", 1001),
        ServiceRecord(10, 10, "b", 1002),
        ServiceRecord(20, 90, "c", 1003),
        ServiceRecord(10, 0, "d", 1004),
    ]
    names = Names({name: [f"10.0.0.{ord(name)}"] for name in "abcd"}, {"_t._tcp.x": records})
    first: Counter[str] = Counter()
    for seed in range(1000):
        found = list(addresses_of(parse_target("srv+http://_t._tcp.x"), names, Random(seed)))
        assert found[-1] == TargetAddress("http://c:1003", "10.0.0.99", 1003)
        first[found[0].url] += 1
    assert 650 < first["http://a:1001"] < 850
    assert 150 < first["http://b:1002"] < 350


def test_a_name_without_records_or_addresses_is_an_error() -> None:
    names = Names({"empty": []})
    for text in ("srv+http://nothing", "empty", "unknown"):
        with pytest.raises(OSError, match=r"no SRV records|no addresses|not known"):
            list(addresses_of(parse_target(text), names, Random(1)))


@pytest.fixture
def nameserver() -> Iterator[tuple[str, int]]:
    """A real DNS server on UDP that knows one name, and answers SERVFAIL to `broken`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                data, peer = server.recvfrom(4096)
                if data == b"end":
                    return
                query = dns.message.from_wire(data)
                name = query.question[0].name
                answer = dns.message.make_response(query)
                if name.to_text().startswith("_t._tcp."):
                    answer.answer.append(
                        dns.rrset.from_text(
                            name, 60, "IN", "SRV", "10 5 8790 one.test.", "20 5 8791 two.test."
                        )
                    )
                elif name.to_text().startswith("broken"):
                    answer.set_rcode(dns.rcode.SERVFAIL)
                else:
                    answer.set_rcode(dns.rcode.NXDOMAIN)
                server.sendto(answer.to_wire(), peer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(b"end", server.getsockname())
        thread.join()


def test_srv_records_of_a_real_server(nameserver: tuple[str, int]) -> None:
    resolver = SystemResolver(nameserver)
    assert sorted(resolver.service_records("_t._tcp.example.org")) == [
        ServiceRecord(10, 5, "one.test", 8790),
        ServiceRecord(20, 5, "two.test", 8791),
    ]
    assert resolver.service_records("no.example.org") == []
    with pytest.raises(OSError, match=r"SRV records of broken\.example\.org"):
        resolver.service_records("broken.example.org")


def test_hosts_of_this_machine() -> None:
    resolver = SystemResolver()
    assert resolver.addresses("127.0.0.1") == ["127.0.0.1"]
    assert {"127.0.0.1", "::1"} & set(resolver.addresses("localhost"))
    local = list(addresses_of(parse_target("localhost:99"), resolver, Random(1)))
    assert local == [TargetAddress("http://localhost:99", "", 99)]
    with pytest.raises(OSError, match=r"."):
        resolver.addresses("no-such-host.invalid")
