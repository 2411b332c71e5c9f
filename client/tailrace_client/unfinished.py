"""Shows lines that are not finished yet in live views: progress bars and prompts.

`show` takes the present state of a stream's last line. A thread sends it once it has stood for a
second, or once a second while it changes, and sends it again now and then, since the service
forgets what nobody repeats. Nothing depends on it: an attempt that fails is not made again, and a
service that does not know such lines is not asked twice. The line itself is delivered as any other
once it is finished.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import Dict, Optional

from tailrace_client import system
from tailrace_client.errors import InvalidRequest, NotFound, TailraceError
from tailrace_client.service import ROOT, Service, name

MOST_CHARS = 4096
_PAUSE_SECONDS = 1.0
_REPEAT_SECONDS = 20.0
_SEND_SECONDS = 5.0


def last_state(line: bytes) -> bytes:
    """What a line shows in the end: what follows the last carriage return with text behind it."""
    shown = line.rstrip(b"\r")
    return shown[shown.rfind(b"\r") + 1 :]


def collapse(rest: bytes) -> bytes:
    """A line that goes on, without the states that were overwritten; it still shows that it was."""
    if not _is_overwritten(rest):
        return rest
    return b"\r" + last_state(rest) + b"\r" * rest.endswith(b"\r")


def finished(line: bytes) -> bytes:
    """What is stored of a line: the last state of one that was overwritten, else all of it."""
    return last_state(line) if _is_overwritten(line) else line


def _is_overwritten(line: bytes) -> bool:
    return b"\r" in line.rstrip(b"\r")


class UnfinishedLines:
    """The last lines of the streams of one producer, named `producer`, in one run."""

    def __init__(self, service: Service, fqn: str, run: str, producer: str) -> None:
        self._service = service
        self._path = f"{ROOT}/unfinished/{name(fqn)}/{name(run)}"
        self._producer = producer
        self._now: Dict[str, str] = {}
        self._sent: Dict[str, str] = {}
        self._number = 0
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def show(self, stream: str, line: bytes) -> None:
        """The stream's last line looks like this now; empty: it is finished, or begins anew."""
        text = line[-4 * MOST_CHARS :].decode("utf-8", "replace")[-MOST_CHARS:]
        if text == self._now.get(stream, "") or self._stopped.is_set():
            return
        self._now[stream] = text
        if self._thread is None:
            thread = threading.Thread(target=self._keep, name="tailrace-unfinished", daemon=True)
            with suppress(RuntimeError):  # the interpreter ends
                thread.start()
                self._thread = thread
        self._changed.set()

    def stop(self) -> None:
        """Shows nothing any more."""
        self._stopped.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join(_SEND_SECONDS)
        for stream in [stream for stream, text in self._sent.items() if text]:
            if not self._send(stream, ""):
                return

    def _keep(self) -> None:
        while not self._stopped.is_set():
            shown = any(self._sent.values())
            if self._changed.wait(_REPEAT_SECONDS if shown else None):
                self._changed.clear()
                if self._stopped.wait(_PAUSE_SECONDS):
                    return
                changed = [
                    s for s, text in self._now.copy().items() if text != self._sent.get(s, "")
                ]
            else:
                changed = list(self._now.copy())
            for stream in changed:
                if not self._send(stream, self._now[stream]):
                    return

    def _send(self, stream: str, text: str) -> bool:
        """One attempt; False if the service does not know unfinished lines."""
        self._number = max(self._number + 1, system.now_ms())
        value = {"producer": f"{self._producer}:{stream}", "number": self._number, "text": text}
        body, headers = json.dumps(value).encode(), {"Content-Type": "application/json"}
        try:
            self._service.request("PUT", self._path, body, headers, timeout_seconds=_SEND_SECONDS)
        except (InvalidRequest, NotFound):
            return False
        except TailraceError:
            return True
        self._sent[stream] = text
        return True
