"""`tailrace token make`: a new token on stdout, once, and its lines of the rules on stderr.

So `tailrace token make … > token` keeps the token in a file, and shows the lines that the file of
rules gets. The rules have a hash of the token only: nobody can get the token out of them.

    tailrace token make --name shop --scope 'ingest=shop.*' --scope read=shop.orders --days 90
    tailrace token make --name shop --id 4f0c21d9ab     # a second secret of a token, to replace it
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import yaml

from tailrace.cli.terminal import say
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import InvalidInput


def configure(parser: argparse.ArgumentParser) -> None:
    """What the token is for."""
    parser.add_argument("action", choices=["make"], help="make: create a token")
    parser.add_argument("--name", metavar="NAME", help="the holder's name, shown in the audit log")
    parser.add_argument(
        "--scope",
        metavar="SCOPE=PIPELINES",
        action="append",
        default=[],
        help="a scope (ingest, read, consume, admin, metrics or node) and its pipelines: names, "
        "or prefixes with a *, separated by commas (default: *); may be repeated",
    )
    parser.add_argument(
        "--days", metavar="N", type=float, help="days after which it expires (default: never)"
    )
    parser.add_argument(
        "--id",
        metavar="ID",
        default="",
        help="create another secret for the token with this id; the old one stays valid",
    )


def run(arguments: argparse.Namespace) -> int:
    """Makes a token; returns the exit status. Raises `InvalidInput`."""
    from service.access.rules import ID, make_token

    if arguments.id and not ID.fullmatch(arguments.id):
        raise InvalidInput("an id has 4 to 32 characters of a-z and 0-9", field="--id")
    if not arguments.id and not (arguments.scope and arguments.name):
        raise InvalidInput(
            "a new token needs --name and --scope", hint="For example --scope 'ingest=shop.*'."
        )
    token, token_id, sha256 = make_token(os.urandom, arguments.id)
    secret: dict[str, object] = {"sha256": sha256}
    if arguments.days is not None:
        now = datetime.fromtimestamp(SystemClock().now_ms() // 1000, UTC)
        secret["expires"] = (now + timedelta(days=arguments.days)).isoformat()
    if arguments.id:
        lines = yaml.safe_dump([secret], sort_keys=False)
        said = f"Add this to `secrets` of the token {token_id}, and remove the old one later:"
    else:
        rule = {
            "id": token_id,
            "name": arguments.name,
            "secrets": [secret],
            "scopes": _scopes(arguments.scope),
        }
        _check(rule)
        lines = yaml.safe_dump([rule], sort_keys=False)
        said = "Add this to `tokens` of the rules of access:"
    say(said, sys.stderr)
    say("".join(f"  {line}\n" for line in lines.splitlines()), sys.stderr, end="")
    say(token)
    return 0


def _scopes(given: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in given:
        scope, _, patterns = text.partition("=")
        listed = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
        found.setdefault(scope.strip(), []).extend(listed or ["*"])
    return found


def _check(rule: object) -> None:
    from pydantic import ValidationError

    from service.access.rules import TokenRule

    try:
        TokenRule.model_validate(rule)
    except ValidationError as error:
        message = error.errors(include_input=False)[0]["msg"].removeprefix("Value error, ")
        raise InvalidInput(message, field="--scope") from None
