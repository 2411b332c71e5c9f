"""Nothing is collected while modules are loaded."""

from __future__ import annotations

import gc

import pytest

from tailrace.logstore.process import collection_paused


def test_nothing_is_collected_while_modules_are_loaded() -> None:
    with collection_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_module_that_cannot_be_loaded_leaves_the_collector_on() -> None:
    with pytest.raises(ZeroDivisionError), collection_paused():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
