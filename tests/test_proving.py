"""A fault that is put into a copy is seen by what fails there, and not by what does not look."""

from __future__ import annotations

import pytest

from tests.proving import TREE, Mutation, prove

LINE_BITS = Mutation(
    "ids are longer", "tailrace/logstore/ulid.py", "LINE_BITS = 25", "LINE_BITS = 26"
)
LOOKS = ["-c", "from tailrace.logstore.ulid import LINE_BITS; assert LINE_BITS == 25"]
LOOKS_AWAY = ["-c", "import tailrace.logstore.ulid"]


def test_it_is_seen_by_a_program_that_looks() -> None:
    assert prove([LINE_BITS], LOOKS) == []
    assert "LINE_BITS = 25" in (TREE / "tailrace/logstore/ulid.py").read_text()


def test_it_is_named_if_nobody_looks() -> None:
    assert prove([LINE_BITS], LOOKS_AWAY) == ["ids are longer"]


def test_what_fails_without_a_fault_proves_nothing() -> None:
    with pytest.raises(RuntimeError, match="without a fault"):
        prove([LINE_BITS], ["-c", "raise SystemExit(1)"])


def test_what_waits_for_ever_has_seen_it() -> None:
    waits = (
        "import time\nfrom tailrace.logstore.ulid import LINE_BITS\n"
        "while LINE_BITS == 26: time.sleep(1)"
    )
    assert prove([LINE_BITS], ["-c", waits], timeout_seconds=10) == []


def test_a_fault_that_no_longer_fits_the_code_is_refused() -> None:
    with pytest.raises(ValueError, match="has not once"):
        Mutation("gone", "tailrace/logstore/ulid.py", "LINE_BITS = 24", "LINE_BITS = 23").broken()
