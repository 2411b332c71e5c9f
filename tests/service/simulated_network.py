"""The routes between nodes of one process, in leaping time: slow, cut, or with answers lost."""

from __future__ import annotations

import asyncio
from random import Random

from service.node import Node
from service.peers.handlers import Answers
from service.peers.rpc import NodeAddress, PeerRefused, PeerSilent
from tailrace.logstore.errors import TailraceError

_PAUSES = (0.0, 0.0, 0.001, 0.02)


class Switchboard:
    """Which node is at which URL, and which ways are cut."""

    def __init__(self, seed: int) -> None:
        self.nodes: dict[str, tuple[Node, Answers]] = {}
        self.cut: set[frozenset[str]] = set()
        self.dead: set[str] = set()
        self.dice = Random(f"network {seed}")
        self.lost = 0.0
        """How many of the answers are lost."""
        self.asked = 0

    def connect(self, url: str, node: Node) -> None:
        self.nodes[url] = (node, Answers(node, node.environment.clock))

    def kill(self, *urls: str) -> None:
        """Nobody gets an answer from there any more, and it gets none."""
        self.dead.update(urls)

    def sever(self, one: str, other: str) -> None:
        self.cut.add(frozenset([one, other]))

    def heal(self) -> None:
        self.cut.clear()
        self.lost = 0.0

    def is_open(self, one: str, other: str) -> bool:
        ends = {one, other}
        return not (ends & self.dead) and frozenset(ends) not in self.cut and other in self.nodes


class SimulatedTransport:
    """One node's way to the others."""

    def __init__(self, board: Switchboard, url: str) -> None:
        self._board = board
        self._url = url

    async def ask(self, address: NodeAddress, verb: str, body: bytes, seconds: float) -> bytes:
        board = self._board
        board.asked += 1
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(board.dice.choice(_PAUSES))
                if not board.is_open(self._url, address.url):
                    await asyncio.Event().wait()
                node, answers = board.nodes[address.url]
                if node.members.instance != address.instance:
                    raise PeerRefused(f"{address.url} is another process")
                try:
                    answer = await answers.answer(verb, body)
                except TailraceError as error:
                    raise PeerRefused(f"{address.node}: {error}") from error
                if board.dice.random() < board.lost:
                    await asyncio.Event().wait()
                await asyncio.sleep(board.dice.choice(_PAUSES))
                if not board.is_open(self._url, address.url):
                    await asyncio.Event().wait()
                return answer
        except TimeoutError as error:
            raise PeerSilent(f"{address.node} is silent") from error

    async def close(self) -> None:
        return None
