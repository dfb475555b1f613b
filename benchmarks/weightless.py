"""`turnpike` with a model that weighs nothing, for what is not the model: `python -m benchmarks.weightless serve ...`.

All is as it is, from the keys to the journal, the engine's thread, its scheduler and its text, but for the executor: it
draws the same token for every row, when a step of `BENCHMARK_STEP_MS` is over. The tokenizer is SmolLM2's.
Clients that do not read are kept for as long as a measurement may take.
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import gateway.process.gateway_processes
import gateway.process.serve
from engine.catalog.catalog import fetch
from engine.checkpoints.checkpoint import open_checkpoint
from engine.config import EngineConfig, SchedulerConfig
from engine.engine import Engine
from engine.memory.block_pool import BlockPool
from engine.memory.kv_cache import KVCacheManager
from engine.request import ServiceClass
from engine.runtime.loaded_model import LoadedModel, ServedModel
from engine.runtime.thread import EngineThread
from engine.scheduling.plan import RowResult, StepPlan, StepResult
from engine.scheduling.scheduler import Scheduler
from engine.workers.worker_engine import WorkerEngine
from gateway.config.settings import Settings
from gateway.generation.service_classes import engine_classes_of
from gateway.management.cli import main
from gateway.process.connection import server_config

MODEL = "weightless"
STEP_MS = "BENCHMARK_STEP_MS"
OWN_PROCESS = "BENCHMARK_OWN_PROCESS"
SLOTS = 1_200
NUM_BLOCKS = 131_072
WINDOW_TOKENS = 8_192
STEP_TOKENS = 8_192
STALL_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that is over at a moment of the monotonic clock."""

    result_of_step: StepResult
    ends_s: float

    def result(self) -> StepResult:
        time.sleep(max(0.0, self.ends_s - time.monotonic()))
        return self.result_of_step


class WeightlessExecutor:
    """Draws `token` for each row that samples."""

    async_depth = 0
    micro_batches = 1
    takes_drafts = False
    launches = None
    expert_tokens = ()

    def __init__(self, token: int, step_s: float) -> None:
        self._drawn, self._nothing = RowResult(token=token), RowResult()
        self._step_s = step_s

    def execute(self, plan: StepPlan) -> _Step:
        rows = tuple(self._drawn if row.samples else self._nothing for row in plan.rows)
        return _Step(StepResult(rows), time.monotonic() + self._step_s)


def load_engine(kind: type[Engine], settings: Settings, _report: Any) -> Engine:
    """In place of the program's own."""
    return engine_of(kind, fetch("smollm2", settings.models_dir), engine_classes_of(settings))


def load_worker(settings: Settings, _report: Any) -> WorkerEngine:
    """In place of the program's own: with the engine in a process of its own."""
    config = EngineConfig(scheduler=_config(engine_classes_of(settings)), salt_key=b"\0" * 32)
    return WorkerEngine({MODEL: fetch("smollm2", settings.models_dir)}, config, module="benchmarks.weightless_process")


def _config(classes: tuple[ServiceClass, ...]) -> SchedulerConfig:
    return SchedulerConfig(max_running=SLOTS, step_tokens=STEP_TOKENS, classes=classes)


def engine_of(kind: type[Engine], path: Path, classes: tuple[ServiceClass, ...]) -> Engine:
    """An engine whose one model has the text of the checkpoint at `path`."""
    checkpoint = open_checkpoint(path)
    text = checkpoint.text_processor()
    scheduler = Scheduler(_config(classes), KVCacheManager(BlockPool(NUM_BLOCKS)), WINDOW_TOKENS)
    executor = WeightlessExecutor(text.encode(" time", add_special_tokens=False)[0], float(os.environ[STEP_MS]) / 1e3)
    served = ServedModel(
        MODEL,
        text,
        scheduler.window_tokens,
        {each.name: scheduler.window_tokens_of(each.name) for each in classes},
        checkpoint.config.vocab_size,
        text.tokenizer.eos_token_ids,
        int(time.time()),
        "0",
    )
    no_weights = cast(Any, None)
    loaded = LoadedModel(served, path, no_weights, scheduler, executor, no_weights)
    return kind([loaded], EngineThread(), b"\0" * 32, {}, step_timeout_seconds=60.0)


def command(
    step_ms: float, module: str = "benchmarks.weightless", *, own_process: bool = False
) -> tuple[Sequence[str], dict[str, str]]:
    """The command that runs this program, to be followed by `serve` and its arguments, and its environment.
    `own_process`: the engine is in a process of its own."""
    environment = {STEP_MS: str(step_ms), OWN_PROCESS: str(int(own_process))}
    return (sys.executable, "-W", "ignore", "-m", module), environment


def serve(kind: type[Engine]) -> None:
    """The program, with an engine of this kind; in a process of its own, if the environment asks for it."""
    own = os.environ.get(OWN_PROCESS) == "1"
    several = gateway.process.gateway_processes
    several.start_engine = partial(several.start_engine, module="benchmarks.weightless_process")
    gateway.process.serve.load_engine = load_worker if own else partial(load_engine, kind)
    gateway.process.serve.server_config = partial(server_config, stall_seconds=STALL_SECONDS)  # type: ignore[assignment]
    main()


if __name__ == "__main__":
    serve(Engine)
