"""Some cells of the matrix of damage, as the page has them; `make damage` makes them all."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tailrace.logstore import keys
from tailrace.logstore.state import STATE_KINDS
from tests.compactor.plain_engine import PlainEngine
from tests.damage.__main__ import BEGIN, END, PAGE
from tests.damage.matrix import COLUMNS, Matrix
from tests.damage.objects import IGNORED, KEYS, KINDS, PREFIXES, SIBLINGS, STATES
from tests.damage.outside import OUTSIDE, OutsideKind
from tests.damage.store import build

ROWS = {kind.name for kind in (*KINDS, *OUTSIDE)}
SHORT = (
    ("journal file", "removed"),
    ("journal file", "one bit flipped"),
    ("segment, not in the table", "cut"),
    ("run manifest, closed", "one bit flipped"),
    ("consumer group", "cut"),
    ("flush watermark", "one bit flipped"),
    ("deletion of a pipeline", "emptied"),
    ("named lease", "newer format"),
    pytest.param(
        *("chunk, of an open run", "one bit flipped"),
        marks=pytest.mark.repairs(reason="a bit of a chunk is turned"),
    ),
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


def test_the_page_has_a_row_for_each_kind_and_no_cell_that_is_wrong_and_silent() -> None:
    page = _page()
    assert {name for name, _ in page} == ROWS
    assert not [place for place, cell in page.items() if "wrong and silent" in cell]


def test_each_key_and_each_state_object_is_of_a_kind() -> None:
    spelled = {
        name
        for name, found in inspect.getmembers(keys, inspect.isfunction)
        if found.__module__ == keys.__name__ and not name.startswith(("parse_", "check_", "_"))
    } - {"encode", "decode"}
    assert spelled == {*KEYS, *PREFIXES}, "a new key needs a kind of stored object"
    assert {kind.name for kind in STATE_KINDS} == STATES.keys()
    assert {*KEYS.values(), *STATES.values()} <= ROWS


@pytest.mark.parametrize(("name", "damage"), SHORT)
def test_a_cell_is_what_the_page_says(matrix: Matrix, name: str, damage: str) -> None:
    (kind,) = [kind for kind in KINDS if kind.name == name]
    cell = matrix.cell(kind, damage)
    assert cell is not None
    assert not cell.is_wrong_and_silent
    assert cell.text() == _page().get((name, damage), cell.text())


@pytest.mark.parametrize(
    "kind",
    [kind for kind in OUTSIDE if kind.program in ("forwarder", "appender")],
    ids=lambda kind: kind.name,
)
@pytest.mark.parametrize("damage", COLUMNS[:4])
def test_a_cell_of_another_program_is_what_the_page_says(
    kind: OutsideKind, damage: str, tmp_path: Path
) -> None:
    cell = kind.cell(tmp_path / "outside", damage)
    assert cell is not None
    assert not cell.is_wrong_and_silent
    assert cell.text() == _page()[kind.name, damage]


def test_each_file_of_the_store_is_of_a_kind(matrix: Matrix) -> None:
    root = matrix.template
    patterns = [*[kind.pattern for kind in KINDS], *SIBLINGS, *IGNORED]
    known = {path for pattern in patterns for path in root.glob(pattern)}
    sidecars = root / "store" / ".meta"
    found = [path for path in root.rglob("*") if path.is_file() and path not in known]
    assert [path for path in found if not path.is_relative_to(sidecars)] == []
    for kind in KINDS:
        assert kind.path(root).is_file()
