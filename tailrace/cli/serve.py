"""`tailrace serve`: settings from flags, environment and file, then the service."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from tailrace.cli.terminal import say
from tailrace.logstore.process import collection_paused
from tailrace.logstore.settings import PREFIX


def configure(parser: argparse.ArgumentParser) -> None:
    """Flags of the settings that people change by hand; all others are in the file."""
    parser.add_argument("--data", metavar="DIR", help="data folder (default: ./data)")
    parser.add_argument("--host", metavar="H", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", metavar="N", type=int, help="port to listen on (default: 8790)")
    parser.add_argument("--workers", metavar="N", type=int, help="worker processes (default: 1)")
    parser.add_argument(
        "--role",
        choices=["all", "ingest", "query"],
        help="`ingest` runs no searches, `query` accepts no lines (default: all)",
    )
    parser.add_argument("--config", metavar="FILE", help="settings file (default: ./tailrace.yaml)")
    parser.add_argument("--node-id", metavar="NAME", help="the node's name (default: the host's)")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen on an address that other machines can reach, even without rules of access",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serves until a signal stops it; returns the exit code."""
    with collection_paused():
        from service.settings import load_settings

    settings, warnings = load_settings(flags(arguments), config=arguments.config)
    for warning in warnings:
        say(f"warning: {warning}", sys.stderr)
    if arguments.config:  # the compactor, a child of the service, reads the same file
        os.environ[f"{PREFIX}CONFIG"] = os.path.abspath(arguments.config)
    with collection_paused():
        from service.main import serve  # after a refusal, which need not wait for it

    return serve(settings)


def flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """The flags that were given, in the nested form of the settings file."""
    given = {"data": arguments.data, "node_id": arguments.node_id}
    server = {
        "host": arguments.host,
        "port": arguments.port,
        "workers": arguments.workers,
        "role": arguments.role,
        "insecure": arguments.insecure or None,
    }
    nested = _given(given) | {"server": _given(server)}
    return {key: value for key, value in nested.items() if value != {}}


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}
