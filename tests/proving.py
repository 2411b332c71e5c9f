"""Faults put into the code on purpose, to prove that a torture sees them: `ARGS=--prove`.

Each is one exact replacement in one file, made in a copy of the tree: programs that run there
are broken, the tree itself never is. First the program must pass in a copy that is whole, then
fail in each that is not; where it passes it has a blind spot.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

TREE = Path(__file__).parents[1]
_COPIED = ("service", "compactor", "tailrace", "tests")
_TOLD_LINES = 3


@dataclass(frozen=True)
class Mutation:
    """What is broken: `before`, which stands once in `file`, becomes `after`.

    `arguments` are added to the program's, for faults that only some of its forms can see. `also`
    are broken with it: what another layer would make good again is seen only without that.
    """

    name: str
    file: str
    before: str
    after: str
    arguments: tuple[str, ...] = ()
    also: tuple[Mutation, ...] = ()

    def broken(self, tree: Path = TREE) -> str:
        """The file's text with the fault; raises `ValueError` if it does not fit the code."""
        text = (tree / self.file).read_text()
        if text.count(self.before) != 1:
            raise ValueError(f"{self.name}: {self.file} has not once {self.before!r}")
        made = text.replace(self.before, self.after)
        compile(made, self.file, "exec")
        return made


def prove(
    mutations: Sequence[Mutation],
    command: Sequence[str],
    *,
    tries: int = 1,
    timeout_seconds: float = 900,
) -> list[str]:
    """Runs `python` with `command` in a broken copy for each; names those that nobody saw.

    Each has `tries`, since a torture is random. A program that does not end in time counts as
    one that saw its fault: it waits for what never comes. Raises `RuntimeError` if it fails
    where nothing is broken.
    """
    with _copied() as copy:
        if _fails("nothing is broken", command, copy, timeout_seconds):
            raise RuntimeError(f"{' '.join(command)} fails in a copy without a fault")
    unseen = []
    for mutation in mutations:
        with _copied() as copy:
            for one in (mutation, *mutation.also):
                (copy / one.file).write_text(one.broken(copy))
            seen = any(
                _fails(mutation.name, [*command, *mutation.arguments], copy, timeout_seconds)
                for _ in range(tries)
            )
        print(f"{'seen' if seen else 'NOT SEEN'}: {mutation.name}", flush=True)
        if not seen:
            unseen.append(mutation.name)
    return unseen


@contextmanager
def _copied() -> Iterator[Path]:
    with TemporaryDirectory(prefix="tailrace-broken-") as folder:
        copy = Path(folder) / "tree"
        for name in _COPIED:
            shutil.copytree(TREE / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        yield copy


def _fails(name: str, command: Sequence[str], copy: Path, timeout: float) -> bool:
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=copy,
        env=_environment(copy),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            told, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            return True
        finally:
            _end(process)
    if process.returncode != 0:
        print(f"  {name}: ", *told.splitlines()[-_TOLD_LINES:], sep="\n    ")
    return process.returncode != 0


def _environment(copy: Path) -> Mapping[str, str]:
    """`python -m` looks in its folder first, installed programs where this says."""
    return {**os.environ, "PYTHONPATH": str(copy)}


def _end(process: subprocess.Popen[str]) -> None:
    """Whatever it started goes with it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
