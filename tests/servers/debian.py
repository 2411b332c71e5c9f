"""Programs of Debian packages: on `PATH`, in `/usr/sbin`, or where `.ci/debian` put them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

_FETCHED = Path(sys.executable).parent


def find_program(name: str) -> str | None:
    """Returns the command; None if this machine does not have it."""
    found = shutil.which(name)
    places = (Path("/usr/sbin", name), _FETCHED / name)
    return found or next((str(place) for place in places if place.exists()), None)


def why_no_program(name: str) -> str | None:
    """Returns a sentence that says what is missing; None if the program can be run."""
    if find_program(name) is None:
        return f"{name} is not on PATH; `.ci/debian {name}` fetches it where apt-get works"
    return None


def environment() -> dict[str, str]:
    """Returns the environment in which a fetched program finds its libraries."""
    return {**os.environ, "LD_LIBRARY_PATH": str(_FETCHED.with_name("lib"))}
