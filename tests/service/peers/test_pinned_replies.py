"""A reply that takes long has the lines of one moment, whatever happens between its pieces.

Real nodes in one process hold a run together. Some lines of each are in chunks, some are in its
journal only. Something happens at a boundary of the reply's pieces, once at each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from service.node import Node
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound, Unavailable
from tests.service.client_model import downloaded
from tests.service.cluster import OTHER, RUN, Cluster
from tests.service.peers.worlds import LAZY, cluster
from tests.service.simulated_network import Switchboard
from tests.settings import settings_with
from tests.simulation.virtual_time import VirtualClock

KEPT = settings_with(LAZY, runs={"cleanup_interval_minutes": 60.0})


@dataclass(frozen=True)
class Scene:
    """Two nodes with lines of one run."""

    world: Cluster
    board: Switchboard
    clock: VirtualClock
    nodes: Sequence[Node]
    key: RunKey

    async def write(self, *, stored: bool) -> None:
        """A batch through each node, so that the order of arrival is not that of ids."""
        for node in (self.nodes[1], self.nodes[0]):
            await self.world.clients.send(node, self.clock, self.key)
        for node in self.nodes if stored else ():
            await flush(self, node)

    def at(self, run: str) -> Scene:
        return replace(self, key=RunKey("service.pipeline", run))


async def flush(scene: Scene, node: Node) -> None:
    """Brings the node's lines of the run into chunks."""
    await scene.world.clients.send(node, scene.clock, OTHER, durability="bulk")
    await node.run_logs.flusher.flush(scene.key)


async def flush_one(scene: Scene) -> None:
    await flush(scene, scene.nodes[1])


async def close(scene: Scene) -> None:
    assert await scene.nodes[1].close_run(scene.key) == "closed"


async def append(scene: Scene) -> None:
    await scene.write(stored=False)


async def close_and_reopen(scene: Scene) -> None:
    await close(scene)
    await scene.write(stored=True)
    await close(scene)


Event = Callable[[Scene], Awaitable[None]]


async def _text(scene: Scene) -> AsyncIterator[bytes]:
    reader = scene.nodes[0].run_logs.reader
    measured = await reader.size(scene.key)
    assert measured.stored_bytes < measured.total_bytes
    yield b""
    async for piece in reader.download(scene.key, measured=measured):
        yield piece


async def _records(scene: Scene, *, by_ulid: bool) -> AsyncIterator[bytes]:
    whole = scene.nodes[0].run_logs.records.whole(scene.key, by_ulid=by_ulid, max_bytes=1)
    async for parts in whole:
        yield b"".join([part.text for part in parts])


Form = Callable[[Scene], AsyncIterator[bytes]]
FORMS: dict[str, Form] = {
    "text": _text,
    "records": lambda scene: _records(scene, by_ulid=False),
    "by ulid": lambda scene: _records(scene, by_ulid=True),
}


async def interrupted(scene: Scene, form: Form, event: Event, boundary: int) -> tuple[bytes, bool]:
    """The reply with the event after so many pieces; whether it had more of them."""
    text, count, happened = b"", 0, False
    async for piece in form(scene):
        if happened and piece:
            count += 1
        text += piece
        if count == boundary and not happened:
            await event(scene)
            happened = True
        elif not happened:
            count += 1
    return text, happened and count > boundary


def play(event: Event, check: Callable[[Scene, Form, int, bytes], Awaitable[bool]]) -> None:
    """Runs `check` at each boundary of each form, with the reply as it is before."""
    world, board = cluster(1)
    world.settings = KEPT

    async def go(clock: VirtualClock) -> None:
        nodes = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(6.0)  # until each has found the other
        scene = Scene(world, board, clock, nodes, OTHER)
        for name, form in FORMS.items():
            boundary, more = 0, True
            while more:
                scene = scene.at(f"{name} {boundary}")
                await scene.write(stored=True)
                await scene.write(stored=False)
                whole = b"".join([piece async for piece in form(scene)])
                more = await check(scene, form, boundary, whole)
                boundary += 1
            assert boundary > 2

    world.play(go)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("event", [flush_one, close_and_reopen, append])
def test_lines_that_move_between_two_pieces_are_in_the_reply_once(event: Event) -> None:
    async def check(scene: Scene, form: Form, boundary: int, whole: bytes) -> bool:
        text, more = await interrupted(scene, form, event, boundary)
        assert text == whole
        now = await downloaded(scene.nodes[1], scene.key)
        scene.world.clients.check(scene.key, now, where="log", ordered=False)
        return more

    play(event, check)


async def delete(scene: Scene) -> None:
    await scene.world.clients.delete(scene.nodes[1], scene.key)


def test_a_run_that_is_deleted_between_two_pieces_breaks_the_reply_off() -> None:
    async def check(scene: Scene, form: Form, boundary: int, whole: bytes) -> bool:
        try:
            text, more = await interrupted(scene, form, delete, boundary)
        except NotFound:
            return True
        assert (text, more) == (whole, False), "nothing was left to read"
        return False

    play(delete, check)


async def rest_of(reply: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in reply])


def test_lines_of_a_node_that_falls_silent_between_two_pieces_break_the_reply_off() -> None:
    world, board = cluster(1, lazy=True)

    async def go(clock: VirtualClock) -> None:
        nodes = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(6.0)  # until each has found the other
        scene = Scene(world, board, clock, nodes, RUN)
        for _ in range(2):
            await scene.write(stored=False)
        replies = [form(scene) for form in FORMS.values()]
        for reply in replies:
            await anext(reply)
        board.kill(next(url for url in board.nodes if url.startswith("b")))
        for reply in replies:
            with pytest.raises(Unavailable, match="no longer answer: b-"):
                await rest_of(reply)

    world.play(go)
