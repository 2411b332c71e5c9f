"""The tutorials of `docs/start` and the README's first example, run as they stand.

Blocks marked `sh`, `python` or `sql` run in order, in one shell of their own for each page, in a
folder whose `data` is that of a running service. The service's address takes the place of
`127.0.0.1:8790`. A `python` block that begins with the comment of a file's name is saved as that
file, any other is run; a `sql` block goes to the program that its page has saved so. Blocks of
another kind, such as `console`, are shown to people only. A `text` block is all that the block
before it prints: `…` stands for any text within a line, and alone on a line for any lines.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.service_process import ServiceProcess
from tests.servers.quick_java import QUICK

ROOT = Path(__file__).parents[2]
START = ROOT / "docs" / "start"
DOCUMENTED = "127.0.0.1:8790"
SECONDS = 300
MOST_LINES = 120
# A loaded machine may need longer than the default to deliver a command's last lines.
PROGRAM = """#!/bin/sh
case $1 in
run) shift; set -- run --exit-seconds 120 "$@" ;;
esac
exec {python} -m tailrace "$@"
"""
BLOCK = re.compile(
    r"^```(sh|python|sql)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE
)


class Block(NamedTuple):
    """What a page has its reader run, and all that this prints, if the page shows it."""

    kind: str
    code: str
    shown: str | None


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that are run, in order."""
    return [
        Block(kind, code, shown or None) for kind, code, shown in BLOCK.findall(page.read_text())
    ]


def matches(shown: str, printed: str) -> bool:
    """Whether a program printed what the page shows."""
    lines = [re.escape(line).replace("…", ".*") for line in shown.splitlines()]
    pattern = "".join("(?:.*\n)*" if line == ".*" else f"{line}\n" for line in lines)
    return re.fullmatch(pattern, printed) is not None


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    started = ServiceProcess(tmp_path_factory.mktemp("tutorials") / "node")
    started.start()
    yield started
    started.stop()


def _command(block: Block, path: Path) -> str:
    """What the page's shell does with a block that is saved at `path`."""
    saved = re.match(r"# (\w+\.py)\n", block.code) if block.kind == "python" else None
    if saved:
        return f"cp {path} {saved[1]}"
    return {"sh": f". {path}", "python": f"python {path}", "sql": f"python ask.py < {path}"}[
        block.kind
    ]


def _programs(folder: Path) -> Path:
    """A folder with the `tailrace` of a tutorial, which becomes the real one."""
    programs = folder / ".programs"
    programs.mkdir()
    program = programs / "tailrace"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    return programs


def follow(page: Path, service: ServiceProcess, folder: Path, cwd: Path | None = None) -> None:
    """Does what the page says, in `folder` or `cwd`, and compares what is printed with the page."""
    (folder / "data").symlink_to(service.data)
    asked = blocks(page)
    script = ["set -e"]
    for number, block in enumerate(asked):
        path = folder / f".block-{number}"
        path.write_text(block.code.replace(DOCUMENTED, service.url.removeprefix("http://")))
        script += [_command(block, path), "printf '\\0'"]
    process = subprocess.Popen(
        ["bash", "-c", "\n".join(script)],
        cwd=cwd or folder,
        env={
            **os.environ,
            **QUICK,
            "TAILRACE_COMPACTION__DRIVER_MEMORY": "1g",
            "HOME": str(folder),
            "PATH": f"{_programs(folder)}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TAILRACE_URL": service.url,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    for block, printed in zip(asked, output.split("\0"), strict=False):
        assert block.shown is None or matches(block.shown, printed), f"{block.code}\n{printed}"


def test_the_readme_and_each_tutorial_are_short_and_show_what_is_printed() -> None:
    pages = [ROOT / "README.md", *START.glob("*.md")]
    assert {page.stem for page in pages if any(block.shown for block in blocks(page))} == {
        "README",
        "analyst",
        "contributor",
        "data-engineer",
        "python-developer",
        "sre",
    }
    assert [page.stem for page in pages if page.read_text().count("\n") > MOST_LINES] == []
    assert matches("a\n…\nb …", "a\nx\ny\nb 2\n")
    assert not matches("a\nb", "a\nx\nb\n")


def test_the_readme(service: ServiceProcess, tmp_path: Path) -> None:
    follow(ROOT / "README.md", service, tmp_path)


@pytest.mark.in_turn(2, "tutorials")
@pytest.mark.parametrize("name", ["data-engineer", "python-developer", "sre"])
def test_a_tutorial(name: str, service: ServiceProcess, tmp_path: Path) -> None:
    follow(START / f"{name}.md", service, tmp_path)


@pytest.mark.spark
@pytest.mark.in_turn(4)
def test_an_analyst_compacts(service: ServiceProcess, tmp_path: Path) -> None:
    follow(START / "analyst.md", service, tmp_path)


@pytest.mark.in_turn(4)
def test_a_contributor_runs_checks(service: ServiceProcess, tmp_path: Path) -> None:
    follow(START / "contributor.md", service, tmp_path, cwd=ROOT)
