"""What stays for ever is not looked at for garbage."""

from __future__ import annotations

import gc

import pytest

from logstore.garbage import collection_paused, exempt_what_is_loaded


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


def test_what_is_loaded_is_left_out_of_collections() -> None:
    before = gc.get_freeze_count()
    made = [[number] for number in range(1000)]
    exempt_what_is_loaded()
    assert gc.get_freeze_count() >= before + len(made)
    assert not any(each is made for each in gc.get_objects())
