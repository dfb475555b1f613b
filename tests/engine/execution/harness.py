"""A tiny model with its runner and scheduler, stepped by hand."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.adapters.source import AdapterSource
from engine.checkpoints.checkpoint import open_checkpoint
from engine.config import SchedulerConfig
from engine.execution.runner import ModelRunner
from engine.memory.block_pool import BlockPool
from engine.memory.kv_cache import KVCacheManager
from engine.memory.sequence_states import SequenceStates
from engine.memory.state_pool import StatePool, StateUse
from engine.models.host_model import HostModel
from engine.models.kv_groups import KVGroups
from engine.models.loader import host_model, load_model
from engine.models.transformer import Transformer
from engine.request import STANDARD, Request, SamplingParams, TokenDelta
from engine.scheduling.drafting import DraftCapacity, Drafts
from engine.scheduling.plan import Executor, PendingStep, StepPlan
from engine.scheduling.scheduler import Scheduler
from engine.speculation.policy import SpeculationLoad
from engine.speculation.speculator import Speculator
from kernels.adapters import AdapterWeights
from kernels.arrays import Array, Ints
from kernels.cpu.ops import CpuOps
from kernels.cpu.probe import CpuProfile
from kernels.exchange import tensor_of
from kernels.host import StepRows
from tests.support.tiny_tokenizer import VOCAB_SIZE

GREEDY = SamplingParams(temperature=0, ignore_eos=True)


def load_tiny(folder: Path, dtype: torch.dtype = torch.float32, groups: KVGroups | None = None) -> HostModel:
    ops = CpuOps(CpuProfile(dtype, threads=2, products="onednn", min_rows=1, probe_us={}))
    checkpoint = open_checkpoint(folder)
    return host_model(load_model(checkpoint, ops, checkpoint.config.max_position, groups=groups))


@dataclass
class Generated:
    """Tokens and deltas of one request."""

    tokens: list[int] = field(default_factory=list)
    deltas: list[TokenDelta] = field(default_factory=list)


class Runner(Executor, Protocol):
    """An executor with KV memory of its own."""

    _kv: Array | Tensor


class MakeRunner(Protocol):
    def __call__(
        self, model: Any, *, num_blocks: int, num_slots: int, max_model_len: int, **settings: int
    ) -> Runner: ...


class Harness:
    """Scheduler and runner over one pool."""

    def __init__(
        self,
        model: HostModel | Transformer,
        *,
        num_blocks: int = 256,
        max_running: int = 64,
        step_tokens: int = 512,
        chunk_tokens: int = 512,
        prefix_cache: bool = True,
        poison: bool = True,
        saved_states: int = 40,
        make_runner: MakeRunner = ModelRunner,
        speculator: Speculator | None = None,
        windows: tuple[int | None, ...] = (),
        adapters: Mapping[str, AdapterWeights] = MappingProxyType({}),
        adapter_slots: int = 0,
    ) -> None:
        """`windows`: those of the groups of the model's KV after the first. `adapters`: by digest, loaded when a
        request needs one."""
        self.speculator = speculator
        self.adapters = adapters
        config = SchedulerConfig(max_running=max_running, step_tokens=step_tokens, chunk_tokens=chunk_tokens)
        self.pool = BlockPool(num_blocks)
        self.states = None if model.config.linear is None else StatePool(max_running + saved_states, max_running)
        states = None if self.states is None else SequenceStates(self.states, interval_blocks=2)
        cache = KVCacheManager(self.pool, prefix_cache=prefix_cache, states=states, windows=windows)
        self.scheduler = Scheduler(config, cache, model.config.max_position, adapter_slots=adapter_slots)
        num_states = {} if self.states is None else {"num_states": self.states.num_slots}
        groups = {"groups": cache.groups} if windows else {}
        self.runner = make_runner(
            model,
            num_blocks=num_blocks,
            num_slots=max_running,
            max_model_len=self.scheduler.window_tokens,
            **num_states,
            **groups,
        )
        if poison:
            fill_with_nan(self.runner._kv)  # what no request has written must never reach a result
            if self.states is not None:
                fill_with_nan(self.runner._states.memory)  # type: ignore[attr-defined]
        self.scheduler.async_depth = self.runner.async_depth
        self.launched: deque[tuple[StepPlan, PendingStep]] = deque()
        self.most_in_flight = 0
        self.arrivals = 0
        self.results: dict[str, Generated] = {}

    def add(
        self,
        prompt: Sequence[int],
        params: SamplingParams = GREEDY,
        *,
        max_tokens: int = 12,
        seed: int = 1,
        salt: bytes = b"",
        eos: tuple[int, ...] = (2,),
        fork_of: Request | None = None,
        adapter: str | None = None,
    ) -> Request:
        request = Request(
            id=str(self.arrivals),
            tokens=list(prompt),
            prompt_tokens=len(prompt),
            params=params,
            seed=seed,
            max_tokens=max_tokens,
            eos_token_ids=eos,
            arrival=self.arrivals,
            service_class=STANDARD,
            salt=salt,
            fork_of=fork_of,
            adapter=None if adapter is None else AdapterSource(adapter, Path()),
        )
        self.arrivals += 1
        self.scheduler.add(request)
        self.results[request.id] = Generated()
        return request

    def step(self) -> bool:
        """Launch a step, and take in the one that the executor may not be ahead of. False: there is nothing left."""
        for load in self.scheduler.adapters.update():
            self.runner.put_adapter(load.slot, self.runner.pack_adapter(self.adapters[load.source.digest]))  # type: ignore[attr-defined]
            self.scheduler.adapters.loaded(load.source.digest)
        self.scheduler.adapters.update()
        must_land = bool(self.launched) and self.speculator is not None  # drafts follow what is known
        plan = None if must_land else self.scheduler.schedule(draft=self._draft)
        if plan is not None:
            self.launched.append((plan, self.runner.execute(plan)))
            self.most_in_flight = max(self.most_in_flight, len(self.launched))
        elif not self.launched:
            return False
        if plan is None or len(self.launched) > self.scheduler.async_depth:
            landed, pending = self.launched.popleft()
            for delta in self.scheduler.commit(landed, pending.result()):
                self.results[delta.request_id].tokens += delta.token_ids
                self.results[delta.request_id].deltas.append(delta)
        self.scheduler.check()
        return True

    def _draft(self, room: DraftCapacity) -> Drafts:
        if self.speculator is None:
            return {}
        load = SpeculationLoad(len(self.scheduler.running), 0, 0)
        return self.speculator.propose(room, load).drafts

    def run(self, preempt_every: int | None = None) -> Mapping[str, Generated]:
        """Step until all requests are done. Preempts a running request every `preempt_every` steps."""
        steps = 0
        while self.step():
            steps += 1
            if preempt_every and steps % preempt_every == 0:
                running = [request.id for request in self.scheduler.running]
                if running:
                    self.scheduler.preempt(running[steps % len(running)])
            assert steps < 5000, "no end in sight"
        assert self.pool.free_blocks == self.pool.num_blocks, "blocks leaked"
        if self.states is not None:
            assert not self.states.count(StateUse.RUNNING) + self.states.count(StateUse.PENDING), "state slots leaked"
        return self.results


def fill_with_nan(kv: Array | Tensor) -> None:
    """With bytes that are no number in any dtype, nor as scales."""
    if isinstance(kv, Tensor):
        with torch.inference_mode():
            kv.view(torch.uint8).fill_(0xFF)
    else:
        kv.view(np.uint8).fill(0xFF)


def forward_logits(model: HostModel, tokens: Sequence[int], chunk_tokens: int) -> Tensor:
    """Logits [T, V] of a sequence computed chunk by chunk through the paged cache."""
    recorded = Recorded(model)
    harness = Harness(recorded, max_running=1, step_tokens=chunk_tokens, chunk_tokens=chunk_tokens)
    harness.add(tokens, max_tokens=1)
    harness.run()
    return tensor_of(model.logits(np.concatenate(recorded.hidden)))


class Recorded:
    """A model, and the hidden states of all tokens that it has computed, whatever was wanted of them."""

    def __init__(self, model: HostModel) -> None:
        self._model = model
        self.hidden: list[Array] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, token_ids: Ints, rows: StepRows, kv: Array, wanted: Ints | None = None) -> Array:
        hidden = self._model.forward(token_ids, rows, kv)
        self.hidden.append(hidden.copy())
        return hidden if wanted is None else hidden[wanted]


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()
