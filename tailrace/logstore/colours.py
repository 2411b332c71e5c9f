"""The text of coloured lines, as people see it: without the control sequences of terminals.

Stored bytes keep their sequences. A search for a text finds a line if the line has it as it is
stored, or as it is seen: `step <green>deploy<reset> failed` has "step deploy failed".
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

SEQUENCE: Final = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])"
"""A control sequence of ECMA-48, or a command for the terminal such as a link; for RE2 and `re`."""


def is_coloured(text: bytes) -> bool:
    """Whether the text may have control sequences."""
    return b"\x1b" in text


def as_seen(messages: pa.ChunkedArray) -> pa.ChunkedArray:
    """Messages without control sequences."""
    return pc.replace_substring_regex(messages, pattern=SEQUENCE, replacement="")
