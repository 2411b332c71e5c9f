"""Rows and places that hold a text are those where a plain search finds it."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from service.query.text_scan import TooMany, candidate_rows, places
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(20))
def test_rows_are_those_that_hold_a_text(seed: int) -> None:
    rng = random.Random(seed)
    letters = "aab é🎉"
    rows = ["".join(rng.choices(letters, k=rng.randrange(8))) for _ in range(rng.randrange(200))]
    texts = ["".join(rng.choices(letters, k=rng.randrange(1, 4))) for _ in range(2)]
    wanted = [text.encode() for text in texts]
    cuts = sorted(rng.choices(range(len(rows) + 1), k=2))
    chunks = [rows[: cuts[0]], rows[cuts[0] : cuts[1]], rows[cuts[1] :]]
    padded = [pa.array(["ab", *chunk, "ba"], pa.string())[1:-1] for chunk in chunks]
    column = pa.chunked_array(padded)
    found = candidate_rows(column, wanted, len(rows))
    holding = [n for n, row in enumerate(rows) if any(text in row for text in texts)]
    assert set(holding) <= set(found)
    assert found == sorted(set(found))
    assert all(_begins(chunks, n, texts) for n in found)
    if len(found) > 1:
        with pytest.raises(TooMany):
            candidate_rows(column, wanted, 1)


@pytest.mark.parametrize("seed", seeds(20))
def test_texts_are_found_wherever_a_piece_ends(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    data = b"ab" + bytes(rng.choices(b"aab", k=rng.randrange(1, 300))) + b"ba"
    texts = sorted({bytes(rng.choices(b"aab", k=rng.randrange(1, 6))) for _ in range(2)})
    path = tmp_path / "file"
    path.write_bytes(data)
    span = 2, len(data) - 4
    expected = sorted(
        at
        for text in texts
        for at in range(2, len(data) - 2 - len(text) + 1)
        if data.startswith(text, at)
    )
    for piece in (1, rng.randrange(1, 10), 1000):
        assert sorted(places(str(path), span, texts, 1000, piece)) == expected
        if expected:
            with pytest.raises(TooMany):
                places(str(path), span, texts, len(expected) - 1, piece)
    with pytest.raises(OSError, match="cut off"):
        places(str(path), (2, len(data) + 10), texts, 1000)


def _begins(chunks: list[list[str]], number: int, texts: list[str]) -> bool:
    """Whether a text begins in the row, though it may end in another one."""
    for chunk in chunks:
        if number < len(chunk):
            joined = "".join(chunk[number:]).encode()
            size = len(chunk[number].encode())
            return any(0 <= joined.find(text.encode()) < size for text in texts)
        number -= len(chunk)
    return False
