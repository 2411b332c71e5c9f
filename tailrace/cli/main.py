"""The command `tailrace`: a verb, its flags, and errors as two lines that help.

A verb is a module with `configure(parser)` and `run(arguments) -> exit status`. It is
imported only when it is asked for, so that `tailrace tail` does not load the service.
Exit status: 0 done, 1 an error that was printed, 2 an invalid command line, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

from tailrace.cli.terminal import say
from tailrace.logstore.errors import TailraceError


@dataclass(frozen=True, slots=True)
class Verb:
    """A subcommand: the module that does it, and one line of help.

    `light` are those that the distribution `tailrace-forwarder` has packages for.
    """

    module: str
    help: str
    light: bool = False

    def parser(self, name: str) -> argparse.ArgumentParser:
        """The verb's own command line."""
        parser = argparse.ArgumentParser(
            prog=f"tailrace {name}", description=self.help, allow_abbrev=False
        )
        importlib.import_module(self.module).configure(parser)
        return parser


VERBS = {
    "serve": Verb("tailrace.cli.serve", "Run the service."),
    "compact": Verb("tailrace.cli.compact", "Ingest flushed segments into the table."),
    "forward": Verb(
        "tailrace.cli.forward",
        "Ship log files through rotation, each line once, or stdin.",
        light=True,
    ),
    "run": Verb("tailrace.cli.run", "Run a command and ship its output as a run.", light=True),
    "query": Verb("tailrace.cli.query", "Search across all runs.", light=True),
    "tail": Verb(
        "tailrace.cli.tail",
        "Follow a run, the newest run of a pipeline, or all runs whose names match.",
        light=True,
    ),
    "pipelines": Verb(
        "tailrace.cli.pipelines", "Feed segments to appenders: files, outputs, other systems."
    ),
    "token": Verb(
        "tailrace.cli.token", "Make a token, and print its entry for the rules of access."
    ),
    "leases": Verb(
        "tailrace.cli.leases", "Show and change leases: which process works on which partition."
    ),
    "doctor": Verb("tailrace.cli.doctor", "Examine a set-up, and say what to do."),
    "canary": Verb(
        "tailrace.cli.canary",
        "Write numbered lines for ever, and read each back in two ways.",
        light=True,
    ),
    "deletions": Verb(
        "tailrace.cli.deletions",
        "List deletions, and the places that may still hold deleted lines.",
    ),
    "verify": Verb(
        "tailrace.cli.verify", "Check all stored data for damage and gaps, line by line."
    ),
    "backup": Verb("tailrace.cli.backup", "Back up the store and the data folder."),
    "restore": Verb(
        "tailrace.cli.restore", "Restore a backup into an empty store and data folder."
    ),
    "completion": Verb("tailrace.cli.remote", "Print a completion script for a shell.", light=True),
}


_DISTRIBUTION = "tailrace-client"  # it is always there, and a release has one version


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb and gives the exit status."""
    if "_ARGCOMPLETE" in os.environ:
        from tailrace.cli.remote import complete

        complete(overview(), VERBS)
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = VERBS.get(words[0]) if words else None
    if verb is None:
        return _without_verb(words)
    if not verb.light and find_spec("service") is None:
        from tailrace.logstore.java import install_command

        complain(
            f"`tailrace {words[0]}` is not part of tailrace-forwarder, which is installed alone",
            f"Run `{install_command('tailrace')}`.",
        )
        return 1
    parsed = parse_words(verb.parser(words[0]), words[1:])
    try:
        status: int = importlib.import_module(verb.module).run(parsed)
    except TailraceError as error:
        complain(str(error), error.hint)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stderr.close()
        return 0
    return status


def parse_words(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """The words as the verb takes them: flags before, between and after the others.

    After `--` nothing is a flag; argparse knows that only if flags come first. The same holds for a
    verb that has verbs of its own.
    """
    own_verbs = any(action.nargs == argparse.PARSER for action in parser._actions)
    if own_verbs or "--" in words:
        return parser.parse_args(words)
    return parser.parse_intermixed_args(words)


def complain(message: str, hint: str = "") -> None:
    """Says on stderr what went wrong and what to do."""
    say(f"error: {message}", sys.stderr)
    if hint:
        say(f"hint: {hint}", sys.stderr)


def overview() -> argparse.ArgumentParser:
    """The command line without a verb: for its help."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {verb.help}" for name, verb in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="tailrace",
        description="Stores, follows and searches the logs of pipeline runs.",
        epilog=f"verbs:\n{verbs}\n\n`tailrace VERB --help` lists the flags of a verb.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tailrace {version(_DISTRIBUTION)}")
    parser.add_argument("verb", nargs="?", metavar="VERB", choices=list(VERBS), help="what to do")
    return parser


def _without_verb(words: list[str]) -> int:
    parser = overview()
    parser.parse_args(words[:1])  # answers --help and --version, refuses an unknown verb
    parser.print_help(sys.stderr)
    return 2
