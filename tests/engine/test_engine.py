"""The engine as a library: streams, choices, stops, aborts, several models, faults."""

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from engine import (
    Engine,
    EngineConfig,
    EngineError,
    FinishReason,
    InvalidParameter,
    SamplingParams,
    SchedulerConfig,
    UnservableRequest,
    Usage,
)
from engine.scheduling.plan import PendingStep, StepPlan
from tests.engine.streams import collect, idle, settle, text_of, tokens_of

PROMPT = list(range(10, 60))
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(tiny_folders: dict[str, Path]) -> Iterator[Engine]:
    config = EngineConfig(
        dtype="float32", kv_cache_bytes=8 << 20, scheduler=SchedulerConfig(max_running=8, step_tokens=64)
    )
    with Engine.load({"llama": tiny_folders["llama"], "qwen3": tiny_folders["qwen3"]}, config) as engine:
        yield engine


def test_a_model_is_loaded_with_what_its_steps_take(engine: Engine) -> None:
    """The times of the warm-up plan the first customer's prompt; the warm-up itself is billed to no tenant."""
    for runtime in engine._core._runtimes.values():
        measured = runtime.scheduler.cost_model.measured
        assert measured.max_tokens >= 32
        assert measured.max_pairs > 0
        assert runtime.scheduler.stats().steps_total == 0


async def test_a_stream_is_the_text_of_its_tokens(engine: Engine) -> None:
    deltas = await collect(engine.stream("llama", PROMPT, GREEDY))
    assert text_of(deltas) == engine.models["llama"].text.decode(tokens_of(deltas))
    assert len(tokens_of(deltas)) == 20
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    last = deltas[-1]
    assert last.finish_reason is FinishReason.LENGTH
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (50, 20)
    await settle(engine, lambda: idle(engine))


async def test_models_are_served_side_by_side(engine: Engine) -> None:
    alone = {name: tokens_of(await collect(engine.stream(name, PROMPT, GREEDY))) for name in engine.models}
    streams = [(name, engine.stream(name, PROMPT, GREEDY)) for name in [*engine.models] * 4]
    together = await asyncio.gather(*(collect(stream) for _, stream in streams))
    assert [tokens_of(deltas) for deltas in together] == [alone[name] for name, _ in streams]
    assert alone["llama"] != alone["qwen3"]


async def test_choices_have_their_own_seeds_and_share_the_prompt(engine: Engine) -> None:
    params = SamplingParams(temperature=1.0, seed=5, n=6, max_tokens=12, ignore_eos=True)
    deltas = await collect(engine.stream("llama", PROMPT, params))
    texts = [tuple(tokens_of(deltas, index)) for index in range(6)]
    assert len(set(texts)) > 3
    single = SamplingParams(temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)
    assert tuple(tokens_of(await collect(engine.stream("llama", PROMPT, single)))) == texts[0]
    again = await collect(engine.stream("llama", PROMPT, params))
    assert [tuple(tokens_of(again, index)) for index in range(6)] == texts
    usages = [delta.usage for delta in deltas if delta.usage is not None]
    assert len(usages) == 6
    assert all(usage.completion_tokens == 12 for usage in usages)


async def test_without_a_seed_texts_differ(engine: Engine) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    texts = {tuple(tokens_of(await collect(engine.stream("llama", PROMPT, params)))) for _ in range(4)}
    assert len(texts) > 1


async def test_a_stop_string_ends_text_and_usage(engine: Engine) -> None:
    full = await collect(engine.stream("llama", PROMPT, GREEDY))
    stop = text_of(full)[10:14]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, stop=(stop,))
    deltas = await collect(engine.stream("llama", PROMPT, params))
    assert text_of(deltas) == text_of(full).split(stop)[0]
    last = deltas[-1]
    assert (last.finish_reason, last.stop) == (FinishReason.STOP, stop)
    assert last.usage.completion_tokens == len(tokens_of(deltas)) < 20
    await settle(engine, lambda: idle(engine))


