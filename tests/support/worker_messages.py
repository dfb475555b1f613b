"""Messages of workers for tests of their clients."""

from dataclasses import replace

from engine.config import SchedulerConfig
from engine.memory.block_pool import BlockPool
from engine.memory.kv_cache import KVCacheManager
from engine.request import STANDARD
from engine.runtime.wait_prediction import LoadReport
from engine.sampling_defaults import NO_DEFAULTS
from engine.scheduling.cost import CostCoefficients
from engine.scheduling.scheduler import Scheduler
from engine.workers.messages import ModelFacts, Ready

COST = CostCoefficients(step_ns=5e6, token_ns=1e5, context_token_ns=10.0, pair_ns=1.0)


def ready(version: str = "1", *, waiting_tokens: int = 0, cost: CostCoefficients = COST) -> Ready:
    """A worker with the model `m`, idle but for `waiting_tokens` of one request."""
    config = SchedulerConfig(max_running=4, classes=(STANDARD,))
    scheduler = Scheduler(config, KVCacheManager(BlockPool(512)), 4096)
    snapshot = scheduler.snapshot()
    if waiting_tokens:
        load = replace(snapshot.classes[0], waiting_requests=1, waiting_tokens=waiting_tokens)
        snapshot = replace(snapshot, classes=(load,))
    facts = ModelFacts(
        name="m",
        max_model_len=4096,
        windows={"standard": 4096},
        vocab_size=100,
        eos_token_ids=(0,),
        created=0,
        version=version,
        takes_grammars=True,
        prefix_cache=True,
        sampling_defaults=NO_DEFAULTS,
        details=None,
        adapter_slots=0,
        ranks={"standard": 0},
        load=LoadReport(snapshot, cost, 1.0, (1.0,), ()),
    )
    return Ready([facts], {}, {"m": scheduler.stats(0)})
