"""Hits and held blocks of further groups equal those of a naive model: sets of cached (group, block) pairs."""

from hypothesis import given
from hypothesis import strategies as st

from engine.config import BLOCK_TOKENS
from engine.memory import BlockPool, KVCacheManager
from engine.memory.window_groups import group_hash, num_held_blocks
from engine.models.kv_groups import group_layers
from engine.request import NULL_BLOCK
from engine.simulation import make_request
from kernels.layout import HeadShape
from tests.engine.memory.support import admit

WINDOWS = st.lists(st.one_of(st.none(), st.integers(1, 70)), min_size=1, max_size=3)


def sees(window: int | None, query: int, key: int) -> bool:
    return key <= query and (window is None or key > query - window)


@given(windows=WINDOWS, lost=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 7))), tail=st.integers(1, 16))
def test_a_hit_is_the_longest_prefix_whose_windows_are_cached(
    windows: list[int | None], lost: set[tuple[int, int]], tail: int
) -> None:
    blocks, groups = 8, 1 + len(windows)
    pool = BlockPool(200)
    cache = KVCacheManager(pool, windows=windows)
    tokens = [1] * (blocks * BLOCK_TOKENS + tail)
    first = make_request("first", tokens)
    assert admit(cache, first)

    first.computed = first.scheduled = 0
    cache.commit(first, blocks * BLOCK_TOKENS)
    hashes = first.block_hashes[:blocks]
    cache.release(first)
    gone = [(group, index) for group, index in lost if group < groups]
    for group, index in gone:
        (block,) = pool.match([hashes[index] if not group else group_hash(hashes[index], group)])
        pool.acquire([block])
        pool.forget([block])
        pool.release([block])
    again = make_request("again", tokens)
    found = cache.hits(again)

    def usable(count: int) -> bool:
        """Whether the token after `count` blocks finds all that it sees, in all groups."""
        query = count * BLOCK_TOKENS
        return all(
            (group, key // BLOCK_TOKENS) not in gone
            for group, window in enumerate([None, *windows])
            for key in range(query)
            if sees(window, query, key)
        )

    assert len(found.blocks) == max(count for count in range(blocks + 1) if usable(count))
    assert admit(cache, again)
    cache.check([again])


@given(windows=WINDOWS, chunks=st.lists(st.integers(1, 60), min_size=1, max_size=8), prefix_cache=st.booleans())
def test_a_request_holds_the_blocks_that_later_tokens_see(
    windows: list[int | None], chunks: list[int], prefix_cache: bool
) -> None:
    pool = BlockPool(2000)
    cache = KVCacheManager(pool, prefix_cache=prefix_cache, windows=windows)
    request = make_request("r", list(range(sum(chunks) + 1)))
    assert admit(cache, request)
    for chunk in chunks:
        before = request.computed // BLOCK_TOKENS
        request.scheduled += chunk
        cache.commit(request, chunk)
        cache.check([request])
        for window, table in zip(windows, request.window_tables, strict=True):
            kept = [index for index, block in enumerate(table) if block != NULL_BLOCK]
            seen = [key // BLOCK_TOKENS for key in range(request.computed + 1) if sees(window, request.computed, key)]
            assert kept[0] <= seen[0]
            if request.computed // BLOCK_TOKENS > before:  # windows are looked at when a block is full
                assert kept[0] == seen[0]
        assert num_held_blocks(request) == pool.num_blocks - pool.free_blocks
    cache.release(request)
    assert pool.free_blocks == pool.num_blocks
    cache.check([])


def test_layers_are_grouped_by_kind() -> None:
    gemma3 = ([1024] * 5 + [None]) * 8
    groups = group_layers(gemma3, 131_072)
    assert (groups.windows, groups.layers) == ((None, *[1024] * 5), 8)
    assert len(set(groups.places)) == len(gemma3), "two layers have one place"
    assert all(groups.windows[group] == window for (group, _), window in zip(groups.places, gemma3, strict=True))
    assert group_layers([128, None] * 12, 131_072).windows == (None, 128)


def test_layers_of_different_sizes_are_grouped_in_blocks_of_one_size() -> None:
    """Gemma 4 with 31 B parameters: a sliding layer has twice the KV of a full one."""
    windows = ([1024] * 5 + [None]) * 10
    heads = ([HeadShape(16, 256)] * 5 + [HeadShape(4, 512, has_values=False)]) * 10
    groups = group_layers(windows, 131_072, heads)
    assert groups.windows == (None, *[1024] * 5)
    assert len(set(groups.places)) == len(windows), "two layers have one place"
    sizes = [0] * len(groups.windows)
    for (group, _), layer, window in zip(groups.places, heads, windows, strict=True):
        assert groups.windows[group] == window
        sizes[group] += layer.kv_numbers
    assert max(sizes) == 10 * heads[0].kv_numbers
    assert sum(sizes) >= 7 / 8 * len(sizes) * max(sizes)


def test_one_group_where_nothing_would_be_released() -> None:
    for windows, max_positions in (([None] * 4, 4096), ([512, None], 520), ([4096] * 4, 32_768)):
        groups = group_layers(windows, max_positions)
        assert (groups.windows, groups.layers) == ((None,), len(windows))