async def test_a_stop_token_ends_the_answer_and_is_counted(engine: Engine) -> None:
    full = tokens_of(await collect(engine.stream("llama", PROMPT, GREEDY)))
    stop = next(token for position, token in enumerate(full) if position > 2 and token not in full[:position])
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, stop_token_ids=(stop,))
    deltas = await collect(engine.stream("llama", PROMPT, params))
    assert tokens_of(deltas) == full[: full.index(stop)]
    last = deltas[-1]
    assert (last.finish_reason, last.stop) == (FinishReason.STOP, stop)
    assert last.usage.completion_tokens == full.index(stop) + 1


async def test_min_tokens_forbids_stops(engine: Engine) -> None:
    full = tokens_of(await collect(engine.stream("llama", PROMPT, GREEDY)))
    params = SamplingParams(temperature=0, max_tokens=20, min_tokens=9, ignore_eos=True, stop_token_ids=(full[0],))
    answer = tokens_of(await collect(engine.stream("llama", PROMPT, params)))
    assert len(answer) >= 9
    assert full[0] not in answer


async def test_penalties_and_bias_reach_the_sampler(engine: Engine) -> None:
    forced = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logit_bias={33: 100.0})
    assert tokens_of(await collect(engine.stream("llama", PROMPT, forced))) == [33] * 6
    tamed = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logit_bias={33: 20.0}, presence_penalty=2.0)
    repeating = tokens_of(await collect(engine.stream("llama", PROMPT, tamed)))
    strict = SamplingParams(
        temperature=0, max_tokens=24, ignore_eos=True, repetition_penalty=10.0, frequency_penalty=2.0
    )
    varied = tokens_of(await collect(engine.stream("llama", PROMPT, strict)))
    assert repeating[0] == 33
    assert len(set(varied)) > len(set(tokens_of(await collect(engine.stream("llama", PROMPT, GREEDY))))) - 1
    assert not set(varied[:3]) & set(PROMPT)


async def test_logprobs_are_normalised_and_ordered(engine: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=4, prompt_logprobs=2)
    deltas = await collect(engine.stream("llama", PROMPT, params))
    entries = [entry for delta in deltas for entry in delta.logprobs]
    assert [entry.token_id for entry in entries] == tokens_of(deltas)
    for entry in entries:
        assert len(entry.top) == 4
        assert entry.top[0].logprob == pytest.approx(entry.logprob)
        assert [a.logprob for a in entry.top] == sorted((a.logprob for a in entry.top), reverse=True)
    prompt = deltas[0].prompt_logprobs
    assert len(prompt) == len(PROMPT)
    assert prompt[0] is None
    assert [entry.token_id for entry in prompt[1:] if entry is not None] == PROMPT[1:]


async def test_prompt_logprobs_do_not_depend_on_the_prefix_cache_or_on_chunks(engine: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=0)
    long_prompt = [*PROMPT, *PROMPT, *PROMPT]
    first = (await collect(engine.stream("llama", long_prompt, params)))[0].prompt_logprobs
    await collect(engine.stream("llama", long_prompt, GREEDY))
    second = (await collect(engine.stream("llama", long_prompt, params)))[0].prompt_logprobs
    values = [[entry.logprob for entry in entries[1:] if entry is not None] for entries in (first, second)]
    assert values[0] == pytest.approx(values[1], abs=1e-4)
    assert len(values[0]) == 149


async def test_closing_a_stream_frees_its_blocks(engine: Engine) -> None:
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True, n=3)
    async with aclosing(engine.stream("llama", PROMPT, long)) as stream:
        async for _ in stream:
            break
    await settle(engine, lambda: idle(engine))


async def test_cancelling_a_reader_frees_its_blocks(engine: Engine) -> None:
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    task = asyncio.create_task(collect(engine.stream("llama", PROMPT, long)))
    await settle(engine, lambda: not idle(engine))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle(engine, lambda: idle(engine))


async def test_a_stream_that_nobody_reads_computes_nothing(engine: Engine) -> None:
    steps = engine.stats()["llama"].steps_total
    engine.stream("llama", PROMPT, GREEDY)
    await asyncio.sleep(0.05)
    assert engine.stats()["llama"].steps_total == steps


async def test_tenants_do_not_share_prefixes(engine: Engine) -> None:
    prompt = [7 + index % 300 for index in range(100)]
    cached = {}
    for tenant in ("a", "a", "b", "b"):
        deltas = await collect(engine.stream("llama", prompt, GREEDY, tenant=tenant))
        cached.setdefault(tenant, []).append(deltas[-1].usage.cached_tokens)
    assert cached == {"a": [0, 96], "b": [0, 96]}


