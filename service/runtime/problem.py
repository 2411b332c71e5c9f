"""Problems of a node: sentences for people, each with a name that lasts as long as it does.

A sentence may say how long something takes, how often it failed, or what the last try met. Its name
says none of that. So whoever compares the problems of two moments sees one that lasts as one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self


class Problem(str):
    """A sentence whose words may change while the problem lasts; `name` stays."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str, sentence: str) -> Self:
        made = super().__new__(cls, sentence)
        made.name = name
        return made


def name_of(problem: str) -> str:
    """The name of a problem; one that is plain text says the same as long as it lasts."""
    return problem.name if isinstance(problem, Problem) else problem


def by_name(problems: Iterable[str]) -> dict[str, str]:
    """Problems by their names."""
    return {name_of(problem): problem for problem in problems}
