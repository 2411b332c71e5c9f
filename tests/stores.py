"""Every kind of store that a simulated world may stand on, for tests that ask for it.

`every_store` runs a test over the simulated disk, over a real S3 server, and over that server
through a proxy that misbehaves in ways that a correct client hides; `every_server` over the
last two; `through_faults` over the last. They give the proxy's schedule, if there is one.
Of tests with many parameters `on_servers` says which values are worth a server's time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.backing import PAUSE_MS, TRIES, Backing, Server, standing_on
from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy
from tests.outside import Outside
from tests.servers import Minio

RATE = 0.15
ON_SERVERS = [pytest.param(name, marks=pytest.mark.minio) for name in ("minio", "faults")]


@dataclass
class Proxied:
    """The server behind the proxy, whose schedule is set for each test."""

    server: Server
    schedule: Schedule


@pytest.fixture(scope="session")
def outside() -> Iterator[Outside]:
    with Outside() as made:
        yield made


@pytest.fixture(scope="session")
def straight(minio: Minio, outside: Outside) -> Iterator[Server]:
    bucket = minio.bucket()
    server = Server(bucket, outside, straight=bucket)
    yield server
    server.close()


@pytest.fixture(scope="session")
def proxied(minio: Minio, outside: Outside) -> Iterator[Proxied]:
    schedule = Schedule(delay_seconds=0.005)
    bucket = minio.bucket()
    with fault_proxy(minio.endpoint_url, schedule) as url:
        # DuckDB and delta-rs try again and pause as our own client does.
        through = bucket.through(url, attempts=TRIES.count, backoff_milliseconds=PAUSE_MS)
        server = Server(through, outside, straight=bucket)
        yield Proxied(server, schedule)
        server.close()


@contextmanager
def _standing(request: pytest.FixtureRequest, kind: str) -> Iterator[Schedule | None]:
    outside: Outside = request.getfixturevalue("outside")
    # Cut, names of parameters that differ at their end alone would share what is stored.
    which = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]
    name = re.sub(r"[^\w.-]", "_", request.node.name)[:80] + f"-{which}"
    if kind == "minio":
        with standing_on(Backing(request.getfixturevalue("straight"), outside, name)):
            yield None
        return
    proxied: Proxied = request.getfixturevalue("proxied")
    proxied.schedule.injected.clear()
    proxied.schedule.rates.update(evenly(RATE))
    with standing_on(Backing(proxied.server, outside, name)):
        yield proxied.schedule
    proxied.schedule.calm()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`on_servers(where=("both",))`: of the values of `where` servers see these."""
    spared = [item for item in items if _spared(item)]
    items[:] = [item for item in items if not _spared(item)]
    config.hook.pytest_deselected(items=spared)


def _spared(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("on_servers")
    if marker is None or not isinstance(item, pytest.Function):
        return False
    params = item.callspec.params
    return params["every_store"] != "local" and any(
        params[name] not in values for name, values in marker.kwargs.items()
    )


@pytest.fixture(params=["local", *ON_SERVERS])
def every_store(request: pytest.FixtureRequest) -> Iterator[Schedule | None]:
    if request.param == "local":
        yield None
        return
    with _standing(request, request.param) as schedule:
        yield schedule


@pytest.fixture(params=ON_SERVERS)
def every_server(request: pytest.FixtureRequest) -> Iterator[Schedule | None]:
    with _standing(request, request.param) as schedule:
        yield schedule


@pytest.fixture
def through_faults(request: pytest.FixtureRequest) -> Iterator[Schedule]:
    with _standing(request, "faults") as schedule:
        assert schedule is not None
        yield schedule