@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        ([], GREEDY, UnservableRequest),
        ([5] * 512, GREEDY, UnservableRequest),
        ([5, 512], GREEDY, InvalidParameter),
        ([-1], GREEDY, InvalidParameter),
        ([5], SamplingParams(logit_bias={512: 1.0}), InvalidParameter),
        ([5], SamplingParams(stop_token_ids=(9999,)), InvalidParameter),
    ],
    ids=["empty", "too long", "token id", "negative token id", "logit_bias", "stop_token_ids"],
)
def test_unservable_requests_are_refused(
    engine: Engine, prompt: list[int], params: SamplingParams, error: type[Exception]
) -> None:
    with pytest.raises(error):
        engine.stream("llama", prompt, params)
    with pytest.raises(KeyError):
        engine.stream("nobody", [5], GREEDY)


async def test_an_answer_ends_where_the_window_does(engine: Engine) -> None:
    deltas = await collect(engine.stream("llama", [5] * 500, SamplingParams(temperature=0, ignore_eos=True)))
    assert len(tokens_of(deltas)) == 12
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_generating_leaves_no_event_loop_behind(engine: Engine) -> None:
    def loops() -> int:
        gc.collect()
        return sum(issubclass(type(each), asyncio.AbstractEventLoop) for each in gc.get_objects())

    def generate() -> None:
        engine.generate("llama", [PROMPT], SamplingParams(temperature=0, max_tokens=1))

    generate()
    before = loops()
    for _ in range(5):
        generate()
    assert loops() <= before


def test_offline_batch(engine: Engine) -> None:
    text = engine.models["llama"].text
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompts = ["The quick brown fox", text.encode("The quick brown fox"), chat]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, n=2)
    completions = engine.generate("llama", prompts, params)
    assert [len(choices) for choices in completions] == [2, 2, 2]
    assert completions[0][0].text == completions[1][0].text
    assert completions[2][0].usage.prompt_tokens == len(text.encode_chat(chat))


async def test_a_failing_step_fails_its_requests_and_no_others(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tokens_of(await collect(engine.stream("qwen3", PROMPT, GREEDY)))
    runner = engine._core._runtimes["llama"].executor

    def explode(plan: StepPlan) -> None:
        raise MemoryError("no room for this step")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "execute", explode)
        neighbour = asyncio.create_task(collect(engine.stream("qwen3", PROMPT, GREEDY)))
        with pytest.raises(EngineError):
            await collect(engine.stream("llama", PROMPT, GREEDY))
        assert tokens_of(await neighbour) == expected
    assert len(tokens_of(await collect(engine.stream("llama", PROMPT, GREEDY)))) == 20
    await settle(engine, lambda: idle(engine))


async def test_a_nan_fails_its_request_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tokens_of(await collect(engine.stream("llama", PROMPT, GREEDY)))
    ops = engine._core._runtimes["llama"].executor._model._transformer.ops  # type: ignore[attr-defined]
    embed = ops.embed

    def poisoned(table, token_ids):  # type: ignore[no-untyped-def]
        hidden = embed(table, token_ids).clone()
        hidden[token_ids == 500] = float("nan")
        return hidden

    monkeypatch.setattr(ops, "embed", poisoned)
    neighbour = asyncio.create_task(collect(engine.stream("llama", PROMPT, GREEDY)))
    with pytest.raises(EngineError, match="not finite"):
        await collect(engine.stream("llama", [*PROMPT[:20], 500, *PROMPT[20:40]], GREEDY))
    assert tokens_of(await neighbour) == expected
    # The blocks that hold NaN are free again; their next owners must not notice.
    others = await asyncio.gather(*(collect(engine.stream("llama", PROMPT, GREEDY, tenant=str(i))) for i in range(8)))
    assert all(tokens_of(deltas) == expected for deltas in others)


def test_closing_ends_streams_with_an_error(tiny_folders: dict[str, Path]) -> None:
    engine = Engine.load({"llama": tiny_folders["llama"]}, EngineConfig(dtype="float32", kv_cache_bytes=8 << 20))
    assert not engine.ready
    engine.start()
    assert engine.ready

    async def read() -> None:
        long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
        first = True
        with pytest.raises(EngineError):
            async for _ in engine.stream("llama", PROMPT, long):
                if first:
                    threading.Thread(target=engine.close).start()
                    first = False

    asyncio.run(read())
    engine.close()
    assert not engine.ready


