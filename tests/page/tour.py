"""A new user's way through the page, in pictures: `python -m tests.page.tour FOLDER`.

Each state that somebody can meet is shown in a real Chromium and saved as a picture, once for a
desktop in light and in dark and once for a phone: the empty store, lists, a run that is live, one
that failed, find, what is new, search, a chart, a lost service, a login. The pictures are for eyes;
nothing is compared.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page, expect

from tests.e2e.service_process import ServiceProcess
from tests.page.posting import Poster
from tests.servers.chromium import running_chromium
from tests.service.access.rules_file import rule, token_of, written

READER, WRITER = token_of("reader"), token_of("writer")
_SIZES: Final = {
    "light": {"width": 1280, "height": 760},
    "dark": {"width": 1280, "height": 760},
    "phone": {"width": 390, "height": 780},
}
_PIPELINES: Final = (
    "snowflake_prod.metadata",
    "snowflake_prod.lineage",
    "postgres_orders.metadata",
    "postgres_orders.profiler",
    "looker.usage",
    "dbt_core.artifacts",
)
_TRACE = b"""ERROR {metadata.Ingestion:workflow:119} - Failed to fetch schema "billing"
Traceback (most recent call last):
  File "/opt/ingestion/source/database/common.py", line 214, in get_tables
    for table in self.inspector.get_table_names(schema):
  File "/opt/ingestion/source/connection.py", line 88, in get_table_names
    return self._execute(QUERY_TABLES, schema)
  File "/opt/ingestion/source/connection.py", line 31, in _execute
    raise OperationalError("connection to server was lost")
sqlalchemy.exc.OperationalError: connection to server was lost
"""


def ingestion(seed: int, lines: int, failed: bool = False, minute: int = 0) -> bytes:
    """The log of a connector that reads tables, as OpenMetadata's write it."""
    dice = random.Random(seed)
    made = []
    for i in range(lines):
        at = f"[2026-11-25 02:{(minute + i // 60) % 60:02d}:{i % 60:02d}]"
        table = dice.choice(["orders", "customers", "line_items", "payments", "refunds", "events"])
        kind = dice.random()
        if kind < 0.03:
            said = f"WARN  {{metadata.Ingestion:sampler:58}} - No sample for {table}: view is slow"
        elif kind < 0.2:
            said = f"DEBUG {{metadata.Utils:client:77}} - GET /api/v1/tables/name/{table}: 200"
        else:
            said = f"INFO  {{metadata.Ingestion:sink:142}} - Ingested table shop.public.{table}_{i}"
        made.append(f"{at} {said}\n".encode())
        if failed and i == lines * 2 // 3:
            made.append(f"{at} ".encode() + _TRACE)
    return b"".join(made)


def feed(post: Poster) -> None:
    """Six pipelines with runs that succeeded, failed, were tried again, or are running."""
    for at, fqn in enumerate(_PIPELINES):
        for day in range(18, 25):
            run = f"scheduled__2026-11-{day}"
            failed = (at + day) % 5 == 0
            post.text(fqn, run, ingestion(at * 100 + day, 240 + 40 * at, failed))
            post.status(fqn, run, "failed" if failed else "success")
            post.close(fqn, run)
    for attempt, state in ((1, "failed"), (2, "failed"), (3, "success")):
        run = f"manual-7/attempt-{attempt}"
        post.text(_PIPELINES[0], run, ingestion(attempt, 120, failed=state == "failed"))
        post.status(_PIPELINES[0], run, state, attempt=attempt)
    post.text(_PIPELINES[2], "scheduled__2026-11-25", ingestion(5, 900, failed=True))
    post.status(_PIPELINES[2], "scheduled__2026-11-25", "failed")
    post.text(_PIPELINES[0], "scheduled__2026-11-25", ingestion(9, 1200))
    post.status(_PIPELINES[0], "scheduled__2026-11-25", "running")


@contextmanager
def arriving(url: str) -> Iterator[None]:
    """Lines that come to the running run while the block runs."""
    ended = threading.Event()

    def send() -> None:
        with Poster(url) as post:
            while not ended.wait(0.2):
                post.text(
                    _PIPELINES[0], "scheduled__2026-11-25", ingestion(random.randrange(99), 6)
                )

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join()


