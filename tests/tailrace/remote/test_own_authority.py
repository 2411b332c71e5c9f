"""Every command and the client trust an authority of one's own, by a flag or a variable."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from tailrace.cli.main import VERBS
from tailrace.logstore.errors import StoreUnavailable
from tailrace.pipelines.appenders.contract import AppenderFailed
from tailrace.pipelines.appenders.http import HttpTargetSettings, Poster
from tailrace.pipelines.sources.service import ServiceClient
from tailrace_client import Handler, Run
from tests.client.programs import FQN, messages
from tests.e2e.service_process import ServiceProcess
from tests.servers.openssl import Authority, tls_before

pytestmark = pytest.mark.openssl
COMMANDS = {
    "query": ["query", "--from", "0", "line"],
    "tail": ["tail", "--no-follow", FQN, "ours"],
    "leases": ["leases", "list"],
    "deletions": ["deletions"],
    "canary": ["canary", "--count", "1", "--every", "0", "--patience", "0.5", "--listen", ""],
    "run": ["run", "--fqn", FQN, "--run", "ours", "--", "echo", "a line"],
}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    made = ServiceProcess(tmp_path / "node")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def address(service: ServiceProcess, ours: Authority) -> Iterator[str]:
    with tls_before(service.port, [ours.certificate("good", "DNS:localhost")]) as port:
        yield f"https://localhost:{port}"


def command(
    words: list[str], url: str, tmp_path: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    act, *rest = words
    spool = ["--spool", str(tmp_path / "spool"), "--exit-seconds", "1"] if act == "run" else []
    return subprocess.run(
        [sys.executable, "-m", "tailrace", act, "--url", url, *spool, *rest],
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.in_turn(3)
def test_each_command_takes_it(
    service: ServiceProcess, address: str, ours: Authority, tmp_path: Path
) -> None:
    with Run(address, FQN, "ours", ca_file=str(ours.file)) as run:
        run.append("first line\n")
    log = logging.Logger("ours")  # noqa: LOG001 -- nobody else has it
    handler = Handler(address, FQN, "handler", spool=str(tmp_path / "h"), ca_file=str(ours.file))
    log.addHandler(handler)
    log.error("a line of a handler")
    handler.close()
    assert messages(service.url, "handler") == ["a line of a handler"]
    for name, words in COMMANDS.items():
        act, *rest = words
        by_flag = command([act, "--ca-file", str(ours.file), *rest], address, tmp_path)
        assert by_flag.returncode == 0, (name, by_flag.stderr)
    by_variable = command(COMMANDS["query"], address, tmp_path, TAILRACE_CA_FILE=str(ours.file))
    assert by_variable.returncode == 0, by_variable.stderr


@pytest.mark.in_turn(3)
def test_without_it_the_refusal_says_what_to_do(address: str, tmp_path: Path) -> None:
    for name, words in COMMANDS.items():
        refused = command(words, address, tmp_path)
        # A canary goes on, and a command is not stopped by its log.
        assert refused.returncode == (name not in ("run", "canary")), (name, refused.stderr)
        assert "--ca-file" in refused.stderr, name
    missing = command(["query", "--ca-file", "/nowhere", "x"], address, tmp_path)
    assert missing.returncode == 1
    assert "/nowhere cannot be read" in missing.stderr


async def test_pipelines_are_told_their_own_settings(address: str, ours: Authority) -> None:
    async with aclosing(ServiceClient(address)) as source:
        with pytest.raises(StoreUnavailable) as refused:
            await source.ask("GET", "/health/ready", {})
    assert "pipelines.source_ca_file" in str(refused.value.hint)
    async with aclosing(ServiceClient(address, ca_file=str(ours.file))) as source:
        assert (await source.ask("GET", "/health/ready", {})).status == 200
    with pytest.raises(AppenderFailed) as failed:
        Poster(HttpTargetSettings(url=address, allow_private=True)).post(b"", {})
    assert "the appender's ca_file" in str(failed.value.hint)


def of_each_act(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser of a command and those of its acts."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from of_each_act(one)


def test_no_command_with_an_address_is_without_it() -> None:
    parsers = [one for name, verb in VERBS.items() for one in of_each_act(verb.parser(name))]
    flags = {one.prog: set(one._option_string_actions) for one in parsers}
    asking = {name for name, found in flags.items() if "--url" in found} | {"tailrace forward"}
    assert {"tailrace query", "tailrace tail", "tailrace run", "tailrace leases"} <= asking
    assert [name for name in sorted(asking) if "--ca-file" not in flags[name]] == []