async def test_a_dead_engine_thread_leaves_nobody_waiting(tiny_folders: dict[str, Path]) -> None:
    engine = Engine.load({"llama": tiny_folders["llama"]}, EngineConfig(dtype="float32", kv_cache_bytes=8 << 20))
    with engine:
        scheduler = engine._core._runtimes["llama"].scheduler

        def broken() -> None:
            raise AssertionError("a bug in the scheduler")

        scheduler.schedule = broken  # type: ignore[method-assign, assignment]
        with pytest.raises(EngineError):
            await collect(engine.stream("llama", PROMPT, GREEDY))
        await settle(engine, lambda: not engine.ready)
        with pytest.raises(EngineError):
            await collect(engine.stream("llama", PROMPT, GREEDY))


async def test_what_a_long_step_keeps_out_is_seen_to_wait(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = engine._core._runtimes["llama"].executor
    execute, entered, leave = runner.execute, threading.Event(), threading.Event()

    def stuck(plan: StepPlan) -> PendingStep:
        entered.set()
        leave.wait(10)
        return execute(plan)

    monkeypatch.setattr(runner, "execute", stuck)
    tasks = [asyncio.create_task(collect(engine.stream("llama", PROMPT, GREEDY)))]
    assert await asyncio.to_thread(entered.wait, 10)
    before_ns = time.monotonic_ns()
    tasks += [asyncio.create_task(collect(engine.stream("llama", PROMPT, GREEDY))) for _ in range(2)]
    await asyncio.sleep(0.02)
    stats = engine.stats()["llama"]
    premium, standard = stats.classes
    assert (stats.running, stats.waiting, premium.waiting, standard.waiting) == (1, 2, 0, 2)
    assert premium.queue_age_ns == 0
    assert 20_000_000 <= standard.queue_age_ns <= time.monotonic_ns() - before_ns
    leave.set()
    await asyncio.gather(*tasks)
    assert engine.stats()["llama"].classes[1].queue_age_ns == 0


async def test_whoever_stops_reading_learns_what_was_consumed(engine: Engine) -> None:
    told: dict[int, Usage] = {}
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, n=2)
    async with aclosing(engine.stream("llama", PROMPT, params, on_abort=told.__setitem__)) as stream:
        read = 0
        async for delta in stream:
            read += len(delta.token_ids)
            if read >= 6:
                break
    await settle(engine, lambda: len(told) == 2)
    assert all(usage.prompt_tokens == 50 for usage in told.values())
    assert sum(usage.completion_tokens for usage in told.values()) >= read
    assert all(usage.engine_ns > 0 for usage in told.values())
    await settle(engine, lambda: idle(engine))


async def test_a_last_delta_that_nobody_read_is_told_too(engine: Engine) -> None:
    told: dict[int, Usage] = {}
    stream = engine.stream("llama", PROMPT, GREEDY, on_abort=told.__setitem__)
    await anext(stream)
    await settle(engine, lambda: idle(engine))
    await stream.aclose()
    await settle(engine, lambda: 0 in told)
    assert told[0].completion_tokens == 20


async def test_whoever_reads_to_the_end_is_told_nothing_else(engine: Engine) -> None:
    told: dict[int, Usage] = {}
    await collect(engine.stream("llama", PROMPT, GREEDY, on_abort=told.__setitem__))
    stop = SamplingParams(temperature=0, max_tokens=20, stop=("a", "e", " "), ignore_eos=True)
    await collect(engine.stream("llama", PROMPT, stop, on_abort=told.__setitem__))
    await settle(engine, lambda: idle(engine))
    await asyncio.sleep(0.01)
    assert told == {}


async def test_cached_tokens_are_known_from_the_first_delta(engine: Engine) -> None:
    prompt = [*range(200, 240)]
    first = await collect(engine.stream("llama", prompt, GREEDY))
    again = await collect(engine.stream("llama", prompt, GREEDY))
    assert {delta.cached_tokens for delta in first} == {0}
    assert {delta.cached_tokens for delta in again} == {32}
    assert again[-1].usage.cached_tokens == 32
