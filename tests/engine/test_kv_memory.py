"""How much KV memory a model gets, and what is said where it is not enough."""

import pytest

from engine.memory.kv_memory import (
    DEVICE_SHARE,
    DeviceMemory,
    InsufficientMemory,
    KVBudget,
    chosen_budget,
    device_budget,
    host_budget,
    size_pool,
    size_states,
)

GIB = 2**30


def test_a_gpu_gives_what_weights_and_steps_leave_of_the_engines_part() -> None:
    memory = DeviceMemory(total_bytes=141 * GIB, taken_bytes=17 * GIB, step_bytes=2 * GIB, graph_bytes=GIB)
    expected = int(141 * GIB * DEVICE_SHARE) - 20 * GIB
    assert device_budget(memory, 1.0).kv_bytes == expected
    assert device_budget(memory, 0.5).kv_bytes == expected // 2
    reason = device_budget(memory, 0.5).reason
    assert reason.startswith("50% of: 92% of the GPU's 141.00 GiB, less 17.00 GiB taken")
    assert "2.00 GiB for the largest steps and 1.00 GiB for CUDA graphs" in reason


def test_a_gpu_that_is_full_gives_nothing() -> None:
    memory = DeviceMemory(total_bytes=16 * GIB, taken_bytes=15 * GIB, step_bytes=3 * GIB, graph_bytes=0)
    budget = device_budget(memory, 1.0)
    assert budget.kv_bytes == 0
    with pytest.raises(
        InsufficientMemory, match=r"0 bytes .*16\.00 GiB, less 15\.00 GiB .* hold 0 blocks of 4096 bytes"
    ):
        size_pool(budget, 4096, slots=4, window=100)


def test_a_host_gives_a_quarter_and_no_more_than_four_gib() -> None:
    assert host_budget(8 * GIB, 1.0).kv_bytes == 2 * GIB
    assert host_budget(800 * GIB, 0.5).kv_bytes == 2 * GIB


def test_what_is_configured_has_to_be_there() -> None:
    limit = KVBudget(10 * GIB, "what is left")
    assert chosen_budget(9 * GIB, limit).kv_bytes == 9 * GIB
    assert chosen_budget(90 * GIB).kv_bytes == 90 * GIB
    with pytest.raises(InsufficientMemory, match=r"11\.00 GiB .* are configured; there are 10\.00 GiB: what is left"):
        chosen_budget(11 * GIB, limit)


def test_a_pool_is_no_larger_than_full_windows_in_every_slot() -> None:
    budget = KVBudget(1000 * 4096, "as configured")
    assert size_pool(budget, 4096, slots=100, window=1000).num_blocks == 1000
    assert size_pool(budget, 4096, slots=4, window=33).num_blocks == 4 * 3


def test_a_model_that_drafts_has_its_share_of_every_block_and_a_spare_one_for_each_slot() -> None:
    pool = size_pool(
        KVBudget(1000 * 5120 + 8 * 1024, "as configured"), 4096, slots=8, window=10_000, draft_block_bytes=1024
    )
    assert (pool.num_blocks, pool.block_bytes, pool.spare_bytes) == (1000, 5120, 8 * 1024)
    assert str(
        size_pool(KVBudget(3 * GIB, "all"), GIB // 4, slots=4, window=4096, draft_block_bytes=GIB // 4)
    ).startswith("64 tokens in 3.00 GiB")
    with pytest.raises(InsufficientMemory, match=r"hold 0 blocks of 5120 bytes .* and 8192 for drafts"):
        size_pool(KVBudget(8000, "as configured"), 4096, slots=8, window=100, draft_block_bytes=1024)


def test_a_pool_in_words() -> None:
    pool = size_pool(KVBudget(3 * GIB, "as configured"), GIB // 4, slots=64, window=4096)
    assert str(pool) == "192 tokens in 3.00 GiB (as configured)"


def test_two_blocks_at_least() -> None:
    with pytest.raises(InsufficientMemory, match="at least 2"):
        size_pool(KVBudget(4096, "as configured"), 4096, slots=4, window=100)


def test_states_take_a_slot_for_each_sequence_and_two_for_saved_ones() -> None:
    states = size_states(KVBudget(8 * GIB, "as configured"), GIB // 100, max_running=16, saves=True)
    assert (states.num_slots, states.max_running) == (48, 16)
    assert size_states(KVBudget(8 * GIB, "as configured"), GIB // 100, max_running=16, saves=False).num_slots == 16


def test_states_take_half_of_the_memory_at_most_and_fewer_sequences_run_then() -> None:
    budget = KVBudget(8 * GIB, "as configured")
    states = size_states(budget, GIB // 2, max_running=16, saves=True)
    assert (states.num_slots, states.max_running) == (8, 4)
    assert size_states(budget, GIB // 2, max_running=16, saves=False).max_running == 8
    pool = size_pool(budget, GIB // 8, slots=4, window=10_000, states=states)
    assert pool.num_blocks == 32
    assert "512 tokens and 8 states, for 4 sequences at once, in 8.00 GiB" in str(pool)


def test_memory_without_room_for_a_state_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(InsufficientMemory, match=r"4096 bytes .* holds 1 of 2000 bytes; one sequence needs 2"):
        size_states(KVBudget(4096, "as configured"), 2000, max_running=4, saves=True)
