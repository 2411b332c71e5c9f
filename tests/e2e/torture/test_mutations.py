"""Every fault of the list fits the code as it is; `make torture ARGS=--prove` shows each seen."""

from __future__ import annotations

import pytest

from tests.e2e.torture.mutations import MUTATIONS
from tests.e2e.torture.writers import Sent, explain
from tests.proving import Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_it_fits_the_code(mutation: Mutation) -> None:
    assert mutation.before not in mutation.broken() or mutation.before in mutation.after


A, B, C = Sent(b"a\n", True), Sent(b"b\n"), Sent(b"c\n", True)


@pytest.mark.parametrize("found", [b"a\nb\nc\n", b"a\nc\n"])
def test_a_batch_without_an_answer_is_there_or_not(found: bytes) -> None:
    assert explain([A, B, C], found) is None


@pytest.mark.parametrize(
    "found",
    [b"", b"a\n", b"b\nc\n", b"a\nb\nb\nc\n", b"a\na\nc\n", b"a\nc\nb\n", b"a\nc\nd\n", b"a\nc"],
)
def test_anything_else_is_explained(found: bytes) -> None:
    assert explain([A, B, C], found)
