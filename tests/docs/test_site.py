"""The site of the documentation: built without a network, and searched from files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from tests.servers.chromium import running_chromium

ROOT = Path(__file__).parents[2]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the site."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(
        command, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, timeout=300
    )
    return tmp_path


@pytest.mark.chromium
@pytest.mark.in_turn(4)
def test_pages_that_are_opened_as_files_can_be_searched_and_ask_no_other_host(site: Path) -> None:
    asked: list[str] = []

    def keep_inside(route: Route) -> None:
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            asked.append(route.request.url)
            route.abort()

    with running_chromium() as browser:
        page = browser.new_page()
        page.route("**/*", keep_inside)
        page.goto((site / "use" / "search.html").as_uri())
        box = page.get_by_role("textbox", name="Search")
        box.click()
        box.press_sequentially("erasure")
        found = page.locator(".md-search-result__item")
        expect(found.first).to_contain_text("erasure", ignore_case=True, timeout=60_000)
    assert asked == []
