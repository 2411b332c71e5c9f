"""Access to a running service from the command line: its address, and errors of ours."""

from __future__ import annotations

import argparse
import json
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx

from logstore.credentials import hint_of_trust, read_token, trust
from logstore.errors import InvalidInput, NotFound, TailraceError, Unavailable
from tailrace_client.environment import add_ca_file

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
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="a file with the token (default: $TAILRACE_TOKEN, else the file $TAILRACE_TOKEN_FILE)",
    )
    add_ca_file(parser)


def complete_names(fqn: argparse.Action, run: argparse.Action) -> None:
    """A shell completes these two arguments with what the service has."""

    def pipelines(**asked: Any) -> list[str]:
        from tailrace.console.completion import pipelines as found

        return found(**asked)

    def runs(**asked: Any) -> list[str]:
        from tailrace.console.completion import runs as found

        return found(**asked)

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
        raise InvalidInput("the token has characters that no header can have")
    return {"authorization": f"Bearer {token}"} if token else {}


def trusted(ca_file: str) -> ssl.SSLContext | bool:
    """What an HTTP client is to trust: that file, or the machine's. Raises `InvalidInput`."""
    return trust(ca_file, field="--ca-file") if ca_file else True


def component(name: str) -> str:
    """A name as one part of a path, and not as a verb."""
    # Late: `tailrace tail` loads nothing of the service before it asks.
    from service.http.targets import RESERVED, spelled

    return spelled(name) if name in RESERVED else quote(name, safe="")


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
