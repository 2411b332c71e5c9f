"""Every fault of the list fits the code as it is; `python -m tests.compactor.histories` runs it."""

from __future__ import annotations

import pytest

from tests.compactor.histories.mutations import MUTATIONS as OF_HISTORIES
from tests.compactor.torture.mutations import MUTATIONS as OF_TORTURE
from tests.proving import Mutation

EVERY = [one for of in (OF_HISTORIES, OF_TORTURE) for first in of for one in (first, *first.also)]


@pytest.mark.parametrize("mutation", EVERY, ids=lambda mutation: mutation.name)
def test_it_fits_the_code(mutation: Mutation) -> None:
    assert mutation.before not in mutation.broken() or mutation.before in mutation.after
