"""What a command takes from its environment: the token, which no argument has, and certificates."""

from __future__ import annotations

import argparse
import os
from typing import Any, Optional

from tailrace_client.errors import InvalidRequest


def token_of_environment() -> Optional[str]:
    """`TAILRACE_TOKEN`, or what is in the file that `TAILRACE_TOKEN_FILE` names; None: no token.

    Raises `InvalidRequest` for a file that has none.
    """
    token = os.environ.get("TAILRACE_TOKEN")
    name = os.environ.get("TAILRACE_TOKEN_FILE")
    if token or not name:
        return token or None
    try:
        with open(name, encoding="ascii") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise InvalidRequest(
            f"the token in {name} cannot be read: {why}",
            hint="TAILRACE_TOKEN_FILE is a file with one line, which this user may read.",
        ) from None
    if not token:
        raise InvalidRequest(f"{name} is empty", hint="It is to hold the token.")
    return token


def add_ca_file(parser: argparse.ArgumentParser, default: Any = None) -> None:
    """The flag that names the certificates to trust; `default` is for a flag that comes twice."""
    parser.add_argument(
        "--ca-file",
        metavar="FILE",
        default=default or os.environ.get("TAILRACE_CA_FILE", ""),
        help="certificates (PEM) of the authority that the service's is from (default:"
        " $TAILRACE_CA_FILE, else the machine's)",
    )
