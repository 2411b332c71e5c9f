"""What docs, docstrings and comments mention is there: files, modules, and names inside them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ["service", "compactor", "tailrace"]
CODE = [*PACKAGES, "tests", "benchmarks", "docs"]
FOLDERS = [*CODE, "client/tailrace_client"]
PYTHON = sorted(path for name in FOLDERS for path in (ROOT / name).rglob("*.py"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FILE = re.compile(r"(?<![\w./:{*-])((?:[\w.-]+/)*[\w-]+\.(?:py|md))\b(?!\.new)")
# `tailrace.` also begins files, metrics' labels and keys of Parquet's metadata.
OURS = "backups|cli|coordination|forwarder|logstore|pipelines|verification"
ROOTS = [*[name for name in CODE if name not in {"tailrace", "docs"}], rf"tailrace\.(?:{OURS})"]
DOTTED = re.compile(rf"(?<![\w./-])((?:{'|'.join(ROOTS)})(?:\.\w+)+)\b(?![/(-])")
_MENTION_BEHIND_A_HASH = re.compile(rf"#.*(?:\.(?:py|md)\b|\b(?:{'|'.join(ROOTS)})\.\w)")
# What else has a dot: files that are no modules, hosts, attributes of OpenTelemetry and ours.
OTHER = re.compile(
    r".*\.(py|md|lock|prom|svc)$|service\.(name|namespace|instance\.id)$|tailrace\.run\.id$"
)
PLACEHOLDER = re.compile(r"[A-Z]+/")


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a page; docstrings and comments of a module."""
    text = path.read_text()
    if path.suffix == ".md":
        yield from enumerate(text.splitlines(), 1)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            said = ast.get_docstring(node, clean=False)
            if said is not None:
                for number, line in enumerate(said.splitlines()):
                    yield node.body[0].lineno + number, line
    if _MENTION_BEHIND_A_HASH.search(text):  # to find comments takes most of this test
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def _is_there(mentioned: str, path: Path) -> bool:
    """From the root, or any folder the page or module is in; pages also from the tests."""
    folders = [folder for folder in path.parents if ROOT in {folder, *folder.parents}]
    if path.suffix == ".md":
        folders += [ROOT / "tests", ROOT / "tests" / "openmetadata"]
        if f"\n```python\n# {mentioned}\n" in path.read_text():  # a tutorial's reader saves it
            return True
    return any((folder / mentioned).exists() for folder in folders)


@cache
def _names(path: Path) -> dict[str, ast.AST | None]:
    found: dict[str, ast.AST | None] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found.update({t.id: None for t in node.targets if isinstance(t, ast.Name)})
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = None
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update({alias.asname or alias.name: None for alias in node.names})
    return found


def _resolves(dotted: str) -> bool:
    parts = dotted.split(".")
    folder, at = ROOT, 0
    while at < len(parts) and (folder / parts[at]).is_dir():
        folder, at = folder / parts[at], at + 1
    if at == len(parts):
        return True
    module = folder / f"{parts[at]}.py"
    if not module.exists():
        return False
    rest = parts[at + 1 :]
    return not rest or rest[0] in _names(module)


@cache
def _settings() -> set[str]:
    """Dotted names of settings and their sections: they may begin like a package."""
    from service.settings import Settings
    from tailrace.logstore.settings import table

    names = [row.name.split(".") for row in table(Settings)]
    return {".".join(name[:count]) for name in names for count in range(1, len(name) + 1)}


@pytest.mark.parametrize("path", [*PYTHON, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_mentioned_is_there(path: Path) -> None:
    stale = []
    for number, line in _prose(path):
        stale += [
            f"{number}: {name}"
            for name in FILE.findall(line)
            if "://" not in line and not PLACEHOLDER.match(name) and not _is_there(name, path)
        ]
        stale += [
            f"{number}: {name}"
            for name in DOTTED.findall(line)
            if not OTHER.match(name) and name not in _settings() and not _resolves(name)
        ]
    assert stale == []
