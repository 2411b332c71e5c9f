from __future__ import annotations

import random

import pytest

from service.http.json_body import count_lines


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 5000, 300_000])
def test_lines_are_counted_in_texts_of_any_length(size: int) -> None:
    dice = random.Random(size)
    text = bytes(dice.choices(b"\n\x0b\x8a\xff a", k=size))
    assert count_lines(text) == len(text.split(b"\n")) - 1
