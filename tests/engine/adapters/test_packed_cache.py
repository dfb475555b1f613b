"""The cache of packed adapters: what is used recently stays, within its capacity."""

from hypothesis import given
from hypothesis import strategies as st

from engine.adapters.packed_cache import PackedCache


def test_the_least_recently_used_adapter_goes_first() -> None:
    cache = PackedCache(10)
    for digest in "ab":
        cache.put(digest, digest.upper(), 5)
    assert cache.get("a") == "A"
    cache.put("c", "C", 4)
    assert [cache.get(digest) for digest in "abc"] == ["A", None, "C"]
    cache.put("large", "LARGE", 11)
    assert cache.get("large") is None
    assert cache.bytes == 9


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 12), st.booleans())), st.integers(0, 20))
def test_it_never_holds_more_than_its_capacity(uses: list[tuple[str, int, bool]], capacity: int) -> None:
    cache, sizes = PackedCache(capacity), dict[str, int]()
    for digest, size, reads in uses:
        if reads:
            assert cache.get(digest) in (None, digest)
        else:
            sizes.setdefault(digest, size)
            cache.put(digest, digest, sizes[digest])
        assert cache.bytes == sum(sizes[other] for other in sizes if cache.get(other) is not None) <= capacity
