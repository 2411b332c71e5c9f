"""Writes runs as clients do, and reads what the page shows of them."""

from __future__ import annotations

import time
from typing import Any, Self
from urllib.parse import quote

import httpx
from playwright.sync_api import Page, expect

from tests.e2e.service_process import BASE


class Poster:
    """Appends text to runs of one service, with a token if it asks for one."""

    def __init__(self, url: str, token: str | None = None) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._client = httpx.Client(base_url=url, timeout=120, headers=headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def text(self, fqn: str, run: str, body: bytes) -> None:
        reply = self._client.post(
            f"{BASE}/{quote(fqn, safe='')}/{quote(run, safe='')}",
            content=body,
            headers={"content-type": "text/plain"},
        )
        assert reply.status_code == 200, reply.text

    def lines(self, fqn: str, run: str, first: int, end: int) -> None:
        """Lines `line 0`, `line 1`, …"""
        self.text(fqn, run, b"".join([b"line %d\n" % n for n in range(first, end)]))

    def close(self, fqn: str, run: str) -> None:
        assert self._client.post(f"{BASE}/{fqn}/{run}/close").status_code == 200

    def status(self, fqn: str, run: str, state: str, **more: Any) -> None:
        reply = self._client.put(
            f"/api/v1/services/ingestionPipelines/{fqn}/pipelineStatus",
            json={"runId": run, "pipelineState": state, "timestamp": 1, **more},
        )
        assert reply.status_code < 300, reply.text

    def hits(self, q: str, **scope: str) -> list[dict[str, Any]]:
        """What the service itself finds, oldest first."""
        reply = self._client.get("/query", params={"q": q, "from": "0", "order": "asc", **scope})
        return [record for line in reply.text.splitlines() if "stats" not in (record := _of(line))]


def _of(line: str) -> dict[str, Any]:
    value: dict[str, Any] = httpx.Response(200, text=line).json()
    return value


def until(page: Page, holds: str, arg: object = None) -> None:
    """Waits until the JavaScript `holds` is true, asking from outside.

    `Page.wait_for_function` asks a second time by an `eval` of the page's own, which its policy
    refuses.
    """
    deadline = time.monotonic() + 60
    while not page.evaluate(holds, arg):
        assert time.monotonic() < deadline, f"never became true: {holds}"
        page.wait_for_timeout(50)


def shown(page: Page) -> list[str]:
    """Texts of the lines on screen, from the top."""
    return page.locator(".row:not(.pinned) .tx").all_text_contents()


def numbers(page: Page) -> list[int]:
    """Numbers of the lines on screen, from 0."""
    rows = page.locator(".row:not(.pinned):not(.waiting)")
    found: list[int] = rows.evaluate_all("rows => rows.map(row => Number(row.dataset.n))")
    return found


def open_run(page: Page, fqn: str, run: str, **params: str) -> None:
    """Opens a run and waits until lines are there and the live stream is connected."""
    query = "&".join(f"{name}={value}" for name, value in params.items())
    page.goto(f"/#/run/{fqn}/{run}{'?' + query if query else ''}")
    expect(page.locator(".row").first).to_be_visible()
    expect(page.locator(".state")).to_have_text("live")


def copied(page: Page) -> str:
    """What is on the clipboard."""
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text
