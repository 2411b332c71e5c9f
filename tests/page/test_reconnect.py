"""Each line is once on screen, whatever happens to the service and the connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.service_process import ServiceProcess
from tests.page.posting import Poster, copied, numbers, open_run

pytestmark = pytest.mark.chromium


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    """One of its own: it is killed."""
    running = ServiceProcess(tmp_path / "node")
    running.start()
    yield running
    if running.running:
        running.stop()


@pytest.fixture
def post(service: ServiceProcess) -> Iterator[Poster]:
    with Poster(service.url) as poster:
        yield poster


@pytest.mark.in_turn(4)
def test_each_line_is_there_once_after_kills_of_the_service(
    page: Page, service: ServiceProcess, post: Poster
) -> None:
    post.lines("p.kill", "r", 0, 1000)
    open_run(page, "p.kill", "r")
    end = 1000
    for _ in range(2):
        post.lines("p.kill", "r", end, end + 700)
        service.kill()
        expect(page.locator(".state")).to_have_text("reconnecting")
        service.start()
        post.lines("p.kill", "r", end + 700, end + 1000)
        end += 1000
        expect(page.locator(".row .tx").last).to_have_text(f"line {end - 1}")
        expect(page.locator(".state")).to_have_text("live")
    whole = "".join([f"line {n}\n" for n in range(end)])
    page.keyboard.press("Control+a")
    page.keyboard.press("Control+c")
    expect(page.locator("#toast")).to_have_text(f"Copied {end:,} lines.")
    assert copied(page) == whole


@pytest.mark.in_turn(4)
def test_a_reader_that_was_away_for_longer_than_the_buffer_gets_all_once(
    page: Page, post: Poster
) -> None:
    post.lines("p.away", "r", 0, 100)
    open_run(page, "p.away", "r")
    # Nothing of the page runs, as in a tab that sleeps; its timers make it stop soon.
    debugger = page.context.new_cdp_session(page)
    paused: list[object] = []
    debugger.on("Debugger.paused", lambda event: paused.append(event))
    debugger.send("Debugger.enable")
    debugger.send("Debugger.pause")
    while not paused:
        page.wait_for_timeout(50)
    # 60 MB of events: more than the live buffer and all sockets take.
    for start in range(100, 200_100, 50_000):
        post.lines("p.away", "r", start, start + 50_000)
    debugger.send("Debugger.resume")
    debugger.send("Debugger.disable")
    expect(page.locator(".status")).to_contain_text("200,100 lines")
    expect(page.locator(".row .tx").last).to_have_text("line 200099")
    page.keyboard.press("Control+a")
    page.keyboard.press("Control+c")
    expect(page.locator("#toast")).to_have_text("Copied 200,100 lines.")
    assert copied(page) == "".join([f"line {n}\n" for n in range(200_100)])


@pytest.mark.in_turn(4)
def test_an_address_stays_valid_through_close_kill_and_restart(
    page: Page, service: ServiceProcess, post: Poster
) -> None:
    body = [b"needle %d\n" % n if n % 700 == 5 else b"straw %d\n" % n for n in range(3000)]
    post.text("p.place", "r", b"".join(body))
    open_run(page, "p.place", "r")
    page.keyboard.press("/")
    page.keyboard.type("needle")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator(".row.marked .tx")).to_have_text("needle 705")
    address = page.url
    assert "line=" in address
    assert "needle" in address

    def still_shows_it() -> None:
        page.goto("about:blank")
        page.goto(address)
        expect(page.locator(".row.marked .tx")).to_have_text("needle 705")
        expect(page.locator(".found")).to_have_text("5 records")
        assert numbers(page)[0] <= 705 <= numbers(page)[-1]

    still_shows_it()
    service.kill()
    service.start()
    still_shows_it()
    post.close("p.place", "r")  # what the journal held is in the store now
    still_shows_it()
    assert service.stop() == 0
    service.start()
    still_shows_it()
