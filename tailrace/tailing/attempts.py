"""The attempt before a run, or the run before it, as the page's comparison takes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

_NUMBERED: Final = re.compile(r"(.+?)[\W_]*(?:attempt|retry|try)?[\W_]*?0*(\d+)", re.IGNORECASE)


def base_of(run: dict[str, Any]) -> str | None:
    """What the ids of attempts of one thing have in common; None for a run that is none."""
    found = _NUMBERED.fullmatch(run["runId"])
    attempt = run.get("attempt")
    return found[1] if found and attempt is not None and int(found[2]) == attempt else None


def before(runs: Sequence[dict[str, Any]], run: str) -> str | None:
    """The id of the attempt before `run`, else of the run that began before it; None without.

    `runs` are details as `GET …/logs/{fqn}` lists them: the run that began last first.
    """
    at = next((n for n, one in enumerate(runs) if one["runId"] == run), None)
    if at is None:
        return None
    own = runs[at]
    base = base_of(own)
    if base is not None:
        earlier = [r for r in runs if base_of(r) == base and r["attempt"] < own["attempt"]]
        if earlier:
            return str(max(earlier, key=lambda one: int(one["attempt"]))["runId"])
    return str(runs[at + 1]["runId"]) if at + 1 < len(runs) else None
