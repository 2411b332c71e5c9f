"""Lists, the search across runs, keys, a phone, and whether everybody can use it."""

from __future__ import annotations

import itertools
import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.e2e.service_process import ServiceProcess
from tests.page.posting import Poster, open_run, until

pytestmark = pytest.mark.chromium

SEVERE = b"2026-11-23 10:00:00 ERROR [a] no such column: total\n"


@pytest.fixture(scope="session")
def runs(post: Poster) -> None:
    """As long as the service: tests of a module may come to a worker in two parts."""
    post.text("shop.orders", "good", b"2026-11-23 10:00:00 INFO [a] read 5 rows status=200\n" * 30)
    post.status("shop.orders", "good", "success")
    post.text("shop.orders", "bad", SEVERE * 3)
    post.status("shop.orders", "bad", "failed")
    post.text("web/a b.c", "r#1?", b"one line\n")


@pytest.mark.usefixtures("runs")
def test_keys_lead_from_the_list_to_a_run_and_back(page: Page) -> None:
    page.goto("/#/?name=shop.orders")
    expect(page.locator("tbody tr")).to_have_count(1)
    orders = page.get_by_role("link", name="shop.orders")
    expect(orders).to_be_visible()
    page.keyboard.press("j")
    expect(orders).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("shop.orders")
    expect(page.locator(".badge.failed")).to_have_text("failed")
    expect(page.locator(".badge.succeeded")).to_have_text("succeeded")
    page.get_by_label("outcome").select_option("failed")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.get_by_role("link", name="bad").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".row")).to_have_count(3)
    page.keyboard.press("b")
    expect(page.locator("h1")).to_have_text("shop.orders")


@pytest.mark.usefixtures("runs")
def test_names_of_any_characters_are_links(page: Page) -> None:
    page.goto("/")
    page.get_by_role("link", name="r#1?", exact=True).click()
    expect(page.locator(".row .tx")).to_have_text("one line")
    page.reload()
    expect(page.locator(".row .tx")).to_have_text("one line")


@pytest.mark.usefixtures("runs")
def test_a_search_is_completed_and_leads_to_the_line(page: Page) -> None:
    page.goto("/#/search?fqn=shop.orders")  # others have errors, too
    page.keyboard.type("leve")
    expect(page.locator(".proposals li", has_text="level:")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator(".proposals li", has_text="ERROR")).to_be_visible()
    page.keyboard.type("ERR")
    expect(page.locator(".proposals li")).to_have_count(1)
    page.keyboard.press("Tab")
    expect(page.get_by_label("Query")).to_have_value("level:ERROR")
    page.keyboard.press("Enter")
    expect(page.locator(".hits li")).to_have_count(3)
    expect(page.locator(".note")).to_have_text("3 records")
    expect(page.locator(".bars rect.lv-ERROR")).not_to_have_count(0)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".row.marked .tx")).to_contain_text("no such column")
    assert re.search(r"#/run/shop\.orders/bad\?.*line=[0-9A-Z]{26}", page.url)
    # The way back leads through what was asked.
    page.go_back()
    expect(page.locator(".hits li")).to_have_count(3)
    page.go_back()
    expect(page.get_by_label("Query")).to_have_value("")


def test_all_matches_are_counted_by_fields_and_a_value_narrows_the_search(
    page: Page, post: Poster
) -> None:
    status = [b'{"status":%d,"who":"a \\"b\\""}' % (200 if n % 3 else 503) for n in range(30_000)]
    post.text("p.count", "r", b"\n".join([*status, b"no json", b""]))
    page.goto("/#/search?fqn=p.count&from=0")
    field = page.get_by_label("Count by fields")
    field.fill("json.status, json.who")
    field.press("Enter")
    counted = page.locator(".counts button")
    expect(counted).to_have_text(['20,000200 · a "b"', '10,000503 · a "b"', "1none · none"])
    expect(page.locator(".count-by .said")).to_have_text("3 values, of all records")
    counted.nth(1).click()
    expect(page.locator(".note")).to_have_text("10,000 records")
    expect(counted).to_have_text(['10,000503 · a "b"'])
    # Proposals are of a sample, and say so.
    page.get_by_label("Query").fill("")
    page.keyboard.type("json.status:")
    expect(page.locator(".proposals li small").first).to_contain_text("of the newest 10,000")


@pytest.mark.usefixtures("runs")
def test_a_key_takes_only_what_completes_what_is_typed(page: Page) -> None:
    page.goto("/#/search?fqn=shop.orders")
    page.keyboard.type("level:")
    expect(page.locator(".proposals li", has_text="ERROR")).to_be_visible()
    assert page.locator(".proposals li").count() > 1
    page.route("**/query/values*", lambda route: None)  # no answer comes any more
    page.keyboard.type("err")
    assert page.locator(".proposals li span").all_text_contents() == ["ERROR"]
    page.keyboard.press("Backspace")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Query")).to_have_value("level:ERROR")
    page.keyboard.type("S")
    expect(page.locator(".proposals")).to_be_hidden()
    page.unroute("**/query/values*")


