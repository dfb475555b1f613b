"""The scheduler with the fake executor, whose tokens and reads tell whether KV was ever mixed up."""

from engine.config import SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import FinishReason, SamplingParams
from engine.scheduling import Scheduler
from engine.simulation import FakeExecutor, make_request, run_to_completion


def make_scheduler(
    num_blocks: int = 64,
    *,
    max_running: int = 8,
    step_tokens: int = 32,
    chunk_tokens: int = 32,
    max_model_len: int = 512,
    prefix_cache: bool = True,
) -> Scheduler:
    config = SchedulerConfig(max_running=max_running, step_tokens=step_tokens, chunk_tokens=chunk_tokens)
    return Scheduler(config, KVCacheManager(BlockPool(num_blocks), prefix_cache=prefix_cache), max_model_len)


def test_tokens_do_not_depend_on_company_memory_or_chunks() -> None:
    def requests() -> list:
        return [
            make_request(f"r{i}", range(10 * i, 10 * i + 20), arrival=i, params=SamplingParams(max_tokens=40))
            for i in range(6)
        ]

    alone = {}
    for request in requests():
        alone |= run_to_completion(make_scheduler(), FakeExecutor(64), [request])
    crowded = make_scheduler(7, step_tokens=8, chunk_tokens=3)
    together = run_to_completion(crowded, FakeExecutor(7), requests())

    assert crowded.stats().preemptions_total > 0
    assert {key: value.token_ids for key, value in together.items()} == {
        key: value.token_ids for key, value in alone.items()
    }
    assert all(transcript.finish_reason is FinishReason.LENGTH for transcript in together.values())
    assert crowded.stats().free_blocks == 7
