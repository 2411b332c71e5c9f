"""Finds out whether this machine can run Spark; the only module that looks for Java.

Compaction needs a Java of version 17 or newer, found by `JAVA_HOME` and then `PATH`,
and pyspark in this environment. Nothing is installed and nothing is started but `java -version`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

OLDEST = 17
# Environments that an installer makes for one program, by a part of their path.
_INSTALLERS = {
    "/uv/tools/": "uv tool install {}",
    "/uv/archive-": "uvx --from {} tailrace",
    "/pipx/venvs/": "pipx install --force {}",
}
_VERSION = re.compile(r'version "(?:1\.)?([0-9]+)')


def java_version(command: str) -> int | None:
    """The major version of a `java` command; None if it does not run or says nothing we know."""
    try:
        done = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found else None


def find_java() -> str | None:
    """The `java` that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return os.path.join(home, "bin", "java")
    return shutil.which("java")


def why_no_java() -> str | None:
    """A sentence that says which Java is missing here; None if there is one for Spark."""
    command = find_java()
    version = java_version(command) if command else None
    home = os.environ.get("JAVA_HOME")
    if home and not os.path.exists(command or ""):
        return f"no Java {OLDEST} found: JAVA_HOME is {home}, and there is no bin/java in it"
    if version is None:
        return f"no Java {OLDEST} found" + (f": {command} does not run" if command else "")
    if version < OLDEST:
        return f"no Java {OLDEST} found, only Java {version} ({command})"
    return None


def why_no_spark() -> str | None:
    """A sentence that says what Spark misses here; None if it can run."""
    reason = why_no_java()
    if reason is None and find_spec("pyspark") is None:
        return f"pyspark is not installed; `{install_command()}` installs it"
    return reason


def install_command(requirement: str = "tailrace[spark]", *, package: str = __file__) -> str:
    """The command that adds a requirement to this installation, which has the file `package`."""
    place = Path(package).resolve()
    if (place.parents[2] / ".ci" / "setup").exists():
        return "make setup"
    name = f"'{requirement}'" if "[" in requirement else requirement
    for folders, command in _INSTALLERS.items():
        if folders in place.as_posix():
            return command.format(name)
    return f"{'pip' if find_spec('pip') else 'uv pip'} install {name}"
