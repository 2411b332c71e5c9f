"""A match is on screen, however far to the side of its line or deep in its record it is."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.posting import Poster, copied, open_run, until

pytestmark = pytest.mark.chromium

_FOUND = """() => {
    const log = document.querySelector(".log");
    const box = log.getBoundingClientRect();
    const ranges = [...(CSS.highlights.get("found") ?? [])];
    return ranges.filter((range) => range.startContainer.isConnected).map((range) => {
        const { left, right, top, bottom } = range.getBoundingClientRect();
        const across = left >= box.left && right <= box.left + log.clientWidth;
        return [range.toString(), across && top >= box.top && bottom <= box.bottom];
    });
}"""
"""Each match that is marked, and whether all of it is on screen."""
_ON_SCREEN = f"() => ({_FOUND})().some(([, seen]) => seen)"


def _find(page: Page, text: str) -> Locator:
    page.keyboard.press("/")
    page.keyboard.type(text)
    page.keyboard.press("Enter")
    expect(page.locator(".found")).to_have_text("1 of 1 record")
    until(page, _ON_SCREEN)
    assert [text] == [found for found, _ in page.evaluate(_FOUND)]
    return page.locator(".row.marked")


def test_a_match_is_on_screen_in_any_column(page: Page, post: Poster) -> None:
    lines = [f"straw {n}" for n in range(200)]
    lines[20] = f"{'x' * 2500}needle{'x' * 400}"
    lines[40] = f"{'y' * 9000}hidden{'y' * 9000}"
    lines[60] = f"{'z' * 100_000}deeper{'z' * 9000}"
    lines[80] = f"{'v' * 3000} \x1b[31mcol\x1b[0mour"
    post.text("p.side", "r", "".join([f"{line}\n" for line in lines]).encode())
    open_run(page, "p.side", "r")
    _find(page, "needle")
    page.keyboard.press("Escape")
    row = _find(page, "hidden")  # behind what is shown of a line
    expect(row.locator("[data-open]").first).to_have_text("… 8,000 characters before")
    page.keyboard.press("Escape")
    row = _find(page, "deeper")  # behind what the page keeps of a line
    page.keyboard.press("Escape")
    # What is copied of it is what is shown.
    row.locator(".tx").evaluate("""text => {
        const at = text.textContent.indexOf("deeper");
        getSelection().setBaseAndExtent(text.firstChild, at - 2, text.firstChild, at + 8);
    }""")
    page.keyboard.press("Control+c")
    expect(page.locator("#toast")).to_have_text("Copied 1 line.")
    assert copied(page) == "zzdeeperzz"
    _find(page, "colour")  # its colour changes within
    page.keyboard.press("Escape")
    _find(page, "straw 150")  # and back to the beginning of lines
    assert page.evaluate("document.querySelector('.log').scrollLeft") == 0


@pytest.mark.in_turn(3)
def test_a_match_is_on_screen_in_a_long_record_and_where_lines_wrap(
    page: Page, post: Poster
) -> None:
    frames = [f"  at frame.number{n}(Frames.java:{n})" for n in range(300)]
    frames[250] += " needle"
    wrapped = f"2026-11-23 10:00:01 INFO {'w ' * 3500}wrapped{' w' * 300}"
    text = "\n".join(["2026-11-23 10:00:00 ERROR failed", *frames, wrapped, *["straw"] * 100, ""])
    post.text("p.deep", "r", text.encode())
    open_run(page, "p.deep", "r")
    expect(_find(page, "needle")).to_have_attribute("data-n", "251")
    address = page.url
    page.keyboard.press("Escape")
    page.keyboard.press("w")
    _find(page, "wrapped")
    # An address of a match, as a list of hits has it.
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator(".row.marked")).to_have_attribute("data-n", "251")
    until(page, _ON_SCREEN)
