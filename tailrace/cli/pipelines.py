"""`tailrace pipelines`: runs the log pipelines of a folder, checks files, shows their progress."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from tailrace.cli.main import complain
from tailrace.cli.terminal import add_json, say, say_json
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.progress import log_to

if TYPE_CHECKING:
    from tailrace.coordination.pipelines import PipelinesAdmin
    from tailrace.logstore.clock import Clock
    from tailrace.pipelines.definition import PipelineConfig, PipelineFolder
    from tailrace.pipelines.process import PipelinesProcess


_ACTS = {
    "replay": "Replay a pipeline's events from a given time; see docs/use/pipelines.md.",
    "skip": "Let an evicted pipeline skip the events it missed, and continue with new ones.",
    "pause": "Pause a pipeline in every process; its checkpoints and segments are kept.",
    "resume": "Resume a paused pipeline.",
    "disable": "Disable an appender: its events go to its dead-letter file, or wait.",
    "enable": "Enable a disabled appender; it continues with new events.",
    "redeliver": "Resend an appender's dead letters, and report those refused again.",
}
_LOOK_SECONDS = 0.5


def configure(parser: argparse.ArgumentParser) -> None:
    """The flags of a run, and the verbs with theirs."""
    _common(parser, None)
    parser.add_argument("--dir", metavar="DIR", help="folder of the pipelines' files (*.yaml)")
    _libraries(parser, None)
    verbs = parser.add_subparsers(
        dest="act", metavar="ACT", help="the action (default: run the pipelines)", required=False
    )
    check = verbs.add_parser("check", help="Check files, or all of a folder, without running them.")
    check.add_argument("paths", metavar="FILE", nargs="+", help="a pipeline's file, or a folder")
    _common(check, argparse.SUPPRESS)
    _libraries(check, argparse.SUPPRESS)
    status = verbs.add_parser("status", help="Show the progress of each appender.")
    _common(status, argparse.SUPPRESS)
    status.add_argument("--dir", metavar="DIR", default=argparse.SUPPRESS, help="as above")
    _libraries(status, argparse.SUPPRESS)
    add_json(status)
    logback = verbs.add_parser(
        "import", help="Convert a logback.xml, and list every line without an equivalent."
    )
    logback.add_argument("path", metavar="FILE", help="logback's configuration")
    logback.add_argument("--name", metavar="NAME", help="the pipeline's name (default: the file's)")
    logback.add_argument(
        "--out",
        metavar="FILE",
        help="file to create; it must not exist (default: print the result)",
    )
    for act, says in _ACTS.items():
        verb = verbs.add_parser(act, help=says)
        _common(verb, argparse.SUPPRESS)
        verb.add_argument("pipeline", metavar="PIPELINE", help="the pipeline's name")
        if act in ("disable", "enable"):
            verb.add_argument("appender", metavar="APPENDER", help="the appender's name")
        if act == "redeliver":
            verb.add_argument("--appender", metavar="A", required=True, help="the appender's name")
            verb.add_argument(
                *("--wait", "-w"),
                metavar="SECONDS",
                type=float,
                default=60.0,
                help="how long to wait for the end (default: 60); afterwards the work continues "
                "without this command",
            )
        if act == "replay":
            verb.add_argument(
                *("--from", "-f"),
                dest="start",
                metavar="TIME|ULID",
                required=True,
                help="first event: 0 (the oldest), a time such as now-2h or "
                "2026-11-21T10:00:00Z, or a record's ULID",
            )
        if act == "disable":
            verb.add_argument("--reason", metavar="TEXT", default="by hand", help="shown in status")


def _common(parser: argparse.ArgumentParser, default: Any) -> None:
    parser.add_argument(
        "--data", metavar="DIR", default=default, help="data folder (default: ./data)"
    )
    parser.add_argument(
        "--config", metavar="FILE", default=default, help="settings file (default: ./tailrace.yaml)"
    )


def _libraries(parser: argparse.ArgumentParser, default: Any) -> None:
    parser.add_argument(
        "--lib",
        metavar="DIR",
        action="append",
        default=default,
        help="folder of appenders that are not installed (*.py files and wheels); may be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs pipelines until a signal comes; returns the exit status."""
    if arguments.act == "import":
        return _import(arguments)
    if arguments.act == "check":
        return _check(arguments)
    if arguments.act in _ACTS:
        return asyncio.run(_change(arguments))
    from tailrace.pipelines.definition import beside, names_of

    read_again = _reader(arguments)
    found = beside(read_again())
    if arguments.act == "status" and (names := names_of(found)):
        _complain_of(found)
        return asyncio.run(_status(arguments, names))
    pipelines = found.pipelines
    if not pipelines:
        nothing = InvalidInput(
            f"{arguments.dir} has no pipeline", hint="A pipeline is a file *.yaml."
        )
        raise next(iter(found.wrong.values()), nothing)
    log_to(sys.stderr, "%(message)s")
    return _run(arguments, pipelines, read_again)


