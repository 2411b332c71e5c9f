"""A coordinator in a process of its own that does what it is told, and can be killed and frozen.

    remote.ask("acquire", 3)                  keys and epochs
    remote.ask("save", key, progress)         None, or the name of the error
    remote.ask("valid", key)
    remote.ask("drain")                       works until all is done, gives keys and epochs

Its heartbeat beats all the time, between the questions too.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from tailrace.coordination.leases import Lease
from tailrace.coordination.partitions import PartitionStore
from tailrace.coordination.settings import CoordinatorLimits
from tailrace.coordination.work_queue import Coordinator, WorkQueue
from tailrace.logstore.clock import Clock, system_entropy
from tailrace.logstore.errors import LeaseLost, NotFound, TailraceError

OpenPartitions: TypeAlias = Callable[
    [int], AbstractAsyncContextManager[tuple[PartitionStore, Clock]]
]
"""Opens the same store in any process, by a clock that is off by so many milliseconds."""
_SECONDS = 300.0
# Forked from a process that has imported everything once: that takes longer than most tests.
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["tests.coordination.opened"])


class Remote:
    """One process; `end` it, whatever happens."""

    def __init__(
        self, opened: OpenPartitions, name: str, limits: CoordinatorLimits, skew_ms: int = 0
    ) -> None:
        self._asks, answers = _FORKED.Pipe()
        arguments = (answers, opened, name, limits, skew_ms)
        self._process = _FORKED.Process(target=_serve, args=arguments)
        self._process.start()
        answers.close()

    def begin(self, *question: Any) -> None:
        """Asks, without waiting for the answer."""
        self._asks.send(question)

    def answer(self) -> Any:
        """Of the question that was asked last."""
        assert self._asks.poll(_SECONDS), "no answer"
        return self._asks.recv()

    def ask(self, *question: Any) -> Any:
        self.begin(*question)
        return self.answer()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._asks.close()

    def _signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)


def _serve(
    answers: Connection, opened: OpenPartitions, name: str, limits: CoordinatorLimits, skew_ms: int
) -> None:
    with suppress(EOFError):  # whoever asked is gone
        asyncio.run(_answer_all(answers, opened, name, limits, skew_ms))


async def _answer_all(
    answers: Connection, opened: OpenPartitions, name: str, limits: CoordinatorLimits, skew_ms: int
) -> None:
    async with opened(skew_ms) as (store, clock):
        await store.start()
        coordinator = Coordinator(
            store, clock, system_entropy(), name="races", identity=name, limits=limits
        )
        beats = asyncio.create_task(coordinator.run())
        server = _Server(coordinator.work("file", balance=False), clock)
        try:
            while True:
                verb, *rest = await asyncio.to_thread(answers.recv)
                answers.send(await getattr(server, verb)(*rest))
        finally:
            beats.cancel()
            await asyncio.wait([beats])


class _Server:
    """The questions, as methods."""

    def __init__(self, work: WorkQueue, clock: Clock) -> None:
        self._work = work
        self._clock = clock
        self._held: dict[str, Lease] = {}

    async def acquire(self, count: int) -> list[tuple[str, int, str | None]]:
        held = await self._work.acquire(count)
        self._held |= {one.key: one for one in held}
        return [(one.key, one.epoch, one.progress) for one in held]

    async def ready(self) -> bool:
        return True

    async def valid(self, key: str) -> bool:
        return self._held[key].valid()

    async def save(self, key: str, progress: str) -> str | None:
        return await self._said(self._held[key].save(progress))

    async def complete(self, key: str) -> str | None:
        return await self._said(self._held[key].complete())

    async def drain(self) -> list[tuple[str, int]]:
        """Works until nothing is left: what it completed."""
        done: list[tuple[str, int]] = []
        while not await self._work.finished():
            for held in await self._work.acquire(4):
                with suppress(LeaseLost, NotFound):
                    await held.save("done")
                    await held.complete()
                    done.append((held.key, held.epoch))
            await self._clock.sleep(0.05)
        return done

    async def finish(self) -> None:
        await self._work.supply.finish()

    async def _said(self, verb: Any) -> str | None:
        try:
            await verb
        except TailraceError as error:
            return type(error).__name__
        return None
