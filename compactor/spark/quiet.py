"""What py4j logs of calls that fail is said once, by the error that they raise.

Whoever tells us to end may tell Spark's JVM as well, and calls that break off then are what was
asked for.
"""

from __future__ import annotations

import logging
import os
from typing import Final

_PY4J: Final = f"{os.sep}py4j{os.sep}"


def quiet_py4j() -> None:
    """Its logger says nothing more, nor does it by the root logger, as it does here and there."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_not_of_py4j)  # once, however often it is called


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return _PY4J not in record.pathname
