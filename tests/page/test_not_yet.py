"""The page of a run that nobody has begun: it is found when it starts, without a reload."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.page.posting import Poster

pytestmark = pytest.mark.chromium


def test_the_page_of_a_run_that_begins_later_finds_it(page: Page, post: Poster) -> None:
    page.goto("/#/run/not-yet/r")
    status = page.locator(".status")
    expect(status).to_contain_text("no such run yet")
    expect(page.get_by_role("button", name="All pipelines")).to_be_visible()
    post.status("not-yet", "r", "running", startDate=1, heartbeat=True)
    expect(page.get_by_text("This run has no lines yet")).to_be_visible()
    expect(status).not_to_contain_text("no such run")
    post.text("not-yet", "r", b"the first line\n")
    expect(page.locator(".row .tx")).to_have_text(["the first line"])
