"""The command line: verbs, help, errors that help, lateness of imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.cli.main import VERBS, main
from tailrace.cli.serve import flags


def _tailrace(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tailrace", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        timeout=300,
        check=False,
    )


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(f"  {name}" in text and verb.help in text for name, verb in VERBS.items())


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"usage: tailrace {verb}" in capsys.readouterr().out


def test_no_verb_and_a_wrong_verb_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "serve" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["sevre"])
    assert ended.value.code == 2


def test_flags_may_stand_between_words_and_behind_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # argparse by itself takes all words of `nargs="*"` at their first place, so a path was refused.
    main(["forward", "state", "reset", "--storage", str(tmp_path), str(tmp_path / "a.log")])
    said = capsys.readouterr().err
    assert "unrecognized" not in said
    assert str(tmp_path) in said


def test_what_follows_two_dashes_is_no_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "--url", "http://127.0.0.1:1", "--", "--level"]) == 1
    assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err


def test_an_error_is_two_lines_and_a_status() -> None:
    done = _tailrace("serve", "--host", "0.0.0.0")
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert error == "error: refusing to listen on 0.0.0.0: there are no rules of access"
    assert hint == (
        "hint: Name a file of rules in access.rules (docs/operate/access.md), listen on 127.0.0.1,"
        " or use --insecure if the network is trusted."
    )


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("below", ["", "/data"])
def test_a_data_folder_that_is_a_file_is_said(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("mine")
    done = _tailrace("serve", "--data", f"{tmp_path}/file{below}")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: the data folder {tmp_path}/file{below} cannot be made: {tmp_path}/file is a file",
        "hint: Choose another folder with --data.",
    ]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_service_that_is_not_there_is_said() -> None:
    done = _tailrace("tail", "--url", "http://127.0.0.1:9", "some.pipeline")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no answer from http://127.0.0.1:9")
    assert "hint: Is the service running?" in done.stderr


def test_compaction_without_java_says_what_to_install() -> None:
    done = _tailrace("compact", JAVA_HOME="/nowhere")
    assert done.returncode == 3
    said = "ERROR compaction needs Spark: no Java 17 found: JAVA_HOME is /nowhere, and there is no"
    assert done.stderr.startswith(f"{said} bin/java in it (Install a Java")


def test_flags_not_given_are_left_to_the_environment() -> None:
    parser = VERBS["serve"].parser("serve")
    assert flags(parser.parse_args([])) == {}
    given = flags(parser.parse_args(["--port", "1", "--insecure", "--data", "d"]))
    assert given == {"data": "d", "server": {"port": 1, "insecure": True}}


def test_tail_does_not_load_the_service() -> None:
    program = (
        "import sys; from tailrace.cli.main import VERBS; VERBS['tail'].parser('tail');"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'service', 'duckdb', 'pyarrow'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == "[]"
