"""Nodes that ask each other with TLS of both sides, as real processes."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.settings import load_settings
from tailrace.logstore.errors import InvalidInput
from tests.e2e.service_process import BASE, ServiceProcess
from tests.servers.openssl import Authority
from tests.servers.ports import free_port
from tests.service.peers.processes import Nodes, running
from tests.service.peers.test_over_http import LAZY, lines, post

PATH = f"{BASE}/svc.tls/run"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "nodes")


@pytest.fixture
def two(tmp_path: Path, authority: Authority) -> Iterator[Nodes]:
    made = []
    for name in "ab":
        authority.certificate(name, "IP:127.0.0.1")
        made.append(
            ServiceProcess(
                tmp_path / name,
                store=tmp_path / "store",
                TAILRACE_NODE_ID=name,
                TAILRACE_NODES__LISTEN=f"127.0.0.1:{free_port()}",
                TAILRACE_NODES__TLS_CERTIFICATE=str(tmp_path / f"nodes-{name}.pem"),
                TAILRACE_NODES__TLS_KEY=str(tmp_path / f"nodes-{name}.key"),
                TAILRACE_NODES__TLS_CA=str(authority.file),
                **LAZY,
            )
        )
    with running(*made):
        yield made[0], made[1]


def client(folder: Path, trusted: Authority, shown: str | None) -> httpx.Client:
    context = ssl.create_default_context(cafile=trusted.file)
    if shown is not None:
        context.load_cert_chain(folder / f"{shown}.pem", folder / f"{shown}.key")
    return httpx.Client(verify=context, timeout=60)


@pytest.mark.in_turn(3)
def test_nodes_read_each_other_and_let_in_whom_their_authority_signed(
    two: Nodes, tmp_path: Path, authority: Authority
) -> None:
    a, b = two
    post(a, PATH, "one\n")
    post(b, PATH, "two\n")
    for service in two:
        assert sorted(lines(service, PATH).splitlines()) == ["one", "two"]
        assert httpx.get(f"{service.url}/health/ready", timeout=60).json()["problems"] == []
        assert httpx.post(f"{service.url}/internal/hello", timeout=60).status_code == 404
    Authority(tmp_path, "others").certificate("c", "IP:127.0.0.1")
    internal = f"https://{a.settings['TAILRACE_NODES__LISTEN']}/internal/hello"
    for shown in (None, "others-c"):
        with client(tmp_path, authority, shown) as stranger, pytest.raises(httpx.TransportError):
            stranger.post(internal)
    with client(tmp_path, authority, "nodes-b") as node:
        assert node.post(internal).status_code == 409  # for which process it is was not said
        assert node.get(internal.replace("/internal/hello", "/metrics")).status_code == 404
    assert httpx.delete(f"{a.url}{PATH}", timeout=60).status_code == 200
    assert httpx.get(f"{b.url}{PATH}", timeout=60).status_code == 404


@pytest.mark.parametrize(
    "settings",
    [
        {"nodes": {"listen": "127.0.0.1:1"}},
        {"nodes": {"tls_certificate": "a.pem", "tls_ca": "b.pem"}},
        {
            "nodes": {"listen": "h:1", "tls_certificate": "a.pem", "tls_ca": "b.pem"},
            "server": {"workers": 2},
        },
    ],
)
def test_it_is_whole_or_not_at_all(settings: dict[str, dict[str, object]]) -> None:
    with pytest.raises(InvalidInput) as error:
        load_settings(settings)
    assert error.value.field == "nodes.listen"
