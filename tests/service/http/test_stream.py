"""Live streams: every line once, wherever the client leaves and comes back."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.http import sse
from service.ingest.batch import IncomingBatch
from service.run_log.cursors import After
from service.run_log.read_text import LogPiece
from service.tail import SseSettings, Tick, Watcher, Woken
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import StoreUnavailable
from tests.service.http.conftest import RUNS, Serve, Served
from tests.service.http.memory_node import MemoryNode
from tests.settings import changed
from tests.waiting import until

KEY = RunKey("p", "r")
STREAM = RUNS + "/p/stream/r"


async def put(node: MemoryNode, *lines: str) -> None:
    text = "".join(line + "\n" for line in lines).encode()
    await node.append(IncomingBatch(KEY, text, len(lines), len(lines)))


Event = dict[str, str]


async def events(response: httpx.Response) -> AsyncIterator[Event]:
    """A parser of the standard's event streams: `id`, `event`, `data`, comments."""
    event: Event = {}
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if line.startswith(": "):
            yield {"comment": value}
        elif line:
            event[name] = event[name] + "\n" + value if name in event else value
        else:
            yield event
            event = {}


@asynccontextmanager
async def watching(
    served: Served, query: str = "", **headers: str
) -> AsyncIterator[AsyncIterator[Event]]:
    async with served.client.stream("GET", STREAM + query, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        parsed = events(response)
        yield parsed
        await parsed.aclose()  # type: ignore[attr-defined]


def lines_of(event: Event) -> list[str]:
    data = orjson.loads(event["data"])
    assert set(data) <= {
        "eventType",
        "runId",
        "logs",
        "after",
        "replay",
        "truncated",
        "reason",
        "message",
    }
    assert data["eventType"] == event["event"]
    assert data.get("after") == event.get("id")
    text = data.get("logs", "")
    assert text == "" or text.endswith("\n")
    return text.split("\n")[:-1]  # type: ignore[no-any-return]


async def drained(stream: AsyncIterator[Event]) -> list[str]:
    """All lines up to `complete`, which must come last."""
    found: list[str] = []
    async for event in stream:
        if event.get("event") == "complete":
            assert orjson.loads(event["data"])["reason"] == "runFinished"
            assert [late async for late in stream] == []
            return found
        if "data" in event:
            found += lines_of(event)
    raise AssertionError("the stream ended without complete")


@pytest.mark.parametrize(
    ("query", "first"),
    [("", 0), ("?tail=100", 150), ("?tail=1000", 0), ("?tail=0", 250), ("?tail=9&after=240", 240)],
)
async def test_from_the_beginning_or_the_last_lines_then_live_then_complete(
    serve: Serve, query: str, first: int
) -> None:
    served = await serve()
    await put(served.node, *[f"old {i}" for i in range(250)])
    async with watching(served, query) as stream:
        reading = asyncio.create_task(drained(stream))
        while not served.node.run_logs.reads:  # it knows where it begins
            await asyncio.sleep(0)
        for i in range(20):
            await put(served.node, f"new {i}", "")
            await asyncio.sleep(0.001)
        await served.node.close_run(KEY)
        found = await reading
    expected = [f"old {i}" for i in range(first, 250)]
    expected += [line for i in range(20) for line in (f"new {i}", "")]
    assert found == expected
    assert served.node.tail.watched == {}
    assert served.counters.readers == 0


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("tail=-1", "tail"),
        ("tail=100001", "tail"),
        ("tail=many", "tail"),
        ("events=anonymous", "events"),
        ("events=unnamed&format=text", "events"),
        ("events=unnamed&format=ndjson", "events"),
    ],
)
async def test_a_beginning_or_events_that_nobody_can_give_are_refused(
    serve: Serve, query: str, field: str
) -> None:
    served = await serve()
    reply = await served.client.get(f"{STREAM}?{query}")
    assert reply.status_code == 400
    assert field in reply.json()["detail"]


async def test_unnamed_events_are_the_named_ones_without_their_names(serve: Serve) -> None:
    served = await serve()
    await put(served.node, "a", "b")
    both: list[list[Event]] = []
    queries = ("", "?events=unnamed")
    async with watching(served) as named, watching(served, queries[1]) as unnamed:
        readings = [asyncio.create_task(_all(stream)) for stream in (named, unnamed)]
        while served.node.run_logs.reads < 2:
            await asyncio.sleep(0)
        await put(served.node, "live")
        await served.node.close_run(KEY)
        both = [await reading for reading in readings]
    assert "event" not in {name for event in both[1] for name in event}
    assert [event.pop("event") for event in both[0]][-1] == "complete"
    assert both[0] == both[1]


async def _all(stream: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in stream if "data" in event]


async def test_a_closed_run_is_replayed_and_completes(serve: Serve) -> None:
    served = await serve()
    await put(served.node, "a", "b")
    await served.node.close_run(KEY)
    async with watching(served) as stream:
        assert await drained(stream) == ["a", "b"]


