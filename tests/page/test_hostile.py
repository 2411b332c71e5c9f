"""Text of logs is shown and never interpreted, however it looks."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.page.posting import Poster, copied, open_run

pytestmark = pytest.mark.chromium

LINES = [
    b"<script>window.bad = 1</script><img src=x onerror='window.bad = 2'><b>not bold</b>",
    b'"><svg onload=window.bad=3> javascript:window.bad=4',
    b"\x1b[31mred\x1b[0m \x1b[38;5;208morange\x1b[48;2;1;2;3mblue\x1b[m \x1b]0;t\x07\x1b[2Jclear",
    "\u202eevil\u202c \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u2066x\u2069".encode(),
    b"NUL \x00 BEL \x07 BS \x08 ESC at the end \x1b",
    b"not UTF-8: \xff\xfe\xc3",
    b"progress 1%\rprogress 50%\rprogress 100%",
    b"windows\r",
    b"",
    b"y" * 1_000_000,
    b"the end",
]
SHOWN = {
    1: "<script>window.bad = 1</script><img src=x onerror='window.bad = 2'><b>not bold</b>",
    2: '"><svg onload=window.bad=3> javascript:window.bad=4',
    3: "red orangeblue clear",
    4: "␦evil␦ \u0627\u0644\u0639\u0631\u0628\u064a\u0629 ␦x␦",
    5: "NUL ␀ BEL ␇ BS ␈ ESC at the end ␛",
    6: "not UTF-8: \ufffd\ufffd\ufffd",
    7: "progress 100%",
    8: "windows",
    9: "",
    11: "the end",
}


def test_hostile_lines_are_text_and_copied_as_they_are(page: Page, post: Poster) -> None:
    post.text("p.hostile", "<img src=x>", b"\n".join(LINES) + b"\n")
    open_run(page, "p.hostile", "%3Cimg%20src%3Dx%3E")
    for number, text in SHOWN.items():
        line = page.locator(f'.row[data-n="{number - 1}"] .tx')
        assert line.text_content() == text
    assert page.locator(".log script, .log img, .log b, .log svg, header img").count() == 0
    assert page.evaluate("window.bad") is None
    colours = page.locator('.row[data-n="2"] .tx span').evaluate_all(
        "spans => spans.map(span => getComputedStyle(span).color)"
    )
    assert len(set(colours)) == 2
    page.get_by_role("button", name="… 996,000 more characters").click()
    expect(page.locator("dialog pre")).to_contain_text("yyyy")
    whole = page.locator("dialog pre").evaluate("text => text.textContent.length")
    assert whole == 1_000_000
    page.keyboard.press("Escape")
    page.keyboard.press("Control+a")
    page.keyboard.press("Control+c")
    expect(page.locator("#toast")).to_have_text("Copied 11 lines.")
    assert copied(page) == b"\n".join([*LINES, b""]).decode(errors="replace")


def test_wrapped_lines_scroll_to_both_ends(page: Page, post: Poster) -> None:
    body = "".join([f"{n} " + "long words " * (n % 60) + "\n" for n in range(2000)])
    post.text("p.wrap", "r", body.encode())
    open_run(page, "p.wrap", "r")
    page.keyboard.press("w")
    expect(page.locator(".row .tx").last).to_contain_text("1999 long")
    page.keyboard.press("Home")
    expect(page.locator(".row .tx").first).to_have_text("0 ")
    page.keyboard.press("PageDown")
    expect(page.locator(".row .tx").first).not_to_have_text("0 ")
    page.keyboard.press("PageUp")
    expect(page.locator(".row .tx").first).to_have_text("0 ")
    page.keyboard.press("End")
    expect(page.locator(".row .tx").last).to_contain_text("1999 long")


def test_traces_and_groups_are_folded_and_open(page: Page, post: Poster) -> None:
    text = [
        *("::group::Install", "one", "two", "::endgroup::", "Traceback (most recent call last):"),
        *('  File "a.py", line 1, in f', "    g()", "    ^^^", '  File "b.py", line 2, in g'),
        *("    raise KeyError(1)", "KeyError: 1", "java.io.IOException", "\tat a.B.c(B.java:1)"),
        *("\tat a.B.d(B.java:2)", "\t... 3 more", "after"),
    ]
    post.text("p.folds", "r", "\n".join(text).encode())
    open_run(page, "p.folds", "r")
    tx = page.locator(".row .tx")
    folded = [text[n] for n in (0, 4, 5, 10, 11, 12, 15)]
    expect(tx).to_have_text(folded, use_inner_text=True)
    for name in ("3 more lines", "4 more lines", "2 more lines"):
        page.get_by_role("button", name=name).click()
    expect(tx).to_have_count(len(text))
    page.get_by_role("button", name="fold", exact=False).first.click()
    expect(tx).to_have_count(len(text) - 3)


@pytest.mark.in_turn(3)
def test_groups_are_folded_as_they_are_read_and_stay_as_they_were_turned(
    page: Page, post: Poster
) -> None:
    lines = [[f"::group::{n}", *(f"in {n}" for _ in range(6)), "::endgroup::"] for n in range(300)]
    post.text("p.groups", "r", "\n".join(line for group in lines for line in group).encode())
    open_run(page, "p.groups", "r")
    page.keyboard.press("g")
    tx = page.locator(".row .tx")
    expect(tx.nth(2)).to_have_text("::group::2")
    page.locator("button.fold").first.click()
    expect(tx.nth(2)).to_have_text("in 0")
    page.locator(".log").evaluate("log => { log.scrollTop = log.scrollHeight / 2; }")
    expect(tx.first).to_contain_text("::group::1")
    assert not [text for text in tx.all_text_contents() if text.startswith("in ")]
    page.keyboard.press("g")
    expect(tx.nth(2)).to_have_text("in 0")
    expect(tx.nth(8)).to_have_text("::group::1")
