"""Keys of an issuer over HTTP: what is taken, what is refused, and what is never said."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from service.access import rules
from service.access.rules import fetched
from tailrace.logstore.errors import Unavailable
from tests.servers.openssl import Authority, tls_before
from tests.servers.ports import free_port


@asynccontextmanager
async def issuer(reply: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server of one reply, after which it closes: its address, and the requests that it got."""
    got: list[bytes] = []
    done = asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(reply)
        if not reply:
            await reader.read()  # until the client gives up
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        done.set()

    server = await asyncio.start_server(hear, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", got
        async with asyncio.timeout(60):
            await done.wait()


async def test_keys_are_taken_and_no_proxy_of_the_environment_sees_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    async with issuer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (place, got):
        assert await fetched(f"http://{place}/jwks?of=us") == b"{}"
    assert got[0].startswith(b"GET /jwks?of=us HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n", "answers 503"),
        # Rules name one place: another would be chosen by whoever answers at it.
        (b"HTTP/1.1 302 Found\r\nLocation: /a\r\nContent-Length: 0\r\n\r\n", "answers 302"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes((1 << 20) + 1), "more than 1048576 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "does not answer"),  # cut off
        (b"SSH-2.0-server\r\n", "does not answer"),
    ],
)
async def test_other_replies_are_refused_by_an_address_without_its_secrets(
    reply: bytes, why: str
) -> None:
    async with issuer(reply) as (place, got):
        with pytest.raises(Unavailable, match=why) as refused:
            await fetched(f"http://me:s3cret@{place}/jwks?key=t0ken")
    assert str(refused.value).startswith(f"http://{place}/jwks ")
    assert b"t0ken" in got[0]


@pytest.mark.parametrize("place", ["http://127.0.0.1:{}/", "http:///jwks", "http://a:b/jwks"])
async def test_a_place_that_nobody_serves_is_refused(place: str) -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        await fetched(place.format(free_port()))


async def test_a_silent_issuer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_FETCH_SECONDS", 0.1)
    async with issuer(b"") as (place, _):
        with pytest.raises(Unavailable, match=r"does not answer: .*Timeout"):
            await fetched(f"http://{place}/jwks")


@pytest.mark.openssl
async def test_certificates_are_checked_by_those_that_a_variable_names(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    certificate = [ours.certificate("good", "DNS:localhost")]
    code = (
        "import asyncio, sys, service.access.rules as r; print(asyncio.run(r.fetched(sys.argv[1])))"
    )
    async with issuer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as (place, _):
        with tls_before(int(place.partition(":")[2]), certificate) as port:
            url = f"https://localhost:{port}/jwks"
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", code, url),
                env={**os.environ, "SSL_CERT_FILE": str(ours.file)},
                stdout=subprocess.PIPE,
            )
            out, _ = await child.communicate()
    assert out == b"b'{}'\n"
    with tls_before(free_port(), certificate) as port, pytest.raises(Unavailable) as refused:
        await fetched(f"https://localhost:{port}/jwks")
    assert "Certificate" in str(refused.value)