async def test_from_a_line_offset_every_line_comes(serve: Serve) -> None:
    served = await serve()
    await put(served.node, *[f"{i}" for i in range(300)])
    await served.node.close_run(KEY)
    async with watching(served, "?after=7") as stream:
        assert await drained(stream) == [f"{i}" for i in range(7, 300)]


@pytest.mark.parametrize("cursor", ["nonsense", "9" * 5000, "1+" + "9" * 5000, "9" * 19, "\u00b2"])
async def test_a_cursor_nobody_gave_out_starts_over(serve: Serve, cursor: str) -> None:
    served = await serve()
    await put(served.node, "a")
    await served.node.close_run(KEY)
    async with watching(served, f"?after={quote(cursor)}") as stream:
        first = orjson.loads((await anext(stream))["data"])
        assert first == {
            "eventType": "logs",
            "runId": "r",
            "logs": "",
            "replay": True,
            "truncated": True,
        }
        assert await drained(stream) == ["a"]


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("form", ["json", "text"])
async def test_each_line_once_over_random_reconnects(serve: Serve, seed: int, form: str) -> None:
    """Tiny rings, batches of any size, readers that leave at any event and come back."""
    dice = random.Random(seed)
    node = MemoryNode(sse=changed(SseSettings(), ring_bytes=200, coalesce_milliseconds=0.5))
    served = await serve(node)
    sent: list[str] = []

    async def write() -> None:
        for _ in range(120):
            lines = [f"{len(sent) + i}" for i in range(dice.randint(1, 9))]
            sent.extend(lines)
            await put(node, *lines)
            await asyncio.sleep(dice.choice([0, 0, 0.0005, 0.003]))
        await node.close_run(KEY)

    async def read(own: random.Random) -> list[str]:
        found: list[str] = []
        cursor = "0"
        while True:
            patience = own.randint(1, 40)
            headers = {"last-event-id": cursor}
            async with watching(served, f"?format={form}", **headers) as stream:
                async for event in stream:
                    if event.get("event") == "complete":
                        return found
                    found += [event["data"]] if form == "text" else lines_of(event)
                    cursor = event["id"]
                    patience -= 1
                    if not patience:
                        break

    writing = asyncio.create_task(write())
    results = await asyncio.gather(*[read(random.Random(f"{seed}-{i}")) for i in range(4)])
    await writing
    for found in results:
        assert found == sent


