"""What Spark said of its failure, in one line."""

from __future__ import annotations


def reason(error: Exception) -> str:
    """Java's own words of a py4j error, of others the first line, of the mute their name.

    py4j puts a line of its own first, and Java's exception is the second.
    """
    try:
        lines = str(error).splitlines()
    except Exception:  # noqa: BLE001 - with its JVM gone one fails to put itself into words
        lines = []
    java = len(lines) > 1 and lines[1].startswith(": ")
    return (lines[1].removeprefix(": ") if java else "".join(lines[:1])) or type(error).__name__