class Tour:
    """One way through in one size; each `picture` is the next step."""

    def __init__(self, browser: Browser, url: str, name: str, folder: Path) -> None:
        size = _SIZES[name]
        self._context = browser.new_context(
            base_url=url,
            viewport=size,  # type: ignore[arg-type]
            color_scheme="dark" if name == "dark" else "light",
            has_touch=name == "phone",
            is_mobile=name == "phone",
        )
        self.page: Page = self._context.new_page()
        self._folder, self._name = folder, name

    def picture(self, what: str) -> None:
        """Saves what is on screen."""
        self.page.screenshot(path=self._folder / f"{what}-{self._name}.png")

    def open(self, place: str) -> None:
        self.page.goto(f"/#/{place}")

    def close(self) -> None:
        self._context.close()


def _run(at: int, run: str) -> str:
    return f"run/{_PIPELINES[at]}/{run}"


def lists(tour: Tour) -> None:
    """The list of pipelines and that of runs."""
    tour.open("")
    expect(tour.page.locator("a.main")).to_have_count(len(_PIPELINES))
    tour.page.wait_for_timeout(700)
    tour.picture("10-pipelines")
    tour.open(f"pipeline/{_PIPELINES[0]}")
    expect(tour.page.locator("a.main").first).to_be_visible()
    tour.page.wait_for_timeout(300)
    tour.picture("11-runs")
    tour.open("pipeline/nobody")
    tour.page.wait_for_timeout(500)
    tour.picture("12-no-such-pipeline")


def live(tour: Tour) -> None:
    """A run while it is written, and while somebody reads further up."""
    tour.open(_run(0, "scheduled__2026-11-25"))
    expect(tour.page.locator(".state.live")).to_be_visible()
    tour.page.wait_for_timeout(2500)
    tour.picture("20-live")
    tour.page.locator(".log").hover()
    tour.page.mouse.wheel(0, -600)
    tour.page.wait_for_timeout(1500)
    tour.picture("21-reading-up")


def failed(tour: Tour) -> None:
    """A failed run: its end, its first error, the details of a line, what is new, the keys."""
    page = tour.page
    tour.open(_run(2, "scheduled__2026-11-25"))
    expect(page.locator(".row").first).to_be_visible()
    page.wait_for_timeout(1500)
    tour.picture("30-failed")
    page.keyboard.press("e")
    expect(page.locator(".row.marked")).to_be_visible()
    page.wait_for_timeout(400)
    tour.picture("31-first-error")
    page.keyboard.press("c")
    expect(page.locator(".kinds li").first).to_be_visible()
    tour.picture("32-what-is-new")
    page.keyboard.press("Escape")
    page.keyboard.press("h")
    expect(page.locator(".bars svg")).to_be_visible()
    tour.picture("33-chart")
    page.keyboard.press("h")
    page.keyboard.press("t")
    page.keyboard.press("w")
    page.wait_for_timeout(300)
    tour.picture("34-times-wrapped")
    page.keyboard.press("t")
    page.keyboard.press("w")
    page.keyboard.press("?")
    tour.picture("35-keys")
    page.keyboard.press("Escape")


def finding(tour: Tour) -> None:
    """Find in a run: the bar, hits, nothing found."""
    page = tour.page
    tour.open(_run(2, "scheduled__2026-11-25"))
    expect(page.locator(".row").first).to_be_visible()
    page.wait_for_timeout(800)
    page.keyboard.press("/")
    tour.picture("40-find")
    page.keyboard.type("refunds")
    page.keyboard.press("Enter")
    expect(page.locator(".found")).to_contain_text("of")
    page.wait_for_timeout(300)
    tour.picture("41-found")
    page.get_by_label("Find in this run").fill("no such text")
    page.keyboard.press("Enter")
    expect(page.locator(".found")).to_have_text("0 records")
    tour.picture("42-nothing-found")


def search(tour: Tour) -> None:
    """Search across runs: empty, proposals, hits, a query that cannot be read."""
    page = tour.page
    tour.open("search")
    page.wait_for_timeout(1500)
    tour.picture("50-search")
    page.get_by_label("Query").fill("lev")
    page.wait_for_timeout(600)
    tour.picture("51-proposals")
    page.get_by_label("Query").fill('level>=ERROR "schema"')
    page.keyboard.press("Enter")
    page.wait_for_timeout(1500)
    tour.picture("52-hits")
    page.get_by_label("Query").fill('level>= "schema')
    page.keyboard.press("Enter")
    page.wait_for_timeout(800)
    tour.picture("53-unreadable")
    page.get_by_label("Query").fill("nothinghasthis")
    page.keyboard.press("Enter")
    page.wait_for_timeout(800)
    tour.picture("54-no-hits")


