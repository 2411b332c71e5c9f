"""Maps with a bound: which entries go, and when."""

from __future__ import annotations

from tailrace.logstore.cache import BoundedCache, Cache


def test_the_entry_that_was_not_used_for_longest_goes() -> None:
    known: BoundedCache[str, int] = BoundedCache(2)
    assert known.put("a", 1) == known.put("b", 2) == ()
    assert known.get("a") == 1
    assert known.peek("b") == 2
    assert known.put("c", 3) == [("b", 2)]
    assert list(known.items()) == [("a", 1), ("c", 3)]


def test_sizes_are_bounded_but_the_newest_entries_stay() -> None:
    known: BoundedCache[str, bytes | None] = BoundedCache(
        3, lambda value: len(value or b""), least=1
    )
    known.put("none", None)
    known.put("one", b"1")
    assert known.put("four", b"1234") == [("none", None), ("one", b"1")]
    assert known.size == 4
    assert known.put("four", b"12") == ()
    assert known.put("other", b"1") == ()
    assert known.copy().shrink(1) == [("four", b"12")]
    assert known.pop("other") == b"1"
    assert known.pop("other") is None
    assert known.size == 2


def test_a_value_that_is_larger_than_the_cache_is_not_kept() -> None:
    cache: Cache[str] = Cache(10)
    cache.put("a", "first", 6)
    cache.put("b", "large", 11)
    cache.put("a", "second", 6)
    assert (cache.get("a"), cache.get("b"), cache.bytes) == ("first", None, 6)
    cache.put("c", "third", 5)
    assert (cache.get("a"), cache.get("c"), cache.bytes) == (None, "third", 5)
