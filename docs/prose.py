"""Finds passages that are hard to read: `python -m docs.prose [PAGE or MODULE...]`.

A sentence has at most 30 words and a table cell at most 40. The check leaves out code and the pages
that `docs.generate` makes from code. A word is a run of characters between blanks that has a letter
or a digit; a link counts by its text.

In modules it checks messages: texts of errors, hints, logs, help, settings, metrics and the API.
There it also finds words that readers stumble over (`HARD`). `make check` runs it over every page
and module; it exits with 1 if it finds anything.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
MOST_IN_A_SENTENCE: Final = 30
MOST_IN_A_CELL: Final = 40
MADE_FROM_CODE: Final = frozenset(
    f"docs/reference/{name}.md"
    for name in (
        *("cli", "errors", "forwarder-reference", "guarantees-tests", "metrics", "settings"),
        "state-objects",
    )
)
# Pages that quote upstream, and decisions that newer ones have replaced.
LEFT_OUT: Final = ("tests/", "docs/develop/decisions/archive/")

SOURCES: Final = ("service", "compactor", "tailrace", "client/tailrace_client")
HARD: Final = re.compile(
    r"\b(?:of which|of whom|those that|mend(?:s|ed)?|it is told|are told|was told|is nobody's)\b"
    r"|(?:^|[.:;] )(?:Who|What|Whose|Those|Of which|Where it) (?!is |to |are )[a-z]",
)
_TEXTS: Final = frozenset(
    ("help", "hint", "description", "summary", "epilog", "response_description")
)
_LOGS: Final = frozenset(("debug", "info", "warning", "error", "exception", "critical"))
_DECLARED: Final = re.compile(
    r"(?:^|_)(?:setting|option|metric|counter|gauge|histogram|field)s?$", re.IGNORECASE
)

_FENCE: Final = re.compile(r"^ *(```|~~~)")
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_ITEM: Final = re.compile(r"^ *(?:[-*+]|\d+\.) +")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])[\"')*`_]*\s+(?=[\"'(*`_\[]*[A-Z0-9`])")
_WORD: Final = re.compile(r"\S*[A-Za-z0-9]\S*")


class LongPassage(NamedTuple):
    """A sentence or a cell of `words` words at a line of a page."""

    page: str
    line: int
    kind: str
    words: int
    text: str


def find_long_passages(page: str, text: str) -> Iterator[LongPassage]:
    """The sentences and cells of a page in Markdown that are too long, in order."""
    for line, block in _blocks(text):
        if block.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", block.strip("|")):
                if (words := _count(cell)) > MOST_IN_A_CELL:
                    yield LongPassage(page, line, "cell", words, cell.strip())
                for sentence in _SENTENCE_END.split(_plain(cell)):
                    if (words := _count(sentence)) > MOST_IN_A_SENTENCE:
                        yield LongPassage(page, line, "sentence", words, sentence.strip())
        else:
            for sentence in _SENTENCE_END.split(_plain(block)):
                if (words := _count(sentence)) > MOST_IN_A_SENTENCE:
                    yield LongPassage(page, line, "sentence", words, sentence.strip())


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, items, headings and rows of tables, each with the number of its first line."""
    without = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), text)
    code = False
    begin, lines = 0, list[str]()
    for number, line in enumerate([*without.splitlines(), ""], 1):
        fence = _FENCE.match(line)
        starts = fence or line.startswith(("|", "#")) or _ITEM.match(line)
        if (starts or not line.strip()) and lines:
            yield begin, " ".join(lines)
            lines = []
        if fence:
            code = not code
        elif code or not line.strip():
            continue
        elif line.startswith(("|", "#")):
            yield number, line.strip("# ") if line.startswith("#") else line
        else:
            begin = begin if lines else number
            lines.append(_ITEM.sub("", line).strip(" #>"))


def _plain(text: str) -> str:
    """Links as their text; code as one word for each blank-separated part."""
    return _LINK.sub(r"\1", text)


def _count(text: str) -> int:
    return len(_WORD.findall(_plain(text)))


def find_hard_messages(module: str, text: str) -> Iterator[LongPassage]:
    """The messages in a module that have a long sentence or a word of `HARD`, in order."""
    for line, message in sorted(_messages(ast.parse(text))):
        if hard := HARD.search(message):
            yield LongPassage(module, line, f"message with {hard[0]!r}", _count(message), message)
        for sentence in _SENTENCE_END.split(message):
            if (words := _count(sentence)) > MOST_IN_A_SENTENCE:
                yield LongPassage(module, line, "message", words, sentence.strip())


def _messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        said: list[ast.expr] = []
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            said += node.exc.args
        elif isinstance(node, ast.Call):
            said += [word.value for word in node.keywords if word.arg in _TEXTS]
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in _LOGS or _DECLARED.search(name):
                said += node.args
        for text in said:
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield text.lineno, text.value
            elif isinstance(text, ast.JoinedStr):
                parts = (getattr(part, "value", "") for part in text.values)
                yield text.lineno, "".join(x if isinstance(x, str) else "X" for x in parts)


def checked_pages() -> list[str]:
    """Paths from the root of the pages that people write: Markdown in the repository's root, in
    `docs` and in `client`."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "client").glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    names = sorted(str(path.relative_to(ROOT)) for path in paths)
    return [name for name in names if name not in MADE_FROM_CODE and not name.startswith(LEFT_OUT)]


def checked_modules() -> list[str]:
    """Paths from the root of the modules whose messages people read."""
    paths = [path for top in SOURCES for path in (ROOT / top).rglob("*.py")]
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def main(pages: Iterable[str]) -> int:
    """Prints each passage that is hard to read; 1 if any."""
    found = [
        passage
        for page in pages
        for passage in (find_hard_messages if page.endswith(".py") else find_long_passages)(
            page, (ROOT / page).read_text(encoding="utf-8")
        )
    ]
    for page, line, kind, words, text in found:
        sys.stdout.write(f"{page}:{line}: a {kind} of {words} words: {text[:160]}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [*checked_pages(), *checked_modules()]))
