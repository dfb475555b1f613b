from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.detokenizer import Detokenizer
from engine.text.processor import TextProcessor
from tests.engine.text.corpus import CORPUS

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(CORPUS)


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """The rule, spelled out: ends first, and of those the longest."""
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    return (min(ends)[0] - len(min(ends)[2]), min(ends)[2]) if ends else None


def pushes(ids: Sequence[int], cuts: Sequence[int]) -> Iterator[Sequence[int]]:
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    for start, end in pairwise(edges):
        yield ids[start:end]


def run(detokenizer: Detokenizer, parts: Iterator[Sequence[int]]) -> list[str]:
    return [*(detokenizer.push(part) for part in parts), detokenizer.flush()]


@pytest.fixture(scope="module", params=["smollm2", "sentencepiece"])
def processor(request: pytest.FixtureRequest) -> TextProcessor:
    chosen: TextProcessor = request.getfixturevalue(request.param)
    return chosen


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_cut_gives_the_text_of_the_whole(processor: TextProcessor, data: st.DataObject) -> None:
    encoded = TEXTS.map(lambda text: processor.encode(text, add_special_tokens=False))
    ids = data.draw(encoded | st.lists(st.integers(0, processor.tokenizer.vocab_size - 1), max_size=30))
    parts = run(processor.detokenizer(), pushes(ids, data.draw(st.lists(st.integers(0, 100), max_size=6))))
    assert "".join(parts) == processor.decode(ids)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_stop_strings_against_the_rule_on_the_whole_text(processor: TextProcessor, data: st.DataObject) -> None:
    typed = data.draw(st.text("ab<|é😀", max_size=30) | TEXTS)
    ids = processor.encode(typed, add_special_tokens=False)
    text = processor.decode(ids)  # SmolLM2 has no token for some bytes
    stops = data.draw(st.lists(st.text("ab<|é😀", min_size=1, max_size=4), min_size=1, max_size=4))
    if text and data.draw(st.booleans()):
        start = data.draw(st.integers(0, len(text) - 1))
        stops.append(text[start : start + data.draw(st.integers(1, 8))])
    detokenizer = processor.detokenizer(stops)
    parts = run(detokenizer, pushes(ids, data.draw(st.lists(st.integers(0, 100), max_size=6))))
    expected = first_stop(text, stops)
    if expected is None:
        assert "".join(parts) == text
        assert (detokenizer.stopped, detokenizer.consumed_tokens) == (None, len(ids))
        return
    start, stop = expected
    assert "".join(parts) == text[:start]
    assert detokenizer.stopped == stop
    consumed = detokenizer.consumed_tokens
    end = start + len(stop)
    assert processor.decode(ids[:consumed])[:end] == text[:end]
    assert processor.decode(ids[: consumed - 1])[:end] != text[:end]


def test_a_character_is_never_split(smollm2: TextProcessor) -> None:
    ids = smollm2.encode("a👨‍👩‍👧é")
    shown = run(smollm2.detokenizer(), ([token_id] for token_id in ids))
    assert len(ids) > 6
    assert not any("\ufffd" in part for part in shown)
    assert "".join(shown) == "a👨‍👩‍👧é"


def test_bytes_that_no_byte_can_complete_show_as_replacement(smollm2: TextProcessor) -> None:
    thumb = smollm2.encode("👍")
    detokenizer = smollm2.detokenizer()
    assert detokenizer.push(thumb[:-1]) == ""
    assert detokenizer.push(smollm2.encode("x")) == "\ufffdx"
    assert detokenizer.push(thumb[:-1]) + detokenizer.flush() == "\ufffd"


def test_only_what_may_become_a_stop_string_is_held(smollm2: TextProcessor) -> None:
    detokenizer = smollm2.detokenizer(["<end>"])
    assert detokenizer.push(smollm2.encode("one <en")) == "one "
    assert detokenizer.push(smollm2.encode("d and <")) == "<end and "
    assert detokenizer.push(smollm2.encode("en")) == ""
    assert detokenizer.flush() == "<en"
    assert detokenizer.stopped is None


def test_the_stop_string_and_what_follows_are_dropped(smollm2: TextProcessor) -> None:
    ids = smollm2.encode("1, 2, STOP, 3")
    detokenizer = smollm2.detokenizer([" STOP"])
    assert detokenizer.push(ids) == "1, 2,"
    assert detokenizer.stopped == " STOP"
    assert smollm2.decode(ids[: detokenizer.consumed_tokens]).endswith("STOP")
    assert detokenizer.push(ids) + detokenizer.flush() == ""
    assert detokenizer.consumed_tokens < len(ids)


@pytest.mark.parametrize(
    ("stops", "shown", "stopped"),
    [
        (["abcd", "bc"], "a", "bc"),  # complete first
        (["bc", "abc"], "", "abc"),  # both end here: the longer starts first
        (["d", "abce"], "abc", "d"),  # what was held for a lost candidate is shown
        (["zz"], "abcd", None),
    ],
)
def test_which_stop_string_wins(smollm2: TextProcessor, stops: list[str], shown: str, stopped: str | None) -> None:
    for ids in ([smollm2.encode("abcd")], [smollm2.encode(char) for char in "abcd"]):
        detokenizer = smollm2.detokenizer(stops)
        assert "".join(run(detokenizer, iter(ids))) == shown
        assert detokenizer.stopped == stopped


def test_a_stop_string_may_end_in_the_flush(smollm2: TextProcessor) -> None:
    detokenizer = smollm2.detokenizer(["x\ufffd"])
    assert detokenizer.push([*smollm2.encode("ax"), *smollm2.encode("👍")[:1]]) == "a"
    assert detokenizer.flush() == ""
    assert detokenizer.stopped == "x\ufffd"


def test_special_tokens_have_no_text_unless_asked(smollm2: TextProcessor) -> None:
    ids = [1, *smollm2.encode("a"), 2, *smollm2.encode("b"), 2]
    assert "".join(run(smollm2.detokenizer(), iter([ids]))) == "ab"
    loud = Detokenizer(smollm2.tokenizer, pieces=smollm2.tokenizer.pieces)
    assert loud.push(ids) == "<|im_start|>a<|im_end|>b<|im_end|>"


def test_the_prefix_space_stays_when_a_text_is_continued(sentencepiece: TextProcessor) -> None:
    ids = sentencepiece.encode("hello there", add_special_tokens=False)
    assert "".join(run(sentencepiece.detokenizer(), ([token_id] for token_id in ids))) == "hello there"
    continued = sentencepiece.detokenizer(continues_text=True)
    assert continued.push(ids) == " hello there"


def test_empty_stop_strings_are_refused(smollm2: TextProcessor) -> None:
    with pytest.raises(ValueError, match="empty"):
        smollm2.detokenizer([""])
