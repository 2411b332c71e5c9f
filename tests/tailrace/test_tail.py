"""The follower of a live view, over connections that end anywhere."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from tailrace.cli.remote import EventParser
from tailrace.cli.tail import Follower, newest_run
from tailrace.logstore.errors import NotFound, TailraceError, Unavailable
from tests.simulation.clocks import ManualClock

Handler = Callable[[httpx.Request], httpx.Response]


class Cut(httpx.AsyncByteStream):
    """A body in small pieces that ends with a lost connection."""

    def __init__(self, body: bytes, *, lost: bool) -> None:
        self._body, self._lost = body, lost

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self._body), 7):
            yield self._body[at : at + 7]
        if self._lost:
            raise httpx.ReadError("connection lost")


LINES = ["ein\n", "zwei ü\r\n", "\n", "vier \u2028 5\n", "end\n"]


def _events(after: str | None, until: int) -> bytes:
    start = int(after) if after is not None else 0
    body = b": heartbeat\n\n"
    for number in range(start, min(until, len(LINES))):
        data = json.dumps({"eventType": "logs", "logs": LINES[number]})
        body += f"id: {number + 1}\nevent: logs\ndata: {data}\n\n".encode()
    return body + (b"event: complete\ndata: {}\n\n" if until > len(LINES) else b"")


def _client(handler: Handler) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url="http://node", transport=httpx.MockTransport(handler))


async def _follow(handler: Handler, after: str | None = None) -> tuple[str, Follower]:
    written: list[str] = []
    async with _client(handler) as client:
        follower = Follower(client, ManualClock(), "a/b c", "r#1", written.append)
        await follower.follow(after)
    return "".join(written), follower


async def test_each_line_once_though_every_connection_is_lost_somewhere() -> None:
    whole = len(_events(None, len(LINES) + 1))
    for cut in range(0, whole, 3):
        requests: list[httpx.Request] = []

        def handler(request: httpx.Request, cut: int = cut) -> httpx.Response:
            requests.append(request)  # noqa: B023 - used within this round only
            body = _events(request.url.params.get("after"), len(LINES) + 1)
            first = len(requests) == 1  # noqa: B023
            stream = Cut(body[:cut] if first else body, lost=first)
            return httpx.Response(200, stream=stream)

        text, follower = await _follow(handler)
        assert text == "".join(LINES), f"cut at {cut}"
        assert follower.cursor == str(len(LINES))
        assert requests[0].url.raw_path == (
            b"/api/v1/services/ingestionPipelines/logs/a%2Fb%20c/stream/r%231"
        )


async def test_it_starts_beyond_the_cursor_it_is_given() -> None:
    text, _ = await _follow(
        lambda r: httpx.Response(200, content=_events(r.url.params.get("after"), 99)), after="3"
    )
    assert text == "".join(LINES[3:])


async def test_an_answer_that_is_no_success_is_raised_as_it_says() -> None:
    def handler(_: httpx.Request) -> httpx.Response:
        return httpx.Response(400, json={"detail": "not a cursor", "hint": "leave it out"})

    with pytest.raises(TailraceError, match="not a cursor") as caught:
        await _follow(handler)
    assert caught.value.hint == "leave it out"


async def test_an_error_event_ends_it() -> None:
    body = b'event: error\ndata: {"eventType":"error","message":"too many readers"}\n\n'
    with pytest.raises(TailraceError, match=r"^too many readers$"):
        await _follow(lambda _: httpx.Response(200, content=body))


async def test_patience_with_a_service_that_is_away_ends() -> None:
    tries = 0

    def handler(_: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        raise httpx.ConnectError("refused")

    with pytest.raises(Unavailable, match="refused"):
        await _follow(handler)
    assert tries > 10


@pytest.mark.parametrize(("failures", "person"), [(1, True), (3, True), (3, False)])
async def test_a_person_is_told_that_a_service_is_away_and_that_it_is_back(
    failures: int, person: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        if tries <= failures:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, content=_events(request.url.params.get("after"), 99))

    said = io.StringIO()
    monkeypatch.setattr(said, "isatty", lambda: person)
    monkeypatch.setattr(sys, "stderr", said)
    assert (await _follow(handler))[0] == "".join(LINES)
    told = [
        "no answer from http://node: refused; trying again",
        "connected again: continuing after the last line",
    ]
    assert said.getvalue().splitlines() == (told if person and failures > 1 else [])


async def test_the_newest_run_of_a_pipeline() -> None:
    async with _client(lambda _: httpx.Response(200, json={"runs": ["r9"]})) as client:
        assert await newest_run(client, "p") == "r9"
    async with _client(lambda _: httpx.Response(200, json={"runs": []})) as client:
        with pytest.raises(NotFound, match="p has no runs"):
            await newest_run(client, "p")


def test_events_are_parsed_as_the_standard_says() -> None:
    lines = [":comment", "id: 1", "data:a", "data: b", "", "event: x", "", "data", "", "data: ", ""]
    seen = [(e.name, e.data, e.id) for e in EventParser().feed(lines)]
    assert seen == [("message", "a\nb", "1"), ("message", "", "1"), ("message", "", "1")]
