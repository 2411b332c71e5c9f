"""`tailrace pipelines`: runs the log pipelines of a folder, checks files, says how far they are."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from logstore.errors import InvalidInput

if TYPE_CHECKING:
    from pipelines.config import PipelineConfig
    from pipelines.process import PipelinesProcess


def configure(parser: argparse.ArgumentParser) -> None:
    """The flags of a run, and the verbs with theirs."""
    _common(parser, None)
    parser.add_argument("--dir", metavar="DIR", help="folder of the pipelines' files (*.yaml)")
    verbs = parser.add_subparsers(
        dest="act", metavar="ACT", help="check or status (default: run)", required=False
    )
    check = verbs.add_parser("check", help="Check files, or all of a folder, without running them.")
    check.add_argument("paths", metavar="FILE", nargs="+", help="a pipeline's file, or a folder")
    status = verbs.add_parser("status", help="Say how far each appender is.")
    _common(status, argparse.SUPPRESS)
    status.add_argument("--dir", metavar="DIR", default=argparse.SUPPRESS, help="as above")
    status.add_argument("--json", action="store_true", help="an object a line")


def _common(parser: argparse.ArgumentParser, default: Any) -> None:
    parser.add_argument(
        "--data", metavar="DIR", default=default, help="data folder (default: ./data)"
    )
    parser.add_argument(
        "--config", metavar="FILE", default=default, help="settings file (default: ./tailrace.yaml)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs pipelines until a signal comes; returns the exit status."""
    if arguments.act == "check":
        return _check(arguments.paths)
    pipelines = _pipelines(arguments.dir)
    if arguments.act == "status":
        return asyncio.run(_status(arguments, pipelines))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    return _run(arguments, pipelines)


def _settings(arguments: argparse.Namespace) -> Any:
    from pipelines.settings import load_settings

    flags = {} if arguments.data is None else {"data": arguments.data}
    return load_settings(flags, arguments.config)


def _pipelines(folder: str | None) -> Sequence[PipelineConfig]:
    from pipelines.appenders.registry import Registry
    from pipelines.config import read_folder

    if not folder:
        raise InvalidInput("--dir is missing", hint="Say which folder has the pipelines' files.")
    found = read_folder(folder, Registry())
    if not found:
        raise InvalidInput(f"{folder} has no pipeline", hint="A pipeline is a file *.yaml.")
    return found


def _run(arguments: argparse.Namespace, pipelines: Sequence[PipelineConfig]) -> int:
    from logstore.disk import apply_umask
    from logstore.memory import give_back_freed_memory
    from pipelines.process import run_pipelines

    give_back_freed_memory()
    settings = _settings(arguments)
    apply_umask(settings.umask)

    def started(process: PipelinesProcess) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, process.stop)
        names = ", ".join(one.name for one in pipelines)
        print(f"pipelines of {arguments.dir}: {names}", file=sys.stderr, flush=True)

    asyncio.run(run_pipelines(settings, pipelines, started))
    return 0


def _check(paths: Sequence[str]) -> int:
    import os

    from pipelines.appenders.registry import Registry
    from pipelines.config import read, read_folder

    registry = Registry()
    found = [
        one
        for path in paths
        for one in (read_folder(path, registry) if os.path.isdir(path) else [read(path, registry)])
    ]
    for one in found:
        appenders = ", ".join(f"{each.name} ({each.part.type})" for each in one.appenders)
        print(f"{one.path}: pipeline {one.name}: {appenders}")
    return 0


async def _status(arguments: argparse.Namespace, pipelines: Sequence[PipelineConfig]) -> int:
    from pipelines.process import open_world
    from pipelines.status import rows

    async with open_world(_settings(arguments)) as world:
        found = await rows(world, [one.name for one in pipelines])
    if arguments.json:
        for row in found:
            print(orjson.dumps(row).decode())
        return 0
    heads = (
        "pipeline",
        "appender",
        "part",
        "owner",
        "segments behind",
        "events",
        "late",
        "forced",
        "lost",
    )
    lines = [heads, *(tuple(_text(row, head) for head in heads) for row in found)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(heads))]
    for line in lines:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )
    return 0


def _text(row: Mapping[str, Any], head: str) -> str:
    value = row[head.replace(" ", "_")]
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
