"""What somebody meets who knows nothing of the page: failed runs, empty places, a service away."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.service_process import ServiceProcess
from tests.page.posting import Poster

pytestmark = pytest.mark.chromium

TRACE = b"""INFO begins
ERROR cannot read the schema billing
Traceback (most recent call last):
  File "source.py", line 31, in execute
OperationalError: connection lost
INFO cleans up
"""


@pytest.fixture(scope="session")
def runs(post: Poster) -> Poster:
    for run, state in (("1", "success"), ("2", "failed"), ("3", "success"), ("4", "failed")):
        post.text("nightly.load", run, TRACE if state == "failed" else b"INFO all well\n")
        post.status("nightly.load", run, state)
        post.close("nightly.load", run)
    return post


def test_a_failed_run_says_so_and_leads_to_its_errors(page: Page, runs: Poster) -> None:
    page.goto("/#/run/nightly.load/4")
    expect(page.locator(".status .badge")).to_have_text("failed")
    why = page.get_by_role("region", name="Errors of the run")
    # The traceback is a part of the error, and no other one.
    expect(why.locator("li")).to_have_text(["ErrorERROR cannot read the schema billing"])
    expect(why.locator(".said")).to_have_text("1 error")
    why.locator("li button").click()
    expect(page.locator(".row.marked .tx")).to_have_text("ERROR cannot read the schema billing")
    expect(page.get_by_role("button", name="To the end")).to_be_visible()
    why.get_by_role("button", name="Close the errors").click()
    expect(why).to_be_hidden()
    page.goto("/#/run/nightly.load/3")
    expect(page.locator(".status .badge")).to_have_text("succeeded")
    expect(why).to_be_hidden()


def test_the_list_has_the_outcomes_of_the_latest_runs(page: Page, runs: Poster) -> None:
    page.goto("/#/?name=nightly.load")
    dots = page.locator("tbody tr .dot")
    expect(dots).to_have_count(4)
    kinds = dots.evaluate_all("dots => dots.map(dot => dot.className)")
    assert kinds == ["dot succeeded", "dot failed"] * 2, "the newest is last"
    dots.nth(1).click()
    expect(page.get_by_role("navigation", name="Place")).to_contain_text("nightly.load/2")


def test_hits_of_one_run_are_below_its_name(page: Page, runs: Poster) -> None:
    page.goto("/#/search?q=level:ERROR&fqn=nightly.load&from=0")
    expect(page.locator(".hits li")).to_have_count(8)
    expect(page.locator(".hits .where:visible")).to_have_text(
        ["nightly.load / 4", "nightly.load / 2"]
    )
    page.get_by_label("Query").fill("nobodysaysthis")
    page.get_by_label("Time", exact=True).select_option("now-15m")
    page.get_by_role("button", name="Search all time").click()
    expect(page.locator(".note")).to_have_text("0 records")
    expect(page.get_by_label("Time", exact=True)).to_have_value("0")


def test_a_place_that_is_not_there_offers_another(page: Page, runs: Poster) -> None:
    page.goto("/#/run/nobody/1")
    expect(page.locator(".empty")).to_contain_text("There is no pipeline “nobody” here yet.")
    expect(page.get_by_role("button", name="Find", exact=True)).to_be_hidden()
    page.get_by_role("button", name="All pipelines").click()
    expect(page.locator("h1")).to_have_text("Pipelines")


@pytest.mark.in_turn(3)
def test_a_run_that_was_asked_for_too_early_is_there_when_the_service_is(
    page: Page, tmp_path: Path
) -> None:
    service = ServiceProcess(tmp_path / "node")
    service.start()
    with Poster(service.url) as post:
        post.text("p", "r", b"one\n")
    page.goto(f"{service.url}/")
    expect(page.locator("a.main")).to_have_count(1)
    service.kill()
    page.goto(f"{service.url}/#/run/p/r")
    expect(page.locator(".empty")).to_have_text(
        "The service does not answer. The page tries again."
    )
    service.start()
    expect(page.locator(".row .tx")).to_have_text("one")
    expect(page.locator(".empty")).to_be_hidden()
    expect(page.locator(".state")).to_have_text("live")
    service.stop()
