"""The compactor as a child process of the service: starts, watches and stops it.

The service and the compactor share only the object store, so the child is found as a file next to
this package and never imported. A child that ends is started again after a pause that doubles. A
child does not outlive the service, not even a killed one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, SecretStr

from service.runtime.process import RestartPolicy, start_session, stop_session
from service.settings import Settings
from tailrace.logstore.clock import Clock
from tailrace.logstore.settings import PREFIX

log = logging.getLogger(__name__)

_STDERR = 2


def job_path() -> str:
    """The compactor's program."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.path.join(root, "compactor", "job.py")


def job_command(settings: Settings) -> list[str]:
    """The command that starts the compactor for the store of these settings."""
    every = f"{round(settings.compaction.every_seconds)}s"
    data = ["--data", os.path.abspath(settings.data)]
    return [sys.executable, job_path(), "--quiet", "--every", every, *data]


def job_environment(settings: Settings) -> dict[str, str]:
    """The environment of the compactor: the settings that have no flag."""
    return environment_of(settings, ["compaction", "queue", "runs", "source_coordination"])


def environment_of(settings: Settings, sections: Sequence[str]) -> dict[str, str]:
    """The store and these sections of the settings as environment variables for a child."""
    extra = {"TAILRACE_STORE": settings.store_place} if settings.store else {}
    if settings.umask != type(settings).model_fields["umask"].default:
        extra["TAILRACE_UMASK"] = settings.umask
    for section in [*sections, *(["s3"] if settings.bucket else [])]:
        extra |= _as_variables(f"{PREFIX}{section.upper()}", getattr(settings, section))
    return extra


def _as_variables(prefix: str, section: BaseModel) -> dict[str, str]:
    """The set values of a section. Secrets in the environment are only readable by the owner."""
    found: dict[str, str] = {}
    for name, field in type(section).model_fields.items():
        value, variable = getattr(section, name), f"{prefix}__{name.upper()}"
        if isinstance(value, BaseModel):
            found |= _as_variables(variable, value)
        elif value != field.get_default():
            plain = value.get_secret_value() if isinstance(value, SecretStr) else value
            found[variable] = json.dumps(plain) if isinstance(plain, dict) else str(plain)
    return found


class CompactionChild:
    """Keeps one child running. `state` is a word, and after `: ` a reason, for people."""

    def __init__(
        self,
        command: Sequence[str],
        clock: Clock,
        *,
        off: str | None = None,
        environment: Mapping[str, str] | None = None,
        restart: RestartPolicy | None = None,
    ) -> None:
        self._command = list(command)
        self._clock = clock
        self._off = off
        self._environment = {**os.environ, **(environment or {})}
        self._restart = restart or RestartPolicy()
        self._child: asyncio.subprocess.Process | None = None
        self.state = f"off: {off}" if off else "starting"
        self.starts = 0
        self.failures = 0

    @property
    def starts_any(self) -> bool:
        """Whether it is configured to keep a child."""
        return self._off is None

    async def run(self) -> None:
        """Keeps the child running until cancelled, then stops it. Returns if it is switched off."""
        if self._off:
            log.info("compaction is off: %s", self._off)
            return
        pauses = self._restart.backoff()
        try:
            while True:
                began = self._clock.monotonic()
                reason = await self._live()
                if self._clock.monotonic() - began >= self._restart.healthy_seconds:
                    pauses.reset()
                pause = pauses.next()
                self.failures += 1
                self.state = f"waiting: {reason}, next start in {pause:g} s"
                log.error("the compactor ended: %s; starting it again in %g s", reason, pause)
                await self._clock.sleep(pause)
        finally:
            await self._stop()
            self.state = "off: stopped"

    async def _live(self) -> str:
        """Runs the child from start to end. Returns why it ended."""
        try:
            # Both to our log: a JVM that fails reports it on its stdout.
            self._child = await start_session(self._command, stdout=_STDERR, env=self._environment)
        except OSError as error:
            return f"it cannot be started: {error}"
        self.starts += 1
        self.state = "running"
        code = await self._child.wait()
        return f"exit status {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"

    async def _stop(self) -> None:
        child = self._child
        if child is None:
            return
        # Its Spark is a child process that must not end before it: the compactor stops it.
        await stop_session(child, self._restart.stop_seconds)
