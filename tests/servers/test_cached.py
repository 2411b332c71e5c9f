"""What is fetched once for a machine is fetched once, also when several ask at the same time."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from tests.servers.cached import why_not_fetched

FETCH = """
import os, sys, time
os.mkdir(sys.argv[1])
with open(sys.argv[2], "a") as said:
    said.write("fetched\\n")
time.sleep(0.2)  # the others come meanwhile
"""


def test_who_comes_meanwhile_waits_and_takes_what_is_there(tmp_path: Path) -> None:
    folder, said, together = tmp_path / "cache" / "thing", tmp_path / "said", Barrier(3)

    def fetch() -> str | None:
        together.wait(120)
        return why_not_fetched(
            folder, "a thing", lambda made: [sys.executable, "-c", FETCH, str(made), str(said)]
        )

    with ThreadPoolExecutor(3) as pool:
        reasons = [asked.result() for asked in [pool.submit(fetch) for _ in range(3)]]
    assert reasons == [None, None, None]
    assert said.read_text() == "fetched\n"
    assert folder.is_dir()


def test_one_that_breaks_off_is_fetched_again(tmp_path: Path) -> None:
    folder, said = tmp_path / "cache" / "thing", tmp_path / "said"
    breaks = "import os, sys\nknown = os.path.exists(sys.argv[2])\nopen(sys.argv[2], 'w').close()"
    program = f"{breaks}\nos.mkdir(sys.argv[1])\nsys.exit(not known)"

    def command(made: Path) -> list[str]:
        return [sys.executable, "-c", program, str(made), str(said)]

    assert why_not_fetched(folder, "a thing", command) is None
    assert folder.is_dir()


def test_one_that_cannot_be_fetched_says_why(tmp_path: Path) -> None:
    program = "raise SystemExit('no such thing')"
    reason = why_not_fetched(tmp_path / "a", "a thing", lambda _: [sys.executable, "-c", program])
    assert reason == "fetching a thing failed: no such thing"
