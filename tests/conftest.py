"""What all tests share: servers, and honesty about what was left out.

A test that needs something of the machine carries a marker of that thing (`NEEDS`).
Where the machine has it not, the test is left out and the end of the run says which
and why. With `CI=true` nothing may be left out: the run fails instead. Where pytest-xdist
spreads the run over several processes, each tells the one that prints.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tailrace.logstore.java import why_no_spark
from tests.seeds import choose, chosen
from tests.servers.chromium import why_no_chromium
from tests.servers.debian import why_no_program
from tests.servers.dynamodb import DynamoDb, running_dynamodb, why_no_dynamodb
from tests.servers.helm import why_no_helm
from tests.servers.jars import why_no_jars
from tests.servers.minio import Bucket, Minio, memory_folder, running_minio, why_no_minio
from tests.servers.namespaces import why_no_namespaces
from tests.servers.openssl import why_no_openssl
from tests.servers.quick_java import QUICK
from tests.servers.small_disks import why_no_small_disks
from tests.servers.upgrading import why_no_upgrading_clients

pytest_plugins = ["tests.repairs", "tests.stores"]
# How long an example takes says nothing of the code, on whatever machine that is.
settings.register_profile(
    "patient", settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
)
settings.load_profile("patient")

# Marker: what to call it, and what says why it is not here, or None.
NEEDS: dict[str, tuple[str, Callable[[], str | None]]] = {
    "spark": ("Spark", why_no_spark),
    "promtool": ("promtool", partial(why_no_program, "promtool")),
    "helm": ("Helm", why_no_helm),
    "prometheus": ("Prometheus", partial(why_no_program, "prometheus")),
    "logrotate": ("logrotate", partial(why_no_program, "logrotate")),
    "systemd": ("systemd-analyze", partial(why_no_program, "systemd-analyze")),
    "nginx": ("nginx", partial(why_no_program, "nginx")),
    "openssl": ("openssl", why_no_openssl),
    "npm": ("npm", lambda: None if shutil.which("npm") else "no npm found; it comes with Node.js"),
    "chromium": ("Chromium", why_no_chromium),
    "minio": ("MinIO", why_no_minio),
    "dynamodb": ("DynamoDB Local", why_no_dynamodb),
    "upgrading": ("clients that offer HTTP/2", why_no_upgrading_clients),
    "jars": ("jars for Spark on S3", why_no_jars),
    "small_disks": ("small disks", why_no_small_disks),
    "namespaces": ("network namespaces", why_no_namespaces),
}
_left_out: dict[str, list[str]] = {}


def pytest_configure() -> None:
    choose()  # before pytest-xdist begins its processes, which are to make the same choice
    os.environ.update(QUICK)


def pytest_report_header() -> str:
    return f"cases that this run tries of many: {choose()}"


@pytest.fixture(scope="session")
def minio() -> Iterator[Minio]:
    """One server for the run; tests that take it are marked `minio`."""
    with running_minio(memory_folder()) as server:
        yield server


@pytest.fixture
def bucket(minio: Minio) -> Bucket:
    """An empty bucket of its own for each test."""
    return minio.bucket()


@pytest.fixture(scope="session")
def dynamodb() -> Iterator[DynamoDb]:
    """One server for the run; tests that take it are marked `dynamodb`."""
    with running_dynamodb() as server:
        yield server


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_to_other_runs(config, items)
    for marker, (name, why_not) in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = why_not() if marked else None
        if reason is None:
            continue
        _left_out[f"no {name} here: {reason}"] = [item.nodeid for item in marked]
        items[:] = [item for item in items if item not in marked]
        config.hook.pytest_deselected(items=marked)


def _leave_to_other_runs(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out slow tests that have their turn in another run, unless one is asked for by name.

    `in_turn(every)`: one run in `every` takes the test. With a name, `in_turn(every, name)`, tests
    of that name have their turn together.
    """
    if any("::" in argument for argument in config.args):
        return
    others = {
        item
        for item in items
        if (mark := item.get_closest_marker("in_turn"))
        and not chosen("".join(mark.args[1:]) or item.nodeid.partition("[")[0], mark.args[0])
    }
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=list(others))


def pytest_collection_finish() -> None:
    """What collecting made lives until the end: no collection of garbage looks at it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _left_out.setdefault(reason.removeprefix("Skipped: "), []).append(item.nodeid)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _left_out:
        return
    terminalreporter.section("left out on this machine")
    for reason, names in _left_out.items():
        terminalreporter.line(f"{len(names)} tests: {reason}")
        for name in names:
            terminalreporter.line(f"  {name}")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A process of pytest-xdist has ended. What the machine has not, each of them left out."""
    for reason, names in getattr(node, "workeroutput", {}).get("left_out", {}).items():
        known = _left_out.setdefault(reason, [])
        known.extend(name for name in names if name not in known)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = _left_out
    elif _left_out and os.environ.get("CI") == "true" and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
