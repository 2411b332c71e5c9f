"""Layouts: how an event becomes bytes in a file. Each event ends with a newline.

json      an object a line: ulid, ts, fqn, run, level, connector, message, attributes
logfmt    key=value pairs a line
pattern   logback's conversion words (`pattern`)
raw       the message alone, as it was written
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from pipelines.layouts.columns import Json, Logfmt, Raw
from pipelines.layouts.pattern import Pattern

__all__ = ["Json", "Layout", "Logfmt", "Pattern", "Raw", "default_layout"]

Layout: TypeAlias = Annotated[Json | Logfmt | Pattern | Raw, Field(discriminator="type")]
"""One of them, by its `type`."""


def default_layout() -> Raw:
    """The layout where none is named."""
    return Raw()
