"""The two ways in, the fast path and ASGI, answer alike and store alike, however requests arrive.

Two nodes, each with a journal and an appender of its own, are asked the same at the same
moments of leaping time: one with the fast path, one without. Requests come cut at every byte, and
byte by byte. Then 150 that were damaged at random, and 150 more for each seed: the long form is
`TAILRACE_SIM_COUNT=100 .venv/bin/python -m pytest tests/service/http/test_two_ways.py`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from random import Random

import pytest

from tests.seeds import seeds
from tests.service.http.corpus import CORPUS, Entry
from tests.service.http.wires import Client, Reply, Side, post, statuses
from tests.service.simulated_node import START_MS
from tests.settings import http_settings
from tests.simulation.virtual_time import VirtualClock, simulate

SHORT = http_settings(max_header_bytes=1000, max_url_bytes=500)
DAMAGED = 150
_PASSING = re.compile(r"[0-9A-HJKMNP-TV-Z]{21,26}")


def played(scenario: Callable[[Side, Side], Awaitable[None]]) -> None:
    """`scenario(quick, ordinary)` over two nodes that know both runs."""

    async def go(clock: VirtualClock) -> None:
        sides = Side(clock, settings=SHORT), Side(clock, quick=False, settings=SHORT)
        for side in sides:
            await side.start()
            for path in ("/p/r", "/p/other"):
                await side.say(post(b"first\n", path=path))
        await scenario(*sides)
        for side in sides:
            await side.stop()

    simulate(go, start_ms=START_MS)


def plain(replies: Sequence[Reply]) -> list[tuple[int, list[tuple[str, str]], str]]:
    """Replies without what each has of its own: ids and dates."""
    return [
        (
            reply.status,
            [(n, _PASSING.sub("", v)) for n, v in reply.headers if n != "date"],
            _PASSING.sub("", reply.body.decode()),
        )
        for reply in replies
    ]


def cut(sent: bytes) -> Iterator[list[bytes]]:
    """Whole, in two pieces cut at every byte, and byte by byte."""
    yield [sent]
    for place in range(1, len(sent)):
        yield [sent[:place], sent[place:]]
    yield [sent[i : i + 1] for i in range(len(sent))]


async def asked(side: Side, pieces: list[bytes]) -> tuple[list[Reply], bool]:
    """The replies, and whether the server ended the connection."""
    client = Client(side)
    await client.send(*pieces)
    replies, over = await client.settled(), client.wire.over
    client.leave()
    return replies, over


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: entry.name)
def test_a_request_cut_anywhere_is_answered_and_stored_alike(entry: Entry) -> None:
    async def scenario(quick: Side, ordinary: Side) -> None:
        befores = [len(side.stored()) for side in (quick, ordinary)]
        by_asgi, times = quick.by_asgi, 0
        for pieces in cut(entry.sent):
            times += 1
            replies, over = await asked(quick, pieces)
            expected, expected_over = await asked(ordinary, pieces)
            assert tuple(statuses(replies)) == entry.statuses, pieces
            assert (plain(replies), over) == (plain(expected), expected_over), pieces
            assert over or not entry.statuses or replies[-1].header("connection") != "close"
        await quick.clock.sleep(2)  # what was sent as `fast` is synced
        stored = quick.stored(befores[0])
        assert stored == ordinary.stored(befores[1])
        # An id that comes again is known, and its batch is stored once.
        assert [text for _, text, _ in stored] == list(entry.stored) * (1 if entry.once else times)
        assert (quick.by_asgi == by_asgi) or not entry.fast_path

    played(scenario)


def test_every_refusal_is_a_problem_that_says_what_to_do() -> None:
    async def scenario(quick: Side, ordinary: Side) -> None:
        for side in (quick, ordinary):
            for entry in CORPUS:
                for reply in (await asked(side, [entry.sent]))[0]:
                    if reply.status != 200:
                        assert reply.header("content-type") == "application/problem+json"
                        assert b'"hint":"' in reply.body
                        assert b'"hint":""' not in reply.body
                        assert b'"code":%d' % reply.status in reply.body

    played(scenario)


@pytest.mark.parametrize("seed", seeds(1))
def test_damaged_requests_in_any_pieces_are_answered_and_stored_alike(seed: int) -> None:
    dice = Random(f"damaged {seed}")

    async def scenario(quick: Side, ordinary: Side) -> None:
        for _ in range(DAMAGED):
            pieces = torn(dice, damaged(dice))
            replies, over = await asked(quick, pieces)
            expected, expected_over = await asked(ordinary, pieces)
            assert (plain(replies), over) == (plain(expected), expected_over), (seed, pieces)
            assert not any(reply.status >= 500 for reply in replies), (seed, pieces)
        await quick.clock.sleep(2)
        assert quick.stored() == ordinary.stored()

    played(scenario)


def damaged(dice: Random) -> bytes:
    """One to three requests of the corpus with up to three bytes changed, put in or taken out."""
    sent = bytearray(b"".join(dice.choice(CORPUS).sent for _ in range(dice.choice([1, 1, 2, 3]))))
    for _ in range(dice.randrange(4)):
        place = dice.randrange(len(sent))
        byte = dice.choice([dice.randrange(256), dice.choice(sent), 10, 13, 32, 58])
        how = dice.randrange(3)
        sent[place : place + (how < 2)] = b"" if how == 0 else bytes([byte])
    return bytes(sent)


def torn(dice: Random, sent: bytes) -> list[bytes]:
    """In one to five pieces."""
    places = sorted(dice.randrange(len(sent) + 1) for _ in range(dice.randrange(5)))
    return [sent[a:b] for a, b in zip([0, *places], [*places, len(sent)], strict=True)]
