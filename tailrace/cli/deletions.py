"""`tailrace deletions`: shows the progress of erasing deleted runs and pipelines."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import httpx

from tailrace.cli.remote import add_url, authorization, check, errors_as_ours, trusted
from tailrace.cli.terminal import add_json, say

_PLACES = 3  # named in a line


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument(
        "fqn", nargs="?", metavar="PIPELINE", help="only deletions of this pipeline"
    )
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="newest N (default: 20)")
    add_json(parser)
    add_url(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints them, the newest first; 0 if all are erased everywhere, 1 if some are not."""
    rows = _rows(arguments)
    for row in rows:
        say(json.dumps(row, ensure_ascii=False) if arguments.json else _line(row), sys.stdout)
    if not rows and not arguments.json:
        say("No deletions are recorded.", sys.stdout)
    return 0 if all(row["state"] == "erased" for row in rows) else 1


def _rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    asked = {"limit": arguments.limit} | ({"fqn": arguments.fqn} if arguments.fqn else {})
    with (
        errors_as_ours(arguments.url),
        httpx.Client(
            base_url=arguments.url,
            headers=authorization(arguments.token_file),
            verify=trusted(arguments.ca_file),
            timeout=60,
        ) as client,
    ):
        response = client.get("/deletions", params=asked)
        check(response)
        return list(response.json()["deletions"])


def _line(row: dict[str, Any]) -> str:
    name = row["fqn"] if row["run"] is None else f"{row['fqn']}/{row['run']}"
    left = row["left"]
    more = f" and {len(left) - _PLACES} more places" if len(left) > _PLACES else ""
    where = f"  may be in: {'; '.join(left[:_PLACES])}{more}" if left else ""
    return f"{row['at']}  {row['state']:<7}  {name}{where}"
