"""Limits on the tokens of an answer, and the answer's form for callers."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Engine, EngineConfig, FinishReason, InvalidParameter, SamplingParams, TextDelta
from engine.grammar import GrammarSpec
from tests.engine.streams import collect
from tests.support.tiny_tokenizer import IM_END, IM_START

PROMPT = list(range(10, 60))
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
FREE = SamplingParams(seed=5, max_tokens=40)


@pytest.fixture(scope="module")
def engine(tiny_folders: dict[str, Path]) -> Iterator[Engine]:
    config = EngineConfig(dtype="float32", kv_cache_bytes=4 << 20)
    with Engine.load({"llama": tiny_folders["llama"]}, config) as engine:
        yield engine


async def answered(engine: Engine, params: SamplingParams) -> tuple[str, list[int], TextDelta]:
    deltas = await collect(engine.stream("llama", PROMPT, params))
    text = "".join(delta.text for delta in deltas)
    return text, [token for delta in deltas for token in delta.token_ids], deltas[-1]


async def test_a_stop_string_may_be_part_of_the_text(engine: Engine) -> None:
    full, _, _ = await answered(engine, GREEDY)
    stop = full[10:14]
    bare, bare_tokens, _ = await answered(engine, replace(GREEDY, stop=(stop,)))
    text, tokens, last = await answered(engine, replace(GREEDY, stop=(stop,), include_stop=True))
    assert text == bare + stop
    assert (tokens, last.stop) == (bare_tokens, stop)
    assert last.usage.completion_tokens == len(tokens)


async def test_so_may_the_text_of_a_stop_token(engine: Engine) -> None:
    _, full, _ = await answered(engine, GREEDY)
    stop = next(token for position, token in enumerate(full) if position > 2 and token not in full[:position])
    bare, bare_tokens, _ = await answered(engine, replace(GREEDY, stop_token_ids=(stop,)))
    text, tokens, last = await answered(engine, replace(GREEDY, stop_token_ids=(stop,), include_stop=True))
    assert text == bare + engine.models["llama"].text.tokenizer.token_bytes(stop).decode()
    assert tokens == bare_tokens
    assert last.usage.completion_tokens == len(tokens) + 1


async def test_special_tokens_are_shown_where_asked(engine: Engine) -> None:
    forced = replace(GREEDY, max_tokens=2, logit_bias={IM_START: 100.0})
    assert (await answered(engine, forced))[0] == ""
    assert (await answered(engine, replace(forced, skip_special_tokens=False)))[0] == "<|im_start|>" * 2
    ended = SamplingParams(max_tokens=2, logit_bias={IM_END: 100.0}, skip_special_tokens=False)
    assert (await answered(engine, ended))[0] == ""
    assert (await answered(engine, replace(ended, include_stop=True)))[0] == "<|im_end|>"


async def test_no_token_is_drawn_but_those_that_are_allowed(engine: Engine) -> None:
    allowed = frozenset({40, 41, 300})
    for params in (replace(FREE, n=2), replace(GREEDY, max_tokens=40)):
        _, tokens, last = await answered(engine, replace(params, allowed_token_ids=allowed, logprobs=0))
        assert set(tokens) <= allowed
        assert last.finish_reason is FinishReason.LENGTH
    _, tokens, last = await answered(engine, replace(FREE, allowed_token_ids=frozenset({IM_END})))
    assert (tokens, last.finish_reason, last.stop) == ([], FinishReason.STOP, IM_END)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"allowed_token_ids": frozenset({512})}, "allowed_token_ids"),
        ({"allowed_token_ids": frozenset({IM_END}), "min_tokens": 1}, "min_tokens"),
        ({"allowed_token_ids": frozenset()}, "allowed_token_ids"),
        ({"allowed_token_ids": frozenset({1}), "grammar": GrammarSpec.regex("a")}, "allowed_token_ids"),
    ],
)
async def test_what_cannot_be_allowed(engine: Engine, params: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        engine.stream("llama", PROMPT, SamplingParams(**params))  # type: ignore[arg-type]
    assert caught.value.param == param


async def test_words_that_are_not_to_be_said(engine: Engine) -> None:
    said, _, _ = await answered(engine, FREE)
    words = [said[3:5], said[8], '"\n\\', "\x01"]
    text, _, _ = await answered(engine, replace(FREE, grammar=GrammarSpec.without(words, "bad_words")))
    assert len(text) > 10
    assert not any(word in text for word in words)
