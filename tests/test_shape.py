"""The shape of the code base may only improve: sizes, imports without circles, unique names."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ["service", "compactor", "tailrace", "client/tailrace_client"]

# Lower these limits when the code gets better. Raise one only with a reason in the commit.
MOST_MODULES = 391
MOST_LINES = 130_461
MOST_OF_ONE_IMPORTER = 72
LEAST_MEDIAN = 300

SHARED_CLASS_NAMES = {
    # The client is a distribution of its own, and its errors have the names of the service's.
    "BatchConflict",
    "BatchFromTheFuture",
    "BatchTooOld",
    "NotFound",
    "RunDeleted",
    "TailraceError",
    "TooLarge",
    "Unavailable",
}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "client" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _modules() -> Mapping[str, tuple[str, ast.Module]]:
    """The text and the syntax tree of every module, by its dotted name."""
    texts = {
        _name(path): path.read_text() for top in FOLDERS for path in (ROOT / top).rglob("*.py")
    }
    return {name: (text, ast.parse(text)) for name, text in texts.items()}


def _imported(tree: ast.Module) -> Iterator[str]:
    """Our modules that a module imports: at its top, for types, and inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in _modules())
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found = whole if whole in _modules() else node.module
                if found in _modules():
                    yield found


@cache
def _imports() -> Mapping[str, set[str]]:
    return {name: set(_imported(tree)) - {name} for name, (_, tree) in _modules().items()}


def test_imports_make_no_circle() -> None:
    try:
        TopologicalSorter(_imports()).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_a_class_name_exists_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module, (_, tree) in _modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module)
    shared = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert {name: shared[name] for name in shared.keys() - SHARED_CLASS_NAMES} == {}
    assert SHARED_CLASS_NAMES - shared.keys() == set(), "the list may only shrink"


def _modules_with(*words: str) -> list[str]:
    """The modules whose text has one of these words."""
    return [name for name, (text, _) in _modules().items() if any(word in text for word in words)]


def test_one_map_drops_the_entries_that_were_not_used_for_longest() -> None:
    assert _modules_with("OrderedDict", "move_to_end") == ["tailrace.logstore.cache"]


def test_one_function_doubles_pauses() -> None:
    doubling = re.compile(r"(pause|backoff)\w*( \* 2|.* \* 2(\.0)? ?\*\*)", re.IGNORECASE)
    assert [name for name, (text, _) in _modules().items() if doubling.search(text)] == []


def test_one_codec_makes_the_text_of_cursors() -> None:
    assert _modules_with("urlsafe_b64encode(", 'b"-_"') == ["tailrace.logstore.position"]


def test_modules_are_few_and_of_a_good_size() -> None:
    lines = sorted(text.count("\n") for text, _ in _modules().values())
    assert len(lines) <= MOST_MODULES
    assert sum(lines) <= MOST_LINES
    assert lines[len(lines) // 2] >= LEAST_MEDIAN


def test_few_modules_are_there_for_one_other_alone() -> None:
    importers: dict[str, set[str]] = defaultdict(set)
    for module, imported in _imports().items():
        for name in imported:
            importers[name].add(module)
    alone = [name for name, users in importers.items() if len(users) == 1]
    assert len(alone) <= MOST_OF_ONE_IMPORTER
