"""`tailrace forward`: ships files, as a configuration says, to the service."""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """The configuration is a file: it has too many keys for flags."""
    parser.add_argument(
        "--config", metavar="FILE", required=True, help="what to read, and where to send it"
    )


def run(arguments: argparse.Namespace) -> int:
    """Forwards until a signal stops it; returns the exit code."""
    from forwarder.config.load import read

    config = read(arguments.config)
    from forwarder.main import forward  # after a refusal, which need not wait for it

    return forward(config)
