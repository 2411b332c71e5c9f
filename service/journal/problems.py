"""What is wrong with a journal, as sentences for `/health/ready` and the log.

A sentence stays the same for as long as its problem lasts.
"""

from __future__ import annotations

from collections.abc import Iterator

from service.journal.journal import Journal
from service.journal.recovery import Recovered


def journal_problems(journal: Journal, recovered: Recovered) -> Iterator[str]:
    """Why batches are refused now, and what was damaged when the journal was opened."""
    if journal.failure is not None:
        yield str(journal.failure)
    shortage = journal.room.shortage()
    if shortage is not None:
        yield shortage
    elif journal.postponed is not None:
        yield journal.postponed
    for damage in recovered.found:
        yield f"{damage.file}: {damage.size} bytes at {damage.offset} {damage.reason}"
    for tail in recovered.torn:
        if tail.followed:
            yield (
                f"{tail.file}: {tail.size} bytes at {tail.offset} were cut off from an entry on "
                "that does not read, though a whole one follows it: damage, or writes under way "
                f"when the power went; a copy is at {tail.copy or 'no place: no room'}"
            )
