"""`tailrace verify` beside the service: a child process, its lines handed on as they come.

The command line knows the service and not the other way round, so what compares is found as a
command and never imported. It is as far from ingestion as a child can be: its memory is its
own, it stands behind in every queue, and it does not outlive the service. One at a time.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Final

import orjson

from logstore.errors import Conflict, TailraceError, Unavailable
from service.compaction import dying_with_us, environment_of
from service.runtime.threads import lower_priority
from service.settings import Settings

_LONGEST_LINE: Final = 1 << 20
_KEPT_ERRORS: Final = 20  # lines
_SUMMARY: Final = b'{"summary":'
_UNDER_WAY: Final = "The report of the one under way says how far it is; ask again at its end."


def verify_command(settings: Settings) -> list[str]:
    """The command that verifies the store; `-P` ignores modules in the working directory."""
    data = os.path.abspath(settings.data)
    return [sys.executable, "-P", "-m", "tailrace", "verify", "--json", "--data", data]


def verify_environment(settings: Settings) -> dict[str, str]:
    """The environment of the command: the settings that have no flag."""
    return environment_of(settings, ["query", "runs", "source_coordination"])


class Lines:
    """A report as it grows. Whoever has it closes it, whether it was read or not."""

    def __init__(self, first: bytes, others: AsyncGenerator[bytes, None]) -> None:
        self._first = first
        self._others = others

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        """Iterates over the lines, once."""
        try:
            yield self._first
            async for line in self._others:
                yield line
        except TailraceError as error:
            yield _line({"error": str(error), "hint": error.hint})

    async def aclose(self) -> None:
        """Ends the verification."""
        await self._others.aclose()


class Verification:
    """Starts the command when it is asked for.

    A report says nothing for at most `quiet_seconds`; a command that is told to stop is killed
    after `stop_seconds`.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        quiet_seconds: float = 15.0,
        stop_seconds: float = 10.0,
    ) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        self._quiet_seconds = quiet_seconds
        self._stop_seconds = stop_seconds
        self._under_way = False

    async def begin(self, *, repair: bool) -> Lines:
        """A report, line by line of JSON.

        The lines are those of `tailrace verify --json`, `{"progress": {"seconds": S}}` where
        nothing else was said for a while, and `{"error": …, "hint": …}` last if it broke off.
        Raises `Conflict` while there is another, `Unavailable` if it breaks off before a word.
        """
        if self._under_way:
            raise Conflict("the store is being verified", hint=_UNDER_WAY)
        self._under_way = True
        lines = self._lines(repair=repair)
        try:
            first = await anext(lines)
        except BaseException:
            await lines.aclose()
            raise
        return Lines(first, lines)

    async def _lines(self, *, repair: bool) -> AsyncGenerator[bytes, None]:
        try:
            child = await self._start(["--repair"] if repair else [])
        except OSError as error:
            self._under_way = False
            raise Unavailable(f"verifying cannot be started: {error}") from error
        errors: deque[bytes] = deque(maxlen=_KEPT_ERRORS)
        reading = asyncio.create_task(_read(child.stderr, errors))
        try:
            last = b""
            async with aclosing(self._said(child)) as said:
                async for line in said:
                    yield line
                    last = line
            await child.wait()
            await reading
            if not last.startswith(_SUMMARY):
                raise _reason(errors, child.returncode)
        finally:
            reading.cancel()
            try:
                await self._end(child)
            finally:
                self._under_way = False

    async def _start(self, flags: Sequence[str]) -> asyncio.subprocess.Process:
        child = await asyncio.create_subprocess_exec(
            *dying_with_us(),
            *self._command,
            *flags,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
            limit=_LONGEST_LINE,
        )
        lower_priority(child.pid)
        return child

    async def _said(self, child: asyncio.subprocess.Process) -> AsyncGenerator[bytes, None]:
        assert child.stdout is not None
        loop, quiet = asyncio.get_running_loop(), self._quiet_seconds
        began = loop.time()
        reading = asyncio.ensure_future(child.stdout.readline())
        try:
            while True:
                done, _ = await asyncio.wait({reading}, timeout=quiet)
                if not done:
                    yield _line({"progress": {"seconds": round(loop.time() - began)}})
                    continue
                if not reading.result():
                    return
                yield reading.result()
                reading = asyncio.ensure_future(child.stdout.readline())
        finally:
            reading.cancel()

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        with suppress(ProcessLookupError):
            child.terminate()  # it removes what it spilled
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(child.wait(), self._stop_seconds)
        finally:
            with suppress(ProcessLookupError):
                child.kill()
        await child.wait()


async def _read(stream: asyncio.StreamReader | None, kept: deque[bytes]) -> None:
    assert stream is not None
    with suppress(ValueError):  # a line without an end
        while line := await stream.readline():
            kept.append(line)


def _reason(errors: Sequence[bytes], code: int | None) -> Unavailable:
    """The text behind `error:` and `hint:` in the command's output."""
    said = dict(line.decode(errors="replace").strip().partition(": ")[::2] for line in errors)
    found = said.get("error", f"it ended with status {code} and without a word")
    return Unavailable(f"verifying broke off: {found}", hint=said.get("hint", ""))


def _line(value: dict[str, object]) -> bytes:
    return orjson.dumps(value) + b"\n"
