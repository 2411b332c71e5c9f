"""Completes `pyproject.toml` with the requirements of a distribution of this repository.

One distribution needs another: `tailrace` the forwarder, the forwarder the client. In a clone, pip
takes the other one from its folder. A source distribution has no such folder, so what is built
from it, as releases are, asks an index for the same version.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from setuptools import setup

_PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
_VERSION = _PROJECT["project"]["version"]


_IS_CLONE = not Path("PKG-INFO").exists()


def _requirement(name: str, folder: Path) -> str:
    return f"{name} @ {folder.as_uri()}" if _IS_CLONE else f"{name}=={_VERSION}"


setup(
    install_requires=[
        *_PROJECT["dependency-groups"]["run"],
        *(
            _requirement(name, Path(folder).resolve())
            for name, folder in _PROJECT["tool"]["tailrace"]["distributions"].items()
        ),
    ]
)
