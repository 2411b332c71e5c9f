"""Clients of live streams that leave at any event, and go on at any node."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from service.http.live import EventStream, Form
from service.node import Node
from service.runtime.concurrency import SharedCalls
from service.runtime.counters import HttpCounters
from tailrace.logstore.batch import RunKey


@dataclass
class Follower:
    """Follows a run in one form. `texts` are lines, or records where the form has records."""

    key: RunKey
    form: Form
    texts: list[str] = field(default_factory=list)
    place: str | None = None
    complete: bool = False

    async def follow(self, node: Node, most: int) -> None:
        """Takes up to so many events. It leaves before the rest of what the service has sent.

        It also leaves where nothing more comes.
        """
        stream = EventStream(
            node,
            self.key,
            after=self.place,
            tail=None,
            form=self.form,
            named=True,
            max_readers=10,
            counters=HttpCounters(),
            reads=SharedCalls(),
        )
        left = asyncio.Event()

        async def receive() -> dict[str, str]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal most
            body = message.get("body", b"")
            assert isinstance(body, bytes)
            for event in body.decode().split("\n\n")[:-1]:
                if event == ": heartbeat" or not most:
                    left.set()
                    return
                most -= self._take(event)

        await stream({"method": "GET"}, receive, send)

    def _take(self, event: str) -> int:
        """Takes an event; 1 if it had text."""
        fields = dict(line.partition(": ")[::2] for line in event.split("\n"))
        kind = fields.get("event")
        assert kind in (None, "logs", "complete", "silent"), event
        self.complete = self.complete or kind == "complete"
        if kind not in (None, "logs") or "data" not in fields:
            return 0
        if self.form == "text":
            self.texts.append(fields["data"])
        elif self.form == "ndjson":
            self.texts.append(orjson.loads(fields["data"])["message"])
        else:
            self.texts += orjson.loads(fields["data"])["logs"].split("\n")[:-1]
        self.place = fields["id"]
        return 1
