"""Environments with OpenMetadata's own client, one for each generation, made once and kept.

They live in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`), below
`tailrace/openmetadata/`: each is about 400 MB, and their pins of SQLAlchemy exclude one
another. An environment counts once its file `complete` says what it was made from.

uv makes them if it is found; else it is put by pip into an environment of its own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Newer than what indexes have, and an sdist that downloads while it is built; the client
# needs neither for what is done here.
OVERRIDES = ("certifi", 'dbt-core-experimental-parser ; python_version < "3"')


@dataclass(frozen=True)
class Client:
    """A release of `openmetadata-ingestion`, and what it needs without saying so."""

    name: str
    release: str
    beside: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """What its server must report: the client compares major and minor."""
        return ".".join(self.release.split(".")[:3])

    @property
    def requirements(self) -> list[str]:
        """What is installed."""
        return [f"openmetadata-ingestion=={self.release}", *self.beside]


CLIENTS = (
    Client("gen-1", "1.11.14.0", beside=("cachetools",)),
    Client("gen-2", "2.0.7.0"),
)


def cache_folder() -> Path:
    """Where environments are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tailrace" / "openmetadata"


def interpreter(client: Client) -> Path:
    """The Python that has the client; makes its environment if there is none.

    Raises `subprocess.CalledProcessError` if it cannot be installed.
    """
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / client.release
    python = folder / "bin" / "python"
    made_from = "\n".join([sys.version, *client.requirements, *OVERRIDES])
    with _alone(cache):
        complete = folder / "complete"
        if not complete.exists() or complete.read_text() != made_from:
            shutil.rmtree(folder, ignore_errors=True)
            _install(client, folder, python)
            complete.write_text(made_from)
    return python


def _install(client: Client, folder: Path, python: Path) -> None:
    overrides = folder.with_name(f"{client.release}.overrides")
    overrides.write_text("".join(f"{line}\n" for line in OVERRIDES))
    uv = _uv(folder.parent)
    _run(uv, "venv", "--quiet", "--python", sys.executable, str(folder))
    _run(
        *(uv, "pip", "install", "--quiet", "--python", str(python)),
        *("--override", str(overrides), *client.requirements),
    )


def _uv(cache: Path) -> str:
    found = shutil.which("uv")
    if found is not None:
        return found
    own = cache / "uv"
    if not (own / "bin" / "uv").exists():
        shutil.rmtree(own, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(own))
        _run(str(own / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv")
    return str(own / "bin" / "uv")


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
