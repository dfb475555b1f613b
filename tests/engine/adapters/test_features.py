"""Adapters together with what an engine does otherwise: embeddings, log-probabilities, the prefix cache, drafts,
preemption."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from engine import Engine, EngineConfig, SamplingParams, SchedulerConfig
from engine.adapters.folder import digest_of
from engine.adapters.source import AdapterSource
from engine.completion import Completion, collect
from engine.request import STANDARD, Pooling, ServiceClass, TextDelta
from tests.support.peft_adapters import make_adapter
from tests.support.tiny_models import reference_model, reference_text

PREMIUM = ServiceClass("premium", priority=0)
CONFIG = {
    "device": "cpu",
    "dtype": "float32",
    "kv_cache_bytes": 1 << 21,
    "scheduler": SchedulerConfig(max_running=8, step_tokens=64, classes=(PREMIUM, STANDARD)),
}
PROMPT = [*range(10, 40), *range(10, 30)]
"""Three full blocks, and repeated tokens for drafts."""
NEW_TOKENS = 24
GREEDY = SamplingParams(temperature=0, ignore_eos=True, max_tokens=NEW_TOKENS)
MEAN = SamplingParams(max_tokens=0, pooling=Pooling.MEAN)
LAST = SamplingParams(max_tokens=0, pooling=Pooling.LAST)


@dataclass(frozen=True)
class Adapted:
    """An adapter, and the base model with it. The base alone: without a source."""

    source: AdapterSource | None
    model: PreTrainedModel

    def text(self, prompt: Sequence[int] = PROMPT, new_tokens: int = NEW_TOKENS) -> tuple[int, ...]:
        return _reference_text(self.model, tuple(prompt), new_tokens)

    def hidden(self, prompt: Sequence[int]) -> torch.Tensor:
        """The last hidden states [T, H], normed."""
        with torch.no_grad():
            return self.model(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0]  # type: ignore[operator]


@cache
def _reference_text(model: PreTrainedModel, prompt: Sequence[int], new_tokens: int) -> tuple[int, ...]:
    return tuple(reference_text(model, prompt, new_tokens))


@pytest.fixture(scope="module")
def models(tiny_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Adapted]:
    """The base, an adapter, another version of it, and another adapter."""
    made = {"base": Adapted(None, reference_model(tiny_folders["llama"]))}
    for seed, name in enumerate(("first", "first, later", "second")):
        folder = tmp_path_factory.mktemp("adapter")
        model = make_adapter(folder, tiny_folders["llama"], seed=seed)
        made[name] = Adapted(AdapterSource(digest_of(folder), folder), model)
    return made


@pytest.fixture(scope="module")
def engine(tiny_folders: dict[str, Path]) -> Iterator[Engine]:
    """With fewer slots than adapters."""
    with Engine.load({"m": tiny_folders["llama"]}, EngineConfig(adapter_slots=2, **CONFIG)) as loaded:  # type: ignore[arg-type]
        yield loaded


async def ask(
    engine: Engine,
    adapted: Adapted,
    params: SamplingParams = GREEDY,
    *,
    prompt: Sequence[int] = PROMPT,
    tenant: str = "",
    service_class: ServiceClass = STANDARD,
) -> list[Completion]:
    stream = engine.stream("m", prompt, params, adapter=adapted.source, tenant=tenant, service_class=service_class)
    return await collect(stream, params.n)


@pytest.mark.parametrize("params", [MEAN, LAST], ids=["mean", "last"])
async def test_embeddings_are_those_of_the_adapted_model(
    engine: Engine, models: Mapping[str, Adapted], params: SamplingParams
) -> None:
    """Alone and together, prompts longer than a step among them."""

    async def embed(adapted: Adapted, prompt: Sequence[int]) -> bytes:
        [delta] = [each async for each in engine.stream("m", prompt, params, adapter=adapted.source)]
        assert isinstance(delta, TextDelta)
        return delta.embedding

    cases = [(models[name], prompt) for name in ("base", "first", "second") for prompt in (PROMPT, [5, 6] * 50)]
    together = await asyncio.gather(*(embed(*case) for case in cases))
    alone = [await embed(*case) for case in cases]
    for (adapted, prompt), *found in zip(cases, alone, together, strict=True):
        hidden = adapted.hidden(prompt)
        expected = hidden.mean(0) if params is MEAN else hidden[-1]
        for vector in found:
            unit = (expected / expected.norm()).numpy()
            np.testing.assert_allclose(np.frombuffer(vector, np.float32), unit, atol=2e-5)


async def test_log_probabilities_are_those_of_the_adapted_model(engine: Engine, models: Mapping[str, Adapted]) -> None:
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=8, n=2, logprobs=2, prompt_logprobs=0)
    for name in ("first", "base", "second"):
        choices = await ask(engine, models[name], params)
        for choice in choices:
            ids = [*PROMPT, *choice.token_ids]
            with torch.no_grad():
                logits = models[name].model(torch.tensor([ids])).logits[0].double()  # type: ignore[operator]
            expected = torch.log_softmax(logits, -1)
            for at, told in enumerate([*choice.prompt_logprobs[1:], *choice.logprobs]):
                assert told is not None
                assert told.token_id == ids[at + 1]
                assert told.logprob == pytest.approx(float(expected[at, ids[at + 1]]), abs=2e-4)
        assert choices[0].token_ids == choices[1].token_ids == models[name].text(new_tokens=8)


async def test_sampled_choices_are_the_same_in_any_company(engine: Engine, models: Mapping[str, Adapted]) -> None:
    params = SamplingParams(temperature=0.9, seed=7, n=3, ignore_eos=True, max_tokens=NEW_TOKENS)
    alone = {name: [each.token_ids for each in await ask(engine, models[name], params)] for name in models}
    together = await asyncio.gather(*(ask(engine, models[name], params) for name in models))
    assert [[each.token_ids for each in choices] for choices in together] == [*alone.values()]
    assert len({choice for choices in alone.values() for choice in choices}) == 3 * len(models)


async def test_kv_is_found_again_under_the_same_adapter_alone(engine: Engine, models: Mapping[str, Adapted]) -> None:
    """As each turn of a session finds that of the turns before: the base's is never an adapter's, nor that of another
    adapter or of another version of the same one, nor another tenant's."""
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=3)
    first_turn = [*range(60, 106)]
    turns = {name: (first_turn, [*first_turn, *adapted.text(first_turn, 3), 3]) for name, adapted in models.items()}
    expected = {name: [adapted.text(turn, 3) for turn in turns[name]] for name, adapted in models.items()}
    for name, cached, tenant in (
        *((name, (0, 48), "acme") for name in models),
        *((name, (32, 48), "acme") for name in reversed(models)),
        *((name, (0, 48), "globex") for name in ("base", "first")),
    ):
        answers = [(await ask(engine, models[name], params, prompt=turn, tenant=tenant))[0] for turn in turns[name]]
        assert [answer.token_ids for answer in answers] == expected[name]
        assert tuple(answer.usage.cached_tokens for answer in answers) == cached, (name, tenant)


