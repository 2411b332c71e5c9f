"""`tailrace forward state list|export|reset`: what a forwarder knows of files.

`list` is for people, `export` for programs: a line of JSON for each file, as the checkpoint log has
it. Both may run beside a forwarder. `reset` needs it to be stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from forwarder.checkpoints.encoding import encode
from forwarder.checkpoints.log import Checkpoints
from forwarder.checkpoints.reading import read_states
from forwarder.config.forwarder import default_storage
from forwarder.config.load import read
from forwarder.model import FileState
from logstore.errors import InvalidInput, NotFound
from logstore.patterns import wildcard_test
from tailrace.console.terminal import say

_ACTS = ("list", "export", "reset")
_HEADS = ("STAGE", "SOURCE", "RUN", "ACKNOWLEDGED", "SIZE", "SENDING", "LOST", "PATH")


def run(words: Sequence[str], arguments: argparse.Namespace) -> int:
    """Does what the words say. Raises `InvalidInput` and what the checkpoints raise."""
    if not words or words[0] not in _ACTS:
        raise InvalidInput(
            "what is to be done with the state?", hint=f"One of: state {', state '.join(_ACTS)}."
        )
    act, files = words[0], words[1:]
    folder = arguments.storage or _configured(arguments.config)
    if act == "reset":
        return _reset(folder, files, arguments)
    if files:
        raise InvalidInput(f"state {act} takes no files", hint="It shows all of them.")
    states = sorted(read_states(folder).values(), key=lambda state: (state.path, state.id))
    if act == "export":
        for state in states:
            sys.stdout.write(encode(state, with_fingerprint=True).decode("ascii"))
        return 0
    say(_table(states))
    return 0


def _configured(config: str | None) -> str:
    return read(config).folder if config else default_storage()


def _reset(folder: str, files: Sequence[str], arguments: argparse.Namespace) -> int:
    if bool(files) + arguments.all + arguments.damaged != 1:
        raise InvalidInput(
            "what is to be reset?",
            hint="Name files, by path, pattern or id; or --all; or --damaged.",
        )
    salvage = arguments.all or arguments.damaged
    with Checkpoints(folder, say=_say, salvage=salvage) as log:
        if arguments.damaged:
            _say(f"{len(log.files)} files are known")
        elif arguments.all:
            count = len(log.files)
            _say(f"{count} files are forgotten; what was known of them is kept in {log.reset()}")
        else:
            try:
                tests = [wildcard_test(one) for one in files]
            except ValueError as error:
                raise InvalidInput(f"a pattern {error}", hint="Name files by their ids.") from None
            chosen = [
                state
                for state in log.files.values()
                if state.id in files or any(test(state.path) for test in tests)
            ]
            if not chosen:
                raise NotFound(
                    f"no file is known as {' or '.join(files)}",
                    hint="`tailrace forward state list` shows the paths.",
                )
            for state in chosen:
                log.forget(state.id)
                say(_printable(state.path))
    return 0


def _table(states: Sequence[FileState]) -> str:
    rows = [_HEADS, *map(_cells, states)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    )


def _cells(state: FileState) -> tuple[str, ...]:
    return (
        state.stage,
        state.source,
        f"{state.fqn}/{state.run}" if state.fqn else "-",
        str(state.cursor.offset),
        str(state.size),
        str(len(state.prepared)),
        str(state.lost),
        _printable(state.path),
    )


def _printable(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode()


def _say(sentence: str) -> None:
    say(f"tailrace forward: {sentence}", sys.stderr)