def _settings(arguments: argparse.Namespace) -> Any:
    from tailrace.pipelines.world import load_settings

    flags = {} if arguments.data is None else {"data": arguments.data}
    return load_settings(flags, arguments.config)


def _complain_of(found: PipelineFolder) -> None:
    for error in found.wrong.values():
        complain(str(error), error.hint)


def _reader(arguments: argparse.Namespace) -> Callable[[], PipelineFolder]:
    """Reads the pipelines of `--dir` with the plugins of `--lib`, as both are then."""
    from tailrace.pipelines.appenders.registry import AppenderRegistry, Libraries
    from tailrace.pipelines.definition import read_folder

    if not arguments.dir:
        raise InvalidInput("--dir is missing", hint="Name the folder of the pipelines' files.")
    libraries, defaults = Libraries(arguments.lib or ()), _settings(arguments).pipelines.defaults
    return lambda: read_folder(arguments.dir, AppenderRegistry(libraries), defaults)


def _run(
    arguments: argparse.Namespace,
    pipelines: Sequence[PipelineConfig],
    read_again: Callable[[], PipelineFolder],
) -> int:
    from tailrace.logstore.filesystem import apply_umask
    from tailrace.logstore.process import give_back_freed_memory
    from tailrace.pipelines.process import run_pipelines

    give_back_freed_memory()
    settings = _settings(arguments)
    apply_umask(settings.umask)

    def started(process: PipelinesProcess) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, process.stop)
        names = ", ".join(one.name for one in pipelines)
        say(f"pipelines of {arguments.dir}: {names}", sys.stderr)

    asyncio.run(run_pipelines(settings, pipelines, read_again, started))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    """Says what each file is, and everything that is wrong; appenders are made, not started."""
    import os

    from tailrace.pipelines.appenders.registry import AppenderRegistry, Libraries
    from tailrace.pipelines.definition import PipelineFolder, beside, read, read_folder

    registry = AppenderRegistry(Libraries(arguments.lib or ()))
    rest = registry, _settings(arguments).pipelines.defaults
    wrong = dict(registry.wrong)
    for path in arguments.paths:
        try:
            folder = (
                read_folder(path, *rest)
                if os.path.isdir(path)
                else PipelineFolder([read(path, *rest)])
            )
        except InvalidInput as error:
            wrong[path] = error
            continue
        folder = beside(folder)
        wrong |= folder.wrong
        for one in folder.pipelines:
            try:
                one.try_out()
            except InvalidInput as error:
                wrong[one.path] = error
                continue
            appenders = ", ".join(f"{each.name} ({each.part.type})" for each in one.appenders)
            say(f"{one.path}: pipeline {one.name}: {appenders}")
    _complain_of(PipelineFolder(wrong=wrong))
    return 1 if wrong else 0


def _import(arguments: argparse.Namespace) -> int:
    import os

    import yaml

    from tailrace.pipelines.appenders.registry import AppenderRegistry
    from tailrace.pipelines.definition import parse
    from tailrace.pipelines.logback import convert

    stem = os.path.splitext(os.path.basename(arguments.path))[0]
    try:
        with open(arguments.path, "rb") as file:
            found = convert(file.read(), stem)
    except OSError as error:
        raise InvalidInput(f"{arguments.path} cannot be read: {error.strerror}") from None
    except InvalidInput as error:
        raise InvalidInput(f"{arguments.path}: {error}", hint=error.hint) from None
    content = {**found.content, "name": arguments.name or found.content["name"]}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    for line, what in found.remarks:
        say(f"{arguments.path}:{line}: {what}", sys.stderr)
    if "${" not in text:  # else its variables are not known yet
        parse(content, AppenderRegistry())
    if not arguments.out:
        say(text, end="")
        return 0
    try:
        with open(arguments.out, "x", encoding="utf-8") as made:
            made.write(text)
    except OSError as error:
        raise InvalidInput(f"{arguments.out} cannot be written: {error.strerror}") from None
    say(f"{arguments.out}: pipeline {content['name']}; check it, and run it", sys.stderr)
    return 0


