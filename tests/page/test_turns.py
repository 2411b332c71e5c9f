"""Many tabs at once: a browser opens six connections to a host, and all of them are live."""

from __future__ import annotations

import re
import time

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e.service_process import ServiceProcess
from tests.page.posting import Poster, open_run

pytestmark = pytest.mark.chromium

_HIDE = """hidden => {
    const state = hidden ? "hidden" : "visible";
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
"""Headless tabs are all on screen: this says to the page what a browser says of one in front."""


def _streams(service: ServiceProcess) -> int:
    text = httpx.get(f"{service.url}/metrics", timeout=60).text
    found = re.search(r"^tailrace_stream_readers (\d+)", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def _await_streams(service: ServiceProcess, most: int) -> None:
    deadline = time.monotonic() + 60
    while _streams(service) > most:
        assert time.monotonic() < deadline, f"more than {most} streams stay open"
        time.sleep(0.05)


@pytest.mark.in_turn(4)
def test_eight_windows_are_live_and_a_ninth_page_loads(
    context: BrowserContext, post: Poster
) -> None:
    """All are on screen, side by side."""
    runs = [f"r{n}" for n in range(8)]
    for run in runs:
        post.lines("p.tabs", run, 0, 2)
    tabs = [context.new_page() for _ in runs]
    for tab, run in zip(tabs, runs, strict=True):
        tab.goto(f"/#/run/p.tabs/{run}")
    for tab in tabs:
        expect(tab.locator(".state")).to_have_text("live")
    home = context.new_page()
    home.goto("/")
    expect(home.locator("tbody tr").filter(has_text="p.tabs")).to_be_visible()
    for run in runs:
        post.lines("p.tabs", run, 2, 3)
    for tab in tabs:
        expect(tab.locator(".row .tx")).to_have_text(["line 0", "line 1", "line 2"])


@pytest.mark.in_turn(3)
def test_a_hidden_tab_holds_no_connection_and_goes_on_when_it_is_shown(
    page: Page, service: ServiceProcess, post: Poster
) -> None:
    _await_streams(service, 0)
    post.lines("p.hidden", "r", 0, 2)
    open_run(page, "p.hidden", "r")
    page.evaluate(_HIDE, True)
    _await_streams(service, 0)
    post.lines("p.hidden", "r", 2, 700)
    page.evaluate(_HIDE, False)
    expect(page.locator(".row .tx").last).to_have_text("line 699")
    post.lines("p.hidden", "r", 700, 701)
    expect(page.locator(".row .tx").last).to_have_text("line 700")
    expect(page.locator(".status")).to_contain_text("701 lines")
    expect(page.locator(".state")).to_have_text("live")
