"""A bar that a real command draws moves in the page, and its last state is a line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.client.programs import ROOT, until
from tests.e2e.service_process import BASE, ServiceProcess
from tests.page.posting import Poster

pytestmark = pytest.mark.chromium

BAR = r"""echo begin; printf '10%%\r20%%'; read x; printf '\r30%%'; read x; printf '\r100%%\n'"""


def test_a_bar_moves_and_its_run_is_there_before_its_first_line(
    page: Page, service: ServiceProcess, tmp_path: Path
) -> None:
    options = ["--url", service.url, "--fqn", "bars", "--run", "r", "--spool", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tailrace_client", "run", *options, "--", "sh", "-c", BAR],
        env={**os.environ, "PYTHONPATH": str(ROOT / "client")},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    shown = f"{service.url}{BASE.removesuffix('/logs')}/unfinished/bars/r"
    until(lambda: bool(httpx.get(shown, timeout=60).json()["lines"]))
    page.goto("/#/run/bars/r")
    bar = page.locator(".unfinished")
    for state in ("20%", "30%"):
        expect(bar).to_have_text(state)
        process.stdin.write(b"on\n")
        process.stdin.flush()
    process.communicate(timeout=120)
    lines = page.locator(".row .tx")
    expect(lines).to_have_text(["begin", "100%", "sh exited with 0"])
    expect(bar).to_be_hidden()
    expect(page.locator(".status .badge")).to_have_text("succeeded")
    expect(page.locator(".took")).to_have_attribute("title", re.compile("that its client reported"))


def test_a_run_without_an_outcome_says_so(page: Page, post: Poster) -> None:
    post.text("bars", "quiet", b"one\n")
    post.close("bars", "quiet")
    page.goto("/#/run/bars/quiet")
    expect(page.locator(".status .badge")).to_have_text("ended without outcome")
    expect(page.locator(".took")).to_contain_text("by its lines")