async def _change(arguments: argparse.Namespace) -> int:
    from tailrace.pipelines.world import admin_of, open_world

    name, settings = arguments.pipeline, _settings(arguments)
    if arguments.act == "replay" and settings.pipelines.source_url:
        raise InvalidInput(
            "a pipeline that reads over HTTP cannot be replayed: no route gives the table",
            hint="Run it where the store is reachable, without pipelines.source_url; or `skip`.",
        )
    async with open_world(settings) as world:
        admin = admin_of(world)
        if arguments.act == "redeliver":
            return await _redeliver(admin, world.clock, name, arguments.appender, arguments.wait)
        match arguments.act:
            case "pause" | "resume":
                found = await admin.pause(name, paused=arguments.act == "pause")
            case "enable":
                found = await admin.enable(name, arguments.appender)
            case "disable":
                found = await admin.disable(name, arguments.appender, arguments.reason)
            case _:
                start = arguments.start if arguments.act == "replay" else None
                asked, found = await admin.replay(name, start)
                place = "what comes" if asked.low is None else asked.low
                say(f"{name}: continues at {place}, in replay {asked.id}")
    disabled = {one.appender: one.reason for one in found.parts if one.state == "disabled"}
    said = ", ".join(f"{appender} ({reason})" for appender, reason in disabled.items())
    say(f"{name}: {found.state}; disabled: {said or '-'}")
    return 0


async def _redeliver(
    admin: PipelinesAdmin, clock: Clock, name: str, appender: str, seconds: float
) -> int:
    """Asks for it, and says what became of it: 0 if all was sent, 1 if some was refused again."""
    asked, found = await admin.redeliver(name, appender)
    begun = clock.monotonic()
    while True:
        parts = [one for one in found.parts if one.appender == appender]
        done = [one for one in parts if one.redelivery and one.redelivery.id >= asked]
        done = [one for one in done if one.redelivery and one.redelivery.done]
        if len(done) == len(parts) or clock.monotonic() - begun >= seconds:
            break
        await clock.sleep(_LOOK_SECONDS)
        found = await admin.show(name)
    refused = 0
    for one in parts:
        at = one.redelivery
        if at is None or at.id < asked:
            why = "is paused" if found.state == "paused" else f"has the owner {one.owner or '-'}"
            say(f"{name}/{appender}/{one.part}: not begun; the part {why}")
            continue
        refused += at.refused
        said = f"{at.sent} sent, {at.refused} refused again, {at.deleted} of deleted runs"
        say(f"{name}/{appender}/{one.part}: {said}{'' if at.done else ', and it goes on'}")
    if len(done) < len(parts):
        complain(
            f"some dead letters were not sent within {seconds:.0f} s",
            "A process of `tailrace pipelines` sends the rest by itself; `status` shows it.",
        )
    elif refused:
        complain(
            f"{refused} dead letters were refused again, and are kept",
            "The key `reason` of each letter has the cause. Correct it, then resend them.",
        )
    return 1 if refused or len(done) < len(parts) else 0


async def _status(arguments: argparse.Namespace, names: Sequence[str]) -> int:
    from tailrace.coordination.pipelines import COUNTS
    from tailrace.pipelines.world import open_world, rows

    async with open_world(_settings(arguments)) as world:
        found = await rows(world, names)
    if arguments.json:
        for row in found:
            say_json(orjson.dumps(row).decode())
        return 0
    heads = (
        "pipeline",
        "appender",
        "part",
        "state",
        "owner",
        "segments behind",
        "lag seconds",
        "checkpoint",
        *COUNTS,
        "error",
    )
    lines = [heads, *(tuple(_text(row, head) for head in heads) for row in found)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(heads))]
    for line in lines:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def _text(row: Mapping[str, Any], head: str) -> str:
    if head == "checkpoint":
        at = row["checkpoint_at"]
        return "-" if at is None else f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    if head == "error":
        said = [str(text) for text in (row["reason"], row["error"]) if text]
        if len(said) == 2 and said[1] in said[0]:  # it was disabled for what failed last
            said.pop()
        return "; ".join(said) or "-"
    value = row[head.replace(" ", "_")]
    if isinstance(value, float):
        return f"{value:,.0f}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
