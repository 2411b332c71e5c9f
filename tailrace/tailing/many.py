"""`tailrace tail` with patterns: one live search, so runs that begin later are in it as well.

A pattern is a shell's: `*` is any text, `?` one character, `[…]` one of these.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import AsyncIterator, Iterable
from typing import Final

import httpx

from logstore.clock import SystemClock
from logstore.errors import InvalidInput, TailraceError, Unavailable
from tailrace.remote.api import check, errors_as_ours
from tailrace.searching.follow import SearchFollower
from tailrace.tailing.lines import Lines

# Lines of several runs are held back for so long, to come in the order of their times.
_WINDOW_SECONDS: Final = "0.5"
_SPECIAL: Final = re.compile(r"[*?\[]")


def is_pattern(name: str) -> bool:
    """Whether it stands for several names."""
    return _SPECIAL.search(name) is not None


def condition(field: str, name: str) -> dict[str, str]:
    """A name or a pattern as a parameter of a search; `q` holds what is a pattern."""
    if not is_pattern(name):
        return {field: name}
    return {"q": f"{field}:/{regex(name)}/"}


def regex(pattern: str) -> str:
    """The pattern as a regular expression of RE2 between slashes. Raises `InvalidInput`."""
    made, at = ["^"], 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "*":
            made.append(".*")
        elif character == "?":
            made.append(".")
        elif character == "[":
            end = pattern.find("]", at + 1)
            if end < 0:
                raise InvalidInput(f"{pattern!r} has no ] behind its [", hint="Write [[] for a [.")
            inside = pattern[at:end]
            negated = inside.startswith("!")
            escaped = re.sub(r"([\\\[\]^&~|/])", r"\\\1", inside.removeprefix("!"))
            made.append(f"[{'^' if negated else ''}{escaped}]")
            at = end + 1
        elif character == "/":
            made.append(r"\/")
        else:
            made.append(re.escape(character))
    return "".join([*made, "$"])


def _conditions(arguments: argparse.Namespace) -> dict[str, str]:
    parts = [condition("fqn", arguments.fqn)]
    if arguments.run is not None:
        parts.append(condition("run", arguments.run))
    asked = {name: text for part in parts for name, text in part.items() if name != "q"}
    words = [part["q"] for part in parts if "q" in part]
    return {"q": " ".join(words), **asked}


class _Written:
    """Takes records as a search's printer does."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def take(self, found: Iterable[bytes]) -> None:
        """Writes some records."""
        self._lines.write("".join([self._lines.of_any(line.decode()) for line in found]))


async def follow_many(
    client: httpx.AsyncClient, arguments: argparse.Namespace, lines: Lines, default: int
) -> None:
    """Follows until it is interrupted. Raises what the service answers."""
    asked = {**_conditions(arguments), "window": _WINDOW_SECONDS}
    wanted = arguments.tail
    if arguments.since is not None:
        asked["from"] = arguments.since
    elif wanted == -1:
        asked["from"] = "0"
    elif wanted != 0 and arguments.after is None:
        asked["tail"] = str(default if wanted is None else wanted)
    await SearchFollower(client, SystemClock(), asked, _Written(lines)).follow(arguments.after)


async def print_many(
    client: httpx.AsyncClient, arguments: argparse.Namespace, lines: Lines, default: int
) -> None:
    """Prints what is there, oldest first. Raises what the service answers, and for a part."""
    asked = {**_conditions(arguments), "from": arguments.since or "0", "order": "asc"}
    wanted = default if arguments.tail is None and arguments.since is None else arguments.tail
    if wanted == 0:
        return
    if wanted not in (None, -1):
        asked |= {"order": "desc", "limit": str(wanted)}
    newest: list[str] = []
    stats = None
    with errors_as_ours(str(client.base_url)):
        async with client.stream("GET", "/query", params=asked) as response:
            if not response.is_success:
                await response.aread()
            check(response)
            async for line in _lines(response):
                if line.startswith('{"stats"'):
                    stats = json.loads(line)["stats"]
                elif line.startswith('{"error"'):
                    problem = json.loads(line)["error"]
                    raise TailraceError(problem["detail"], hint=problem.get("hint") or "")
                elif asked["order"] == "desc":
                    newest.append(line)
                else:
                    lines.write(lines.of_any(line))
    for line in reversed(newest):
        lines.write(lines.of_any(line))
    if stats is None or not stats.get("complete"):
        raise Unavailable(
            "not everything could be read", hint="`tailrace query` says what is missing."
        )


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """Lines of ndjson: split at newlines alone, which JSON escapes within text."""
    rest = b""
    async for piece in response.aiter_bytes():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode()
