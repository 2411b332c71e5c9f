"""The picture in the README, made of real logs: `make picture LOGS=FOLDER`.

The log `OF` (Hadoop) of the folder becomes a pipeline with two runs: the file's first half as one
that succeeded, the whole of it as one that failed. A service is started for it; Chromium shows what
is new in the failed run, and writes docs/use/page.png.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import expect

from tests.e2e.service_process import ServiceProcess
from tests.page.posting import Poster
from tests.servers.chromium import running_chromium

PICTURE = Path(__file__).parents[2] / "docs" / "use" / "page.png"
_MOST_LINES = 2000


def feed(post: Poster, folder: Path, of: str) -> None:
    """Posts two runs of the log whose name is `of`. Raises `FileNotFoundError`."""
    lines = (folder / f"{of}.log").read_bytes().splitlines(keepends=True)[:_MOST_LINES]
    name = f"{of.lower()}.nightly"
    post.text(name, "2026-11-22", b"".join(lines[: len(lines) // 2]))
    post.status(name, "2026-11-22", "success")
    post.text(name, "2026-11-23", b"".join(lines))
    post.status(name, "2026-11-23", "failed")


def take(url: str, of: str, path: Path) -> None:
    """Shows what is new in the second run, and writes the picture."""
    with running_chromium() as browser:
        page = browser.new_page(
            base_url=url, viewport={"width": 1200, "height": 620}, color_scheme="light"
        )
        page.goto(f"/#/run/{of.lower()}.nightly/2026-11-23")
        expect(page.locator(".state")).to_have_text("finished", timeout=60_000)
        page.keyboard.press("c")
        expect(page.locator(".kinds li").first).to_be_visible(timeout=60_000)
        page.keyboard.press("c")
        expect(page.locator(".row.marked.new")).to_be_visible(timeout=60_000)
        page.wait_for_url("**line=*")
        page.screenshot(path=path)


def main() -> int:
    """0 when the picture is written."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("logs", type=Path, help="folder of *.log files")
    parser.add_argument("--of", default="Hadoop", help="the log to show, without .log")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-picture-") as temporary:
        service = ServiceProcess(Path(temporary) / "node")
        service.start()
        try:
            with Poster(service.url) as post:
                feed(post, arguments.logs, arguments.of)
            take(service.url, arguments.of, PICTURE)
        finally:
            service.stop()
    print(f"{PICTURE} {PICTURE.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
