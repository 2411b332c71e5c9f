"""The page before a service with rules of access: tokens, patterns, a proxy, and what ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.e2e.service_process import BASE, ServiceProcess
from tests.page.posting import Poster, copied, numbers, shown
from tests.service.access.rules_file import rule, token_of, written

pytestmark = pytest.mark.chromium

ALL, SHOP, WRITER, ENDS = (token_of(name) for name in ("every", "shop", "writer", "ends"))
PROXY = {
    "addresses": ["127.0.0.1"],
    "user_header": "X-Forwarded-Email",
    "users": {"anna@example.com": {"read": ["bank"]}},
}
RULES = (
    rule(ALL, {"ingest": ["*"], "read": ["*"]}),
    rule(SHOP, {"read": ["shop.*"]}),
    rule(WRITER, {"ingest": ["*"]}),
)


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page-access") / "rules.yaml"
    written(path, *RULES, rule(ENDS, {"read": ["*"]}), proxy=PROXY)
    return path


@pytest.fixture(scope="module")
def service(rules: Path) -> Iterator[ServiceProcess]:
    """One of its own: the others let everybody do everything."""
    running = ServiceProcess(
        rules.with_name("node"),
        TAILRACE_ACCESS__RULES=str(rules),
        TAILRACE_ACCESS__RELOAD_SECONDS="0.2",
    )
    running.start()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def post(service: ServiceProcess) -> Iterator[Poster]:
    with Poster(service.url, ALL) as poster:
        for fqn in ("shop.orders", "shopping", "bank"):
            poster.text(fqn, "r", f"ERROR of {fqn}\n".encode())
        yield poster


def _log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")


def test_a_token_is_asked_for_sent_as_a_header_and_shows_its_pipelines_only(
    page: Page, post: Poster
) -> None:
    sent: list[tuple[str, str | None]] = []

    def seen(request: Request) -> None:
        sent.append((request.url, request.headers.get("authorization")))

    page.on("request", seen)
    page.goto("/")
    _log_in(page, "two words")
    assert page.get_by_label("Token").evaluate("field => field.validity.customError")
    _log_in(page, token_of("nobody"))
    expect(page.get_by_text("It refused the last token")).to_be_visible()
    _log_in(page, f"Bearer {SHOP}")
    expect(page.locator("a.main")).to_have_text(["shop.orders"])
    page.get_by_role("link", name="r", exact=True).click()
    expect(page.locator(".state")).to_have_text("live")
    post.text("shop.orders", "r", b"arrives\n")
    expect(page.locator(".row .tx").last).to_have_text("arrives")
    page.goto("/#/search?q=ERROR&from=0")
    expect(page.locator(".hits .tx")).to_have_text(["ERROR of shop.orders"])
    page.goto("/#/run/bank/r")
    expect(page.locator(".empty")).to_contain_text("has not the scope read for")
    expect(page.locator(".row")).to_have_count(0)
    expect(page.get_by_role("button", name="Use another token")).to_be_visible()
    assert {header for _, header in sent} == {
        None,
        f"Bearer {token_of('nobody')}",
        f"Bearer {SHOP}",
    }
    assert not any("trl_" in url for url, _ in sent)
    assert "trl_" not in page.url
    stored = page.evaluate("JSON.stringify(localStorage) + document.cookie")
    assert "trl_" not in stored
    # Where there is nothing yet, it is said how one writes with a token, without this one.
    page.route("**/logs?*", lambda route: route.fulfill(json={"pipelines": [], "after": None}))
    page.goto("/#/")
    expect(page.locator(".note code")).to_contain_text("Authorization: Bearer $TAILRACE_TOKEN")
    page.unroute_all()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_token_without_the_scope_says_so_and_is_replaced(page: Page, post: Poster) -> None:
    page.goto("/")
    _log_in(page, WRITER)
    expect(page.locator(".note", has_text="has not the scope read")).to_be_visible()
    page.get_by_role("button", name="Use another token").click()
    _log_in(page, ALL)
    expect(page.locator("a.main")).to_have_count(3)


@pytest.mark.in_turn(4)
def test_a_live_stream_whose_token_ends_goes_on_exactly_after_a_login(
    page: Page, service: ServiceProcess, post: Poster, rules: Path
) -> None:
    stream = token_of("stream")
    written(rules, *RULES, rule(ENDS, {"read": ["*"]}), rule(stream, {"read": ["*"]}), proxy=PROXY)
    asked = {"authorization": f"Bearer {stream}"}
    while httpx.get(f"{service.url}{BASE}", headers=asked, timeout=60).status_code == 401:
        page.wait_for_timeout(50)
    post.lines("live", "r", 0, 300)
    page.goto("/#/run/live/r")
    _log_in(page, stream)
    expect(page.locator(".state")).to_have_text("live")
    post.lines("live", "r", 300, 350)
    expect(page.locator(".row .tx").last).to_have_text("line 349")
    written(rules, *RULES, rule(ENDS, {"read": ["*"]}), proxy=PROXY)
    expect(page.get_by_text("which may have expired")).to_be_visible()
    post.lines("live", "r", 350, 400)
    _log_in(page, ALL)
    expect(page.locator(".state")).to_have_text("live")
    expect(page.locator(".row .tx").last).to_have_text("line 399")
    post.lines("live", "r", 400, 420)
    expect(page.locator(".row .tx").last).to_have_text("line 419")
    page.keyboard.press("Control+a")
    page.keyboard.press("Control+c")
    expect(page.locator("#toast")).to_have_text("Copied 420 lines.")
    # What is on screen, not what the service reads again.
    assert shown(page) == [f"line {n}" for n in numbers(page)]
    assert copied(page) == "".join([f"line {n}\n" for n in range(420)])


@pytest.mark.in_turn(4)
def test_a_token_that_ends_is_asked_for_again_where_one_is(
    page: Page, post: Poster, rules: Path
) -> None:
    page.goto("/#/pipeline/bank")
    _log_in(page, ENDS)
    expect(page.locator("a.main")).to_have_text(["r"])
    written(rules, *RULES, proxy=PROXY)
    expect(page.get_by_text("which may have expired")).to_be_visible()
    _log_in(page, ALL)
    expect(page.locator("a.main")).to_have_text(["r"])
    expect(page.get_by_label("Token")).to_have_count(0)
    post.text("bank", "another", b"one line\n")
    expect(page.locator("a.main")).to_have_count(2)


@pytest.mark.in_turn(3)
@pytest.mark.usefixtures("post")
def test_whom_a_proxy_names_is_not_asked(browser: Browser, service: ServiceProcess) -> None:
    context = browser.new_context(
        base_url=service.url, extra_http_headers={"X-Forwarded-Email": "anna@example.com"}
    )
    page = context.new_page()
    page.goto("/")
    expect(page.locator("a.main")).to_have_text(["bank"])
    expect(page.get_by_role("button", name="Log out")).to_be_hidden()
    page.goto("/#/run/shop.orders/r")
    expect(page.locator(".empty")).to_contain_text("has not the scope read for")
    context.close()
