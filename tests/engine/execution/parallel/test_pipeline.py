"""A pipeline has as many steps in flight as stages, and answers as one process does."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from engine import Engine, SamplingParams
from engine.completion import collect
from engine.execution.parallel.pipelined_runner import PipelinedRunner, PipelinedStep
from engine.request import Pooling
from engine.scheduling import StepPlan, StepResult
from tests.support.peft_adapters import make_adapter
from tests.support.rank_engines import GREEDY, LONG_PROMPT, MODEL, REPEATING, WORD, answers_of, load_engine

CUTS = {"pp2": (1, 2), "tp2-pp2": (2, 2)}
FEW_BLOCKS = {"kv_cache_bytes": 24 * 8192}
"""Of the tiny Llama's, so that requests are preempted, also in flight."""
LONG = SamplingParams(temperature=0.9, top_k=50, seed=3, max_tokens=60, ignore_eos=True)


class InFlight:
    """Records the rows of the steps in flight at each launch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[StepPlan] = []
        self.most = 0
        execute = PipelinedRunner.execute

        def record(runner: PipelinedRunner, plan: StepPlan) -> PipelinedStep:
            step = execute(runner, plan)
            self.steps.append(plan)
            self.most = max(self.most, len(self.steps))
            self._check()

            def result() -> StepResult:
                complete = step.result()
                assert self.steps.pop(0) is plan
                return complete

            return PipelinedStep(result)

        monkeypatch.setattr(PipelinedRunner, "execute", record)

    def _check(self) -> None:
        """No request has a row behind one that samples, and drafts are alone in flight."""
        assert len(self.steps) == 1 or not any(plan.draft_tokens for plan in self.steps)
        sampling: set[tuple[str, int]] = set()
        for plan in self.steps:
            runs = {(row.request.id, row.request.admissions) for row in plan.rows}
            assert not runs & sampling, "a row begins before its token is known"
            sampling |= {(row.request.id, row.request.admissions) for row in plan.rows if row.samples}


@pytest.mark.parametrize("cut", ["pp2", "tp2-pp2"])
def test_text(cut: str, tiny_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunked prompts, prefix hits, thresholds, penalties, a grammar, preemptions, an adapter, without drafts: see
    `test_text` for those."""
    folder, (tensor, stages) = tiny_folders["llama"], CUTS[cut]
    make_adapter(tmp_path, folder)
    with load_engine(folder, **FEW_BLOCKS, ngram=False) as engine:
        expected = answers_of(engine, tmp_path)
    in_flight = InFlight(monkeypatch)
    sizes = {"tensor_parallel": tensor, "pipeline_parallel": stages}
    with load_engine(folder, **FEW_BLOCKS, **sizes, ngram=False) as engine:
        answers = answers_of(engine, tmp_path)
        stats = engine.stats()[MODEL]
    assert answers == expected
    assert in_flight.most == stages
    assert stats.preemptions_total > 0
    assert stats.free_blocks == stats.num_blocks


def test_the_states_of_recurrent_layers(tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_folders["qwen3_5"]
    prompts = [LONG_PROMPT, REPEATING, list(range(40, 75))]
    with load_engine(folder, ngram=False) as engine:
        expected = _ids(engine, prompts, LONG)
    in_flight = InFlight(monkeypatch)
    with load_engine(folder, ngram=False, pipeline_parallel=2) as engine:
        assert _ids(engine, prompts, LONG) == expected
    assert in_flight.most == 2


def test_drafts_are_alone_in_flight(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, always_draft: None
) -> None:
    """While requests in decode are to have drafts, steps run one at a time; the chunks of a prompt do not."""
    in_flight = InFlight(monkeypatch)
    with load_engine(tiny_folders["llama"], pipeline_parallel=2) as engine:
        _ids(engine, [[9] * 20, REPEATING], GREEDY)
        assert in_flight.most == 1
        _ids(engine, [LONG_PROMPT], GREEDY)
        assert in_flight.most == 2
        drafts = engine.stats()[MODEL].speculation
    assert drafts is not None
    assert sum(each.accepted_total for each in drafts.drafts) > 0


def test_embeddings_and_prompt_logprobs(tiny_folders: dict[str, Path]) -> None:
    """Both read hidden states that arrive from the last stage."""
    scored = SamplingParams(max_tokens=4, temperature=0, prompt_logprobs=1, ignore_eos=True)
    found = []
    for stages in (1, 2):
        with load_engine(tiny_folders["llama"], ngram=False, pipeline_parallel=stages) as engine:
            vectors = asyncio.run(_embedded(engine, [LONG_PROMPT, REPEATING]))
            [[answer]] = engine.generate(MODEL, [LONG_PROMPT], scored)
            found.append((vectors, answer.token_ids, answer.prompt_logprobs))
    (whole, expected, logprobs), (in_stages, answered, found_logprobs) = found
    np.testing.assert_allclose(in_stages, whole, atol=1e-5)
    assert answered == expected
    assert len(found_logprobs) == len(LONG_PROMPT)
    for one, other in zip(logprobs[1:], found_logprobs[1:], strict=True):
        assert one is not None
        assert other is not None
        assert other.logprob == pytest.approx(one.logprob, abs=1e-4)


async def _embedded(
    engine: Engine, prompts: Sequence[Sequence[int]]
) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    pooled = SamplingParams(max_tokens=0, pooling=Pooling.MEAN)

    async def embed(prompt: Sequence[int]) -> bytes:
        return [delta async for delta in engine.stream(MODEL, prompt, pooled)][-1].embedding

    return [np.frombuffer(each, np.float32) for each in await asyncio.gather(*map(embed, prompts))]


def test_requests_that_leave_in_flight(tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Their slots go to others before their rows are complete, whose logits are sampled in this process."""
    in_flight = InFlight(monkeypatch)
    prompts = [[(number * 37 + index) % 400 for index in range(40)] for number in range(12)]
    params = [LONG, WORD, SamplingParams(temperature=0.7, frequency_penalty=0.5, seed=8, max_tokens=40)]

    async def answer(engine: Engine, number: int, taken: int | None) -> list[int]:
        stream = engine.stream(MODEL, prompts[number], params[number % 3])
        if taken is None:
            [completion] = await collect(stream, 1)
            return list(completion.token_ids)
        for _ in range(taken):
            await anext(stream)
        await stream.aclose()
        return []

    async def run(engine: Engine, leaving: Sequence[int]) -> list[list[int]]:
        tasks = [answer(engine, number, number % 4 + 1 if number in leaving else None) for number in range(12)]
        return [each for each in await asyncio.gather(*tasks) if each]

    stays = [number for number in range(12) if number % 2]
    with load_engine(tiny_folders["llama"], ngram=False) as engine:
        expected = asyncio.run(run(engine, ()))
    with load_engine(tiny_folders["llama"], ngram=False, pipeline_parallel=2) as engine:
        answers = asyncio.run(run(engine, [number for number in range(12) if number not in stays]))
        stats = engine.stats()[MODEL]
    assert answers == [expected[number] for number in stays]
    assert in_flight.most == 2
    assert stats.wasted_rows_total > 0


def _ids(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[int]]:
    return [list(choice.token_ids) for [choice] in engine.generate(MODEL, prompts, params)]
