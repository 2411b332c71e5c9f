"""Expecting an error of the operating system."""

from __future__ import annotations

import pytest


def refused(number: int) -> pytest.RaisesExc[OSError]:
    """`with refused(errno.ENOSPC): …` passes if the body raises just that."""
    return pytest.raises(OSError, match=rf"\[Errno {number}\]")
