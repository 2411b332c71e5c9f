"""Finds out whether this machine can run Spark; the only module that looks for Java.

Compaction needs a Java of version 17 or newer, found by `JAVA_HOME` and then `PATH`,
and pyspark in this environment. Nothing is installed and nothing is started but `java -version`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

OLDEST = 17
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
    if reason is None and importlib.util.find_spec("pyspark") is None:
        return f"pyspark is not installed; `{install_command()}` installs it"
    return reason


def install_command(package: str = __file__) -> str:
    """The command that adds Spark to this installation, by the place of the file `package`."""
    root = Path(package).resolve().parents[2]
    if (root / ".ci" / "setup").exists():
        return "make setup"
    if Path("uv", "tools").as_posix() in root.as_posix():
        return "uv tool install 'tailrace[spark]'"
    return "pip install 'tailrace[spark]'"
