"""A fault that is put into a copy is seen by what fails there, and not by what does not look."""

from __future__ import annotations

import pytest

from tests.proving import TREE, Mutation, prove

LINE_BITS = Mutation("ids are longer", "logstore/ulid.py", "LINE_BITS = 25", "LINE_BITS = 26")
LOOKS = ["-c", "from logstore.ulid import LINE_BITS; assert LINE_BITS == 25"]
LOOKS_AWAY = ["-c", "import logstore.ulid"]


def test_it_is_seen_by_a_program_that_looks() -> None:
    assert prove([LINE_BITS], LOOKS) == []
    assert "LINE_BITS = 25" in (TREE / "logstore/ulid.py").read_text()


def test_it_is_named_if_nobody_looks() -> None:
    assert prove([LINE_BITS], LOOKS_AWAY) == ["ids are longer"]


def test_what_fails_without_a_fault_proves_nothing() -> None:
    with pytest.raises(RuntimeError, match="without a fault"):
        prove([LINE_BITS], ["-c", "raise SystemExit(1)"])


def test_what_waits_for_ever_has_seen_it() -> None:
    waits = "import time\nfrom logstore.ulid import LINE_BITS\nwhile LINE_BITS == 26: time.sleep(1)"
    assert prove([LINE_BITS], ["-c", waits], timeout_seconds=10) == []


def test_a_fault_that_no_longer_fits_the_code_is_refused() -> None:
    with pytest.raises(ValueError, match="has not once"):
        Mutation("gone", "logstore/ulid.py", "LINE_BITS = 24", "LINE_BITS = 23").broken()
