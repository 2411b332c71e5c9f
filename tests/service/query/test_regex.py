"""Regular expressions over lines that stand in the journal only: RE2's, in linear time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from logstore import ulid
from logstore.errors import InvalidInput
from service.query.request import Matcher
from tests.service.query.test_limits import ALL
from tests.service.query.world import NOW_MS, RUNS, World, engine_of, search

pytestmark = pytest.mark.anyio
LINE = b"a" * 100_000 + b"!\n"


def hot(root: Path) -> World:
    world = World(root)
    world.hot([(RUNS[0], ulid.lowest_at(NOW_MS), LINE + b"b\n")])
    return world


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+$", "^(.*)*x$", "^(a|a?)+$"])
async def test_what_backtracks_for_ever_elsewhere_is_linear(tmp_path: Path, pattern: str) -> None:
    """Of 100,000 characters a search that goes back would not end in this universe."""
    async with engine_of(hot(tmp_path)) as engine:
        assert (await search(engine, replace(ALL, matcher=Matcher(pattern, regex=True))))[0] == []
        found, _ = await search(engine, replace(ALL, matcher=Matcher("^(a+)+!$", regex=True)))
        assert len(found) == 1


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?=a)", "(?<!a)b", "a++"])
async def test_what_is_not_linear_is_refused(tmp_path: Path, pattern: str) -> None:
    async with engine_of(hot(tmp_path)) as engine:
        with pytest.raises(InvalidInput, match="q is not a regular expression"):
            await search(engine, replace(ALL, matcher=Matcher(pattern, regex=True)))
