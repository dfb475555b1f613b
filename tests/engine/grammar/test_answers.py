"""Answers of a whole engine match their grammars, whichever requests share the batch and however a request ends."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest
from llguidance import LLParserLimits

from engine import Engine, EngineConfig, FinishReason, InvalidParameter, SamplingParams, SchedulerConfig
from engine.errors import GrammarGaveUp
from engine.grammar import GrammarSpec, sandbox_program
from engine.request import TextDelta
from tests.engine.grammar.corpus import ENFORCED, PERSON, require_valid
from tests.engine.streams import collect, idle, text_of
from tests.support.schemas import BOMB
from tests.support.tiny_tokenizer import IM_END

PROMPT = list(range(10, 30))
PERSONS = GrammarSpec.json_schema(PERSON)
FREE = SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True, seed=4)


@pytest.fixture(scope="module")
def engine(tiny_folders: dict[str, Path]) -> Iterator[Engine]:
    config = EngineConfig(
        dtype="float32", kv_cache_bytes=8 << 20, scheduler=SchedulerConfig(max_running=8, step_tokens=64)
    )
    with Engine.load({"llama": tiny_folders["llama"]}, config) as engine:
        yield engine


def answer(engine: Engine, grammar: GrammarSpec | None, **params: object) -> AsyncIterator[TextDelta]:
    settings = {"temperature": 1.0, "max_tokens": 100, "seed": 1} | params
    return engine.stream("llama", PROMPT, SamplingParams(grammar=grammar, **settings))


def reason_of(deltas: Sequence[TextDelta], index: int = 0) -> FinishReason:
    return next(d.finish_reason for d in deltas if d.index == index and d.finish_reason is not None)


async def settle(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


async def test_every_schema_of_the_corpus_is_kept_to(engine: Engine) -> None:
    streams = [answer(engine, GrammarSpec.json_schema(schema), n=2) for schema in ENFORCED.values()]
    answers = await asyncio.gather(*map(collect, streams))
    ended = 0
    for schema, deltas in zip(ENFORCED.values(), answers, strict=True):
        for index in range(2):
            if reason_of(deltas, index) is FinishReason.STOP:
                ended += 1
                require_valid(text_of(deltas, index), schema)
            else:
                assert reason_of(deltas, index) is FinishReason.LENGTH
    assert ended > len(ENFORCED)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"top_k": 1},
        {"top_p": 0.1},
        {"min_p": 0.9},
        {"repetition_penalty": 10.0, "frequency_penalty": 2.0, "presence_penalty": 2.0},
        {"logit_bias": {10: 100.0, 20: 100.0, IM_END: -100.0}},
    ],
    ids=lambda params: next(iter(params)),
)
async def test_no_parameter_leads_out_of_a_grammar(engine: Engine, params: dict[str, object]) -> None:
    deltas = await collect(answer(engine, PERSONS, **params))
    assert reason_of(deltas) is FinishReason.STOP
    require_valid(text_of(deltas), PERSON)


async def test_what_cannot_end_in_time_ends_by_its_length(engine: Engine) -> None:
    deltas = await collect(answer(engine, GrammarSpec.regex("a{200}"), max_tokens=50))
    assert reason_of(deltas) is FinishReason.LENGTH
    assert set(text_of(deltas)) == {"a"}


async def test_the_last_token_ends_it_and_is_not_shown(engine: Engine) -> None:
    deltas = await collect(answer(engine, GrammarSpec.choice(["yes", "no"])))
    last = deltas[-1]
    assert text_of(deltas) in ("yes", "no")
    assert (last.finish_reason, last.stop) == (FinishReason.STOP, IM_END)
    assert last.usage is not None
    assert last.usage.completion_tokens == sum(len(delta.token_ids) for delta in deltas) + 1


async def test_choices_have_matchers_of_their_own(engine: Engine) -> None:
    deltas = await collect(answer(engine, GrammarSpec.regex("[a-z]{12}"), n=6))
    texts = [text_of(deltas, index) for index in range(6)]
    assert all(len(text) == 12 and text.islower() for text in texts)
    assert len(set(texts)) == 6


async def test_log_probabilities_are_those_of_the_model_alone(engine: Engine) -> None:
    held = await collect(answer(engine, GrammarSpec.regex("[a-z]{6}"), logprobs=3))
    free = await collect(answer(engine, None, logprobs=3, max_tokens=1))
    [first] = free[0].logprobs
    kept = next(delta.logprobs[0] for delta in held if delta.logprobs)
    assert [each.token_id for each in kept.top] == [each.token_id for each in first.top]
    assert [each.logprob for each in kept.top] == pytest.approx([each.logprob for each in first.top], abs=1e-4)
    for entry in (entry for delta in held for entry in delta.logprobs):
        assert entry.logprob < 0


async def test_neighbours_say_what_they_would_say_alone(engine: Engine) -> None:
    alone = text_of(await collect(engine.stream("llama", PROMPT, FREE)))
    held = [collect(answer(engine, PERSONS, seed=seed)) for seed in range(4)]
    together = await asyncio.gather(*held, collect(engine.stream("llama", PROMPT, FREE)))
    assert text_of(together[-1]) == alone


async def test_going_away_leaves_nothing(engine: Engine) -> None:
    async with aclosing(answer(engine, GrammarSpec.regex("a{400}"), max_tokens=400, n=3)) as stream:
        async for _ in stream:
            break
    await settle(lambda: idle(engine))


async def test_a_refused_grammar_computes_nothing_and_is_reported(engine: Engine) -> None:
    told: list[tuple[int, int]] = []
    params = SamplingParams(grammar=GrammarSpec.json_schema({"not": {}}, "guided_json"), max_tokens=5, n=2)
    stream = engine.stream("llama", PROMPT, params, on_abort=lambda i, usage: told.append((i, usage.engine_ns)))
    with pytest.raises(InvalidParameter, match='"not"') as refused:
        await collect(stream)
    assert refused.value.param == "guided_json"
    await settle(lambda: len(told) == 2)
    assert sorted(told) == [(0, 0), (1, 0)]
    assert idle(engine)


async def test_a_grammar_that_gives_up_on_the_way_is_named(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It compiles, but no answer can be followed to its end: the error names the field, and the engine still runs."""
    few = LLParserLimits(max_lexer_states=200, verbose_errors=False)
    monkeypatch.setattr(sandbox_program, "limits", lambda: few)
    told: list[int] = []
    grammar = GrammarSpec.regex(r"(\w+\s?){1,100}z{900}", "guided_regex")
    params = SamplingParams(grammar=grammar, temperature=1.5, seed=1, max_tokens=400)
    stream = engine.stream("llama", PROMPT, params, on_abort=lambda _, usage: told.append(usage.prompt_tokens))
    with pytest.raises(GrammarGaveUp) as gave_up:
        await collect(stream)
    assert gave_up.value.param == "guided_regex"
    await settle(lambda: told == [len(PROMPT)])
    assert text_of(await collect(answer(engine, GrammarSpec.choice(["yes"])))) == "yes"
    await settle(lambda: idle(engine))


async def test_a_model_without_grammars_refuses_the_request(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "models", {"llama": replace(engine.models["llama"], grammars=None)})
    with pytest.raises(InvalidParameter, match="llama") as refused:
        answer(engine, GrammarSpec.regex("a", "guided_regex"))
    assert refused.value.param == "guided_regex"


async def test_going_away_while_it_is_compiled_leaves_the_engine_answering(engine: Engine) -> None:
    bomb = asyncio.create_task(collect(answer(engine, BOMB)))
    await asyncio.sleep(0.05)
    assert text_of(await collect(answer(engine, GrammarSpec.choice(["yes"])))) == "yes"
    bomb.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bomb
    require_valid(text_of(await collect(answer(engine, PERSONS))), PERSON)
    await settle(lambda: idle(engine))
