"""The token that a command takes from its environment: no argument has it."""

from __future__ import annotations

import os
from typing import Optional

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
