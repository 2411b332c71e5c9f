"""Copies of data folders, over a real S3 server, through the fault proxy: each scenario once.

The scenarios are `test_node_copies`'; there, over the simulated disk, they are run with more seeds.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.service.shipping import test_node_copies as copies

SCENARIOS = [
    copies.test_a_clone_and_its_original_go_on_at_once,
    copies.test_a_clone_starts_after_its_original_went_on,
    copies.test_what_the_original_shipped_was_consumed_and_is_gone,
    copies.test_an_older_copy_is_restored_over_a_newer_folder,
    copies.test_a_copy_of_a_copy,
]


@pytest.mark.in_turn(4)
@pytest.mark.usefixtures("every_server")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_copies(scenario: Callable[[int], None]) -> None:
    scenario(0)
