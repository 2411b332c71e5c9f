"""Makes cells in a process of its own, which has its own copy of the store."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Final, TypeAlias

from tests.damage.matrix import Cell, Matrix
from tests.damage.objects import KINDS
from tests.damage.outside import OUTSIDE

Place: TypeAlias = tuple[str, str]
_matrix: Final[list[Matrix]] = []


def begin(template: Path) -> None:
    """Prepares a process that makes cells."""
    logging.disable(logging.CRITICAL)
    _matrix.append(Matrix(template, Path(tempfile.mkdtemp(dir=template.parent))))
    intact = _matrix[0].begin()
    assert not intact.verified + intact.problems + intact.stops, intact


def make_cell(place: Place) -> Cell | None:
    """The cell of a row and a column."""
    name, column = place
    for outside in [kind for kind in OUTSIDE if kind.name == name]:
        return outside.cell(_matrix[0].folder / "outside", column)
    (kind,) = [kind for kind in KINDS if kind.name == name]
    return _matrix[0].cell(kind, column)