async def test_readers_of_one_run_share_their_frames(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: set[Watcher] = set()  # not those that still read storage, and need no frame
    wait = Watcher.wait

    async def counted(watcher: Watcher) -> Woken:
        waiting.add(watcher)
        return await wait(watcher)

    monkeypatch.setattr(Watcher, "wait", counted)
    served = await serve()
    await put(served.node, "seed")
    streams = [asyncio.create_task(_watch(served)) for _ in range(20)]
    await until(lambda: len(waiting) == 20)
    channel = served.node.tail.watched[KEY]
    mark = channel.mark()
    for i in range(50):
        await put(served.node, f"{i}")
    text = "".join(f"{i}\n" for i in range(50)).encode()
    ticks: list[Tick] = []

    def all_framed() -> bool:
        ticks[:], _, behind = channel.take(mark, None)
        assert not behind
        return b"".join(t.text for t in ticks) == text and all(t.frames for t in ticks)

    await until(all_framed)
    assert len(ticks) < 50
    for tick in ticks:
        assert len({id(frame.chunk) for frame in tick.frames.values()}) == 1
    await served.node.close_run(KEY)
    expected = ["seed", *[f"{i}" for i in range(50)]]
    assert await asyncio.gather(*streams) == [expected] * 20


async def _watch(served: Served) -> list[str]:
    async with watching(served) as stream:
        return await drained(stream)


HOSTILE = [
    "id: 5",
    "",
    "data: x",
    "event: complete",
    "a\rb\r",
    "\x85event: complete",
    "x\u2028data: {}\u2029",
    "\x0b\x0c\x1c\x1d\x1e",
    ": comment",
    '{"eventType":"complete"}',
    "\x00\x7f",
]


async def test_no_line_makes_a_frame_of_its_own(serve: Serve) -> None:
    served = await serve()
    await put(served.node, *HOSTILE)
    await served.node.close_run(KEY)
    async with watching(served) as stream:
        assert await drained(stream) == HOSTILE
    body = (await served.client.get(STREAM + "?format=text")).text
    assert body.splitlines() == body.split("\n")[:-1]
    assert body.count("\n\n") == len(HOSTILE) + 1
    assert [line for line in body.split("\n") if line.startswith("event:")] == ["event: complete"]
    assert "data: a\\rb" in body


CONTROLS = "\r\v\f\0\x1c\x1d\x1e\x85\u2028\u2029"


def unescaped(shown: str) -> str:
    """A line of `format=text` as it was, by the rule of `docs/use/runs.md`."""
    signs = {"r": "\r", "v": "\v", "f": "\f", "0": "\0"}

    def one(found: re.Match[str]) -> str:
        slashes, letter = found.groups()
        kept = "\\" * (len(slashes) // 2)
        if len(slashes) % 2 == 0:
            return kept + letter
        return kept + signs.get(letter, chr(int(letter[1:] or "0", 16)))

    return re.sub(r"(\\+)(r|v|f|0|x[0-9a-f]{2}|u[0-9a-f]{4}|x|u)", one, shown)


@settings(deadline=None)
@given(st.lists(st.text(st.sampled_from(f"\\{CONTROLS}rvf0xu128ca")), min_size=1))
def test_no_two_lines_look_alike_as_text(lines: list[str]) -> None:
    sent = sse.text_lines(("\n".join(lines) + "\n").encode(), "c", "d")
    data = [line[6:] for line in sent.decode().split("\n") if line.startswith("data: ")]
    assert [unescaped(line) for line in data] == [line.removesuffix("\r") for line in lines]


async def test_a_silent_stream_beats(serve: Serve) -> None:
    served = await serve(MemoryNode(sse=changed(SseSettings(), heartbeat_seconds=0.02)))
    async with watching(served) as stream:
        assert await anext(stream) == {"comment": "heartbeat"}
        await served.node.close_run(KEY)


async def test_a_store_that_is_away_for_a_moment_does_not_end_a_stream(serve: Serve) -> None:
    served = await serve()
    await put(served.node, "a")
    await served.node.close_run(KEY)
    served.node.run_logs.failures.append(StoreUnavailable("away"))
    async with watching(served) as stream:
        assert await drained(stream) == ["a"]


async def test_past_the_limit_of_readers_one_error_event(serve: Serve) -> None:
    served = await serve(max_readers=1)
    async with watching(served):
        response = await served.client.get(STREAM)
        assert response.status_code == 200
        assert response.text.startswith("event: error\n")


async def test_a_stop_ends_streams_without_complete(serve: Serve) -> None:
    served = await serve()
    await put(served.node, "a")
    async with watching(served) as stream:
        assert lines_of(await anext(stream)) == ["a"]
        served.node.tail.stop()
        assert [event async for event in stream] == []


async def test_a_reader_that_leaves_is_forgotten(serve: Serve) -> None:
    served = await serve()
    async with watching(served):
        while served.node.tail.readers != 1:
            await asyncio.sleep(0.01)
    while served.node.tail.readers:
        await asyncio.sleep(0.01)
    assert served.node.tail.watched == {}


async def test_a_reader_that_does_not_read_costs_a_ring_and_catches_up(serve: Serve) -> None:
    node = MemoryNode(sse=changed(SseSettings(), ring_bytes=50_000))
    served = await serve(node)
    line = "x" * 1000
    async with watching(served, "?after=0") as stream:  # it may look when many are there
        for _ in range(400):
            await put(node, *[line] * 50)
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        assert sum(len(tick.text) for tick in node.tail.watched[KEY]._ticks) <= 50_000
        await node.close_run(KEY)
        assert await drained(stream) == [line] * 20_000


async def test_lines_that_come_while_the_run_is_looked_at_are_sent(serve: Serve) -> None:
    """The store takes its time; meanwhile the last lines come and the run is closed."""
    node = MemoryNode()
    served = await serve(node)
    await put(node, "a")
    ask = node.run_logs.batches_after
    asked = 0

    async def slow(*place: Any, **most: Any) -> After[LogPiece]:
        nonlocal asked
        asked += 1
        answer = await ask(*place, **most)
        if asked == 1:
            await put(node, "last")
            await node.close_run(KEY)
        return answer

    node.run_logs.batches_after = slow  # type: ignore[method-assign]
    async with watching(served) as stream:
        assert await drained(stream) == ["a", "last"]


async def test_a_wake_costs_one_look_at_the_run(serve: Serve) -> None:
    """Lines of another node: this one hears that there are some, and readers read storage."""
    node = MemoryNode()
    served = await serve(node)
    await put(node, "a")
    async with watching(served) as stream:
        assert lines_of(await anext(stream)) == ["a"]
        node.tail.publish = lambda *_: None  # type: ignore[method-assign]
        before = node.run_logs.reads
        for number in range(3):
            await put(node, str(number))
            node.tail.missed(KEY)
            assert lines_of(await anext(stream)) == [str(number)]
        assert node.run_logs.reads == before + 3


@pytest.mark.parametrize("query", ["", "?format=text"])
async def test_nodes_that_do_not_answer_are_named_until_they_do(serve: Serve, query: str) -> None:
    node = MemoryNode()
    silent: tuple[str, ...] = ("c",)
    served = await serve(node)
    ask = node.run_logs.batches_after

    async def without(*place: Any, **most: Any) -> After[LogPiece]:
        return (await ask(*place, **most))._replace(silent=silent)

    node.run_logs.batches_after = without  # type: ignore[method-assign]
    async with watching(served, query) as stream:
        for nodes in ('{"nodes":["c"]}', '{"nodes":[]}'):
            said = await anext(stream)
            if not query:
                assert said == {"comment": f"silent {nodes}"}
                await anext(stream)  # the empty line behind it
            else:
                assert said == {"event": "silent", "data": nodes}
            silent = ()
            node.tail.missed(KEY)
