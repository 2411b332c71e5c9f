"""Each command takes its token from TAILRACE_TOKEN, or the file that TAILRACE_TOKEN_FILE names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tailrace.cli.remote import authorization
from tailrace.logstore.errors import InvalidInput
from tailrace_client.command import token_of_environment
from tailrace_client.errors import InvalidRequest
from tests.client.answering import Asked, Given, answering
from tests.forwarder.delivery.test_delivery import receipt


def of_command_line() -> str | None:
    return authorization().get("authorization", "").removeprefix("Bearer ") or None


BOTH = pytest.mark.parametrize("token", [of_command_line, token_of_environment])


@BOTH
def test_the_variable_goes_before_the_file(
    token: Callable[[], str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAILRACE_TOKEN", raising=False)
    monkeypatch.delenv("TAILRACE_TOKEN_FILE", raising=False)
    assert token() is None
    (tmp_path / "token").write_text(" of-the-file\n")
    monkeypatch.setenv("TAILRACE_TOKEN_FILE", str(tmp_path / "token"))
    assert token() == "of-the-file"
    monkeypatch.setenv("TAILRACE_TOKEN", "of-the-variable")
    assert token() == "of-the-variable"


@BOTH
@pytest.mark.parametrize(
    ("content", "why"), [(None, "cannot be read"), (b"\n", "is empty"), (b"\xff", "not ASCII")]
)
def test_a_file_without_a_token_is_refused(
    token: Callable[[], str | None],
    content: bytes | None,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TAILRACE_TOKEN", raising=False)
    monkeypatch.setenv("TAILRACE_TOKEN_FILE", str(tmp_path / "token"))
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    with pytest.raises((InvalidInput, InvalidRequest), match=why):
        token()


def test_each_command_sends_it_and_shows_it_nowhere(tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(asked: Asked) -> Given:
        seen.append(asked.headers["authorization"])
        return receipt(asked)

    (tmp_path / "token").write_text("a-secret\n")
    variables: Mapping[str, str] = {
        **{name: value for name, value in os.environ.items() if name != "TAILRACE_TOKEN"},
        "TAILRACE_TOKEN_FILE": str(tmp_path / "token"),
    }
    spool = ["--spool", str(tmp_path / "spool"), "--fqn", "p", "--run", "r"]
    with answering(answer) as url:
        for words in (
            ["query", "--url", url, "x"],
            ["tail", "--url", url, "p"],
            ["forward", url, *spool],
            ["run", "--url", url, *spool, "--", "echo", "x"],
        ):
            before = len(seen)
            done = subprocess.run(
                [sys.executable, "-m", "tailrace", *words],
                env=variables,
                input=b"line\n",
                capture_output=True,
                timeout=120,
                check=False,
            )
            assert len(seen) > before, (words, done.stderr)
            assert b"a-secret" not in done.stdout + done.stderr
    assert set(seen) == {"Bearer a-secret"}
