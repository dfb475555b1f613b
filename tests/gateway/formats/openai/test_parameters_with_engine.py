"""Parameters over the real engine: streams say what whole answers say, and what is counted is what was generated."""

import statistics
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from gateway.metering.event import UsageEvent
from gateway.metering.journal.journal import Journal
from tests.support.gateway import AUTHORISED
from tests.support.sse import chunks
from tests.support.tiny_app import tiny_app
from tests.support.tiny_tokenizer import IM_END, IM_START
from tests.support.usage_events import events_of

PROMPT = "The quick brown fox"
MESSAGES = [{"role": "user", "content": PROMPT}]
STREAMED = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


class Server:
    def __init__(self, client: TestClient, journal: Journal) -> None:
        self.client = client
        self._journal = journal

    def post(self, path: str, **fields: Any) -> Any:
        prompt = {"messages": MESSAGES} if path == "chat/completions" else {"prompt": PROMPT}
        response = self.client.post(f"/v1/{path}", json={"model": "tiny"} | prompt | fields)
        assert response.status_code == 200, response.text
        return response

    def last_event(self) -> UsageEvent:
        return events_of(self._journal)[-1]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    journal = Journal(tmp_path_factory.mktemp("usage") / "journal.db", interval_ms=5, min_free_bytes=0)
    with TestClient(tiny_app(tmp_path_factory.mktemp("model"), journal=journal), headers=AUTHORISED) as client:
        yield Server(client, journal)


@pytest.mark.parametrize(
    "fields",
    [
        {"echo": True, "max_tokens": 0},
        {"echo": True, "max_tokens": 0, "logprobs": 5, "n": 2},
        {"echo": True, "max_tokens": 6, "logprobs": 2, "n": 3, "seed": 3},
        {"echo": True, "max_tokens": 6, "prompt": [[5, 6, 7], [8, 9]], "logprobs": 0, "seed": 5},
        {"echo": True, "max_tokens": 3, "truncate_prompt_tokens": 4, "seed": 5},
        {"max_tokens": 12, "n": 2, "temperature": 0, "stop": ["a", "e", "t"], "include_stop_str_in_output": True},
        {"max_tokens": 20, "seed": 1, "stop_token_ids": list(range(40, 240)), "include_stop_str_in_output": True},
        {"max_tokens": 4, "logit_bias": {str(IM_START): 100}, "skip_special_tokens": False},
        {"max_tokens": 9, "seed": 2, "allowed_token_ids": [40, 50, 60, IM_END]},
        {"max_tokens": 9, "seed": 2, "bad_words": ["e", "a", "<"]},
        {"max_tokens": 9, "min_tokens": 9, "seed": 2, "add_special_tokens": False},
    ],
)
def test_a_stream_says_and_counts_what_the_whole_answer_does(server: Server, fields: dict[str, Any]) -> None:
    fields = fields | {"return_token_ids": True}
    whole = server.post("completions", **fields).json()
    *seen, last = chunks(server.post("completions", **STREAMED, **fields))
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == whole["usage"][name]
    event = server.last_event()
    assert event.completion_tokens == whole["usage"]["completion_tokens"]
    assert event.completion_tokens == sum(len(choice["token_ids"]) for choice in whole["choices"])
    for expected in whole["choices"]:
        mine = [c for c in seen if c["choices"][0]["index"] == expected["index"]]
        parts = [c["choices"][0] for c in mine]
        assert "".join(part["text"] for part in parts) == expected["text"]
        assert [token for part in parts for token in part["token_ids"]] == expected["token_ids"]
        assert mine[-1]["usage"]["completion_tokens"] == len(expected["token_ids"])
        for field, values in (expected["logprobs"] or {}).items():
            assert [value for part in parts if part["logprobs"] for value in part["logprobs"][field]] == values


def test_the_text_has_what_was_asked_of_it(server: Server) -> None:
    [plain] = server.post("completions", max_tokens=30, seed=6).json()["choices"]
    stop = plain["text"][5:8]
    [stopped] = server.post("completions", max_tokens=30, seed=6, stop=stop).json()["choices"]
    [shown] = server.post("completions", max_tokens=30, seed=6, stop=stop, include_stop_str_in_output=True).json()[
        "choices"
    ]
    assert shown["text"] == stopped["text"] + stop == plain["text"][: plain["text"].index(stop)] + stop
    [without] = server.post("completions", max_tokens=30, seed=6, bad_words=[stop, "e"]).json()["choices"]
    assert stop not in without["text"]
    assert "e" not in without["text"]


def test_the_best_of_several_are_the_likeliest_and_all_are_billed(server: Server) -> None:
    asked = {"max_tokens": 6, "min_tokens": 6, "seed": 9, "temperature": 2}
    every = server.post("completions", n=5, logprobs=0, **asked).json()
    best = server.post("completions", n=2, best_of=5, **asked).json()
    ranked = sorted(every["choices"], key=lambda c: -statistics.mean(c["logprobs"]["token_logprobs"]))
    assert [c["text"] for c in best["choices"]] == [c["text"] for c in ranked[:2]]
    assert [(c["index"], c["logprobs"]) for c in best["choices"]] == [(0, None), (1, None)]
    assert best["usage"]["completion_tokens"] == every["usage"]["completion_tokens"] == 30
    assert server.last_event().completion_tokens == 30


def test_logprobs_of_a_prompt_are_those_of_its_echo(server: Server) -> None:
    [scored] = server.post("completions", max_tokens=1, prompt_logprobs=2).json()["choices"]
    [echoed] = server.post("completions", max_tokens=0, echo=True, logprobs=2, return_token_ids=True).json()["choices"]
    assert scored["prompt_logprobs"][0] is None
    ids = echoed["prompt_token_ids"]
    for token, entries, logprob in zip(
        ids[1:], scored["prompt_logprobs"][1:], echoed["logprobs"]["token_logprobs"][1:], strict=True
    ):
        assert entries[str(token)]["logprob"] == pytest.approx(logprob)
        assert sorted(entry["rank"] for entry in entries.values() if entry["rank"]) == [1, 2]


def test_a_chat_goes_on_with_its_last_message(server: Server) -> None:
    said = [*MESSAGES, {"role": "assistant", "content": "Once upon a"}]
    asked = {"messages": said, "continue_final_message": True, "max_tokens": 8, "seed": 4, "return_token_ids": True}
    whole = server.post("chat/completions", **asked).json()
    prompt = server.client.post("/v1/detokenize", json={"model": "tiny", "tokens": whole["prompt_token_ids"]}).json()
    assert prompt["prompt"].endswith("<|im_start|>assistant\nOnce upon a")
    *seen, last = chunks(server.post("chat/completions", **STREAMED, **asked))
    assert seen[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    [choice] = whole["choices"]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in seen) == choice["message"]["content"]
    streamed = [token for c in seen for token in c["choices"][0].get("token_ids", [])]
    assert streamed == choice["token_ids"]
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == len(streamed)


def test_choices_at_temperature_0_are_alike(server: Server) -> None:
    body = server.post("chat/completions", n=3, temperature=0, max_tokens=5).json()
    assert len({choice["message"]["content"] for choice in body["choices"]}) == 1
    assert len(body["choices"]) == 3
