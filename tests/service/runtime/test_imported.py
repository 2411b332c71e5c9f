"""A node that serves imports nothing: each import would need a descriptor that may not be free."""

from __future__ import annotations

import json
import subprocess
import sys


def test_nothing_is_imported_by_what_ships_flushes_closes_and_deletes() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "tests.service.runtime.imported"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert json.loads(shown) == []
