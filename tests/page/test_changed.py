"""What is new since the last success, attempts side by side, and the download of what matches."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.page.posting import Poster, open_run

pytestmark = pytest.mark.chromium

# Numbers, times and ids differ from run to run; they are no news.
USUAL = (
    "2026-11-{day} 10:00:{n:02d},{n:03d} INFO [worker-{n}] read {n} rows of 0x{n:08x}\n"
    "\x1b[32mblk_{n}\x1b[0m for 5f0c21d9-ab00-4e1c-9f3a-{n:012x} took {n}.{n} s\n"
)


def _usual(day: int) -> str:
    return "".join([USUAL.format(day=day, n=n) for n in range(1, 60)])


@pytest.mark.in_turn(4)
def test_lines_that_the_last_success_had_not_are_named_marked_and_reached_by_keys(
    page: Page, post: Poster
) -> None:
    post.text("p.new", "monday", (_usual(21) + "only then\n").encode())
    post.status("p.new", "monday", "success")
    post.text("p.new", "broken", b"cannot connect to 10.0.0.1\n")
    post.status("p.new", "broken", "failed")
    lines = _usual(23).splitlines()
    lines[40:40] = ["cannot connect to 10.0.0.2", "cannot connect to 10.0.0.3"]
    lines.append("giving up")
    post.text("p.new", "today", "\n".join(lines).encode())
    post.status("p.new", "today", "failed")
    post.text("p.new", "later", b"cannot connect to 10.0.0.4\ngiving up\n")
    post.status("p.new", "later", "success")
    open_run_ended(page, "p.new", "today")
    page.keyboard.press("c")
    bar = page.get_by_label("New since the last successful run")
    expect(bar.get_by_role("status")).to_have_text(
        "3 lines of 2 kinds are new since the last success, monday"
    )
    kinds = bar.locator(".kinds li")
    expect(kinds).to_have_text(["412×cannot connect to 10.0.0.2", "1211×giving up"])
    page.keyboard.press("c")
    expect(page.locator(".row.marked.new .tx")).to_have_text("cannot connect to 10.0.0.2")
    page.keyboard.press("c")
    expect(page.locator(".row.marked.new .tx")).to_have_text("cannot connect to 10.0.0.3")
    page.keyboard.press("Shift+C")
    expect(page.locator(".row.marked.new .tx")).to_have_text("cannot connect to 10.0.0.2")
    kinds.nth(1).get_by_role("button").click()
    expect(page.locator(".row.marked.new .tx")).to_have_text("giving up")
    page.wait_for_url("**line=*")
    page.keyboard.press("Escape")
    expect(bar).to_be_hidden()
    expect(page.locator(".row.new")).to_have_count(0)
    open_run_ended(page, "p.new", "monday")
    page.keyboard.press("c")
    expect(bar.get_by_role("status")).to_contain_text("No run of this pipeline before this one")


def open_run_ended(page: Page, fqn: str, run: str) -> None:
    page.goto(f"/#/run/{fqn}/{run}")
    expect(page.locator(".row").first).to_be_visible()
    expect(page.locator(".state")).to_have_text("finished")


@pytest.mark.in_turn(3)
def test_attempts_are_one_row_and_are_read_side_by_side(page: Page, post: Poster) -> None:
    for attempt, state in ((1, "failed"), (2, "failed"), (3, "running")):
        post.lines("p.tries", f"7/attempt-{attempt}", 0, attempt * 100)
        post.status("p.tries", f"7/attempt-{attempt}", state, attempt=attempt)
    post.lines("p.tries", "8", 0, 1)
    page.goto("/#/pipeline/p.tries")
    expect(page.locator("tbody tr")).to_have_count(2)
    row = page.locator("tbody tr", has_text="7/attempt-3")
    expect(row.locator(".badge")).to_have_text(["#1 failed", "#2 failed", "running"])
    row.get_by_role("link", name="side by side").click()
    left = page.get_by_role("region", name="Run 7/attempt-2")
    right = page.get_by_role("region", name="Run 7/attempt-3")
    expect(left.locator(".row .tx").last).to_have_text("line 199")
    expect(right.locator(".row .tx").last).to_have_text("line 299")
    # Keys are for the side that was used last; the other keeps its place, and follows.
    left.locator(".log").click()
    page.keyboard.press("Home")
    expect(left.locator(".row .tx").first).to_have_text("line 0")
    expect(right.locator(".row .tx").last).to_have_text("line 299")
    expect(right.get_by_role("button", name="Following")).to_be_visible()
    post.lines("p.tries", "7/attempt-3", 300, 301)
    expect(right.locator(".row .tx").last).to_have_text("line 300")
    expect(left.locator(".row .tx").first).to_have_text("line 0")
    right.locator(".log").click()
    page.keyboard.press("Control+f")
    page.keyboard.type("line 250")
    page.keyboard.press("Enter")
    expect(right.locator(".found")).to_have_text("1 of 1 record")
    expect(left.locator("form.find")).to_be_hidden()
    left.get_by_label("Run on the left").select_option("7/attempt-1")
    first = page.get_by_role("region", name="Run 7/attempt-1")
    expect(first.locator(".row .tx").last).to_have_text("line 99")
    open_run(page, "p.tries", "7%2Fattempt-3")
    page.keyboard.press("a")
    page.wait_for_url("**/#/compare/p.tries/7%2Fattempt-2/7%2Fattempt-3")


@pytest.mark.in_turn(3)
def test_what_matches_in_a_run_is_downloaded(page: Page, post: Poster, tmp_path: Path) -> None:
    lines = [f"needle {n}" if n % 7 == 0 else f"straw {n}" for n in range(3000)]
    post.text("p.part", "r", "\n".join(lines).encode())
    open_run(page, "p.part", "r")
    page.keyboard.press("/")
    page.keyboard.type("NEEDLE")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download matches").click()
    download.value.save_as(tmp_path / "saved")
    wanted = "".join([line + "\n" for line in lines if line.startswith("needle")])
    assert (tmp_path / "saved").read_text() == wanted
    assert download.value.suggested_filename == "p.part-r-matches.log"
