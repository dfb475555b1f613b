"""For any schema, a completed answer validates, or the schema is refused with an error that names the keyword.

The model here draws at random, with a liking for what ends things: the matcher alone keeps it in.
"""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.grammar import GrammarRefused, GrammarSpec
from engine.grammar.compiler import CompiledGrammar, GrammarCompiler
from engine.text.tokenizer import Tokenizer
from tests.engine.grammar.corpus import ENFORCED, REFUSED, require_valid
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE

WALKS = 12
MOST_TOKENS = 160


def walk(grammar: CompiledGrammar, tokenizer: Tokenizer, rng: random.Random) -> str | None:
    """A text at random, None if it came to no end."""
    matcher, words = grammar.matcher(), np.zeros(VOCAB_SIZE // 32, dtype=np.int32)
    tokens: list[int] = []
    while len(tokens) < MOST_TOKENS:
        matcher.fill_bitmask(words)
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
        assert allowed, f"nothing may follow {tokenizer.decode(tokens)!r}"
        ending = [
            each for each in allowed if each == IM_END or tokenizer.token_bytes(each) in (b'"', b"}", b"]", b'":')
        ]
        token = rng.choice(ending if ending and rng.random() < 0.5 else allowed)
        if token == IM_END:
            return b"".join(map(tokenizer.token_bytes, tokens)).decode()
        tokens.append(token)
        assert matcher.accept([token]) == 1
    return None


@pytest.mark.parametrize("schema", ENFORCED.values(), ids=ENFORCED.keys())
def test_what_ends_is_valid(compiler: GrammarCompiler, tokenizer: Tokenizer, schema: dict[str, Any]) -> None:
    grammar = compiler.compile(GrammarSpec.json_schema(schema)).result()
    texts = [walk(grammar, tokenizer, random.Random(seed)) for seed in range(WALKS)]
    ended = [text for text in texts if text is not None]
    assert ended
    for text in ended:
        require_valid(text, schema)


@pytest.mark.parametrize(("keyword", "schema"), REFUSED.items(), ids=REFUSED.keys())
def test_unenforceable_keywords_are_named(compiler: GrammarCompiler, keyword: str, schema: dict[str, Any]) -> None:
    for each in (schema, {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, schema]}}}):
        with pytest.raises(GrammarRefused, match=f'"{keyword.replace("$", "[$]")}"'):
            compiler.compile(GrammarSpec.json_schema(each)).result()


leaves = st.one_of(
    st.sampled_from([{"type": kind} for kind in ("null", "boolean", "integer", "number", "string")]),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-999, 999),
        st.integers(0, 99),
    ),
    st.builds(
        lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    st.lists(st.none() | st.booleans() | st.integers(-9, 99) | st.text(max_size=4), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
    st.sampled_from(["^a+$", "b", "^[^a]{2}", "(x|yz){1,3}$", "\\d", "^\\w\\s?$"]).map(
        lambda pattern: {"type": "string", "pattern": pattern, "maxLength": 8}
    ),
)
names = st.text(alphabet='ab"\\é\n🙂', max_size=3)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    members = draw(st.dictionaries(names, inner, max_size=3))
    required = draw(st.lists(st.sampled_from(sorted(members)), unique=True)) if members else []
    others = draw(st.just(False) | inner)
    schema = {"type": "object", "properties": members, "required": required, "additionalProperties": others}
    bounds = st.fixed_dictionaries(
        {}, optional={"minProperties": st.integers(0, 2), "maxProperties": st.integers(0, 3)}
    )
    return schema | draw(bounds)


schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        objects(inner),
        st.builds(
            lambda items, low, more: {"type": "array", "items": items, "minItems": low, "maxItems": low + more},
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches}),
        st.lists(inner, min_size=1, max_size=2).map(lambda branches: {"allOf": branches}),
        st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"oneOf": branches}),
    ),
    max_leaves=6,
)


@given(schema=schemas, seed=st.integers(0, 2**32))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_schemas(compiler: GrammarCompiler, tokenizer: Tokenizer, schema: dict[str, Any], seed: int) -> None:
    try:
        grammar = compiler.compile(GrammarSpec.json_schema(schema)).result()
    except GrammarRefused:
        return
    text = walk(grammar, tokenizer, random.Random(seed))
    if text is not None:
        require_valid(text, schema)
