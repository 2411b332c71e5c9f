"""The flags of verbs that work on a data folder and its store, and the settings that they name."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from tailrace.cli.terminal import say

if TYPE_CHECKING:
    from service.settings import Settings


def add_source(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that name data folder and store."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--data", metavar="DIR", help="data folder (default: ./data)")
    where.add_argument("--config", metavar="FILE", help="settings file (default: ./tailrace.yaml)")


def load_source(arguments: argparse.Namespace) -> Settings:
    """The settings that the flags name. Raises `InvalidInput`."""
    from service.settings import load_settings

    flags: dict[str, Any] = {} if arguments.data is None else {"data": arguments.data}
    settings, warnings = load_settings(flags, config=arguments.config)
    for warning in warnings:
        say(f"warning: {warning}", sys.stderr)
    return settings
