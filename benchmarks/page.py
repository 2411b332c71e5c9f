"""The page in a real Chromium: `python -m benchmarks.page [--mib 1024] [--tall 10000000]`.

A service on this machine gets a run of so many MiB of the corpus; the browser, without a window and
without a graphics card, shows it. Measured are the first paint and the time until the run's last
line is on screen, from the beginning of the navigation; frames per second while one scrolls
backwards, with nothing arriving, and while 5,000 lines/s arrive at the end of another run that is
followed; the same in a run of so many short lines, and the time from a move of its scroll bar to
any place until that place is on screen; and what the tab holds after as many lines as an hour at
500 lines/s brings, which arrive as fast as the service takes them. The longest frame and the number
of those that take more than 50 ms say what the mean does not.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.sync_api import Browser, Page, expect

from benchmarks import corpus
from tests.e2e.service_process import BASE, ServiceProcess
from tests.servers.chromium import running_chromium, why_no_chromium

_BODY_BYTES: Final = 8 << 20
_PAUSE_SECONDS: Final = 0.1
_LINES_PER_SECOND: Final = 5_000
_PATIENCE_MS: Final = 240_000
_SIZE: Final = {"width": 1200, "height": 800}
_LAST_LINE = """text => {
    const rows = document.querySelectorAll(".row:not(.pinned):not(.waiting) .tx");
    const last = rows[rows.length - 1];
    return last && last.textContent.includes(text) ? performance.now() : null;
}"""
_FRAMES = """([seconds, pixels]) => new Promise((done) => {
    const log = document.querySelector(".log");
    const frames = [];
    const first = performance.now();
    let before = first;
    const tick = (now) => {
        frames.push(now - before);
        before = now;
        if (pixels) log.scrollTop -= pixels;
        if (now - first < seconds * 1000) requestAnimationFrame(tick);
        else done({ frames: frames.slice(1), seconds: (now - first) / 1000 });
    };
    requestAnimationFrame(tick);
})"""

_JUMP = """(part) => new Promise((done) => {
    const log = document.querySelector(".log");
    const begin = performance.now();
    const seen = new Set(Array.from(document.querySelectorAll(".row"), (row) => row.dataset.n));
    log.scrollTop = part * (log.scrollHeight - log.clientHeight);
    const look = () => {
        const rows = Array.from(document.querySelectorAll(".row:not(.pinned)"));
        const there = rows.length > 10 && rows.every((row) => !row.classList.contains("waiting"));
        if (there && rows.some((row) => !seen.has(row.dataset.n))) done(performance.now() - begin);
        else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
})"""


class Posts:
    """Sends texts to runs of a service, again when it has no room."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=120)

    def text(self, run: str, body: bytes) -> None:
        """Returns when it is acknowledged. Raises `RuntimeError` for what will not be taken."""
        while True:
            reply = self._client.post(
                f"{BASE}/bench/{run}", content=body, headers={"content-type": "text/plain"}
            )
            if reply.status_code == 200:
                return
            if reply.status_code not in (429, 503, 507):
                raise RuntimeError(f"{reply.status_code}: {reply.text}")
            time.sleep(_PAUSE_SECONDS)

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()


class Ticker(threading.Thread):
    """Sends 5,000 lines a second to a run until it is stopped; `sent` is how many it sent."""

    def __init__(self, url: str, run: str, lines: list[bytes]) -> None:
        super().__init__(daemon=True)
        self._url, self._run, self._lines = url, run, lines
        self._ended = threading.Event()
        self.sent = 0

    def run(self) -> None:
        posts = Posts(self._url)
        begin = time.monotonic()
        each = round(_LINES_PER_SECOND * _PAUSE_SECONDS)
        while not self._ended.is_set():
            at = self.sent % (len(self._lines) - each)
            posts.text(self._run, b"".join(self._lines[at : at + each]))
            self.sent += each
            due = begin + self.sent / _LINES_PER_SECOND
            self._ended.wait(max(0.0, due - time.monotonic()))
        posts.close()

    def stop(self) -> None:
        """Returns when nothing is on its way."""
        self._ended.set()
        self.join()


def feed(posts: Posts, run: str, lines: list[bytes], *, most_bytes: int, most_lines: int) -> int:
    """Sends lines again and again up to one of the bounds; how many."""
    sent = size = 0
    batch: list[bytes] = []
    held = 0
    while sent < most_lines and size < most_bytes:
        line = lines[sent % len(lines)]
        batch.append(line)
        sent, size, held = sent + 1, size + len(line), held + len(line)
        if held >= _BODY_BYTES:
            posts.text(run, b"".join(batch))
            batch, held = [], 0
    posts.text(run, b"".join([*batch, b"the last line\n"]))
    return sent + 1


def shown(browser: Browser, url: str, run: str) -> Page:
    """A tab of its own, without a cache, that is about to show a run."""
    context = browser.new_context(base_url=url, viewport=_SIZE)  # type: ignore[arg-type]
    context.set_default_timeout(_PATIENCE_MS)
    tab = context.new_page()
    tab.goto(f"/#/run/bench/{run}", wait_until="commit")
    return tab


def opened(browser: Browser, url: str, run: str) -> tuple[Page, float, float]:
    """A tab with the run's last line; ms to the first paint with content and to that line."""
    tab = shown(browser, url, run)
    last = tab.wait_for_function(_LAST_LINE, arg="the last line").json_value()
    paint = tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return tab, float(paint), float(last)


def frames(tab: Page, seconds: float, pixels: int) -> str:
    """Frames per second, the longest frame, and how many take more than 50 ms."""
    found: dict[str, Any] = tab.evaluate(_FRAMES, [seconds, pixels])
    each = found["frames"]
    slow = sum(one > 50 for one in each)
    return f"{len(each) / found['seconds']:.0f} fps, longest {max(each):.0f} ms, {slow} over 50 ms"


def jumps(tab: Page, count: int) -> str:
    """How long it takes until another place of the run is on screen."""
    dice = random.Random(count)
    took = sorted(float(tab.evaluate(_JUMP, dice.random())) for _ in range(count))
    return f"p50 {took[count // 2]:.0f} ms, longest {took[-1]:.0f} ms"


def tall(browser: Browser, url: str, posts: Posts, options: argparse.Namespace) -> None:
    """Rows for a run of many short lines."""
    lines = [b"line %d of a run that is tall\n" % number for number in range(100_000)]
    count = feed(posts, "tall", lines, most_bytes=1 << 60, most_lines=options.tall)
    tab, paint, last = opened(browser, url, "tall")
    row(f"{count:,} lines opened", f"first paint {paint:.0f} ms, last line {last:.0f} ms")
    row("frames, 30 px each backwards", frames(tab, options.seconds, 30))
    row("frames, 600 px each backwards", frames(tab, options.seconds, 600))
    row("a jump to any of its lines", jumps(tab, 30))
    row("tab", memory(browser, tab))
    tab.context.close()


def memory(browser: Browser, tab: Page) -> str:
    """MiB of the tab's heap after a collection, and of the largest renderer's resident memory."""
    session = tab.context.new_cdp_session(tab)
    session.send("HeapProfiler.collectGarbage")
    session.send("Performance.enable")
    measured = session.send("Performance.getMetrics")["metrics"]
    heap = next(one["value"] for one in measured if one["name"] == "JSHeapUsedSize")
    whole = browser.new_browser_cdp_session()
    resident = [
        _resident(process["id"])
        for process in whole.send("SystemInfo.getProcessInfo")["processInfo"]
        if process["type"] == "renderer"
    ]
    return f"heap {heap / 2**20:.0f} MiB, renderer {max(resident) / 2**20:.0f} MiB"


def _resident(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
    return 0


def measured(browser: Browser, url: str, options: argparse.Namespace) -> None:
    """Prints a row for each figure."""
    posts = Posts(url)
    lines = corpus.lines_of(100_000)
    begin = time.monotonic()
    count = feed(posts, "long", lines, most_bytes=options.mib << 20, most_lines=1 << 40)
    took = time.monotonic() - begin
    row(f"run of {options.mib} MiB posted", f"{count:,} lines in {took:.0f} s")
    for number in range(options.rounds):
        tab, paint, last = opened(browser, url, "long")
        row(f"opened, round {number + 1}", f"first paint {paint:.0f} ms, last line {last:.0f} ms")
        if number + 1 < options.rounds:
            tab.context.close()
    row("frames at rest", frames(tab, options.seconds, 0))
    row("frames, 30 px each backwards", frames(tab, options.seconds, 30))
    row("frames, 600 px each backwards", frames(tab, options.seconds, 600))
    tab.context.close()
    tall(browser, url, posts, options)
    posts.text("busy", b"".join(lines[:1000]))
    tab = shown(browser, url, "busy")
    expect(tab.locator(".state")).to_have_text("live", timeout=_PATIENCE_MS)
    ticker = Ticker(url, "busy", lines)
    ticker.start()
    before, since = ticker.sent, time.monotonic()
    found = frames(tab, options.seconds, 0)
    rate = (ticker.sent - before) / (time.monotonic() - since)
    reading = frames(tab, options.seconds, 30)
    ticker.stop()
    row(f"frames, following {rate:,.0f} lines/s", found)
    row("frames, scrolling back meanwhile", reading)
    tab.context.close()
    posts.text("hour", b"begin\n")
    tab = shown(browser, url, "hour")
    expect(tab.locator(".state")).to_have_text("live", timeout=_PATIENCE_MS)
    row("tab with one line", memory(browser, tab))
    begin = time.monotonic()
    feed(posts, "hour", lines, most_bytes=1 << 60, most_lines=options.hour)
    expect(tab.locator(".status")).to_contain_text(
        f"{options.hour + 2:,} lines", timeout=_PATIENCE_MS
    )
    took = time.monotonic() - begin
    row(f"tab after {options.hour:,} lines in {took:.0f} s", memory(browser, tab))
    tab.context.close()
    posts.close()


def row(what: str, found: str) -> None:
    """A line of the table, at once."""
    print(f"{what:<42}  {found}", flush=True)


def main() -> int:
    """0 when all was measured."""
    parser = argparse.ArgumentParser(description="First paint, frames and memory of the page.")
    parser.add_argument("--mib", type=int, default=1024, help="size of the long run")
    parser.add_argument("--tall", type=int, default=10_000_000, help="lines of the tall run")
    parser.add_argument("--hour", type=int, default=1_800_000, help="lines that a tab follows")
    parser.add_argument("--seconds", type=float, default=10, help="for each rate of frames")
    parser.add_argument("--rounds", type=int, default=3, help="how often the run is opened")
    parser.add_argument("--smoke", action="store_true", help="16 MiB, 20,000 lines, 1 s, once")
    options = parser.parse_args()
    if options.smoke:
        options.mib, options.hour, options.seconds, options.rounds = 16, 20_000, 1, 1
        options.tall = 100_000
    reason = why_no_chromium()
    if reason is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="tailrace-page-") as folder:
        service = ServiceProcess(Path(folder) / "node")
        service.start()
        try:
            with running_chromium() as browser:
                print(f"Chromium {browser.version}, lines: {corpus.source()}")
                measured(browser, service.url, options)
        finally:
            service.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
