"""The cache of packed adapters: what is used recently stays, within its capacity."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from engine.adapters.packed_cache import PackedCache


@dataclass(frozen=True)
class Packed:
    bytes: int


def test_the_least_recently_used_adapter_goes_first() -> None:
    cache, first = PackedCache(10), Packed(5)
    cache.put("a", first)
    cache.put("b", Packed(5))
    assert cache.get("a") is first
    cache.put("c", Packed(4))
    assert cache.get("b") is None
    assert (cache.get("a"), cache.get("c")) == (first, Packed(4))
    cache.put("large", Packed(11))
    assert cache.get("large") is None
    assert cache.bytes == 9


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 12), st.booleans())), st.integers(0, 20))
def test_it_never_holds_more_than_its_capacity(uses: list[tuple[str, int, bool]], capacity: int) -> None:
    cache, packed = PackedCache(capacity), dict[str, Packed]()
    for digest, size, reads in uses:
        if reads:
            assert cache.get(digest) in (None, packed.get(digest))
        else:
            cache.put(digest, packed.setdefault(digest, Packed(size)))
        held = [each.bytes for other, each in packed.items() if cache.get(other) is not None]
        assert cache.bytes == sum(held) <= capacity
