"""The names of all steps at which a pass can be killed, as its source says them."""

from __future__ import annotations

import ast
from pathlib import Path

import compactor


def _names() -> list[str]:
    found = set()
    for source in sorted(Path(compactor.__path__[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="reached"), args=[ast.Constant(str(name))]):
                    found.add(name)
    return sorted(found)


STEPS = _names()
