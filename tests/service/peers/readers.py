"""Readers of one run that go from node to node with what they were given."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from service.node import Node
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound, Unavailable
from tailrace.logstore.position import Cursor


@dataclass
class CursorReader:
    """Reads by pages, and as live streams do, with one cursor."""

    key: RunKey
    seed: int = 0
    text: bytes = b""
    cursor: Cursor | int | None = None
    dice: Random = field(init=False)

    def __post_init__(self) -> None:
        self.dice = Random(f"reader {self.seed}")

    async def read(self, node: Node, limit: int) -> bool:
        """Reads some lines; gives whether there were any."""
        try:
            if self.dice.random() < 0.5:
                return await self._page(node, limit)
            return await self._follow(node)
        except (NotFound, Unavailable):
            return False

    async def read_all(self, node: Node) -> None:
        while await self._follow(node) or await self._page(node, 10):
            pass

    async def _page(self, node: Node, limit: int) -> bool:
        token = self._token()
        page = await node.run_logs.reader.page(self.key, after=token, limit=limit)
        if page.after is None:
            return False  # a page that is the last one has no cursor: the stream reads it
        self.text += page.text
        digits = page.after.isdigit()
        self.cursor = int(page.after) if digits else Cursor.decode(page.after)
        return page.lines > 0

    async def _follow(self, node: Node) -> bool:
        reader = node.run_logs.reader
        size = self.dice.choice([1, 300, 1 << 20])
        piece = (await reader.batches_after(self.key, self.cursor, max_bytes=size)).piece
        if piece is None:
            return False
        self.text += piece.text
        self.cursor = Cursor.decode(piece.cursor.encode())
        return True

    def _token(self) -> str | None:
        if isinstance(self.cursor, Cursor):
            return self.cursor.encode()
        return None if self.cursor is None else str(self.cursor)
