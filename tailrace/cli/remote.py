"""Access of the verbs to a running service: requests, streams of events, and completion."""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import argcomplete
import httpx
from argcomplete.lexers import split_line
from argcomplete.shell_integration import shellcode

from tailrace.cli.terminal import note, say
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import InvalidInput, NotFound, TailraceError, Unavailable
from tailrace.logstore.filesystem import hint_of_trust, read_token, trust
from tailrace.logstore.retry import Backoff
from tailrace_client.command import add_ca_file
from tailrace_client.service import name as path_name

# Requests from the command line: the service's address, and errors of ours.


DEFAULT_URL = "http://127.0.0.1:8790"
TIMES = "5m (before now), '2026-11-21 10:00' (UTC), now-1d, now/d, yesterday, RFC 3339"
"""Times as flags take them: the service reads them all."""
RUNS = "/api/v1/services/ingestionPipelines/logs"


def add_url(parser: argparse.ArgumentParser) -> None:
    """The flag that names the service."""
    parser.add_argument(
        "--url",
        metavar="U",
        default=os.environ.get("TAILRACE_URL", DEFAULT_URL),
        help=f"address of the service (default: $TAILRACE_URL, else {DEFAULT_URL})",
    )
    add_token_file(parser)
    add_ca_file(parser)


def add_token_file(parser: argparse.ArgumentParser, which: str = "the token") -> None:
    """The flag that names the file with the token, as `authorization` reads it."""
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"a file with {which} (default: $TAILRACE_TOKEN, else the file $TAILRACE_TOKEN_FILE)",
    )


def complete_names(fqn: argparse.Action, run: argparse.Action) -> None:
    """A shell completes these two arguments with what the service has."""
    fqn.completer = pipelines  # type: ignore[attr-defined]
    run.completer = runs  # type: ignore[attr-defined]


def authorization(token_file: str | None = None) -> dict[str, str]:
    """The header with the token, if there is one; no argument has it, which others could read.

    Raises `InvalidInput` for a file that has none.
    """
    name, token = token_file, ""
    if not name:
        token = os.environ.get("TAILRACE_TOKEN", "")
        name = "" if token else os.environ.get("TAILRACE_TOKEN_FILE", "")
    if name:
        token = read_token(name)
    if not all("!" <= character <= "~" for character in token):
        raise InvalidInput("the token has characters that a header cannot hold")
    return {"authorization": f"Bearer {token}"} if token else {}


def trusted(ca_file: str) -> ssl.SSLContext | bool:
    """The certificates that an HTTP client trusts: a file's or the machine's.

    Raises `InvalidInput`.
    """
    return trust(ca_file, field="--ca-file") if ca_file else True


def component(name: str) -> str:
    """A name as one part of a path, and not as a verb. Raises `InvalidInput` for an empty one."""
    if not name:
        raise InvalidInput("the name of a pipeline or a run is empty")
    return path_name(name)


@contextmanager
def errors_as_ours(url: str) -> Iterator[None]:
    """Turns the HTTP client's errors into `Unavailable` and `InvalidInput`."""
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise InvalidInput(f"{url} is not the address of a service: {error}") from error
    except httpx.TransportError as error:
        reason = str(error) or type(error).__name__
        hint = hint_of_trust(error, "--ca-file") or "Is the service running? See `tailrace serve`."
        raise Unavailable(f"no answer from {url}: {reason}", hint=hint) from error


def check(response: httpx.Response) -> None:
    """Raises what a problem+json answer says; its body must have been read."""
    if response.is_success:
        return
    try:
        problem = json.loads(response.content)
        message, hint = str(problem["detail"]), str(problem.get("hint") or "")
    except (ValueError, KeyError, TypeError):
        message, hint = f"the service answered {response.status_code}", ""
    if response.status_code == 404:
        raise NotFound(message, hint=hint)
    if response.status_code in (429, 500, 502, 503, 504, 507):
        raise Unavailable(message, hint=hint)
    if response.status_code < 500:
        raise InvalidInput(message, hint=hint)
    raise TailraceError(message, hint=hint)


# Server-sent events over connections that may end anywhere.
#
# When a connection ends without an end of the stream, it is opened again at the last cursor.


READ_SECONDS = 60  # several heartbeats: silence beyond it is a dead connection
_PATIENCE_SECONDS = 60
_LONGEST_PAUSE_SECONDS = 5.0
_SILENT = ": silent "
_SAID_AFTER = 2  # attempts: a connection that is there again at once is not worth a word


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """A server-sent event; `id` is the last one seen, also when this event names none."""

    name: str
    data: str
    id: str | None


class EventParser:
    """Lines of a stream to events, as the HTML standard's section on them says.

    The comment `: silent {…}`, which names nodes that do not answer, is an event as well.
    """

    def __init__(self) -> None:
        self._name = ""
        self._data: list[str] = []
        self._id: str | None = None

    @property
    def id(self) -> str | None:
        """The last id that was read."""
        return self._id

    def feed(self, lines: Iterable[str]) -> Iterator[ServerSentEvent]:
        """Takes lines without their ends; an empty one ends an event."""
        for line in lines:
            if line.startswith(_SILENT):
                yield ServerSentEvent("silent", line.removeprefix(_SILENT), self._id)
            elif line:
                self._field(*_split(line))
            else:
                if self._data:
                    yield ServerSentEvent(self._name or "message", "\n".join(self._data), self._id)
                self._name, self._data = "", []

    def _field(self, name: str, value: str) -> None:
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
        elif name == "id":
            self._id = value


