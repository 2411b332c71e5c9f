"""The view of a run: the live end, the way back, reading in peace, copying, finding."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.page.posting import Poster, copied, numbers, open_run, shown, until

pytestmark = pytest.mark.chromium


def test_a_run_opens_at_its_tail_and_follows(page: Page, post: Poster) -> None:
    post.lines("p.tail", "r", 0, 3000)
    open_run(page, "p.tail", "r")
    expect(page.locator(".row .tx").last).to_have_text("line 2999")
    for end in (3001, 3002, 3010):
        post.lines("p.tail", "r", numbers(page)[-1] + 1, end)
        expect(page.locator(".row .tx").last).to_have_text(f"line {end - 1}")
    assert shown(page) == [f"line {n}" for n in numbers(page)]


def test_nothing_moves_while_one_reads_and_new_lines_are_counted(page: Page, post: Poster) -> None:
    post.lines("p.read", "r", 0, 2000)
    open_run(page, "p.read", "r")
    page.mouse.move(600, 400)
    page.mouse.wheel(0, -3000)
    expect(page.get_by_role("button", name="Follow", exact=True)).to_be_visible()
    before = shown(page)
    assert before[-1] != "line 1999"
    post.lines("p.read", "r", 2000, 2750)
    fresh = page.get_by_role("button", name="750 new lines")
    expect(fresh).to_be_visible()
    assert shown(page) == before
    fresh.click()
    expect(page.locator(".row .tx").last).to_have_text("line 2749")
    expect(fresh).to_be_hidden()


def test_a_million_lines_scroll_to_the_beginning_and_to_any_place(page: Page, post: Poster) -> None:
    for start in range(0, 1_000_000, 100_000):
        post.lines("p.many", "r", start, start + 100_000)
    open_run(page, "p.many", "r")
    expect(page.locator(".status")).to_contain_text("1,000,000 lines")
    page.keyboard.press("Home")
    expect(page.locator(".row .tx").first).to_have_text("line 0")
    assert shown(page)[:20] == [f"line {n}" for n in range(20)]
    # As one drags the bar: to the middle of the run.
    page.locator(".log").evaluate("log => { log.scrollTop = log.scrollHeight / 2; }")
    expect(page.locator(".row:not(.waiting) .tx").first).to_contain_text("line ")
    until(page, "Math.abs(Number(document.querySelector('.row')?.dataset.n) - 500000) < 10000")
    expect(page.locator(".row.waiting")).to_have_count(0)
    seen = numbers(page)
    assert shown(page) == [f"line {n}" for n in seen]
    # Backwards by the wheel: every line passes once, none is left out.
    page.mouse.move(600, 400)
    for _ in range(5):
        page.mouse.wheel(0, -400)
        until(page, "first => Number(document.querySelector('.row')?.dataset.n) < first", seen[0])
        expect(page.locator(".row.waiting")).to_have_count(0)
        now = numbers(page)
        assert now[-1] >= seen[0] - 1
        assert shown(page) == [f"line {n}" for n in now]
        seen = now
    page.keyboard.press("End")
    expect(page.locator(".row .tx").last).to_have_text("line 999999")


def test_a_copy_has_every_byte_of_lines_that_are_not_on_screen(page: Page, post: Poster) -> None:
    lines = [f"{n}\t\x1b[3{n % 8}mcolour\x1b[0m  {'é中😀'[n % 3]} \\ '\" <b>" for n in range(5000)]
    post.text("p.copy", "r", "".join([line + "\n" for line in lines]).encode())
    open_run(page, "p.copy", "r")
    page.keyboard.press("Control+a")
    page.keyboard.press("Control+c")
    expect(page.locator("#toast")).to_have_text("Copied 5,000 lines.")
    assert copied(page) == "".join([line + "\n" for line in lines])
    page.keyboard.press("Escape")
    # From the first line to one that comes on screen only by scrolling.
    page.keyboard.press("Home")
    row = page.locator('.row[data-n="3"] .tx')
    expect(row).to_contain_text("colour")
    row.click(position={"x": 1, "y": 10})
    page.mouse.move(600, 400)
    for _ in range(30):
        page.mouse.wheel(0, 2000)
        page.wait_for_timeout(20)
    expect(page.locator(".row.waiting")).to_have_count(0)
    last = numbers(page)[10]
    assert last > 100
    end = page.locator(f'.row[data-n="{last}"] .tx')
    width = end.evaluate("text => text.getBoundingClientRect().width")
    end.click(position={"x": width - 1, "y": 10}, modifiers=["Shift"])
    page.keyboard.press("Control+c")
    expect(page.locator("#toast")).to_contain_text("Copied")
    assert copied(page) == "\n".join(lines[3 : last + 1])


def test_finding_counts_the_whole_run_and_goes_from_hit_to_hit(page: Page, post: Poster) -> None:
    body = b"".join(
        [b"needle %d\n" % n if n % 700 == 5 else b"straw %d\n" % n for n in range(7000)]
    )
    post.text("p.find", "r", body)
    open_run(page, "p.find", "r")
    page.keyboard.press("Control+f")
    page.keyboard.type("NEEDLE")
    page.keyboard.press("Enter")
    found = page.locator(".found")
    expect(found).to_have_text("1 of 10 records")
    expect(page.locator(".row.marked .tx")).to_have_text("needle 5")
    page.keyboard.press("Enter")
    expect(found).to_have_text("2 of 10 records")
    expect(page.locator(".row.marked .tx")).to_have_text("needle 705")
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    expect(found).to_have_text("10 of 10 records")
    expect(page.locator(".row.marked .tx")).to_have_text("needle 6305")
    expect(page.locator("#toast.shown")).to_have_text(
        "Before the first match: continuing at the last."
    )
    address = page.url
    # Another search begins at what is on screen.
    page.keyboard.press("Escape")
    page.locator(".log").evaluate("log => { log.scrollTop = log.scrollHeight / 2; }")
    expect(page.locator(".row .tx").first).to_contain_text("straw 3500")
    page.keyboard.press("/")
    page.keyboard.type("needle ")
    page.keyboard.press("Enter")
    expect(found).to_have_text("6 of 10 records")
    # Also while the lines there are still on their way.
    late: list[Route] = []
    page.route(re.compile(r"[?&]after=1\d{3}\b"), lambda route: late.append(route))
    page.keyboard.press("Escape")
    page.locator(".log").evaluate("log => { log.scrollTop = log.scrollHeight / 5; }")
    expect(page.locator(".row.waiting").first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("needle")
    page.keyboard.press("Enter")
    expect(found).to_have_text("searching…")
    for route in late:
        route.continue_()
    page.unroute_all()
    expect(found).to_have_text("3 of 10 records")
    page.keyboard.press("Escape")
    expect(page.locator(".find")).to_be_hidden()
    # The address names the line and the query; it is as good in another tab.
    other = page.context.new_page()
    other.goto(address)
    expect(other.locator(".row.marked .tx")).to_have_text("needle 6305")
    expect(other.locator(".found")).to_have_text("10 records")
    other.close()
    page.keyboard.press("/")
    page.keyboard.press("End")
    page.keyboard.type("6305")
    page.keyboard.press("Enter")
    expect(found).to_have_text("1 of 1 record")
    page.keyboard.press("Enter")
    expect(page.locator("#toast.shown")).to_have_text(
        "Past the last match: continuing at the first."
    )
    page.get_by_role("link", name="Search").click()
    expect(page.locator("#toast.shown")).to_have_count(0, timeout=1000)


def test_a_search_ends_when_its_run_is_left(page: Page, post: Poster) -> None:
    post.text("p.left", "r", b"straw\nneedle\nstraw\n")
    open_run(page, "p.left", "r")
    page.keyboard.press("/")
    page.keyboard.type("needle")
    page.keyboard.press("Enter")
    expect(page.locator(".found")).to_have_text("1 of 1 record")
    late: list[Route] = []
    page.route(re.compile(r"/query\?"), lambda route: late.append(route))
    with page.expect_request(re.compile(r"/query\?")):
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")
    page.get_by_role("link", name="Search").click()
    expect(page.locator(".run")).to_have_count(0)
    assert late
    for route in late:
        route.continue_()
    page.unroute_all()
    page.wait_for_timeout(500)
    expect(page.locator("#toast.shown")).to_have_count(0, timeout=1000)
    assert page.url.endswith("#/search")


def test_keys_lead_to_the_first_and_the_last_error(page: Page, post: Poster) -> None:
    body = [b"2026-11-23 10:00:00 INFO all well %d\n" % n for n in range(3000)]
    body[100] = b"2026-11-23 10:00:00 ERROR first\n"
    body[2000] = b"2026-11-23 10:00:00 ERROR last\n"
    post.text("p.error", "r", b"".join(body))
    open_run(page, "p.error", "r")
    page.keyboard.press("e")
    expect(page.locator(".row.marked.lv-ERROR .tx")).to_contain_text("ERROR first")
    page.keyboard.press("Shift+E")
    expect(page.locator(".row.marked.lv-ERROR .tx")).to_contain_text("ERROR last")
    page.keyboard.press("h")
    expect(page.locator(".bars svg rect.bar").first).to_be_visible()


@pytest.mark.in_turn(3)
def test_a_click_in_the_chart_leads_to_the_first_line_since_then(page: Page, post: Poster) -> None:
    post.lines("p.chart", "r", 0, 100)
    open_run(page, "p.chart", "r")
    post.lines("p.chart", "r", 100, 200)
    expect(page.locator(".row .tx").last).to_have_text("line 199")
    page.keyboard.press("h")
    bars = page.locator(".bars rect.bar")
    expect(bars).to_have_count(2)
    first, second = (bar.bounding_box() for bar in bars.all())
    assert first is not None
    assert second is not None
    for x, line in ((first["x"] + 1, "line 0"), (second["x"] - 5, "line 100")):
        page.mouse.click(x, second["y"] + 1)
        expect(page.locator(".row.marked .tx")).to_have_text(line)
