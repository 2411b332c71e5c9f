"""Log lines for people: a record is one line, whatever names its message quotes.

A message quotes paths, keys, and answers of other programs. Any of them may hold line ends and
control sequences of terminals. They are shown as escapes. A traceback keeps its lines.
"""

from __future__ import annotations

import logging
from typing import TextIO

from tailrace.logstore.progress import Line


class LineFormatter(logging.Formatter):
    """Formats a record whose message is one printable line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- the base's name
        record.message = escaped(record.message)
        return super().formatMessage(record)


def escaped(text: str) -> str:
    """The text with escapes in place of everything that is not printed; tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        [
            one if one.isprintable() or one == "\t" else one.encode("unicode_escape").decode()
            for one in text
        ]
    )


def log_to(out: TextIO | Line, form: str) -> None:
    """Logs go to `out` in this form, from INFO on, unless they go somewhere already."""
    handler: logging.StreamHandler[TextIO | Line] = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