def beside(tour: Tour) -> None:
    """Two attempts side by side."""
    tour.open(f"compare/{_PIPELINES[0]}/manual-7%2Fattempt-2/manual-7%2Fattempt-3")
    expect(tour.page.locator(".row").first).to_be_visible()
    tour.page.wait_for_timeout(1500)
    tour.picture("60-side-by-side")


def lost(tour: Tour, service: ServiceProcess) -> None:
    """The service goes away under a run and under the list, and comes back."""
    page = tour.page
    tour.open(_run(0, "scheduled__2026-11-25"))
    expect(page.locator(".state.live")).to_be_visible()
    service.kill()
    expect(page.locator(".state.lost")).to_be_visible()
    page.wait_for_timeout(500)
    tour.picture("70-reconnecting")
    tour.open("")
    page.wait_for_timeout(800)
    tour.picture("71-list-without-service")
    tour.open(_run(1, "scheduled__2026-11-24"))
    page.wait_for_timeout(800)
    tour.picture("72-run-without-service")
    service.start()
    expect(page.locator(".row").first).to_be_visible(timeout=60_000)
    tour.picture("73-back")


def empty(tour: Tour) -> None:
    """A store to which nothing was written, and a run that is not there."""
    tour.open("")
    expect(tour.page.locator("code")).to_be_visible()
    tour.picture("00-empty")
    tour.open("run/shop.orders/run-1")
    tour.page.wait_for_timeout(2000)
    tour.picture("01-no-such-run")
    tour.open("search")
    tour.page.wait_for_timeout(1000)
    tour.picture("02-search-nothing")


def login(tour: Tour) -> None:
    """A service with rules: no token, one that is refused, one without the scope, a good one."""
    page = tour.page
    tour.open("")
    expect(page.get_by_label("Token")).to_be_visible()
    tour.picture("80-login")
    for token, what in ((token_of("nobody"), "81-refused"), (WRITER, "82-no-scope")):
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        page.wait_for_timeout(700)
        tour.picture(what)
    page.get_by_role("button", name="Use another token").first.click()
    page.get_by_label("Token").fill(READER)
    page.keyboard.press("Enter")
    expect(page.locator("a.main").first).to_be_visible()
    page.wait_for_timeout(500)
    tour.picture("83-logged-in")
    tour.open("run/shop.orders/run-1")
    expect(page.locator(".row").first).to_be_visible()
    tour.page.wait_for_timeout(1200)
    tour.picture("84-first-run")


@contextmanager
def _service(folder: Path, **environment: str) -> Iterator[ServiceProcess]:
    running = ServiceProcess(folder)
    running.settings.update(environment)
    running.start()
    try:
        yield running
    finally:
        if running.running:
            running.stop()


def go(browser: Browser, scratch: Path, folder: Path, names: list[str]) -> None:
    """All steps in each of the sizes."""

    def each(url: str, *steps: object) -> None:
        for name in names:
            tour = Tour(browser, url, name, folder)
            for step in steps:
                step(tour)  # type: ignore[operator]
            tour.close()

    with _service(scratch / "empty") as service:
        each(service.url, empty)
    written(scratch / "rules.yaml", rule(READER, {"read": ["*"]}), rule(WRITER, {"ingest": ["*"]}))
    with _service(
        scratch / "locked", TAILRACE_ACCESS__RULES=str(scratch / "rules.yaml")
    ) as service:
        with Poster(service.url, WRITER) as post:
            post.text("shop.orders", "run-1", b"hello\nworld\n")
        each(service.url, login)
    with _service(scratch / "node") as service:
        with Poster(service.url) as post:
            feed(post)
        with arriving(service.url):
            each(service.url, lists, live)
        each(service.url, failed, finding, search, beside)
        each(service.url, lambda tour: lost(tour, service))


def main() -> int:
    """0 when all pictures are there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    parser.add_argument("--only", choices=sorted(_SIZES), action="append", help="one size")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-tour-") as scratch,
        running_chromium() as browser,
    ):
        go(browser, Path(scratch), arguments.folder, arguments.only or list(_SIZES))
    print(f"{len(list(arguments.folder.glob('*.png')))} pictures in {arguments.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
