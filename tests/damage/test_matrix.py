"""Some cells of the matrix of damage, as the page has them; `make damage` makes them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compactor.plain_engine import PlainEngine
from tests.damage.__main__ import BEGIN, END, PAGE
from tests.damage.matrix import COLUMNS, Matrix
from tests.damage.objects import KINDS
from tests.damage.store import build

SHORT = (
    ("journal file", "removed"),
    ("journal file", "one bit flipped"),
    ("segment, not in the table", "cut"),
    ("run manifest, closed", "one bit flipped"),
    ("consumer group", "cut"),
    ("flush watermark", "one bit flipped"),
    ("table data file", "removed"),
)


def _page() -> dict[tuple[str, str], str]:
    """The cells of the page."""
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    return {
        (name, column): cell
        for name, *cells in rows
        for column, cell in zip(COLUMNS, cells, strict=True)
    }


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    folder = tmp_path_factory.mktemp("damage")
    build(folder / "template", PlainEngine())
    made = Matrix(folder / "template", folder)
    intact = made.begin()
    assert (intact.verified, intact.problems, intact.stops) == ([], [], [])
    return made


def test_the_page_has_no_cell_that_is_wrong_and_silent() -> None:
    page = _page()
    assert {name for name, _ in page} <= {kind.name for kind in KINDS}
    assert not [place for place, cell in page.items() if "wrong and silent" in cell]


@pytest.mark.parametrize(("name", "damage"), SHORT)
def test_a_cell_is_what_the_page_says(matrix: Matrix, name: str, damage: str) -> None:
    (kind,) = [kind for kind in KINDS if kind.name == name]
    cell = matrix.cell(kind, damage)
    assert cell is not None
    assert not cell.is_wrong_and_silent
    assert cell.text() == _page().get((name, damage), cell.text())


def test_each_kind_is_in_the_store(matrix: Matrix) -> None:
    for kind in KINDS:
        assert Path(kind.path(matrix.template)).is_file()
