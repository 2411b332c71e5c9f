"""Of which parts an object is made, whatever is put together: S3's limits hold, no byte moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.logstore.objects.s3.writes import (
    MIB,
    GivenBytes,
    PartLimits,
    Sent,
    StoredRange,
    plan,
)

LIMITS = PartLimits(smallest=50, count=20, copied=300, sent=120)

SPANS = st.lists(
    st.one_of(
        st.builds(
            StoredRange,
            key=st.sampled_from("ab"),
            offset=st.integers(0, 1000),
            size=st.integers(0, 2000),
        ),
        st.builds(lambda size: GivenBytes(memoryview(bytes(size))), st.integers(0, 700)),
    ),
    max_size=60,
)


def _pieces(parts: list[StoredRange | Sent]) -> list[StoredRange | GivenBytes]:
    """All spans in order; neighbours of one source joined again."""
    found: list[StoredRange | GivenBytes] = []
    for part in parts:
        for piece in part.pieces if isinstance(part, Sent) else [part]:
            last = found[-1] if found else None
            if isinstance(piece, GivenBytes):
                if isinstance(last, GivenBytes):
                    found[-1] = GivenBytes(memoryview(bytes(last.data) + bytes(piece.data)))
                else:
                    found.append(piece)
            elif (
                isinstance(last, StoredRange)
                and last.key == piece.key
                and last.offset + last.size == piece.offset
            ):
                found[-1] = StoredRange(last.key, last.offset, last.size + piece.size)
            else:
                found.append(piece)
    return found


@given(sources=SPANS)
def test_every_byte_is_in_its_place_and_every_limit_holds(
    sources: list[StoredRange | GivenBytes],
) -> None:
    parts = plan(sources, LIMITS)
    as_asked: list[StoredRange | Sent] = [
        Sent([source]) if isinstance(source, GivenBytes) else source
        for source in sources
        if source.size
    ]
    assert _pieces(parts) == _pieces(as_asked)
    assert len(parts) <= LIMITS.count
    total = sum([source.size for source in sources])
    smallest = max(LIMITS.smallest, -(-total // LIMITS.count))
    for part in parts[:-1]:
        assert part.size >= smallest
    for part in parts:
        if isinstance(part, Sent):
            assert part.size <= max(LIMITS.sent, smallest)
        else:
            assert smallest <= part.size <= max(LIMITS.copied, 2 * smallest)


@given(sources=SPANS)
def test_only_small_ranges_pass_through_here(sources: list[StoredRange | GivenBytes]) -> None:
    """What is read of a stored range is less than two smallest parts."""
    total = sum([source.size for source in sources])
    smallest = max(LIMITS.smallest, -(-total // LIMITS.count))
    read = 0
    for part in plan(sources, LIMITS):
        if isinstance(part, Sent):
            read += sum([piece.size for piece in part.pieces if isinstance(piece, StoredRange)])
    stored = [source.size for source in sources if isinstance(source, StoredRange)]
    assert read <= sum([min(size, 2 * smallest) for size in stored])


def test_an_object_of_nothing_has_no_parts() -> None:
    assert plan([GivenBytes(memoryview(b"")), StoredRange("a", 5, 0)], LIMITS) == []


def test_a_run_of_twenty_gigabytes_is_copied_in_parts_that_s3_takes() -> None:
    parts = plan(
        [StoredRange("logs", 0, 20 << 30), GivenBytes(memoryview(b"late\n"))], PartLimits()
    )
    sizes = [part.size for part in parts]
    assert sum(sizes) == (20 << 30) + 5
    assert all(isinstance(part, StoredRange) for part in parts[:-1])
    assert max(sizes) <= 5 << 30
    assert min(sizes[:-1]) >= 5 * MIB
    assert len(parts) == 81


def test_the_largest_object_has_no_more_parts_than_allowed() -> None:
    parts = plan([StoredRange("logs", 0, 5 << 40)], PartLimits())
    assert len(parts) <= 10_000
    assert max([part.size for part in parts]) <= 5 << 30
