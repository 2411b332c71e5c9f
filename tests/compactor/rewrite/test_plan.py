"""Which files of an hour are written anew, and what that costs in all, by statistics alone."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from datetime import date

import pytest

from compactor.rewrite import Rewriting, key_range, rewriting, rewritings
from tailrace.logstore import ulid
from tailrace.logstore.table.schema import LAYOUT, ROW_GROUP_ROWS, file_name, layout_of, level_of
from tailrace.logstore.table.snapshot import TableFile
from tests.seeds import seeds

NOON = 1_795_262_400_000  # 2026-11-21T12:00:00Z
HOUR = 3_600_000
MIB = 1 << 20
FILE = 128 * MIB

Bounds = tuple[str, str]
ALL: Bounds = ("a", "z")


def file(
    name: str, size: int, *, fqns: Bounds | None = ALL, level: int = 0, hour: int = 12
) -> TableFile:
    """A file with lines of the whole hour, in today's layout."""
    at = NOON + (hour - 12) * HOUR
    low, high = ulid.encode(ulid.lowest_at(at)), ulid.encode(ulid.highest_at(at + HOUR - 1))
    path = f"date=2026-11-21/hour={hour}/{file_name(name, '00000', level)}"
    day = date(2026, 11, 21)
    return TableFile(path, path, size, size // 100, day, hour, (low, high), fqns, ("r", "s"))


def old(name: str, size: int, *, level: int = 1, hour: int = 12) -> TableFile:
    """The same in the layout of older programs. A row has 100 bytes."""
    made = file(name, size, level=level, hour=hour)
    return replace(made, path=made.path.replace(f"-R{LAYOUT}", ""))


def many(count: int, size: int, *, level: int = 0, fqns: Bounds = ALL) -> list[TableFile]:
    return [file(f"{level}-{fqns[0]}-{i}", size, level=level, fqns=fqns) for i in range(count)]


def of(*files: TableFile) -> Rewriting | None:
    return rewriting(files, file_bytes=FILE)


def names(planned: Rewriting | None) -> set[str]:
    assert planned is not None
    return {one.path for one in planned.files}


def test_an_hour_that_came_in_parts_is_rewritten_once_and_whole() -> None:
    parts = many(5, MIB)
    planned = of(*parts)
    assert planned == Rewriting(tuple(parts), 1)
    assert planned.hour == "2026-11-21T12"
    assert of(file("whole", 5 * MIB, level=1)) is None


def test_few_files_are_left_unless_they_are_large() -> None:
    assert of(*many(3, MIB)) is None
    assert of(*many(2, 16 * MIB)) is not None
    assert of(file("large", 100 * MIB)) is None


def test_large_files_of_several_runs_that_overlap_are_sorted_over_all() -> None:
    assert names(of(*many(3, 100 * MIB))) == {one.path for one in many(3, 100 * MIB)}
    apart = [file(f, 100 * MIB, fqns=(f, f)) for f in "abc"]
    assert of(*apart) is None
    assert names(of(*apart, file("d", MIB, fqns=("a", "b")))) == {
        "date=2026-11-21/hour=12/a-00000-R2.parquet",
        "date=2026-11-21/hour=12/b-00000-R2.parquet",
        "date=2026-11-21/hour=12/d-00000-R2.parquet",
    }


def test_stragglers_wait_until_they_are_twice_what_is_written_again_for_them() -> None:
    whole = file("whole", 10 * MIB, level=1)
    assert of(whole, *many(9, 2 * MIB)) is None
    planned = of(whole, *many(10, 2 * MIB))
    assert planned is not None
    assert (len(planned.files), planned.level) == (11, 1)


def test_what_stragglers_do_not_touch_stays() -> None:
    old = [file(fqns[0], FILE, level=1, fqns=fqns) for fqns in (("a", "f"), ("g", "p"), ("q", "z"))]
    late = many(8, 40 * MIB, fqns=("h", "i"))
    assert names(of(*old, *late)) == {old[1].path, *(one.path for one in late)}
    assert of(*old, *many(3, 40 * MIB, fqns=("f", "g"))) is None


def test_stragglers_that_are_never_worth_it_do_not_pile_up() -> None:
    whole = file("whole", FILE, level=1)
    assert of(whole, *many(15, MIB)) is None
    late = many(16, MIB)
    assert of(whole, *late) == Rewriting(tuple(late), 1)
    assert of(whole, *many(15, 16 * MIB, level=1)) is None
    piled = many(16, 16 * MIB, level=1)
    assert of(whole, *piled) == Rewriting(tuple(piled), 2)


def test_files_without_bounds_may_be_anywhere() -> None:
    unknown = replace(file("unknown", FILE, fqns=None), ulids=None, runs=None)
    old = file("old", 10 * MIB, level=1, fqns=("m", "n"))
    assert names(of(unknown, old)) == {unknown.path, old.path}


@pytest.mark.parametrize(
    ("fqns", "runs", "low", "high"),
    [
        (("a", "b"), ("r", "r"), ("a", "", ""), ("b", "\U0010ffff", "\U0010ffff")),
        (("a", "a"), ("r", "s"), ("a", "r", ""), ("a", "s", "\U0010ffff")),
        (("a", "a"), ("r", "r"), ("a", "r", "0"), ("a", "r", "9")),
    ],
)
def test_a_range_is_as_narrow_as_the_bounds_allow(
    fqns: Bounds, runs: Bounds, low: tuple[str, ...], high: tuple[str, ...]
) -> None:
    one = replace(file("f", 1), fqns=fqns, runs=runs, ulids=("0", "9"))
    assert key_range(one) == (low, high)


def test_only_hours_that_are_over_and_not_expired_the_oldest_first() -> None:
    hours = [replace(one, hour=hour) for hour in (14, 12, 13, 15) for one in many(4, MIB)]
    planned = rewritings(hours, over_ms=NOON + 3 * HOUR, after_ms=NOON + HOUR, file_bytes=FILE)
    assert [one.hour for one in planned] == ["2026-11-21T13", "2026-11-21T14"]


def test_files_of_an_older_layout_are_rewritten_once_and_keep_their_level() -> None:
    files = [old("a", 100 * MIB, level=0), old("b", 5 * MIB, level=3), file("c", FILE, level=1)]
    planned = of(*files)
    assert planned == Rewriting(tuple(files[:2]), 3, layout_only=True)
    assert of(old("a", 100 * MIB, level=0)) == Rewriting(
        (old("a", 100 * MIB, level=0),), 1, layout_only=True
    )
    assert of(*apply(files, planned, 1)) is None


def test_a_file_of_one_row_group_has_any_layout() -> None:
    made = old("a", 100 * MIB)
    assert of(replace(made, rows=ROW_GROUP_ROWS)) is None
    assert of(replace(made, rows=ROW_GROUP_ROWS + 1)) is not None


def test_what_is_rewritten_anyway_gets_the_layout_with_it() -> None:
    fresh = many(5, 4 * MIB)
    planned = of(*fresh, old("a", 10 * MIB))
    assert planned is not None
    assert (len(planned.files), planned.layout_only) == (6, False)


def test_a_pass_brings_over_some_hours_the_newest_first() -> None:
    hours = [old("a", 100 * MIB, hour=hour) for hour in range(1, 9)]
    fresh = [replace(one, hour=3) for one in many(5, 200 * MIB)]

    def planned(layout_bytes: int) -> list[int]:
        found = rewritings(
            [*hours, *fresh],
            over_ms=NOON,
            after_ms=0,
            file_bytes=FILE,
            layout_bytes=layout_bytes,
        )
        return [one.files[0].hour for one in found]

    assert planned(1) == [3, 8]
    assert planned(200 * MIB) == [3, 8, 7]
    assert planned(200 * MIB + 1) == [3, 8, 7, 6]
    assert planned(1 << 40) == [3, 8, 7, 6, 5, 4, 2, 1]


@pytest.mark.parametrize("seed", seeds(30))
def test_an_upgrade_writes_each_byte_of_the_old_layout_once_more(seed: int) -> None:
    dice = random.Random(seed)
    files = [
        old(f"o{number}", dice.randrange(10_000, dice.choice([1, 30, 120]) * MIB),
            level=dice.randrange(4))
        for number in range(dice.randrange(1, 20))
    ]  # fmt: skip
    there = sum(one.size for one in files if one.outdated)
    written = 0
    for number in range(100):
        if number < 40:
            files.append(file(f"i{number}", dice.randrange(10_000, 3 * MIB)))
        planned = of(*files)
        if planned is None:
            continue
        files = apply(files, planned, number)
        written += planned.size if planned.layout_only else 0
    assert of(*files) is None
    assert not any(one.outdated for one in files)
    assert written <= there


def test_the_layout_is_in_the_name_and_nowhere_else() -> None:
    assert layout_of("date=2026-11-21/hour=12/01J-00003.parquet") == 0
    assert layout_of("date=2026-11-21/hour=12/01J-00003-L2.parquet") == 0
    assert layout_of("date=2026-11-21/hour=12/01J-00003-R12.parquet") == 12
    assert layout_of("date=2026-11-21/hour=12/01J-00003-R1-L2.parquet") == 1
    for level in (0, 2):
        name = file_name("01J", "00003", level)
        assert (level_of(name), layout_of(name)) == (level, LAYOUT)


def test_the_level_is_in_the_name_and_nowhere_else() -> None:
    assert level_of("date=2026-11-21/hour=12/01J-00003.parquet") == 0
    assert level_of("date=2026-11-21/hour=12/01J-00003-L12.parquet") == 12
    assert level_of("date=2026-11-21/hour=12/part-L0.parquet") == 0


def apply(files: list[TableFile], planned: Rewriting, number: int) -> list[TableFile]:
    """What comes of it: files of about one size, each with a range of fqns to itself."""
    assert len(set(planned.files)) == len(planned.files) >= (1 if planned.layout_only else 2)
    low = min(one.fqns[0] for one in planned.files if one.fqns)
    high = max(one.fqns[1] for one in planned.files if one.fqns)
    parts = max(round(planned.size / FILE), 1)
    cuts = [chr(ord(low) + (ord(high) - ord(low)) * part // parts) for part in range(parts + 1)]
    made = [
        file(f"j{number}-{part}", planned.size // parts, level=planned.level,
             fqns=(cuts[part], cuts[part + 1]))
        for part in range(parts)
    ]  # fmt: skip
    return [one for one in files if one not in planned.files] + made


@pytest.mark.parametrize("seed", seeds(30))
def test_a_byte_is_written_no_more_often_than_the_rules_say(seed: int) -> None:
    """Hours of any size, any stragglers: the bound, and how many files are left."""
    dice = random.Random(seed)
    files: list[TableFile] = []
    came, written, promoted = 0, 0, 0
    main = dice.choice([1, 30, 360])
    late = dice.choice([0, 5, 60, 400])
    for number in range(main + late):
        largest = dice.choice([1, 20, 120]) if number < main else dice.choice([1, 1, 1, 30])
        size = dice.randrange(10_000, largest * MIB)
        edges = sorted(dice.sample("abcdefghijklmnopqrstuvwxyz", 2))
        fqns = ALL if number < main else (edges[0], edges[1])
        files.append(file(f"i{number}", size, fqns=fqns))
        came += size
        written += size
        while number >= main - 1:
            planned = of(*files)
            if planned is None:
                break
            files = apply(files, planned, number * 1000 + len(files))
            written += planned.size
            if min(level_of(one.path) for one in planned.files) > 0:
                promoted += planned.size
    assert written - promoted <= 2.5 * came
    assert late > 60 or promoted == 0
    assert written <= 3 * came
    levels: dict[int, int] = defaultdict(int)
    for one in files:
        levels[level_of(one.path)] += one.size < FILE // 4
    assert max(levels.values()) < 16
