"""The matrix of damage: `make damage`.

Every kind of stored object is removed, emptied, cut, changed by one bit, and given a newer format,
in a copy of a store that a service and a compactor with Spark wrote. The program prints what
readers get, what `tailrace verify` says and what stops. `--write` puts it into
docs/reference/guarantees.md, `--check` compares it with that page. Exits with 1 if a cell is
wrong and silent, or differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from compactor.spark.session import Session
from tailrace.logstore.java import why_no_spark
from tests.compactor.plain_engine import PlainEngine
from tests.damage.making import Place, begin, make_cell
from tests.damage.matrix import COLUMNS, Cell, table
from tests.damage.objects import KINDS
from tests.damage.outside import OUTSIDE
from tests.damage.store import build

PAGE: Final = Path("docs/reference/guarantees.md")
BEGIN: Final = "<!-- The matrix is made by `make damage`. -->\n\n"
END: Final = "\n<!-- The end of the matrix. -->\n"


def main() -> int:
    """Makes the matrix; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.damage", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the matrix into the page")
    parser.add_argument("--check", action="store_true", help="compare it with the page")
    parser.add_argument("--jobs", type=int, default=2, help="processes that make cells (2)")
    arguments = parser.parse_args()
    cells: dict[Place, Cell | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder) / "template"
        _build(template)
        names = [kind.name for kind in (*KINDS, *OUTSIDE)]
        places = [(name, column) for name in names for column in COLUMNS]
        spawned = get_context("spawn")
        with ProcessPoolExecutor(arguments.jobs, spawned, begin, (template,)) as pool:
            for (name, column), cell in zip(places, pool.map(make_cell, places), strict=True):
                cells[name, column] = cell
                said = "–" if cell is None else cell.text()
                print(f"{name}, {column}: {said}", file=sys.stderr, flush=True)
    text = table(names, cells)
    print(text)
    silent = [cell for cell in cells.values() if cell is not None and cell.is_wrong_and_silent]
    return max(bool(silent), _page(text, write=arguments.write, check=arguments.check))


def _build(template: Path) -> None:
    if why_no_spark() is not None:
        build(template, PlainEngine())
        return
    spark = Session("1g")
    try:
        build(template, spark)
    finally:
        spark.stop()


def _page(text: str, *, write: bool, check: bool) -> int:
    before = PAGE.read_text()
    head, _, rest = before.partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert end, f"{PAGE} has no place for the matrix"
    after = head + BEGIN + text + END + tail
    if write:
        PAGE.write_text(after)
    if check and after != before:
        print(f"{PAGE} has another matrix: run `make damage ARGS=--write`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
