"""Reading an answer: its text and count do not depend on how a server cuts it, and it never counts past its limit."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.request import FinishReason, PromptInput, SamplingParams
from gateway.generation.remote_prompt import RemoteChat, RemotePrompt
from gateway.http.errors import APIError
from gateway.upstreams.answers import AnswerReader
from gateway.upstreams.events import EventReader
from tests.support.fake_upstream import DONE, chat_chunk, usage_chunk


def reader_of(max_tokens: int, n: int = 1, answer_tokens: int | None = None) -> AnswerReader:
    prompt = RemotePrompt(RemoteChat([]), 7, answer_tokens=answer_tokens or max_tokens)
    return AnswerReader(PromptInput(prompt, SamplingParams(max_tokens=max_tokens, n=n)), 0, lambda text: None)


def deltas_of(reader: AnswerReader, stream: bytes) -> list:
    found = []
    for data in EventReader().feed(stream):
        if not reader.is_done:
            found += reader.read(data)
    return found + reader.finish()


@given(st.text(min_size=1, max_size=60), st.lists(st.integers(0, 60), max_size=6), st.integers(0, 90))
def test_the_text_and_the_bill_do_not_depend_on_the_chunks(text, places, completion_tokens):
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    parts = [text[start:end] for start, end in pairwise(bounds)]
    usage = {"prompt_tokens": 5, "completion_tokens": completion_tokens}
    stream = b"".join(map(chat_chunk, parts)) + chat_chunk({}, "stop") + usage_chunk(usage) + DONE
    deltas = deltas_of(reader_of(90), stream)
    assert "".join(delta.text for delta in deltas) == text
    assert deltas[-1].usage.completion_tokens == completion_tokens
    assert deltas[-1].usage.prompt_tokens == deltas[-1].prompt_tokens == 5


@given(
    st.lists(st.tuples(st.integers(0, 2), st.text(max_size=30), st.booleans()), max_size=20),
    st.integers(1, 6),
    st.integers(0, 40) | st.none(),
    st.booleans(),
)
def test_no_answer_counts_past_its_limit(chunks, limit, total, is_budget):
    """For all that a server may send and report."""
    parts, running = [], [0, 0, 0]
    for index, text, reports in chunks:
        running[index] += bool(text)
        usage = {"prompt_tokens": 5, "completion_tokens": running[index]} if reports else None
        parts.append(chat_chunk(text, index=index, usage=usage))
    parts += [chat_chunk({}, "stop", index=index) for index in range(3)]
    if total is not None:
        parts.append(usage_chunk({"prompt_tokens": 5, "completion_tokens": total}))
    deltas = deltas_of(reader_of(limit, 3, limit + is_budget), b"".join(parts) + DONE)
    last = {delta.index: delta for delta in deltas if delta.usage is not None}
    assert set(last) == {0, 1, 2}
    assert all(0 <= delta.usage.completion_tokens <= limit for delta in last.values())
    if total is not None and all(delta.finish_reason is FinishReason.STOP for delta in last.values()):
        assert sum(delta.usage.completion_tokens for delta in last.values()) == min(total, 3 * limit)


def status_of(data: bytes) -> int:
    try:
        reader_of(5).read(data)
    except APIError as error:
        return error.status
    return 200


@given(st.binary(max_size=60))
def test_garbage_raises_typed_errors_only(data):
    assert status_of(data) in (200, 502)


MEMBERS = [
    *("choices", "delta", "content", "usage", "index", "tool_calls", "function", "logprobs", "tokens", "text"),
    *("finish_reason", "prompt_tokens", "completion_tokens", "message", "error"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(MEMBERS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_so_does_json_of_any_shape(value):
    assert status_of(json.dumps(value).encode()) in (200, 400, 413, 502)
