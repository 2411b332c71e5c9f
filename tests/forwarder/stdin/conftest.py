"""A real service for tests that do not kill it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.service_process import ServiceProcess


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """It runs for all tests that name their runs differently."""
    started = ServiceProcess(
        tmp_path_factory.mktemp("service") / "node",
        TAILRACE_SERVER__ALLOWED_HOSTS="allowed.test",
    )
    started.start()
    yield started
    started.stop()