@pytest.mark.usefixtures("always_draft")
@pytest.mark.parametrize(
    "proposers", [{"ngram": True}, {"drafts": {"m": "small"}}, {"ngram": True, "drafts": {"m": "small"}}], ids=str
)
def test_text_is_the_same_with_drafts(
    tiny_folders: dict[str, Path], engine: Engine, models: Mapping[str, Adapted], proposers: dict[str, object]
) -> None:
    """The draft model is the base, whose drafts an adapter's rows mostly reject. Of few tokens n-grams repeat soon."""
    few = SamplingParams(temperature=0, ignore_eos=True, max_tokens=40, logit_bias=dict.fromkeys(range(50, 56), 30.0))
    config = EngineConfig(adapter_slots=2, draft_depth=4, **CONFIG, **proposers)  # type: ignore[arg-type]
    folders = {"m": tiny_folders["llama"]} | ({"small": tiny_folders["llama"]} if "drafts" in proposers else {})

    async def run(engine: Engine, params: SamplingParams) -> list[Completion]:
        asked = [ask(engine, adapted, params) for adapted in [*models.values()] * 2]
        return [choice for choices in await asyncio.gather(*asked) for choice in choices]

    with Engine.load(folders, config) as drafting:
        greedy, of_few = (asyncio.run(run(drafting, params)) for params in (GREEDY, few))
    assert [choice.token_ids for choice in greedy] == [adapted.text() for adapted in models.values()] * 2
    assert [choice.token_ids for choice in of_few] == [each.token_ids for each in asyncio.run(run(engine, few))]
    assert len({choice.token_ids for choice in of_few}) == len(models)
    for adapted, choice in zip([*models.values()] * 2, of_few, strict=True):
        assert choice.usage.accepted_draft_tokens, adapted.source


def test_a_preempted_request_resumes_after_its_adapter_was_evicted(
    tiny_folders: dict[str, Path], models: Mapping[str, Adapted]
) -> None:
    """The only slot is taken by a higher class, twice: for another adapter, and for another version."""
    long = SamplingParams(temperature=0, ignore_eos=True, max_tokens=60)

    async def run(engine: Engine) -> Completion:
        stream = engine.stream("m", PROMPT, long, adapter=models["first"].source)
        tokens: list[int] = []
        higher: list[asyncio.Task[list[Completion]]] = []
        async for delta in stream:
            tokens += delta.token_ids
            if len(tokens) in (3, 20) and len(higher) < 2:
                other = models["second" if not higher else "first, later"]
                higher.append(asyncio.ensure_future(ask(engine, other, service_class=PREMIUM)))
                if len(higher) == 1:
                    await higher[0]
            last = delta
        for task, name in zip(higher, ("second", "first, later"), strict=False):
            assert (await task)[0].token_ids == models[name].text()
        assert tuple(tokens) == models["first"].text(new_tokens=60)
        assert last.usage is not None
        return Completion("", tuple(tokens), (), (), last.finish_reason, None, last.usage)  # type: ignore[arg-type]

    with Engine.load({"m": tiny_folders["llama"]}, EngineConfig(adapter_slots=1, **CONFIG)) as engine:  # type: ignore[arg-type]
        assert asyncio.run(run(engine)).usage.preemptions >= 1
        stats = engine.stats()["m"].adapters
        assert stats is not None
        assert stats.evictions_total >= 2
        assert stats.waiting == stats.failures_total == 0
