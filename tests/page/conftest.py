"""The page in a real Chromium, before the service as a process."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from tests.e2e.service_process import ServiceProcess
from tests.page.posting import Poster
from tests.servers.chromium import running_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the session: a loop runs as long as the browser does, and async tests want theirs."""
    expect.set_options(timeout=60_000)
    with running_chromium() as running:
        yield running


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    running = ServiceProcess(tmp_path_factory.mktemp("page") / "node")
    running.start()
    yield running
    if running.running:
        assert running.stop() == 0
    assert "Traceback" not in running.output()


@pytest.fixture(scope="session")
def post(service: ServiceProcess) -> Iterator[Poster]:
    with Poster(service.url) as poster:
        yield poster


@pytest.fixture
def context(browser: Browser, service: ServiceProcess) -> Iterator[BrowserContext]:
    made = browser.new_context(base_url=service.url, viewport={"width": 1200, "height": 700})
    made.grant_permissions(["clipboard-read", "clipboard-write"], origin=service.url)
    made.set_default_timeout(60_000)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A tab. Whatever it says on its console, a broken policy too, fails the test.

    Lost connections are no fault of the page: Chromium reports each.
    """
    said: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            said.append(message.text)

    tab = context.new_page()
    tab.on("console", heard)
    tab.on("pageerror", lambda error: said.append(str(error)))
    yield tab
    assert said == []


@pytest.fixture(scope="session")
def axe() -> str:
    """axe's script, of the version that the page's lock names."""
    sources = Path(__file__).parents[2] / "page"
    script = sources / "node_modules" / "axe-core" / "axe.min.js"
    with (sources / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the processes of pytest-xdist install it once
        if not script.exists():
            subprocess.run(["npm", "ci", "--silent"], cwd=sources, check=True, timeout=300)
        return script.read_text()
