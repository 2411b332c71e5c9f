"""Completion by a real bash, with names that a service has."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from tailrace.cli.main import main
from tests.client.answering import Asked, Given, answering


def answer(asked: Asked) -> Given:
    if asked.path.partition("?")[0].endswith("/logs/shop.a"):
        return Given(200, {}, orjson.dumps({"runs": ["r1", "r2"]}))
    return Given(200, {}, orjson.dumps({"pipelines": ["shop.a", "shop.b"]}))


def completed(script: str, *lines: str, url: str) -> list[list[str]]:
    """What bash offers at the end of each line."""
    asks = [
        f"COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)} COMP_TYPE=9 COMPREPLY=()\n"
        "_python_argcomplete tailrace\n"
        'echo "${COMPREPLY[@]}"\n'
        for line in lines
    ]
    folder = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["bash", "--norc", "-c", script + "\n" + "".join(asks)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "TAILRACE_URL": url},
        timeout=120,
        check=True,
    )
    assert done.stderr == ""
    return [line.split() for line in done.stdout.splitlines()]


def test_bash_completes_commands_flags_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    with answering(answer) as url:
        verbs, flags, choices, names, other, runs = completed(
            script,
            "tailrace ta",
            "tailrace tail --no-",
            "tailrace tail --prefix f",
            "tailrace tail shop.",
            "tailrace tail shop.a ",
            "tailrace query --fqn shop.a --run r",
            url=url,
        )
    assert verbs == ["tail"]
    assert flags == ["--no-follow", "--no-pager"]
    assert choices == ["full"]
    assert names == ["shop.a", "shop.b"]
    assert other == runs == ["r1", "r2"]
    # Where no service answers nothing is offered, and nothing is said.
    assert completed(script, "tailrace tail shop.", url="http://127.0.0.1:1") == [[]]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_ARGCOMPLETE" in script
    assert "tailrace" in script