def warn_of_silent(nodes: Iterable[str], *, store: bool = False) -> None:
    """Says on stderr which nodes do not answer, and the `store`; none: all answer again."""
    names = ", ".join(nodes)
    found = [f"{names} silent: newer records will follow"] if names else []
    if store:
        found.append("the object store does not answer: only lines that the nodes hold are shown")
    say(f"nodes: {'; '.join(found) or 'all answer again'}", sys.stderr)


def _split(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name, value.removeprefix(" ")


class EventFollower(ABC):
    """A stream of events; `cursor` is beyond the last one that was taken.

    Where `silence_counts`, the id of a heartbeat is a cursor as well.
    """

    silence_counts = False

    def __init__(
        self, client: httpx.AsyncClient, clock: Clock, path: str, parameters: Mapping[str, str]
    ) -> None:
        self._client = client
        self._clock = clock
        self._path = path
        self._parameters = parameters
        self.cursor: str | None = None
        self._failures = 0

    async def follow(self, after: str | None = None) -> None:
        """Returns at the end of the stream.

        Raises what the service answers, and `Unavailable` when it cannot be reached for a minute.
        """
        self.cursor = after
        pauses, quiet_since = Backoff(0.1, _LONGEST_PAUSE_SECONDS), self._clock.monotonic()
        while True:
            before = self.cursor
            try:
                with errors_as_ours(str(self._client.base_url)):
                    if await self._connection():
                        return
                quiet_since = self._clock.monotonic()
            except Unavailable as error:
                if self._clock.monotonic() - quiet_since > _PATIENCE_SECONDS:
                    raise
                self._failures += 1
                if self._failures == _SAID_AFTER:
                    note(f"{error}; trying again")
            if self.cursor != before:
                quiet_since = self._clock.monotonic()
                pauses.reset()
            await self._clock.sleep(pauses.next())

    @abstractmethod
    def take(self, event: ServerSentEvent) -> bool:
        """Takes an event and sets the cursor; whether it is the stream's end."""

    async def _connection(self) -> bool:
        """Reads one connection to its end; whether the stream is at its end, too."""
        parameters = dict(self._parameters)
        if self.cursor is not None:
            parameters["after"] = self.cursor
        async with self._client.stream("GET", self._path, params=parameters) as response:
            if not response.is_success:
                await response.aread()
            check(response)
            if self._failures >= _SAID_AFTER:
                note("connected again: continuing after the last line")
            self._failures = 0
            return await self._read(response)

    async def _read(self, response: httpx.Response) -> bool:
        parser, buffer = EventParser(), b""
        async for piece in response.aiter_bytes():
            *lines, buffer = (buffer + piece).split(b"\n")
            for event in parser.feed(line.decode().removesuffix("\r") for line in lines):
                if self.take(event):
                    return True
            if self.silence_counts and parser.id is not None:
                self.cursor = parser.id
        return False


# `tailrace completion`: a script with which a shell completes the command's words.
#
# Commands, flags and their choices come from the parsers, names of pipelines and runs from the
# service: it is asked for a second at most, and a service that does not answer completes nothing.


SHELLS: Final = ("bash", "zsh", "fish")
_SECONDS: Final = 1.0
_MOST: Final = 200
_HOW: Final = """\
bash: source <(tailrace completion bash), in ~/.bashrc
zsh:  source <(tailrace completion zsh), in ~/.zshrc after compinit
fish: tailrace completion fish | source, in ~/.config/fish/config.fish"""


def configure(parser: argparse.ArgumentParser) -> None:
    """For which shell."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _HOW
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def run(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    sys.stdout.write(shellcode(["tailrace"], shell=arguments.shell))
    return 0


def complete(parser: argparse.ArgumentParser, verbs: dict[str, Any]) -> None:
    """Answers the shell that asks by `$_ARGCOMPLETE`, and exits. `verbs` have a `parser(name)`."""
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT") or 0)]
    first = int(os.environ["_ARGCOMPLETE"]) - 1
    words = split_line(line)[3][first + 1 :]
    if words and words[0] in verbs:
        os.environ["_ARGCOMPLETE"] = str(first + 2)
        parser = verbs[words[0]].parser(words[0])
    # Next to names flags would be noise: they are offered after a dash, and if no name fits.
    argcomplete.autocomplete(parser, always_complete_options=False)


def pipelines(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Names of pipelines that begin with `prefix`."""
    return [f"{name}" for name in _asked(parsed_args, RUNS, prefix).get("pipelines", ())]


def runs(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Ids of the pipeline's runs that begin with `prefix`."""
    fqn = parsed_args.fqn
    if not fqn:
        return []
    found = _asked(parsed_args, f"{RUNS}/{component(fqn)}", prefix).get("runs", ())
    return [f"{name}" for name in found]


def _asked(arguments: argparse.Namespace, path: str, prefix: str) -> dict[str, Any]:
    try:
        reply = httpx.get(
            f"{arguments.url or DEFAULT_URL}{path}",
            params={"limit": _MOST, **({"name": prefix} if prefix else {})},
            headers=authorization(arguments.token_file),
            verify=trusted(arguments.ca_file),
            timeout=_SECONDS,
        )
        found = reply.raise_for_status().json()
    except (httpx.HTTPError, httpx.InvalidURL, TailraceError, ValueError):
        return {}  # a shell shows what it gets in the middle of a line
    return found if isinstance(found, dict) else {}
