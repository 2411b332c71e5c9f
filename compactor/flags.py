"""The flags of `compactor/job.py`, which `tailrace compact` has too and passes on."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags to a parser."""
    parser.add_argument("--data", metavar="DIR", help="data folder (default: ./data)")
    parser.add_argument("--config", metavar="FILE", help="settings file (default: ./tailrace.yaml)")
    parser.add_argument(
        "--every",
        metavar="TIME",
        type=seconds,
        help="keep compacting with this pause, as in 5m (default: once)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what a pass would do, change nothing; needs no Java",
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait for other compactors that have the work, then do what they leave",
    )
    parser.add_argument(
        "--erase",
        action="store_true",
        help="remove deleted lines now: rewrite files whatever their size, remove files of older"
        " versions of the table and segments that the table has; searches of these versions fail",
    )
    lines = parser.add_mutually_exclusive_group()
    lines.add_argument(
        "--json",
        action="store_true",
        help="print a line of JSON on stdout for each pass, also for one without work"
        " and on a terminal; with --dry-run: what a pass would do",
    )
    lines.add_argument("--quiet", action="store_true", help="no lines of JSON, no progress bar")
    parser.add_argument(
        "--log-format",
        choices=["text", "json"],
        help="the log on stderr: for people, or a line of JSON each (default: text)",
    )
    parser.add_argument("--metrics-file", metavar="FILE", help="see `compaction.metrics_file`")
    parser.add_argument("--push-gateway", metavar="URL", help="see `compaction.push_gateway`")
    parser.add_argument("--kill-at", default="", help=argparse.SUPPRESS)


def settings_of(flags: argparse.Namespace) -> dict[str, Any]:
    """The flags that are settings and were given, in the nested form of the settings file."""
    names = ("log_format", "metrics_file", "push_gateway")
    given = {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}
    nested: dict[str, Any] = {} if flags.data is None else {"data": flags.data}
    return nested | ({"compaction": given} if given else {})


def words(flags: argparse.Namespace) -> list[str]:
    """The command line that says the same."""
    parser = argparse.ArgumentParser(add_help=False)
    configure(parser)
    return list(_words(parser, flags))


def seconds(text: str) -> float:
    """`90`, `90s`, `5m`, `1h` in seconds."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text)
    if found is None or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 5m")
    return float(found[1]) * _UNITS[found[2]]


def _words(parser: argparse.ArgumentParser, flags: argparse.Namespace) -> Iterator[str]:
    for action in parser._actions:
        value = getattr(flags, action.dest)
        if value == action.default:
            continue
        option = action.option_strings[0]
        # In one word: a value may begin with a dash.
        yield option if action.nargs == 0 else f"{option}={value}"
