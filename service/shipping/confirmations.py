"""Waiting until lines are in confirmed segments: one list for all incarnations of a node.

A node that finds that its folder is a copy continues under another name, with the same
positions. Another shipper then confirms the lines that callers wait for. The list therefore
belongs to the node and outlives its shippers, so that no caller waits for one that has ended.
"""

from __future__ import annotations

import asyncio

from logstore.errors import NodeNotReady


class Confirmations:
    """The waiting callers of a node. Used from one event loop."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopped = False

    @property
    def wanted(self) -> int:
        """The highest position that a caller waits for, -1 without one."""
        return max([pos for pos, done in self._waiting if not done.done()], default=-1)

    def through(self, pos: int) -> asyncio.Future[None]:
        """A future, done when all lines below `pos` are confirmed.

        Raises `NodeNotReady` at the stop.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._stopped:
            done.set_exception(_stopping())
        else:
            self._waiting.append((pos, done))
        return done

    async def next(self) -> None:
        """Returns when more is confirmed, or the present shipper has ended."""
        await asyncio.shield(self._news)

    def confirmed(self, end: int) -> None:
        """Records that all lines below `end` are in confirmed segments."""
        self.tell()
        waiting, self._waiting = self._waiting, []
        for pos, done in waiting:
            if pos > end:
                self._waiting.append((pos, done))
            elif not done.done():
                done.set_result(None)

    def tell(self) -> None:
        """Wakes the callers of `next`."""
        waiting, self._news = self._news, asyncio.get_running_loop().create_future()
        waiting.set_result(None)

    def stop(self) -> None:
        """Ends all waiting with an error, since the node stops."""
        self._stopped = True
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            if not done.done():
                done.set_exception(_stopping())
        self.tell()


def _stopping() -> NodeNotReady:
    return NodeNotReady(
        "the node stops before the object store has these lines: they are in its journal",
        hint="Send the batch again with the same id, to this node when it is back, or another.",
    )
