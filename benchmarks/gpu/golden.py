"""Greedy text equals transformers' in float32, under every toggle, and logits are as near to the truth in 16 bits.

On tiny checkpoints with random weights, one of each family.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.checks import worst_row_error
from benchmarks.gpu.stage import Stage
from benchmarks.gpu.stepping import Stepper, blocks_for
from engine import Engine, EngineConfig, SamplingParams
from engine.checkpoints.checkpoint import open_checkpoint
from engine.execution.device.graphs import CudaCapture
from engine.models.loader import load_model
from engine.models.transformer import Transformer
from engine.request import Request
from engine.speculation import DraftWant, FixedDepth, Speculator
from engine.speculation.device.drafter import DeviceDrafter
from engine.speculation.draft_model import DraftModel
from kernels.device_states import DeviceStates
from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionMetadata
from kernels.step import SAVE_WORDS, Row
from kernels.triton.ops import TritonOps
from kernels.triton.step_ops import TritonStepOps

_SLOTS = 12
_DRAFTS = 3


@dataclass(frozen=True, slots=True)
class _Toggle:
    """A setting that must not change the text: tokens of a chunk, steps between preemptions, a pool too small."""

    name: str
    chunk_tokens: int = 512
    preempt_every: int | None = None
    blocks: int | None = None


_TOGGLES = (
    _Toggle("whole prompts"),
    _Toggle("chunks of 7", chunk_tokens=7),
    _Toggle("preempted", preempt_every=3),
    _Toggle("a small pool", blocks=13),
)


def run(stage: Stage, families: Sequence[str] | None = None) -> None:
    from tests.support.tiny_families import FAMILIES

    with tempfile.TemporaryDirectory() as root:
        for family in families or FAMILIES:
            stage.attempt(family, partial(_check_family, stage, family, Path(root) / family))


def _check_family(stage: Stage, family: str, folder: Path) -> None:
    from tests.support.tiny_models import make_checkpoint, reference_model

    make_checkpoint(folder, family)  # type: ignore[arg-type]
    oracle = reference_model(folder).to(stage.device)
    model = _load(folder, stage, torch.float32)
    prompts = [_prompt(stage, length, model.config.vocab_size) for length in stage.scale.golden_prompts]
    new_tokens = stage.scale.golden_tokens
    expected = [_greedy(oracle, prompt, new_tokens) for prompt in prompts]
    for toggle in (each for each in _TOGGLES if each.name in stage.scale.golden_toggles):
        name = f"{family}, greedy text, {toggle.name}"
        stage.attempt(name, partial(_check_text, stage, name, model, prompts, expected, toggle))
    name = f"{family}, greedy text with drafts"
    check = _check_drafts if model.config.linear is None else _check_settled
    stage.attempt(name, partial(check, stage, name, model, prompts, expected))
    name = f"{family}, greedy text with adapters"
    stage.attempt(name, partial(_check_adapters, stage, name, folder, prompts))
    name = f"{family}, greedy text through the engine"
    stage.attempt(name, partial(_check_engine, stage, name, folder, prompts, expected))
    for dtype in stage.scale.dtypes:
        name = f"{family}, logits in {str(dtype).removeprefix('torch.')}"
        stage.attempt(name, partial(_check_logits, stage, name, folder, oracle, prompts[-1], dtype))


def _load(folder: Path, stage: Stage, dtype: torch.dtype) -> Transformer:
    checkpoint = open_checkpoint(folder)
    model = load_model(checkpoint, TritonOps(stage.device, dtype), checkpoint.config.max_position)
    assert isinstance(model, Transformer)
    return model


def _prompt(stage: Stage, length: int, vocab_size: int) -> list[int]:
    """Without the first tokens, which are special."""
    ids = torch.randint(3, vocab_size, (length,), generator=stage.generator, device=stage.device)
    return list(map(int, ids))


def _greedy(oracle: Any, prompt: list[int], new_tokens: int) -> list[int]:
    ids = torch.tensor([prompt], device=oracle.device)
    output = oracle.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        eos_token_id=None,
        pad_token_id=0,
    )
    return list(map(int, output[0, len(prompt) :]))


def _check_text(
    stage: Stage,
    name: str,
    model: Transformer,
    prompts: list[list[int]],
    expected: list[list[int]],
    toggle: _Toggle,
) -> None:
    """Every prompt twice, the second time behind the first: it finds what the first left in the prefix cache."""
    window = model.config.max_position
    stepper = Stepper(
        model,
        slots=_SLOTS,
        num_blocks=toggle.blocks or blocks_for(_SLOTS, 128),
        window=window,
        step_tokens=512,
        chunk_tokens=toggle.chunk_tokens,
    )
    stepper.record()
    with torch.inference_mode():
        stepper.runner._kv.fill_(torch.nan)
        if stepper.runner._states is not None:
            stepper.runner._states.memory.fill_(torch.nan)
    wrong = []
    for turn in ("computed", "found again"):
        requests = [stepper.add(prompt, stage.scale.golden_tokens) for prompt in prompts]
        tokens = stepper.run(toggle.preempt_every)
        wrong += [
            f"{len(prompt)} tokens, {turn}"
            for request, prompt, text in zip(requests, prompts, expected, strict=True)
            if tokens[request.id] != text
        ]
    assert stepper.pool.free_blocks == stepper.pool.num_blocks, "blocks leaked"
    stats = stepper.scheduler.stats()
    assert toggle.blocks or stats.cached_tokens_total >= BLOCK_TOKENS, "nothing was found again"
    assert not toggle.preempt_every or stats.preemptions_total, "no request was preempted"
    stage.checked(name, len(wrong), 0, "; ".join(wrong[:3]))


def _check_drafts(
    stage: Stage, name: str, model: Transformer, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """Of a draft model that is the model itself, on the same device. A replayed step of either rounds as others do, so
    some drafts may be rejected where two tokens are almost equally likely."""
    num_blocks, window = blocks_for(_SLOTS, 128), model.config.max_position
    sizes = {"num_blocks": num_blocks, "num_slots": _SLOTS, "max_positions": window}
    drafter = DeviceDrafter(model, TritonStepOps(), model, **sizes)
    speculator = Speculator([DraftModel(drafter, **sizes)], FixedDepth(_DRAFTS))
    stepper = Stepper(model, slots=_SLOTS, num_blocks=num_blocks, window=window, step_tokens=512, speculator=speculator)
    stepper.record()
    if stage.on_gpu:
        drafter.capture_graphs(CudaCapture())
    with torch.inference_mode():
        for kv in (stepper.runner._kv, drafter._kv):
            kv.fill_(torch.nan)
    requests = [stepper.add(prompt, stage.scale.golden_tokens) for prompt in prompts]
    tokens = stepper.run()
    wrong = sum(tokens[request.id] != text for request, text in zip(requests, expected, strict=True))
    stage.checked(name, wrong, 0, f"{drafter.replayed_total} draft steps replayed")
    drafts = sum(request.draft_tokens for request in requests)
    rejected = drafts - sum(request.accepted_draft_tokens for request in requests)
    stage.checked(f"{name}: share that was rejected", rejected / drafts, 0.1, f"of {drafts}")


@dataclass(frozen=True, slots=True)
class _Answers:
    """Proposes the tokens of each request's answer, every fourth of them wrong. answers: by request."""

    answers: dict[str, list[int]]
    name: str = "answers"
    free: bool = True

    def lag(self, request: Request) -> int:
        return 0

    def propose(self, wants: Sequence[DraftWant]) -> list[Sequence[int]]:
        return [self._of(want.request, want.request.output_tokens, want.depth) for want in wants]

    def _of(self, request: Request, known: int, depth: int) -> list[int]:
        tokens = self.answers[request.id][known : known + depth]
        return [token if (known + place) % 4 else max(token - 1, 0) for place, token in enumerate(tokens)]


