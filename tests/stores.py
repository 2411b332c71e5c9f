"""Every kind of store that a simulated world may stand on, for tests that ask for it.

`every_store` runs a test over the simulated disk, and over a real S3 server through a proxy that
misbehaves in ways that a correct client hides; `every_server` over the last alone. They give the
proxy's schedule, if there is one. Most requests get through it as they are, so a run without the
proxy would see nothing more; that a client and a server agree without one is told by
`tests/logstore/test_s3_store.py` and whatever takes the fixture `bucket`.
Of tests with many parameters `on_servers` says which values are worth a server's time.

Of the tests that `every_store` repeats on a server, a run takes about one in `SERVED`, others in
each run (`tests.seeds`); the simulated disk sees all of them in each. Whoever names a test by its
id has it run wherever it can.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy
from tests.seeds import chosen
from tests.servers.minio import Minio
from tests.simulation.backing import PAUSE_MS, TRIES, Backing, Server, standing_on
from tests.simulation.outside import Outside

RATE = 0.15
SERVED = 3
ON_SERVER = pytest.param("faults", marks=pytest.mark.minio)


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
def _standing(request: pytest.FixtureRequest) -> Iterator[Schedule]:
    outside: Outside = request.getfixturevalue("outside")
    # Cut, names of parameters that differ at their end alone would share what is stored.
    which = hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]
    name = re.sub(r"[^\w.-]", "_", request.node.name)[:80] + f"-{which}"
    proxied: Proxied = request.getfixturevalue("proxied")
    proxied.schedule.injected.clear()
    proxied.schedule.rates.update(evenly(RATE))
    with standing_on(Backing(proxied.server, outside, name)):
        yield proxied.schedule
    proxied.schedule.calm()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`on_servers(where=("both",))`: of the values of `where` servers see these."""
    named = any("::" in argument for argument in config.args)
    spared = {item for item in items if _spared(item, named=named)}
    config.hook.pytest_deselected(items=[item for item in items if item in spared])
    items[:] = [item for item in items if item not in spared]


def _spared(item: pytest.Item, *, named: bool) -> bool:
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return False
    params = item.callspec.params
    if params.get("every_store", "local") == "local":
        return False
    marker = item.get_closest_marker("on_servers")
    values = marker.kwargs if marker is not None else {}
    unseen = any(params[name] not in seen for name, seen in values.items())
    return unseen or not (named or chosen(item.nodeid, SERVED))


@pytest.fixture(params=["local", ON_SERVER])
def every_store(request: pytest.FixtureRequest) -> Iterator[Schedule | None]:
    if request.param == "local":
        yield None
        return
    with _standing(request) as schedule:
        yield schedule


@pytest.fixture(params=[ON_SERVER])
def every_server(request: pytest.FixtureRequest) -> Iterator[Schedule]:
    with _standing(request) as schedule:
        yield schedule
