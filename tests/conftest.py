"""What all tests share: the async backend, and honesty about what was left out.

A test that needs something of the machine carries a marker of that thing (`spark`).
Where the machine has it not, the test is left out and the end of the run says which
and why. With `CI=true` nothing may be left out: the run fails instead.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from service.java import why_no_spark

_left_out: dict[str, list[str]] = {}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reason = why_no_spark()
    without = [item for item in items if reason and item.get_closest_marker("spark")]
    if not without:
        return
    _left_out[f"no Spark here: {reason}"] = [item.nodeid for item in without]
    items[:] = [item for item in items if item not in without]
    config.hook.pytest_deselected(items=without)


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


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if _left_out and os.environ.get("CI") == "true" and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