def _check_settled(
    stage: Stage, name: str, model: Transformer, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """Of a model with recurrent layers, whose steps with drafts are replayed and settled on a GPU."""
    answers = {str(index): text for index, text in enumerate(expected)}
    speculator = Speculator([_Answers(answers)], FixedDepth(_DRAFTS))
    num_blocks, window = blocks_for(_SLOTS, 128), model.config.max_position
    stepper = Stepper(model, slots=_SLOTS, num_blocks=num_blocks, window=window, step_tokens=512, speculator=speculator)
    stepper.record()
    requests = [stepper.add(prompt, stage.scale.golden_tokens) for prompt in prompts]
    tokens = stepper.run()
    wrong = sum(tokens[request.id] != text for request, text in zip(requests, expected, strict=True))
    accepted = sum(request.accepted_draft_tokens for request in requests)
    stage.checked(
        name, wrong, 0, f"{accepted} drafts accepted, {stepper.runner.launches.replayed_total} steps replayed"
    )


def _check_adapters(stage: Stage, name: str, folder: Path, prompts: list[list[int]]) -> None:
    """Each prompt with each adapter and with none in the same steps, replayed where there is a GPU: the text of the
    adapter merged into the weights."""
    from tests.support.tiny_adapters import merge, random_adapter

    model, ranks = _load(folder, stage, torch.float32), stage.scale.adapted_ranks
    adapters = [random_adapter(model.adapted_sizes, seed, rank) for seed, rank in enumerate(ranks)]
    base = _texts(_stepper(model), stage, prompts, [None])
    expected = list(base)
    for adapter in adapters:
        merged = _load(folder, stage, torch.float32)
        merge(merged, adapter)
        expected += _texts(_stepper(merged), stage, prompts, [None])
    model.allocate_adapters(len(ranks), max(ranks))
    stepper = _stepper(model)
    for slot, adapter in enumerate(adapters):
        stepper.runner.put_adapter(slot, stepper.runner.pack_adapter(adapter))
    stage.synchronize()
    stepper.record()
    texts = _texts(stepper, stage, prompts, [None, *range(len(ranks))])
    changed = sum(text != plain for text, plain in zip(expected, base * (1 + len(ranks)), strict=True))
    wrong = sum(text != meant for text, meant in zip(texts, expected, strict=True))
    stage.checked(name, wrong, 0, f"of {len(texts)}, of which adapters change {changed}")
    assert changed, "no adapter changes the text"


def _stepper(model: Transformer) -> Stepper:
    blocks, window = blocks_for(_SLOTS, 128), model.config.max_position
    return Stepper(model, slots=_SLOTS, num_blocks=blocks, window=window, step_tokens=512)


def _texts(stepper: Stepper, stage: Stage, prompts: list[list[int]], slots: Sequence[int | None]) -> list[list[int]]:
    """Of every prompt with the adapter in each slot. Their KV is kept apart by their salts."""
    requests = []
    for slot in slots:
        for prompt in prompts:
            request = stepper.add(prompt, stage.scale.golden_tokens, salt=str(slot).encode())
            request.adapter_slot = slot
            requests.append(request)
    tokens = stepper.run()
    return [tokens[request.id] for request in requests]


def _check_engine(stage: Stage, name: str, folder: Path, prompts: list[list[int]], expected: list[list[int]]) -> None:
    """As a caller has it: `Engine.load` on this device."""
    config = EngineConfig(device="cuda" if stage.on_gpu else "cpu", dtype="float32", kv_cache_bytes=64 << 20)
    params = SamplingParams(temperature=0, max_tokens=stage.scale.golden_tokens, ignore_eos=True)
    with Engine.load({"model": folder}, config) as engine:
        texts = [completions[0].token_ids for completions in engine.generate("model", prompts, params)]
        backend = f"{engine.hardware}"
    wrong = sum(list(text) != tokens for text, tokens in zip(texts, expected, strict=True))
    stage.checked(name, wrong, 0, backend)


def _check_logits(stage: Stage, name: str, folder: Path, oracle: Any, prompt: list[int], dtype: torch.dtype) -> None:
    """Hardly further from transformers in float32 than transformers in the same dtype is."""
    from tests.support.tiny_models import reference_model

    ids = torch.tensor([prompt], device=stage.device)
    with torch.inference_mode():
        truth = oracle(ids).logits[0]
        peer = reference_model(folder, dtype).to(stage.device)(ids).logits[0]
        ours = _logits(_load(folder, stage, dtype), prompt, stage.device)
    theirs = worst_row_error(peer, truth)
    stage.checked(name, worst_row_error(ours, truth), max(2 * theirs, 1e-4), f"transformers has {theirs:.2g}")


def _logits(model: Transformer, prompt: list[int], device: torch.device) -> Tensor:
    """Of all positions of a prompt, computed in one piece."""
    tokens = len(prompt)
    blocks = -(-tokens // BLOCK_TOKENS)
    kv = model.allocate_kv(blocks).fill_(torch.nan)
    tables = torch.arange(blocks, device=device)[None]
    plan = model.ops.plan_attention(AttentionMetadata(tables, [tokens], [tokens]))
    hidden = model.forward(torch.tensor(prompt, device=device), plan, kv, _states(model, tokens))
    return model.logits(hidden).float()


def _states(model: Transformer, tokens: int) -> DeviceStates | None:
    """The state of a sequence that begins, of a model that has some."""
    if model.config.linear is None:
        return None
    memory = model.allocate_states(1).fill_(torch.nan)
    row = torch.tensor([Row(0, 0, tokens, 0, 1, 0, state=0)], dtype=torch.int32, device=memory.device)
    owners, saves = (torch.zeros(shape, dtype=torch.int32, device=memory.device) for shape in (tokens, (1, SAVE_WORDS)))
    return DeviceStates(memory, row, owners, saves)
