"""Finds sentences and table cells that are too long to read: `python -m docs.prose [PAGE...]`.

A sentence has at most 30 words and a table cell at most 40. The check leaves out code and the pages
that `docs.generate` makes from code. `make check` runs it over every page; it exits with 1 if a
passage is too long. A word is a run of characters between blanks that has a letter or a digit; a
link counts by its text.
"""

from __future__ import annotations

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


def checked_pages() -> list[str]:
    """Paths from the root of the pages that people write: Markdown in the repository's root, in
    `docs` and in `client`."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "client").glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    names = sorted(str(path.relative_to(ROOT)) for path in paths)
    return [name for name in names if name not in MADE_FROM_CODE and not name.startswith(LEFT_OUT)]


def main(pages: Iterable[str]) -> int:
    """Prints each long passage; 1 if any."""
    found = [
        passage
        for page in pages
        for passage in find_long_passages(page, (ROOT / page).read_text(encoding="utf-8"))
    ]
    for page, line, kind, words, text in found:
        sys.stdout.write(f"{page}:{line}: a {kind} of {words} words: {text[:160]}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or checked_pages()))
