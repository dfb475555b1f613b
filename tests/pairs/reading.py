"""Answers of chats and completions, streamed or whole, in one form."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.fuzz.wire import Answer


@dataclass(slots=True)
class Choice:
    """`tokens` are labels, `logprobs` those of the tokens (None: nothing is before it), `tops` the likeliest in their
    place, best first; all empty unless they were asked for."""

    text: str = ""
    finish_reason: str | None = None
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    tops: list[list[tuple[str, float]]] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Names and arguments."""

    def take(self, choice: Mapping[str, Any]) -> None:
        said = choice.get("delta") or choice.get("message") or choice
        self.text += said.get("content", said.get("text")) or ""
        for call in said.get("tool_calls") or ():
            self._take_call(call)
        self._take_logprobs(choice.get("logprobs"))
        if choice["finish_reason"] is not None:
            assert self.finish_reason is None, "a choice ends once"
            self.finish_reason = choice["finish_reason"]

    def _take_call(self, call: Mapping[str, Any]) -> None:
        function, index = call["function"], call.get("index", len(self.calls))
        if index == len(self.calls):
            self.calls.append(("", ""))
        name, arguments = self.calls[index]
        self.calls[index] = (name + function.get("name", ""), arguments + function.get("arguments", ""))

    def _take_logprobs(self, given: Mapping[str, Any] | None) -> None:
        if given is None:
            return
        if "content" in given:
            for entry in given["content"]:
                self.tokens.append(entry["token"])
                self.logprobs.append(entry["logprob"])
                self.tops.append([(top["token"], top["logprob"]) for top in entry["top_logprobs"]])
        else:
            self.tokens += given["tokens"]
            self.logprobs += given["token_logprobs"]
            self.tops += [sorted((top or {}).items(), key=lambda item: -item[1]) for top in given["top_logprobs"]]


@dataclass(frozen=True, slots=True)
class Reply:
    """`usage` is None where a stream does not say."""

    choices: list[Choice]
    usage: Mapping[str, Any] | None
    service_tier: str | None
    headers: Mapping[str, str]


def reply_of(answer: Answer) -> Reply:
    """Raises: ValueError, AssertionError: it is not as answers are."""
    assert answer.status == 200, answer.body
    chunks = answer.events() if answer.is_stream else [orjson.loads(answer.body)]
    usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    assert len(usages) <= 1
    choices: dict[int, Choice] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            choices.setdefault(choice["index"], Choice()).take(choice)
    assert sorted(choices) == list(range(len(choices)))
    if usages:
        assert chunks[-1].get("usage"), "usage comes last"
    return Reply(
        [choices[index] for index in range(len(choices))],
        usages[0] if usages else None,
        chunks[0].get("service_tier"),
        answer.headers,
    )
