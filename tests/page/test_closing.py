"""A run that two nodes take: each line is once on screen, and a node that is silent is named."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.doors import HEARTBEATS
from tests.e2e.service_process import ServiceProcess
from tests.page.posting import Poster, open_run, shown
from tests.service.peers.processes import Nodes, running
from tests.service.peers.test_over_http import SECRET

pytestmark = pytest.mark.chromium

SETTINGS = {
    "TAILRACE_NODES__SECRET": SECRET,
    "TAILRACE_NODES__REFRESH_SECONDS": "0.5",
    "TAILRACE_RUNS__CLOSE_WAIT_SECONDS": "1",
    "TAILRACE_COORDINATION__LEASE_SECONDS": "600",
    **HEARTBEATS,
}
SILENT = re.compile(r"node a-\w+ does not answer", re.IGNORECASE)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    a, b = [
        ServiceProcess(tmp_path / name, store=tmp_path / "store", TAILRACE_NODE_ID=name, **SETTINGS)
        for name in "ab"
    ]
    with running(a, b):
        yield a, b


@pytest.fixture
def service(nodes: Nodes) -> ServiceProcess:
    """The node whose page is shown."""
    return nodes[1]


@pytest.mark.in_turn(4)
def test_each_line_of_both_nodes_is_once_on_screen(page: Page, nodes: Nodes) -> None:
    """Also those that come between the page's lines and its stream, before lines that it has."""
    a, b = nodes
    with Poster(a.url) as at_a, Poster(b.url) as at_b:

        def post_more(route: Route) -> None:
            for first in (10, 14):
                at_b.lines("p.both", "r", first, first + 2)
                at_a.lines("p.both", "r", first + 2, first + 4)
            route.continue_()

        at_b.lines("p.both", "r", 0, 5)
        at_a.lines("p.both", "r", 5, 10)
        page.route(re.compile(r"/stream/r\?"), post_more, times=1)
        open_run(page, "p.both", "r")
        expect(page.locator(".row")).to_have_count(18)
        at_b.lines("p.both", "r", 18, 19)
        at_a.lines("p.both", "r", 19, 20)
        expect(page.locator(".row")).to_have_count(20)
        assert sorted(shown(page)) == sorted([f"line {n}" for n in range(20)])


@pytest.mark.in_turn(4)
def test_a_run_is_closing_and_the_silent_node_is_named(page: Page, nodes: Nodes) -> None:
    a, b = nodes
    with Poster(a.url) as at_a, Poster(b.url) as at_b:
        at_a.lines("p.close", "r", 0, 5)
        at_b.lines("p.close", "r", 5, 10)
        open_run(page, "p.close", "r")
        os.kill(a.pid, signal.SIGSTOP)
        try:
            at_b.close("p.close", "r")
            expect(page.locator(".state")).to_have_text("closing")
            expect(page.locator(".status")).to_contain_text(SILENT)
            page.reload()
            expect(page.locator(".state")).to_have_text("closing")
            expect(page.locator(".status")).to_contain_text(SILENT)
            for place in ("/#/pipeline/p.close", "/#/"):
                page.goto(place)
                expect(page.locator("tbody tr")).to_contain_text("closing")
                expect(page.locator(".note")).to_contain_text(SILENT)
            page.goto("/#/run/p.close/r")
            expect(page.locator(".state")).to_have_text("closing")
        finally:
            os.kill(a.pid, signal.SIGCONT)
        expect(page.locator(".state")).to_have_text("closed")
        expect(page.locator(".status")).not_to_contain_text(SILENT)
        expect(page.locator(".row")).to_have_count(10)
