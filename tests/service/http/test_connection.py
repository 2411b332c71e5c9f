"""What one connection may cost: bytes, time and places, and what it is told when it is too much.

Real connections of the server over a real node, in leaping time: a minute is a moment.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from service.http.body import peer_of
from service.http.connection import SHUT, watch
from service.http.targets import ROOT
from tests.service.http.wires import RUNS, Client, Side, post, statuses
from tests.service.simulated_node import START_MS
from tests.settings import http_settings
from tests.simulation.virtual_time import VirtualClock, simulate

PAGE = f"GET {RUNS}/p/r HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
STREAM = f"GET {RUNS}/p/stream/r HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
REPORT = f"PUT {ROOT}/p/pipelineStatus HTTP/1.1\r\nHost: localhost\r\n".encode()


def played(
    scenario: Callable[[Side], Awaitable[None]], *, quick: bool = True, **limits: Any
) -> None:
    """`scenario` over a node that knows the run p/r, while connections are watched."""

    async def go(clock: VirtualClock) -> None:
        side = Side(clock, quick=quick, settings=http_settings(**limits))
        await side.start()
        await side.say(post(b"first\n"))
        watching = asyncio.create_task(watch(side.state, side.settings))
        await scenario(side)
        watching.cancel()
        await side.stop()

    simulate(go, start_ms=START_MS)


async def over_after(side: Side, client: Client, seconds: float) -> None:
    """The server ends the connection when it stood still for so long, and not before."""
    await side.clock.sleep(seconds - 2)
    assert not client.ended()
    await side.clock.sleep(5)
    assert client.ended()


@pytest.mark.parametrize("quick", [True, False])
def test_a_head_that_never_ends_is_given_up(quick: bool) -> None:
    async def scenario(side: Side) -> None:
        client = Client(side)
        await client.send(post(b"a\n")[:40])
        await over_after(side, client, 30)
        (reply,) = client.wire.replies()
        assert (reply.status, reply.header("connection")) == (408, "close")
        assert b"header-timeout" in reply.body
        assert side.counters.connections_timed_out == 1
        client.leave()

    played(scenario, quick=quick)


def test_a_head_that_comes_in_drops_is_given_up() -> None:
    async def scenario(side: Side) -> None:
        client = Client(side)
        for byte in post(b"a\n", "X-Long: " + "1" * 200):
            await client.send(bytes([byte]))
            await side.clock.sleep(0.5)
        assert statuses(client.wire.replies()) == [408]
        assert len(side.stored()) == 1
        client.leave()

    played(scenario)


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (post(b"half", "Content-Length: 100"), [408]),
        (post(b"", "Content-Length: 100"), [408]),
        (post(b"5\r\nhalf", "Transfer-Encoding: chunked"), [408]),
        (post(b"half", "Content-Length: 100000"), [408]),
        (REPORT + b"Content-Length: 10\r\n\r\n{", [408]),
        # Answered before its body came: nothing is left to say.
        (PAGE.replace(b"Host", b"Content-Length: 10\r\nHost"), [200]),
    ],
)
def test_a_body_that_never_ends_is_given_up_on_every_route(
    sent: bytes, expected: list[int], quick: bool
) -> None:
    async def scenario(side: Side) -> None:
        client = Client(side)
        await client.send(sent)
        await over_after(side, client, 60)
        assert statuses(client.wire.replies()) == expected
        assert len(side.stored()) == 1
        client.leave()
        await side.clock.sleep(1)
        assert not side.state.tasks
        assert side.app.append.budget.used == 0

    played(scenario, quick=quick)


def test_who_asks_for_nothing_is_let_go_and_who_reads_on_is_not() -> None:
    async def scenario(side: Side) -> None:
        silent, asked, reader = Client(side), Client(side), Client(side)
        await asked.send(post(b"a\n"))
        await reader.send(STREAM)
        await side.clock.sleep(73)
        assert not silent.ended()
        assert not asked.ended()
        await side.clock.sleep(5)
        assert silent.ended()
        assert asked.ended()
        assert silent.wire.replies() == []
        await side.clock.sleep(3600)
        assert not reader.ended()
        for client in (silent, asked, reader):
            client.leave()

    played(scenario)


def test_a_long_answer_does_not_count_as_idle() -> None:
    async def scenario(side: Side) -> None:
        client = Client(side)
        await client.send(STREAM)
        await side.clock.sleep(1000)
        await side.say(post(b"", path="/p/r/close"))
        await side.clock.sleep(20)
        assert not client.ended()
        await client.send(post(b"a\n"))
        await side.clock.sleep(1)
        assert client.wire.written.count(b"HTTP/1.1 200") == 2
        client.leave()

    played(scenario)


def test_a_client_that_does_not_read_its_reply_is_let_go() -> None:
    async def scenario(side: Side) -> None:
        client, reader = Client(side), Client(side)
        for each in (client, reader):
            await each.send(STREAM)
        await side.clock.sleep(1)
        client.wire.unread = True
        client.connection.pause_writing()
        await side.clock.sleep(58)
        assert not client.ended()
        await side.clock.sleep(5)
        assert client.ended()
        assert not reader.ended()
        assert side.counters.connections_timed_out == 1
        for each in (client, reader):
            each.leave()
        await side.clock.sleep(30)
        assert not side.state.tasks
        assert side.counters.readers == 0

    played(scenario)


def test_a_connection_that_is_being_closed_is_told_nothing_more() -> None:
    async def scenario(side: Side) -> None:
        client = Client(side)
        client.wire.unread = True
        await client.send(post(b"a\n", "Connection: close") + post(b"b\n")[:40])
        await side.clock.sleep(50)
        assert statuses(client.wire.replies()) == [200]
        assert not client.gone()
        await side.clock.sleep(20)
        assert client.gone()
        assert statuses(client.wire.replies()) == [200]
        assert side.counters.connections_timed_out == 1

    played(scenario)


@pytest.mark.parametrize(
    ("piece", "times", "status"),
    [
        (b"X-Many: 1\r\n", 100_000, 431),
        (b"X-One-That-Never-Ends", 100_000, 431),
        (b"a:\r\n", 1_000, 431),
    ],
)
def test_headers_without_end_are_refused_while_they_come(
    piece: bytes, times: int, status: int
) -> None:
    async def scenario(side: Side) -> None:
        client = Client(side)
        await client.send(PAGE[:-2])
        sent = 0
        while sent < times and not client.wire.written:
            await client.send(piece * 100)
            sent += 100
        if not client.wire.written:
            await client.send(b"\r\n")
        assert statuses(await client.replies(1)) == [status]
        assert sent * len(piece) < 128 << 10
        client.leave()

    played(scenario)


@pytest.mark.parametrize("quick", [True, False])
def test_a_url_and_a_head_may_be_as_long_as_the_limit(quick: bool) -> None:
    async def scenario(side: Side) -> None:
        for path, header, status in [
            ("/p/r" + "?" + "x" * (8192 - len(RUNS) - 5), "", 200),
            ("/p/r" + "?" + "x" * (8193 - len(RUNS) - 5), "", 414),
            ("/p/r", "1" * (60 << 10), 200),
            ("/p/r", "1" * (64 << 10), 431),
        ]:
            request = post(b"a\n", f"X-One: {header}", path=path)
            for pieces in ([request], [request[:5000], request[5000:]]):
                assert statuses(await side.say(*pieces)) == [status]
        assert len(side.stored()) == 1 + 4

    played(scenario, quick=quick)


@pytest.mark.parametrize("head", [post(b"")[: post(b"").index(b"\r\n") + 2], REPORT])
def test_what_is_refused_before_its_body_is_asked_for_is_not_asked_for_it(
    head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(side: Side) -> None:
        client = Client(side)
        expects = b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
        host = b"" if b"Host" in head else b"Host: localhost\r\n"
        client.connection.data_received(head + host + expects + b"no size\r\n")
        assert statuses(await client.replies(1)) == [400]
        for _ in range(20):
            await asyncio.sleep(0)
        assert b"100 Continue" not in client.wire.written
        client.leave()

    played(scenario)
    assert "Traceback" not in caplog.text


def test_trailers_without_end_are_refused() -> None:
    async def scenario(side: Side) -> None:
        client = Client(side)
        await client.send(post(b"2\r\na\n\r\n0\r\n", "Transfer-Encoding: chunked"))
        for _ in range(100):
            await client.send(b"X-Trailer" * 100)
        assert statuses(await client.replies(1)) == [431]
        assert len(side.stored()) == 1
        client.leave()

    played(scenario)


def test_requests_sent_ahead_are_bounded_and_those_before_are_answered() -> None:
    async def scenario(side: Side) -> None:
        client = Client(side)
        await client.send(post(b"a\n") * 1000)
        replies = await client.settled()
        assert statuses(replies[:-1]) == [200] * (len(replies) - 1)
        assert replies[-1].status == 503
        assert replies[-1].header("retry-after") is not None
        assert len(side.stored()) == len(replies)  # and the first of all, which is no reply here
        client.leave()

    played(scenario)


def test_requests_sent_ahead_on_many_connections_share_one_bound() -> None:
    async def scenario(side: Side) -> None:
        clients = [Client(side, peer=f"10.0.{number}.1") for number in range(300)]
        head = f"Host: localhost\r\nX-Long: {'x' * 8000}\r\n\r\n"
        ahead = f"GET {RUNS}/p/r HTTP/1.1\r\n{head}".encode() * 20
        for client in clients:
            await client.send(STREAM)
            await client.send(ahead)
        refused = [client for client in clients if client.connection.reading == SHUT]
        waiting = sum(len(client.connection.pipeline) for client in clients)
        assert 0 < len(refused) < len(clients)
        assert waiting * len(ahead) // 20 <= (32 << 20) + len(refused) * len(ahead) // 20
        for client in clients:
            client.leave()
        await side.clock.sleep(1)
        again = Client(side)
        await again.send(STREAM)
        await again.send(ahead)
        assert len(again.connection.pipeline) == 20  # what waited has given its room back
        again.leave()

    played(scenario, max_connections_per_peer=1000)


_WIDE = "".join(f"X-{number}: {'x' * 230}\r\n" for number in range(240))


@pytest.mark.parametrize(
    "sent",
    [
        f"GET {RUNS}/p/r HTTP/1.1\r\nHost: localhost\r\n{_WIDE}".encode(),
        f"GET {RUNS}/p/r HTTP/1.1\r\nHost: localhost\r\nX: {'x' * 60_000}".encode(),
        f"GET {RUNS}/p/stream/r HTTP/1.1\r\nHost: localhost\r\n{_WIDE}\r\n".encode(),
    ],
    ids=["half of many headers", "half of one header", "of a reply that lasts"],
)
def test_large_heads_of_many_connections_share_one_bound(sent: bytes) -> None:
    async def scenario(side: Side) -> None:
        clients = [Client(side, peer=f"10.0.{number // 250}.1") for number in range(700)]
        for client in clients:
            await client.send(sent[:9000], sent[9000:])
        kept = [client for client in clients if client.connection.reading != SHUT]
        assert 300 < len(kept) < len(clients)
        assert len(kept) * len(sent) <= side.clients.ahead <= 32 << 20
        (refused,) = clients[-1].wire.replies()
        assert refused.status == 503
        assert await side.say(PAGE) != []  # a small head needs no room
        for client in clients:
            client.leave()
        await side.clock.sleep(1)
        assert side.clients.ahead == 0

    played(scenario, max_connections_per_peer=1000)


@pytest.mark.parametrize("quick", [True, False])
def test_a_client_that_stays_holds_no_head_of_what_was_answered(quick: bool) -> None:
    async def scenario(side: Side) -> None:
        long = "X-Long: " + "x" * 60_000
        page = PAGE.replace(b"\r\n\r\n", f"\r\n{long}\r\n\r\n".encode())
        for sent in (page, page * 3, post(b"a\n", long)):
            client = Client(side)
            await client.send(sent)
            await client.settled()
            connection: Any = client.connection
            assert (connection.headers, connection.scope) == ([], None)
            assert not getattr(connection.cycle, "scope", None)
            assert side.clients.ahead == 0
            client.leave()

    played(scenario, quick=quick)


def test_many_small_headers_are_too_many() -> None:
    async def scenario(side: Side) -> None:
        head = b"".join(b"x%d:\r\n" % number for number in range(257))
        assert len(head) < side.settings.server.max_url_bytes
        assert statuses(await side.say(PAGE[:-2] + head + b"\r\n")) == [431]
        fewer = b"".join(b"x%d:\r\n" % number for number in range(255))
        assert statuses(await side.say(PAGE[:-2] + fewer + b"\r\n")) == [200]

    played(scenario)


@pytest.mark.parametrize(
    "sent",
    [
        post(b"a\n", "Tailrace-Durability: bulk"),
        REPORT + b"Content-Length: 10\r\n\r\n{",
    ],
    ids=["append", "half a body"],
)
def test_what_a_stop_cuts_off_is_told_so(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(side: Side) -> None:
        client = Client(side)
        await client.send(sent)
        for _ in range(10):
            await asyncio.sleep(0)
        (task,) = side.state.tasks
        task.cancel()  # as the server does when the time of a stop is over
        (reply,) = await client.replies(1)
        assert (reply.status, b"node-not-ready" in reply.body) == (503, True)
        assert reply.header("retry-after") is not None
        client.leave()

    played(scenario)
    assert "ASGI" not in caplog.text


@pytest.mark.parametrize("quick", [True, False])
def test_a_target_may_be_a_whole_url(quick: bool) -> None:
    async def scenario(side: Side) -> None:
        for target, status in {
            f"http://elsewhere{RUNS}/p/r": 200,
            f"HTTPS://elsewhere:1{RUNS}/p/r?limit=1": 200,
            "http://h": 200,
            "http://h?a": 200,
            "http://h/nothing": 404,
            "*": 400,
            "ftp://h/a": 400,
            "h:1": 400,
        }.items():
            page = f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            assert (target, statuses(await side.say(page))) == (target, [status])
        lines = post(b"second\n").replace(b"POST /", b"POST http://elsewhere/", 1)
        assert statuses(await side.say(lines)) == [200]
        assert len(side.stored()) == 2

    played(scenario, quick=quick)


@pytest.mark.parametrize("quick", [True, False])
def test_http_1_1_needs_a_host(quick: bool) -> None:
    async def scenario(side: Side) -> None:
        for method in (post(b"a\n"), PAGE):
            for version, status in (("1.1", 400), ("1.0", 200)):
                sent = method.replace(b"Host: localhost\r\n", b"").replace(b"1.1", version.encode())
                assert statuses(await side.say(sent)) == [status]

    played(scenario, quick=quick)


def test_who_sends_ahead_behind_a_live_stream_is_not_read_on() -> None:
    async def scenario(side: Side) -> None:
        client = Client(side)
        await client.send(STREAM)
        await side.clock.sleep(1)
        await client.send(PAGE)
        await side.clock.sleep(1)
        assert client.wire.paused
        assert len(client.connection.pipeline) == 1
        client.leave()

    played(scenario)


def test_one_address_may_not_take_all_connections() -> None:
    async def scenario(side: Side) -> None:
        mine = [Client(side) for _ in range(5)]
        assert [client.ended() for client in mine] == [False] * 3 + [True] * 2
        (reply,) = mine[-1].wire.replies()
        assert reply.status == 503
        assert reply.header("retry-after") is not None
        assert reply.header("content-type") == "application/problem+json"
        assert b"max_connections_per_peer" in reply.body
        others = [Client(side, peer=f"10.0.0.{i}") for i in range(3)]
        assert [client.ended() for client in others] == [False, False, True]
        assert b"server.max_connections." in others[-1].wire.replies()[0].body
        assert side.counters.connections == 5
        assert side.counters.connections_refused == 3
        for client in [*mine, *others]:
            client.leave()
        await asyncio.sleep(0)
        assert side.counters.connections == 0
        assert statuses(await side.say(post(b"a\n"))) == [200]

    played(scenario, max_connections=5, max_connections_per_peer=3)


def test_those_who_are_told_that_there_is_no_room_are_bounded_too() -> None:
    async def scenario(side: Side) -> None:
        turned_away = [Client(side) for _ in range(101)][1:]
        assert sum(bool(client.wire.written) for client in turned_away) == 32
        assert all(client.ended() for client in turned_away)
        for client in turned_away:
            client.leave()
        await asyncio.sleep(0)
        again = Client(side)
        assert again.wire.written

    played(scenario, max_connections=1)


def test_a_refused_client_that_goes_on_sending_is_let_go() -> None:
    async def scenario(side: Side) -> None:
        client = Client(side)
        await client.send(b"hello\r\n\r\n")
        assert statuses(client.wire.replies()) == [400]
        written = bytes(client.wire.written)
        client.connection.data_received(post(b"a\n"))
        await side.clock.sleep(10)
        assert client.gone()
        assert bytes(client.wire.written) == written
        assert len(side.stored()) == 1

    played(scenario)


def test_an_address_of_ipv6_counts_by_its_network() -> None:
    assert peer_of(("127.0.0.1", 1)) == "127.0.0.1"
    assert peer_of(("2001:db8:1:2:3::4", 1)) == peer_of(("2001:db8:1:2:ffff::1", 2))
    assert peer_of(("2001:db8:1:3::4", 1)) != peer_of(("2001:db8:1:2::4", 1))
    assert peer_of(("fe80::1%eth0", 1)) == "fe80::/64"
    assert peer_of(None) == ""


def test_half_sent_bodies_hold_up_nobody() -> None:
    async def scenario(side: Side) -> None:
        half = [Client(side) for _ in range(20)]
        for client in half:
            await client.send(post(b"x" * 100_000, f"Content-Length: {64 << 20}"))
        before = side.clock.monotonic()
        line = b"y" * 200_000 + b"\n"
        assert statuses(await side.say(post(line))) == [200]
        assert side.clock.monotonic() == before
        assert side.app.append.budget.used == 20 * 100_000
        for client in half:
            client.leave()
        await side.clock.sleep(1)
        assert side.app.append.budget.used == 0
        assert [text for _, text, _ in side.stored()] == [b"first\n", line]

    played(scenario)


def test_bodies_of_all_routes_share_one_budget() -> None:
    head = "Host: localhost\r\nContent-Length: 900000\r\n\r\n"
    progress = f"PUT {ROOT}/progress/p/r HTTP/1.1\r\n{head}"

    async def scenario(side: Side) -> None:
        budget, started = side.app.append.budget, []
        for number in range(20):
            client = Client(side, peer=f"10.0.{number}.1")
            started.append(asyncio.create_task(client.send(progress.encode(), b"x" * 100_000)))
        await side.clock.sleep(0.5)
        assert 250_000 < budget.used <= 300_000 + 100_000  # the first may always go on
        # Those that stand still are let go while others wait, and the last ones by their time.
        await side.clock.sleep(900)
        assert budget.used == 0
        assert side.counters.connections_timed_out + side.counters.disconnects > 0
        await asyncio.gather(*started, return_exceptions=True)
        assert statuses(await side.say(post(b"a\n"))) == [200]

    played(scenario, in_flight_bytes=300_000)


READ = 250_000
"""Bytes that a connection may get in one read of its socket."""


@pytest.mark.parametrize(
    "head",
    [
        f"PUT {ROOT}/progress/p/r HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n",
        f"POST {RUNS}/p/r HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n",
        f"POST {RUNS}/p/r HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\n\r\nFFFFF\r\n",
        STREAM.decode() + post(b"", "Content-Length: 1000000").decode(),
    ],
    ids=["progress", "append", "chunks", "behind a stream"],
)
def test_what_arrives_is_counted_before_it_is_read_and_bounded(head: str) -> None:
    async def scenario(side: Side) -> None:
        budget, most = side.app.append.budget, 0
        clients = [Client(side, peer=f"10.0.{number}.1") for number in range(200)]
        for client in clients:
            # As a socket delivers it: all of it at once, and once more unless reading is paused.
            for piece in (head.encode() + b"x" * READ, b"x" * READ):
                if not client.wire.paused and not client.wire.over:
                    client.connection.data_received(piece)
                for _ in range(5):
                    await asyncio.sleep(0)
                most = max(most, budget.used + budget.waiting + budget.unread)
        assert 30 << 20 < most <= 300_000 + (32 << 20) + 2 * READ
        refused = [client for client in clients if client.connection.reading == SHUT]
        assert 30 < len(refused) < 100
        if not head.startswith("GET"):  # behind a stream that goes on there is no answer
            reply = refused[-1].wire.replies()[-1]
            assert (reply.status, reply.header("connection")) == (503, "close")
        for client in clients:
            client.leave()
        await side.clock.sleep(1)
        assert (budget.used, budget.waiting, budget.unread) == (0, 0, 0)
        assert statuses(await side.say(post(b"a\n"))) == [200]

    played(scenario, in_flight_bytes=300_000)


def test_small_bodies_that_stop_before_their_end_are_counted() -> None:
    begun = post(b"x" * 60_000, "Content-Length: 60001")

    async def scenario(side: Side) -> None:
        budget = side.app.append.budget
        clients = [Client(side, peer=f"10.0.{number}.1") for number in range(3)]
        for client in clients:
            await client.send(begun[:-30_000], begun[-30_000:])
        assert budget.unread == 180_000
        clients[0].leave()
        await side.clock.sleep(0.1)
        assert budget.unread == 120_000
        await clients[1].send(b"\n")
        assert statuses(await clients[1].replies(1)) == [200]
        assert budget.unread == 60_000
        clients[2].connection.shutdown()  # the request goes the other way, where it is counted
        await side.clock.sleep(0.1)
        assert (budget.unread, budget.used) == (0, 60_000)
        clients[2].leave()
        await side.clock.sleep(0.1)
        assert budget.used == 0

    played(scenario)


def test_a_body_that_no_route_reads_takes_no_memory() -> None:
    stream = STREAM.replace(b"\r\n\r\n", b"\r\nContent-Length: 1000000\r\n\r\n")

    async def scenario(side: Side) -> None:
        client = Client(side)
        await client.send(stream, *[b"x" * 100_000] * 9)
        assert client.connection.busy
        assert client.connection.cycle.body == b""
        assert side.app.append.budget.unread == 0
        client.leave()

    played(scenario)


def test_compressed_bodies_take_room_for_their_text_before_they_are_inflated() -> None:
    bomb = gzip.compress(b"x" * 4_000_000 + b"\n")  # 1,000 times its size

    async def scenario(side: Side) -> None:
        budget, most = side.app.append.budget, 0
        clients = [Client(side, peer=f"10.0.{number}.1") for number in range(6)]
        for client in clients:
            await client.send(post(bomb, "Content-Encoding: gzip"))
        replies = [asyncio.create_task(client.replies(1)) for client in clients]
        while not all(task.done() for task in replies):
            most = max(most, budget.used)
            await side.clock.sleep(0.001)
        assert [statuses(task.result()) for task in replies] == [[200]] * 6
        # One body, that came first, may have all that it needs; the others wait.
        assert 16_000_000 < most < 32_000_000
        assert budget.used == 0

    played(scenario, in_flight_bytes=10_000_000)


def test_who_stands_still_on_all_the_memory_is_let_go_when_another_needs_it() -> None:
    async def scenario(side: Side) -> None:
        still = [Client(side) for _ in range(3)]
        for client in still:
            await client.send(post(b"x" * 100_000, "Content-Length: 1000000"))
        await side.clock.sleep(10)
        assert not any(client.ended() for client in still)
        before = side.clock.monotonic()
        assert statuses(await side.say(post(b"y" * 100_000))) == [200]
        assert side.clock.monotonic() - before < 5
        (refused,) = [client for client in still if client.ended()]
        (reply,) = refused.wire.replies()
        assert (reply.status, reply.header("connection")) == (503, "close")
        assert reply.header("retry-after") is not None
        for client in still:
            client.leave()
        await side.clock.sleep(1)
        assert len(side.stored()) == 2
        assert side.app.append.budget.used == 0

    played(scenario, in_flight_bytes=300_000)


def test_bodies_that_fill_the_memory_half_way_all_get_through() -> None:
    async def scenario(side: Side) -> None:
        clients = [Client(side) for _ in range(10)]
        pieces = [bytes([ord("a") + i]) * 10_000 for i in range(10)]
        most = 0

        async def sends(client: Client, piece: bytes) -> None:
            nonlocal most
            await client.send(post(b"", "Content-Length: 100001"))
            for _ in range(10):
                await client.send(piece)
                most = max(most, side.app.append.budget.used)
                await side.clock.sleep(0.05)
            await client.send(b"\n")

        await asyncio.gather(*map(sends, clients, pieces))
        await side.clock.sleep(1)
        assert [statuses(client.wire.replies()) for client in clients] == [[200]] * 10
        assert most <= 300_000 + 2 * 100_001 + 64 * 1024
        stored = {text for _, text, _ in side.stored()}
        assert stored == {b"first\n", *(piece * 10 + b"\n" for piece in pieces)}
        for client in clients:
            client.leave()

    played(scenario, in_flight_bytes=300_000)
