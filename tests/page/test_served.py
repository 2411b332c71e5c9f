"""How the page is served: its policy, its caching, and that its files are what the sources give."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.service_process import ServiceProcess


@pytest.fixture
def client(service: ServiceProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=60) as made:
        yield made


def _files(client: httpx.Client) -> list[str]:
    return re.findall(r'(?:href|src)="([^"]+)"', client.get("/").text)


def test_the_policy_allows_no_inline_code_and_no_other_place(client: httpx.Client) -> None:
    for path in ["/", *_files(client)]:
        reply = client.get(path)
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "*" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
    page = client.get("/").text
    assert re.findall(r"<script(?![^>]*\ssrc=)|<style|\son\w+=|\sstyle=", page) == []


def test_a_browser_keeps_what_has_its_hash_in_its_name(client: httpx.Client) -> None:
    names = _files(client)
    assert len(names) == 3
    for name in names:
        reply = client.get(name)
        assert reply.status_code == 200
        assert "immutable" in reply.headers["cache-control"]
    page = client.get("/")
    assert page.headers["cache-control"] == "no-cache"
    again = client.get("/", headers={"if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_files_are_compressed_for_those_that_take_it(client: httpx.Client) -> None:
    name = next(name for name in _files(client) if name.endswith(".js"))
    plain = client.get(name, headers={"accept-encoding": "identity"})
    zipped = client.get(name, headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert zipped.headers["content-encoding"] == "gzip"
    assert zipped.content == plain.content
    assert plain.headers["etag"] != zipped.headers["etag"]
    assert int(zipped.headers["content-length"]) < int(plain.headers["content-length"]) / 2


def test_head_says_what_get_sends(client: httpx.Client) -> None:
    reply = client.head("/")
    assert (reply.status_code, reply.content) == (200, b"")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
