"""`tailrace completion`: a script by which a shell completes the command's words.

Commands, flags and their choices come from the parsers, names of pipelines and runs from the
service: it is asked for a second at most, and what does not answer completes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Final

import argcomplete
import httpx
from argcomplete.lexers import split_line
from argcomplete.shell_integration import shellcode

from logstore.errors import TailraceError
from tailrace.remote.api import DEFAULT_URL, RUNS, authorization, component, trusted

SHELLS: Final = ("bash", "zsh", "fish")
_SECONDS: Final = 1.0
_MOST: Final = 200
_HOW: Final = """\
bash: source <(tailrace completion bash), in ~/.bashrc
zsh:  source <(tailrace completion zsh), in ~/.zshrc behind compinit
fish: tailrace completion fish | source, in ~/.config/fish/config.fish"""


def configure(parser: argparse.ArgumentParser) -> None:
    """For which shell."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _HOW
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def run(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    sys.stdout.write(shellcode(["tailrace"], shell=arguments.shell))
    return 0


def complete(parser: argparse.ArgumentParser, verbs: dict[str, Any]) -> None:
    """Answers the shell that asks by `$_ARGCOMPLETE`, and exits. `verbs` have a `parser(name)`."""
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT") or 0)]
    first = int(os.environ["_ARGCOMPLETE"]) - 1
    words = split_line(line)[3][first + 1 :]
    if words and words[0] in verbs:
        os.environ["_ARGCOMPLETE"] = str(first + 2)
        parser = verbs[words[0]].parser(words[0])
    # Beside names flags would be noise: they are offered behind a dash, and where there are none.
    argcomplete.autocomplete(parser, always_complete_options=False)


def pipelines(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Names of pipelines that begin with `prefix`."""
    return [f"{name}" for name in _asked(parsed_args, RUNS, prefix).get("pipelines", ())]


def runs(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Ids of the pipeline's runs that begin with `prefix`."""
    fqn = parsed_args.fqn
    if not fqn:
        return []
    found = _asked(parsed_args, f"{RUNS}/{component(fqn)}", prefix).get("runs", ())
    return [f"{name}" for name in found]


def _asked(arguments: argparse.Namespace, path: str, prefix: str) -> dict[str, Any]:
    try:
        reply = httpx.get(
            f"{arguments.url or DEFAULT_URL}{path}",
            params={"limit": _MOST, **({"name": prefix} if prefix else {})},
            headers=authorization(arguments.token_file),
            verify=trusted(arguments.ca_file),
            timeout=_SECONDS,
        )
        found = reply.raise_for_status().json()
    except (httpx.HTTPError, httpx.InvalidURL, TailraceError, ValueError):
        return {}  # a shell shows what it gets in the middle of a line
    return found if isinstance(found, dict) else {}
