"""Names of rotated files: the log that they are of, and their date."""

from __future__ import annotations

import pytest

from tailrace.forwarder.files.finder import family, find_date, may_be_rotation, written_names


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


@pytest.mark.parametrize("known", [True, False], ids=["log known", "log not known"])
@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("/l/app.log", "/l/app.log", True),
        ("/l/app.log.1", "/l/app.log", True),
        ("/l/app.log-20261129-1764374405.gz", "/l/app.log", True),
        ("/l/app-2026-11-29.log", "/l/app.log", True),
        ("/l/app-1.log.gz", "/l/app.log", True),
        ("/l/app.1.log", "/l/app.log", True),
        ("/l/app.log.2", "/l/app.log.1", None),
        ("/l/app.log.2.gz", "/l/app.log.1", True),
        ("/l/app.log.2.gz", "/l/app.log.1.gz", None),
        ("/l/nightly-2026-11-28.log", "/l/nightly-2026-11-27.log", None),
        ("/l/attempt=1.log", "/l/attempt=2.log", False),
        ("/l/a.log", "/l/b.log", False),
        ("/old/app.log", "/l/app.log", False),
        ("/old/app.log.gz", "/l/app.log", True),
        ("/runs/1/job.log", "/runs/2/job.log", False),
        ("/old/app.log.1.gz", "/l/app.log.1", True),
        ("/dag=2/attempt=1.log", "/dag=1/attempt=2.log", False),
        ("/old/app.log.1", "/l/app.log", False),
    ],
)
def test_names_that_allow_a_rotation(
    one: str, other: str, expected: bool | None, *, known: bool
) -> None:
    """None: if the log that both are of is known."""
    logs = {"/l/app.log", "/l/nightly.log"} if known else set()
    wanted = known if expected is None else expected
    assert may_be_rotation(one, other, logs.__contains__) is wanted
    assert may_be_rotation(other, one, logs.__contains__) is wanted
