"""`tailrace run --fqn F -- CMD…`: a command whose output becomes a run.

It is the client's own command (`python -m tailrace_client run`), for machines that have Tailrace.
"""

from __future__ import annotations

import argparse

from tailrace.cli.main import complain
from tailrace_client import command
from tailrace_client.errors import InvalidRequest


def configure(parser: argparse.ArgumentParser) -> None:
    """The client's arguments."""
    command.configure(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command: its exit status, or 2 if a flag is wrong or there is no terminal for it."""
    try:
        return command.run(arguments)
    except InvalidRequest as error:
        complain(error.message, error.hint)
    except OSError as error:
        complain(f"the command cannot be run: {error}")
    return 2
