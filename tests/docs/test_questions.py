"""Each question of a user is answered at most two clicks from the README."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUESTIONS = ROOT / "docs" / "start" / "questions.md"
ROW = re.compile(r"^\| (.+\?) \| (.+) \| \[.+\]\((.+)#(.+)\) \|$", re.MULTILINE)
ASKED = ROW.findall(QUESTIONS.read_text())


def sections(page: Path) -> dict[str, str]:
    """The text of each heading of a page, up to the next one of any level, by its anchor.

    The anchor is what the repository's host and the site make of the heading.
    """
    found: dict[str, str] = {}
    name, code = "", False
    for line in page.read_text().splitlines():
        code ^= line.startswith("```")
        if line.startswith("#") and not code:
            name = re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        found[name] = f"{found.get(name, '')}{line}\n"
    return found


def linked(page: Path) -> set[Path]:
    """The pages that a page links."""
    targets = re.findall(r"\]\(([^)#:]+)", page.read_text())
    return {Path(os.path.normpath(page.parent / target)) for target in targets}


def test_there_are_twenty_questions_one_click_from_the_readme() -> None:
    assert len({question for question, *_ in ASKED}) == 20
    assert QUESTIONS in linked(ROOT / "README.md")


@pytest.mark.parametrize(("question", "answer", "target", "heading"), ASKED)
def test_the_answer_is_two_clicks_away(
    question: str, answer: str, target: str, heading: str
) -> None:
    """The README links the page, and the page has the heading with the words of the answer."""
    page = Path(os.path.normpath(QUESTIONS.parent / target))
    assert page in linked(ROOT / "README.md"), f"{question} needs a third click"
    text = sections(page)[heading]
    words = re.findall(r"`([^`]+)`", answer)
    assert words
    assert [word for word in words if word not in text] == []
