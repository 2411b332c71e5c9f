"""Names of rotated files: the log that they are of, and their date."""

from __future__ import annotations

import pytest

from forwarder.files.family import family, find_date, written_names


@pytest.mark.parametrize(
    ("name", "date"),
    [
        ("app.log", ""),
        ("app.log.1", ""),
        ("app.log.12.gz", ""),
        ("app.log-20261129", "20261129"),
        ("app.log-20261129-1764374405.gz", "202611291764374405"),
        ("app-2026-11-29.log", "20261129"),
        ("0.log.20261129-150405.gz", "20261129150405"),
        ("app.log.2026-11-29T15-04-05", "20261129150405"),
        ("job-3f9c8a7b12345678.log", ""),
    ],
)
def test_the_log_and_the_date_of_a_name(name: str, date: str) -> None:
    assert find_date(f"/logs-20010101/{name}") == date
    log = "app.log" if name.startswith("app") else name.partition(".")[0] + ".log"
    assert log in [name, *written_names(name)]


def test_rotations_are_of_one_family() -> None:
    names = ["app.log", "app.log.1", "app.log.2.gz", "app.log-20261129", "app.log.old"]
    assert len({family(f"/logs/{name}") for name in names}) == 1
