"""Grammars are compiled where they can be killed, remembered, and refused in words."""

import time
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest

from engine.errors import EngineError
from engine.grammar import GrammarFailed, GrammarRefused, GrammarSpec
from engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from engine.grammar.sandbox import CompileSandbox, SandboxExited
from engine.grammar.vocabulary import LibraryVocabulary
from engine.text.tokenizer import Tokenizer
from tests.support.schemas import BOMB
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE


@pytest.fixture
def compiler(tokenizer: Tokenizer) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(lambda: LibraryVocabulary.of(tokenizer, VOCAB_SIZE, (IM_END,)), seconds=1.0)
    yield compiler
    compiler.close()


def allowed(grammar: CompiledGrammar, tokens: list[int]) -> set[int]:
    matcher, words = grammar.matcher(), np.zeros(VOCAB_SIZE // 32, dtype=np.int32)
    assert matcher.accept(tokens) == len(tokens)
    matcher.fill_bitmask(words)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def test_a_bomb_is_killed_and_the_next_grammar_is_not(compiler: GrammarCompiler) -> None:
    begun = time.monotonic()
    with pytest.raises(GrammarRefused, match=r"too complex"):
        compiler.compile(BOMB).result(timeout=30)
    assert time.monotonic() - begun < 30
    assert allowed(compiler.compile(GrammarSpec.regex("a")).result(), [])


def test_a_bomb_that_runs_out_of_states_before_its_time_says_so(tokenizer: Tokenizer) -> None:
    compiler = GrammarCompiler(lambda: LibraryVocabulary.of(tokenizer, VOCAB_SIZE, (IM_END,)), seconds=120.0)
    try:
        with pytest.raises(GrammarRefused, match=r"too many states"):
            compiler.compile(BOMB).result()
    finally:
        compiler.close()


def test_a_bomb_holds_up_no_other(compiler: GrammarCompiler) -> None:
    bomb = compiler.compile(BOMB)
    assert allowed(compiler.compile(GrammarSpec.regex("a")).result(), [])
    assert isinstance(bomb.exception(timeout=30), GrammarRefused)


def test_what_was_compiled_or_refused_is_remembered(compiler: GrammarCompiler) -> None:
    good, bad = GrammarSpec.regex("a", "guided_regex"), GrammarSpec.regex("(", "guided_regex")
    first: list[Future[CompiledGrammar]] = [compiler.compile(each) for each in (good, bad)]
    assert first[1].exception() is not None
    assert first[0].exception() is None
    again = [GrammarSpec.regex("a", "structured_outputs.regex"), GrammarSpec.regex("(")]
    assert [compiler.compile(each) for each in again] == first


def test_a_process_killed_from_outside_is_replaced(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[CompileSandbox] = []
    starts = CompileSandbox.__init__

    def noted(process: CompileSandbox, vocabulary: LibraryVocabulary, seconds: float) -> None:
        starts(process, vocabulary, seconds)
        started.append(process)

    monkeypatch.setattr(CompileSandbox, "__init__", noted)
    compiler.compile(GrammarSpec.regex("a")).result()
    started[0].kill()
    while started[0].alive:
        time.sleep(0.001)
    compiler.compile(GrammarSpec.regex("b")).result()
    assert [process.alive for process in started] == [False, True]
    compiler.close()
    assert not started[1].alive


def test_a_process_without_work_ends_and_the_next_grammar_has_another(tokenizer: Tokenizer) -> None:
    started: list[CompileSandbox] = []

    def start(vocabulary: LibraryVocabulary, seconds: float) -> CompileSandbox:
        started.append(CompileSandbox(vocabulary, seconds, idle_seconds=0.1))
        return started[-1]

    vocabulary = LibraryVocabulary.of(tokenizer, VOCAB_SIZE, (IM_END,))
    compiler = GrammarCompiler(lambda: vocabulary, seconds=30.0, start_sandbox=start)
    compiler.compile(GrammarSpec.regex("a")).result()
    while started[0].alive:
        time.sleep(0.001)
    with pytest.raises(SandboxExited):
        started[0].check(GrammarSpec.regex("b"))
    compiler.compile(GrammarSpec.regex("b")).result()
    assert len(started) >= 2
    compiler.close()


def test_a_grammar_says_what_memory_it_takes(compiler: GrammarCompiler) -> None:
    small = compiler.compile(GrammarSpec.regex("a")).result()
    large = compiler.compile(GrammarSpec.json_schema({"properties": {f"p{i}": {} for i in range(300)}})).result()
    assert 1_000 < small.size_bytes < large.size_bytes
    assert compiler.cached_bytes >= small.size_bytes + large.size_bytes


def test_a_schema_of_many_optional_properties_can_be_followed(tokenizer: Tokenizer) -> None:
    """At its beginning there are as many ways on as properties."""
    compiler = GrammarCompiler(lambda: LibraryVocabulary.of(tokenizer, VOCAB_SIZE, (IM_END,)), seconds=120.0)
    schema = {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(2000)}}
    matcher, words = (
        compiler.compile(GrammarSpec.json_schema(schema)).result().matcher(),
        np.zeros(VOCAB_SIZE // 32, "i4"),
    )
    compiler.close()
    for token in tokenizer.encode('{"p7":null,"p1999":null}', add_special_tokens=False):
        matcher.fill_bitmask(words)
        assert matcher.accept([token]) == 1


def test_after_closing_there_is_no_compiling(compiler: GrammarCompiler) -> None:
    compiler.close()
    with pytest.raises(EngineError, match="closed"):
        compiler.compile(GrammarSpec.regex("a"))


def test_no_special_token_but_the_end_is_ever_allowed(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    anything = compiler.compile(GrammarSpec.regex(r"(.|\n)*")).result()
    assert allowed(anything, []) & tokenizer.special_ids == {IM_END}
    assert len(allowed(anything, [])) > 200


@pytest.mark.parametrize("typed", ['{"a":"<|im_end|>"}', '{"a":"ü\\n"}', '{"a":{},"b":[1,2.5e3,null,true]}'])
def test_json_has_no_optional_space(compiler: GrammarCompiler, tokenizer: Tokenizer, typed: str) -> None:
    grammar = compiler.compile(GrammarSpec.json_object()).result()
    tokens = tokenizer.encode(typed, add_special_tokens=False)
    assert allowed(grammar, tokens) == {IM_END}
    for spaced in (typed.replace(":", ": ", 1), typed.replace("}", " }", 1), " " + typed):
        ids = tokenizer.encode(spaced, add_special_tokens=False)
        assert grammar.matcher().accept(ids) < len(ids)


def test_the_end_token_follows_the_end_of_the_grammar(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    grammar = compiler.compile(GrammarSpec.choice(["a", "ab", "a.c"])).result()
    a, b, dot = (tokenizer.encode(char, add_special_tokens=False)[0] for char in "ab.")
    assert IM_END not in allowed(grammar, [])
    assert allowed(grammar, [a]) >= {IM_END, b, dot}
    assert allowed(grammar, [a, b]) == {IM_END}


def test_a_matcher_goes_back_to_where_it_was(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    grammar = compiler.compile(GrammarSpec.json_object()).result()
    tokens = tokenizer.encode('{"a":[1]}', add_special_tokens=False)
    matcher = grammar.matcher()
    for back in range(len(tokens) + 1):
        missing = tokens[matcher.taken :]
        assert matcher.accept(missing) == len(missing)
        matcher.rollback(back)
        assert matcher.taken == len(tokens) - back
        words, fresh = np.zeros((2, VOCAB_SIZE // 32), dtype=np.int32)
        matcher.fill_bitmask(words)
        other = grammar.matcher()
        other.accept(tokens[: matcher.taken])
        other.fill_bitmask(fresh)
        assert (words == fresh).all()


def test_a_grammar_that_grows_too_complex_on_the_way_says_so(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    """Counting where an `a` stood takes a state for each subset of the last 20 places."""
    grammar = compiler.compile(GrammarSpec.regex("(a|b)*a(a|b){20}c")).result()
    ids = [tokenizer.encode(char, add_special_tokens=False)[0] for char in "ab"]
    matcher, words = grammar.matcher(), np.zeros(VOCAB_SIZE // 32, dtype=np.int32)
    bits = np.random.default_rng(0).integers(0, 2, 100_000)
    with pytest.raises(GrammarFailed):
        for bit in bits.tolist():
            matcher.fill_bitmask(words)
            if not matcher.accept([ids[bit]]):
                matcher.fill_bitmask(words)
                pytest.fail("it neither goes on nor says why")
