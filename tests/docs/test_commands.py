"""Each command of `tailrace` that a page shows is one that the program accepts.

Commands stand in code blocks and, with at least one argument, in code within sentences. A synopsis
with optional parts in brackets is none, nor is one that is cut off with `…`.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from docs.prose import ROOT, checked_pages
from tailrace.cli.main import VERBS, parse_words

FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(tailrace [a-z]+ [^`]+)`")
SHELLS = ("", "sh", "console")
# Where a command of a shell ends, or its output goes elsewhere.
ENDS = frozenset(("|", "||", "&&", ";", "&", ">", ">>", "<"))
NUMBERS = frozenset(("N", "SECONDS", "PERCENT"))


def commands(text: str) -> Iterator[list[str]]:
    """The words after `tailrace` of each command in a page."""
    for kind, block in FENCED.findall(text):
        if kind in SHELLS:
            for line in re.sub(r"\\\n", " ", block).splitlines():
                yield from _in_line(line)
    for said in INLINE.findall(FENCED.sub("", text)):
        yield from _in_line(" ".join(said.split()))


def _in_line(line: str) -> Iterator[list[str]]:
    if "tailrace " not in line or "[-" in line or "…" in line:
        return
    shell = shlex.shlex(line, posix=True, punctuation_chars=True)
    shell.whitespace_split = True
    words: list[str] | None = None
    before = ""
    for word in shell:
        if word in ENDS:
            if words:
                yield words[:-1] if word == ">" and words[-1] == "2" else words
            words, before = None, ""
        elif words is not None:
            words.append(word)
        elif word == "tailrace" and before in ("", "$", "exec"):
            words = []
        else:
            before = word if "=" not in word else before
    if words:
        yield words


def acts(parser: argparse.ArgumentParser) -> set[str]:
    """The verbs that a verb has, such as `forget-node` of `tailrace leases`."""
    return {
        name
        for action in parser._actions
        if action.nargs == argparse.PARSER and action.choices
        for name in action.choices
    }


CASES = [
    (page, words)
    for page in checked_pages()
    if "/decisions/" not in page
    for words in commands((ROOT / page).read_text(encoding="utf-8"))
]


def test_commands_are_found_in_lines_of_a_shell() -> None:
    text = """
```sh
export A=1
TAILRACE_URL=x tailrace run --fqn a --run b -- sh -c 'exit 3' || echo "status $?"
tailrace query --fqn a 'x | y' | grep -q .   # a comment
./load.sh | tailrace forward h:1 --fqn f
pip install tailrace
tailrace compact --quiet 2> errors
```
`tailrace verify --repair` and `tailrace serve`
"""
    assert list(commands(text)) == [
        ["run", "--fqn", "a", "--run", "b", "--", "sh", "-c", "exit 3"],
        ["query", "--fqn", "a", "x | y"],
        ["forward", "h:1", "--fqn", "f"],
        ["compact", "--quiet"],
        ["verify", "--repair"],
    ]
    assert len({page for page, _ in CASES}) > 20


@pytest.mark.parametrize(("page", "words"), CASES, ids=[" ".join(case[1]) for case in CASES])
def test_each_command_of_a_page_is_accepted(page: str, words: list[str]) -> None:
    parser = VERBS[words[0]].parser(words[0])
    if len(words) == 2 and words[1] in acts(parser):
        return  # a sentence names the act alone
    try:
        parse_words(parser, ["1" if word in NUMBERS else word for word in words[1:]])
    except SystemExit:
        pytest.fail(f"{page}: tailrace {' '.join(words)}")
