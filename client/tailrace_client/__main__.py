"""The commands of the client.

    python -m tailrace_client run --fqn F -- CMD…     ships a command's output as a run
    python -m tailrace_client send SPOOL              delivers what programs left behind

The token, if the service wants one, is read from the environment: TAILRACE_TOKEN, or the file that
TAILRACE_TOKEN_FILE names. It is sent to the service that `--url` names, else to that of the spool,
and to no other.

Exit status of `run`: the command's, 127 or 126 if it cannot be started, 2 for a wrong command line.
Of `send`: 0 all was delivered, 1 something is left, 2 a wrong command line.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Dict, List, Optional, Sequence

from tailrace_client import system
from tailrace_client.command import add_ca_file, configure, run, token_of_environment
from tailrace_client.errors import InvalidRequest
from tailrace_client.records import BatchIds
from tailrace_client.sender import Sender
from tailrace_client.service import Service
from tailrace_client.spool import SpoolQueue, has_work, queues, read_target, set_aside_in


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command and gives its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tailrace_client", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    send = verbs.add_parser("send", help="deliver the records in a spool")
    send.add_argument("spool", help="the folder that programs use as their spool")
    send.add_argument("--url", help="deliver only records for this service (default: all services)")
    send.add_argument(
        "--seconds", type=float, default=60.0, help="how long to retry (default: %(default)s)"
    )
    add_ca_file(send)
    configure(verbs.add_parser("run", help="run a command and ship its output as a run"))
    parsed = parser.parse_args(arguments)
    try:
        if parsed.verb == "run":
            return run(parsed)
        return _send(parsed.spool, parsed.url, parsed.seconds, parsed.ca_file)
    except (InvalidRequest, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _say(sentence: str) -> None:
    sys.stderr.write(f"tailrace-client: {sentence}\n")


def _send(spool: str, url: Optional[str], seconds: float, ca_file: Optional[str]) -> int:
    token = token_of_environment()
    wanted = Service(url).url if url else None
    by_url: Dict[str, List[str]] = {}
    status = 0
    for path in queues(os.path.abspath(spool)):
        if not has_work(path) and not set_aside_in(path):
            continue
        try:
            by_url.setdefault(read_target(path).url, []).append(path)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            status = 1
    if wanted is not None:
        by_url = {wanted: by_url.get(wanted, [])}
    elif token is not None and len(by_url) > 1:
        raise InvalidRequest(
            "the spool is for several services, and there is a token", hint="Name one with --url."
        )
    until = system.monotonic() + seconds
    for service_url, paths in by_url.items():
        sending = _Sending(Service(service_url, token=token, ca_file=ca_file), until)
        for path in paths:
            status = max(status, sending.deliver(path))
        counts = sending.sender.counts
        print(f"{counts.delivered} records delivered to {service_url}", file=sys.stderr)
    return status


class _Sending:
    """Delivers queues to one service until a moment."""

    def __init__(self, service: Service, until: float) -> None:
        self._until = until
        self.sender = Sender(service, BatchIds(), lock=_NoLock, pause=self._pause, say=_say)

    def deliver(self, path: str) -> int:
        """0, or 1 if something is left."""
        try:
            queue = SpoolQueue.take_over(path, refused=True)
        except (OSError, ValueError) as error:
            _say(str(error))
            return 1
        if queue is None:
            _say(f"{path} belongs to a program that is still running")
            return 1
        try:
            self.sender.report_start(queue)
            for batch in queue.sealed():
                if not self.sender.deliver(queue, batch):
                    return 1
            closing = queue.closing
            if closing is not None:
                if not self.sender.close_run(queue.target, closing):
                    return 1
                queue.closed()
            if queue.kept_close:
                _say(
                    f"the recorded end of the run cannot be read: the run is closed without an "
                    f"outcome, and the record is kept in {queue.kept_close}"
                )
            return 0
        finally:
            queue.release()

    def _pause(self, seconds: float, asked: bool) -> bool:  # noqa: ARG002
        if system.monotonic() + seconds > self._until:
            return False
        system.sleep(seconds)
        return True


class _NoLock:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


if __name__ == "__main__":
    sys.exit(main())
