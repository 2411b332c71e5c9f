"""The systemd units: their commands exist, and systemd finds no fault in them."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from service.settings import ServerSettings
from tailrace.cli.main import VERBS
from tests.servers.systemd import verify

FOLDER = Path(__file__).parents[1] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
_PROGRAM = "/opt/tailrace/bin/tailrace"


def section(unit: Path, name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return parser[name]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_its_command_is_one_of_ours(unit: Path) -> None:
    program, verb, *flags = section(unit, "Service")["ExecStart"].split()
    assert program == _PROGRAM
    # As /etc/tailrace is not here, only the words are compared.
    VERBS[verb].parser(verb).parse_args(flags)


def test_a_stop_has_the_time_that_it_may_take() -> None:
    service = section(FOLDER / "tailrace.service", "Service")
    assert int(service["TimeoutStopSec"]) > ServerSettings().stop_seconds + 10


@pytest.mark.systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_no_fault(unit: Path, tmp_path: Path) -> None:
    program = tmp_path / "tailrace"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = unit.read_text()
    assert text.count(_PROGRAM) == 1
    copy = tmp_path / unit.name
    copy.write_text(text.replace(_PROGRAM, str(program)))
    done = verify(copy)
    own = [line for line in done.stderr.splitlines() if unit.stem in line]
    assert (done.returncode, own) == (0, []), done.stderr
    broken = tmp_path / "broken.service"
    broken.write_text(copy.read_text().replace("LimitNOFILE", "LimitFiles"))
    assert "LimitFiles" in verify(broken).stderr