@pytest.mark.usefixtures("runs")
def test_a_query_that_cannot_be_read_says_what_to_write(page: Page) -> None:
    page.goto("/#/search?q=levle%3AERROR")
    expect(page.locator(".note")).to_contain_text("levle")
    page.goto("/#/search?q=level%3E")
    expect(page.locator(".note")).to_contain_text("The query, character 7:")


@pytest.mark.usefixtures("runs")
def test_matches_are_followed_live(page: Page, post: Poster) -> None:
    page.goto("/#/search?q=%22as%20it%20happens%22")
    expect(page.locator(".note")).to_have_text("0 records")
    page.get_by_role("button", name="Follow live").click()
    expect(page.locator(".note")).to_contain_text("Following")
    post.text("shop.live", "r", b"seen as it happens\nnot this\n")
    expect(page.locator(".hits li .tx")).to_have_text(["seen as it happens"])
    until(page, "CSS.highlights.get('found')?.size === 1")


@pytest.mark.npm
@pytest.mark.usefixtures("runs")
def test_axe_finds_nothing(page: Page, axe: str) -> None:
    lists = ("", "pipeline/shop.orders", "search?q=level:ERROR")
    places = (*lists, "run/shop.orders/bad", "compare/shop.orders/good/bad")
    for scheme, place in itertools.product(("light", "dark"), places):
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.goto(f"/#/{place}")
        page.reload()
        expect(page.locator("tbody tr, .row, .hits li").first).to_be_visible()
        if place.startswith("run"):
            page.keyboard.press("c")
            expect(page.locator(".kinds li")).to_have_count(1)
            page.keyboard.press("/")
        page.evaluate(axe)
        found = page.evaluate("axe.run().then(found => found.violations)")
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []


@pytest.mark.usefixtures("runs")
def test_a_phone_shows_it_without_scrolling_sideways(
    browser: Browser, service: ServiceProcess
) -> None:
    phone = browser.new_context(
        base_url=service.url, viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True
    )
    page = phone.new_page()
    for place in ("", "pipeline/shop.orders", "run/shop.orders/bad", "search?q=level:ERROR"):
        page.goto(f"/#/{place}")
        page.reload()
        expect(page.locator("tbody tr, .row, .hits li").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        expect(page.get_by_role("link", name="Tailrace", exact=True)).to_be_visible()
    page.get_by_role("link", name="Tailrace", exact=True).tap()
    expect(page.locator("h1", has_text="Pipelines")).to_be_visible()
    phone.close()


def test_an_empty_service_says_how_to_begin(
    page: Page, post: Poster, service: ServiceProcess
) -> None:
    with httpx.Client(base_url=service.url, timeout=60) as client:
        empty: dict[str, Any] = {"pipelines": [], "after": None}
        assert client.get("/api/v1/services/ingestionPipelines/logs").json().keys() == empty.keys()
    page.route("**/logs?*", lambda route: route.fulfill(json=empty))
    page.goto("/")
    expect(page.locator(".note code")).to_contain_text("curl -X POST")


@pytest.mark.npm
def test_axe_finds_nothing_where_a_phone_shows_nothing(page: Page, axe: str) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    page.route("**/logs?*", lambda route: route.fulfill(json={"pipelines": [], "after": None}))
    for place, said in (("", "Nothing was written yet"), ("run/nobody/r", "There is no pipeline")):
        page.goto(f"/#/{place}")
        expect(page.get_by_text(said)).to_be_visible()
        page.evaluate(axe)
        found = page.evaluate("axe.run().then(found => found.violations)")
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []


def test_a_run_without_lines_waits_for_the_first(page: Page, post: Poster) -> None:
    post.text("p.waits", "other", b"x\n")
    page.goto("/#/run/p.waits/new")
    expect(page.locator(".state")).to_have_text("live")
    expect(page.get_by_text("This run has no lines yet.")).to_be_visible()
    post.lines("p.waits", "new", 0, 1)
    expect(page.locator(".row .tx")).to_have_text("line 0")
    expect(page.get_by_text("This run has no lines yet.")).to_be_hidden()
    open_run(page, "p.waits", "new")


@pytest.mark.in_turn(3)
def test_pipelines_that_are_quiet_are_asked_about_seldom(page: Page) -> None:
    names = [f"quiet.{number:02}" for number in range(40)]
    asked: list[str] = []
    run: dict[str, Any] = {"runId": "r", "state": "closed", "outcome": "succeeded", "attempt": None}
    run |= {"reported": None, "started": None, "ended": None, "took": 0, "tookFrom": "lines"}
    run |= {"lines": 1, "bytes": 1, "first": 1000, "last": 1000}

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(json={"runs": ["r"], "details": [run], "after": None})

    page.route("**/logs?*", lambda route: route.fulfill(json={"pipelines": names, "after": None}))
    page.route("**/logs/*", answer)
    page.clock.install()
    page.goto("/")
    expect(page.locator(".badge.succeeded")).to_have_count(40)
    expect(page.locator(".dot")).to_have_count(40)
    asked.clear()
    for _ in range(5):
        with page.expect_response("**/logs?*"):
            page.clock.run_for(5000)
    assert asked == []
    with page.expect_request(lambda request: names[-1] in request.url):
        page.clock.run_for(5000)
