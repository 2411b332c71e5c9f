"""Nodes in network namespaces: what is cut between two of them does not concern a third."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.faults.link import Cut
from tests.servers.minio import Place
from tests.servers.namespaces import Namespaces

_PORT = 8000
_ASK = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=1)"


@pytest.fixture
def network() -> Iterator[Namespaces]:
    with Namespaces() as made:
        yield made


@contextmanager
def serving(place: Place, folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "http.server", "--bind", place.host, f"{_PORT}"]
    url = f"http://{place.host}:{_PORT}/"
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        [*place.within, *command], cwd=folder, stdout=quiet, stderr=quiet
    ) as server:
        try:
            with httpx.Client(transport=httpx.HTTPTransport(retries=10), timeout=60) as client:
                client.get(url).raise_for_status()
            yield url
        finally:
            server.kill()


def reaches(place: Place, url: str) -> bool:
    done = subprocess.run(
        [*place.within, sys.executable, "-c", _ASK, url], stderr=subprocess.DEVNULL, check=False
    )
    return done.returncode == 0


@pytest.mark.namespaces
def test_two_are_cut_and_a_third_is_not(network: Namespaces, tmp_path: Path) -> None:
    a, b, c = [network.place(name) for name in "abc"]
    with serving(a, tmp_path) as url:
        for how in Cut:
            network.cut("b", "a", how)
            assert not reaches(b, url)
            assert reaches(c, url)
            network.mend("b", "a")
            assert reaches(b, url)
