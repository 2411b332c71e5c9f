"""A part filter leaves out no part that has the text."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from service.query.scan_copies import ALL_PARTS, PARTS, filter_bytes, part_filter, parts_with
from tests.seeds import seeds


def asked(path: Path, parts: list[bytes], *needed: list[bytes]) -> int:
    """The parts that may have one text of each group, by a filter in the middle of a file."""
    path.write_bytes(b"before" + part_filter(parts) + b"behind")
    with path.open("rb", buffering=0) as file:
        return parts_with(file, len(b"before"), sum(map(len, parts)), needed)


@pytest.mark.parametrize("seed", seeds(20))
def test_each_part_that_has_a_text_is_named(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    most = rng.choice([0, 5, 40, 3_000])
    parts = [bytes(rng.choices(b"ab c\xff", k=rng.randrange(most + 1))) for _ in range(PARTS)]
    for _ in range(30):
        needed: list[list[bytes]] = [[] for _ in range(rng.randrange(1, 3))]
        for _ in range(rng.randrange(2, 5)):
            part = rng.choice(parts)
            begin = rng.randrange(len(part) + 1)
            text = part[begin : begin + rng.choice([3, 6, 8, 100])] or b"abcabc"
            rng.choice(needed).append(text)
        needed = [texts for texts in needed if texts]
        found = asked(tmp_path / "filter", parts, *needed)
        for number, part in enumerate(parts):
            if all(any(text in part for text in texts) for texts in needed):
                assert found >> number & 1


def test_most_parts_that_lack_a_text_are_left_out(tmp_path: Path) -> None:
    rng = random.Random(1)
    parts = [
        b"".join(b"%d connections, %x\n" % (n, rng.getrandbits(32)) for n in range(2_000))
        for _ in range(PARTS)
    ]
    parts[3] += b"one needle in it"
    parts[9] += b"another needle in it"
    path = tmp_path / "filter"
    assert asked(path, parts, [b"one needle in"]) == 1 << 3
    assert asked(path, parts, [b"needle in it"]) == 1 << 3 | 1 << 9
    assert asked(path, parts, [b"one needle in", b"another needle"]) == 1 << 3 | 1 << 9
    assert asked(path, parts, [b"needle in it"], [b"another needle"]) == 1 << 9
    assert asked(path, parts, [b"one needle in"], [b"another needle"]) == 0
    assert asked(path, parts, [b"nowhere at all"]) == 0


def test_of_a_short_text_nothing_is_known(tmp_path: Path) -> None:
    assert asked(tmp_path / "filter", [b"x"] * PARTS, [b"short"]) == ALL_PARTS
    assert asked(tmp_path / "filter", [b"x"] * PARTS, [b"longer", b"short"]) == ALL_PARTS


@pytest.mark.parametrize(("size", "expected"), [(0, 512), (40_000, 65_536), (2 << 20, 524_288)])
def test_a_filter_has_a_size_of_its_own(size: int, expected: int) -> None:
    assert len(part_filter([bytes(size)] * PARTS)) == filter_bytes(size * PARTS) == expected
