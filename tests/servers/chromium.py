"""A real Chromium: Debian's, or the Chrome of the machine.

    with running_chromium() as browser: ...

It is driven by Playwright, which brings no browser of its own here. It speaks to this machine only.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "google-chrome", "google-chrome-stable")
# As root, which CI may be, a browser has no sandbox; the pages are our own.
_OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"]


def find_chromium() -> str | None:
    """The command, if this machine has it."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


def why_no_chromium() -> str | None:
    """What is missing here, if anything."""
    if find_chromium() is None:
        return "no chromium found; on Debian install it, or run .ci/debian chromium"
    return None


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """A browser without a window while the block runs."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=_OPTIONS)
        try:
            yield browser
        finally:
            browser.close()
