"""Logits that are drawn in 16 bits give the text, and the log-probabilities, of the same logits in float32."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.grammar.allowed import AllowedTokens
from engine.models.transformer import Transformer
from engine.speculation import FixedDepth, Speculator
from kernels.reference_ops import ReferenceOps
from tests.engine.execution.device.harness import DRAFT_GRAPHS, LADEN, REFERENCE, load_on
from tests.engine.execution.draft_cases import SEEDED, Oracle, assert_same
from tests.engine.execution.harness import GREEDY, Generated, Harness, MakeRunner, prompt
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint

PARAMS = (
    GREEDY,
    SEEDED,
    LADEN,
    replace(SEEDED, top_k=7, min_p=0.01, logprobs=3),
    replace(GREEDY, logit_bias={9: 0.7}, prompt_logprobs=2),
)


def _run(model: Transformer, make_runner: MakeRunner, answers: Mapping[str, list[int]] | None) -> dict[str, Generated]:
    speculator = None if answers is None else Speculator([Oracle(dict(answers), wrong_every=4)], FixedDepth(3))
    harness = Harness(model, max_running=4, make_runner=make_runner, speculator=speculator)
    for index, params in enumerate((*PARAMS, GREEDY)):
        request = harness.add(prompt(5 + 7 * index, seed=index), params, max_tokens=10, seed=index)
    request.matcher = AllowedTokens(tuple(range(3, 60)), model.config.vocab_size)
    return dict(harness.run())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make_runner", [REFERENCE, DRAFT_GRAPHS], ids=["launched", "graphs"])
@pytest.mark.parametrize("drafts", [False, True])
def test_text_and_log_probabilities_are_those_of_float32(
    tiny_folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    make_runner: MakeRunner,
    dtype: torch.dtype,
    drafts: bool,
) -> None:
    model = load_on(ReferenceOps(torch.device("cpu"), dtype), tiny_folders["llama"])
    assert model.logits_dtype == dtype
    with monkeypatch.context() as context:
        context.setattr(Transformer, "_has_plain_logits", False)
        assert model.logits_dtype == torch.float32
        wide = _run(model, make_runner, None)
        answers = {name: generated.tokens for name, generated in wide.items()} if drafts else None
        wide = wide if answers is None else _run(model, make_runner, answers)
    assert_same(_run(model, make_runner, answers), wide)


@pytest.mark.parametrize("family", ["gemma2", "granite"])
def test_logits_that_are_divided_or_capped_are_so_in_float32(tmp_path: Path, family: TinyFamily) -> None:
    model = load_on(ReferenceOps(torch.device("cpu"), torch.bfloat16), make_checkpoint(tmp_path / "model", family))
    hidden = torch.randn((3, model.config.hidden_size), dtype=torch.bfloat16)
    memory = torch.empty((3, model.config.vocab_size))
    assert model.logits_dtype == torch.float32
    assert torch.equal(model.logits(hidden, into=memory), model.logits(hidden))
    assert len(memory.unique()) > 256, "more numbers than there are in 8 bits of precision"
