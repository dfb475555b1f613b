"""Promises of answers, flag by flag: each promise checks a reply against all of its request's parameters."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
import orjson

from engine.text.processor import TextProcessor
from gateway.formats.openai.logprobs import token_label
from tests.pairs.reading import Choice, Reply
from tests.support.tiny_tokenizer import IM_END

SHORT, LONG, LONGER = 3, 24, 40
"""Tokens; a forced call takes some thirty."""
PROMPT = "The quick brown fox"
PROMPT_IDS = [40, 50, 60, 70]
BANNED = range(32, 96)
FORCED = 70
ALLOWED = range(3, 97)
"""All of ASCII: a grammar finds its way in it."""
STOPPING = range(100, 180)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2, 30]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
PARAMETERS: dict[str, dict[str, Any]] = {
    name: {"type": "object", "properties": {key: kind}, "required": [key], "additionalProperties": False}
    for name, key, kind in (("f", "a", {"type": "boolean"}), ("g", "b", {"enum": [1, 2]}))
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": each}} for name, each in PARAMETERS.items()]
NAMED = {"type": "function", "function": {"name": "g"}}
WORDS = ["yes", "no", "perhaps"]
PENALISED = 16
"""Tokens for which a bias of 100 outweighs the accumulated frequency penalty."""
FORCING = ("tools forced", "one forced call", "named tool")
GREEDY = ("temperature 0", "top_k 1")
"""With one of these an answer says the same without a seed."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as flags: their names, and its body."""

    names: frozenset[str]
    body: Mapping[str, Any]
    text: TextProcessor

    def any_of(self, *names: str) -> bool:
        return not self.names.isdisjoint(names)

    def labels(self, ids: Sequence[int]) -> set[str]:
        return {token_label(self.text.tokenizer.token_bytes(token)) for token in ids}

    @property
    def is_repeatable(self) -> bool:
        return "seed" in self.body or self.any_of(*GREEDY)

    @property
    def is_constrained(self) -> bool:
        return any(name.startswith("grammar") for name in self.names) or self.any_of(*FORCING)

    @property
    def is_plain(self) -> bool:
        """Nothing but the model says what comes: log-probabilities are the model's own."""
        shaping = (
            "logit_bias",
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "min_tokens",
            "ignore_eos",
        )
        return not self.is_constrained and not any(name in self.body for name in shaping)

    @property
    def max_tokens(self) -> int:
        return int(self.body.get("max_completion_tokens", self.body.get("max_tokens", LONG)))

    @property
    def prompts(self) -> list[Any]:
        given = self.body.get("prompt", PROMPT)
        return given if isinstance(given, list) and not isinstance(given[0], int) else [given]

    def echoed(self, choice: int) -> str:
        """Text in front of a choice's answer."""
        if not self.body.get("echo"):
            return ""
        prompt = self.prompts[choice // self.body.get("n", 1)]
        return prompt if isinstance(prompt, str) else self.text.decode(prompt)

    def answer(self, reply: Reply, choice: int) -> str:
        text = reply.choices[choice].text
        assert text.startswith(self.echoed(choice)), text
        return text[len(self.echoed(choice)) :]

    def drawn(self, reply: Reply) -> list[Choice]:
        """The tokens of the answers alone."""
        drawn = []
        for index, choice in enumerate(reply.choices):
            start = self._echoed_tokens(index) if choice.tokens else 0
            tokens, logprobs, tops = choice.tokens[start:], choice.logprobs[start:], choice.tops[start:]
            drawn.append(Choice(tokens=tokens, logprobs=logprobs, tops=tops))
        return drawn

    def _echoed_tokens(self, choice: int) -> int:
        if not self.body.get("echo"):
            return 0
        prompt = self.prompts[choice // self.body.get("n", 1)]
        return len(self.text.encode(prompt) if isinstance(prompt, str) else prompt)


Promise = Callable[[Asked, Reply], None]


def nothing(asked: Asked, reply: Reply) -> None:
    """Promises no more than every answer does."""


# What every answer promises.


def every_answer(asked: Asked, reply: Reply) -> None:
    assert len(reply.choices) == len(asked.prompts) * asked.body.get("n", 1)
    for index, choice in enumerate(reply.choices):
        assert choice.finish_reason in ("stop", "length", "tool_calls")
        asked.answer(reply, index)
        assert len(choice.tokens) == len(choice.logprobs) == len(choice.tops)
        for logprob, tops in zip(choice.logprobs, choice.tops, strict=True):
            assert logprob is None or -9999 <= logprob <= 0
            assert [top for _, top in tops] == sorted((top for _, top in tops), reverse=True)
    usage = reply.usage
    if usage is not None:
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        cut = sum(choice.finish_reason == "length" for choice in reply.choices)
        made = len(asked.prompts) * max(asked.body.get("n", 1), asked.body.get("best_of", 1))
        assert cut * asked.max_tokens <= usage["completion_tokens"] <= made * asked.max_tokens


def whole(asked: Asked, reply: Reply) -> None:
    assert reply.headers["content-type"] == "application/json"
    assert reply.usage is not None


def streamed(asked: Asked, reply: Reply) -> None:
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert (reply.usage is not None) == bool(asked.body.get("stream_options"))


# What shapes the text.


def likeliest(asked: Asked, reply: Reply) -> None:
    if not asked.is_plain:
        return
    for choice in asked.drawn(reply):
        for logprob, tops in zip(choice.logprobs, choice.tops, strict=True):
            assert not tops or logprob == tops[0][1]


def among_five(asked: Asked, reply: Reply) -> None:
    if not asked.is_plain:
        return
    for choice in asked.drawn(reply):
        for logprob, tops in zip(choice.logprobs, choice.tops, strict=True):
            assert logprob is not None
            assert len(tops) < 5 or logprob >= tops[4][1]


def in_nucleus(asked: Asked, reply: Reply) -> None:
    """At temperature 1: what is likelier than the one drawn has less than `top_p` together."""
    if not asked.is_plain or "temperature" in asked.body:
        return
    for choice in asked.drawn(reply):
        for logprob, tops in zip(choice.logprobs, choice.tops, strict=True):
            assert logprob is not None
            assert sum(math.exp(top) for _, top in tops if top > logprob) < asked.body["top_p"] + 1e-3


def likely_enough(asked: Asked, reply: Reply) -> None:
    if not asked.is_plain or "temperature" in asked.body:
        return
    for choice in asked.drawn(reply):
        for logprob, tops in zip(choice.logprobs, choice.tops, strict=True):
            assert logprob is not None
            assert not tops or logprob >= tops[0][1] + math.log(asked.body["min_p"]) - 1e-3


def banned(asked: Asked, reply: Reply) -> None:
    if asked.is_constrained:
        return  # a grammar may leave nothing else
    for choice in asked.drawn(reply):
        assert not asked.labels(BANNED) & set(choice.tokens)


def only_allowed(asked: Asked, reply: Reply) -> None:
    for choice in asked.drawn(reply):
        assert set(choice.tokens) <= asked.labels([IM_END, *ALLOWED])


def forced(asked: Asked, reply: Reply) -> None:
    if asked.is_constrained:
        return
    word = asked.text.decode([FORCED])
    for index in range(len(reply.choices)):
        text = asked.answer(reply, index)
        if "frequency_penalty" in asked.body:  # applied after the bias, and grows with each token
            text = text[: PENALISED * len(word)]
        assert text == word * (len(text) // len(word))


# What ends it.


def at_once(asked: Asked, reply: Reply) -> None:
    """But for what forbids it: without these promises kept, nothing would come."""
    if not asked.any_of("min_tokens", "ignore_eos") and not asked.is_constrained:
        assert [asked.answer(reply, index) for index in range(len(reply.choices))] == [""] * len(reply.choices)


def without(*stops: str) -> Promise:
    """Or with one at the very end, where that is asked for."""

    def promise(asked: Asked, reply: Reply) -> None:
        end = -1 if asked.any_of("stops shown") else None
        for index in range(len(reply.choices)):
            assert not any(stop in asked.answer(reply, index)[:end] for stop in stops)

    return promise


def without_stop_tokens(asked: Asked, reply: Reply) -> None:
    for choice in asked.drawn(reply):
        assert not asked.labels(STOPPING) & set(choice.tokens)


def at_least(asked: Asked, reply: Reply) -> None:
    """Tokens; a stop string may end the text before."""
    if asked.any_of("stop string", "stop strings") or reply.usage is None:
        return
    assert reply.usage["completion_tokens"] >= asked.body["min_tokens"] * len(reply.choices)


def to_the_limit(asked: Asked, reply: Reply) -> None:
    if not asked.any_of("stop string", "stop strings", "stop tokens"):
        assert all(choice.finish_reason == "length" for choice in reply.choices)


# How it has to look.


def _finished(asked: Asked, reply: Reply) -> list[str]:
    """Texts that neither a limit nor a stop has cut short, and that do not show what ended them."""
    if asked.any_of("stop string", "stop strings", "stop tokens", "stops shown"):
        return []
    return [asked.answer(reply, index) for index, choice in enumerate(reply.choices) if choice.finish_reason == "stop"]


def fits_schema(asked: Asked, reply: Reply) -> None:
    for text in _finished(asked, reply):
        jsonschema.validate(orjson.loads(text), SCHEMA)


def is_object(asked: Asked, reply: Reply) -> None:
    for text in _finished(asked, reply):
        assert isinstance(orjson.loads(text), dict)


def never(*words: str) -> Promise:
    def promise(asked: Asked, reply: Reply) -> None:
        for index in range(len(reply.choices)):
            assert not any(word in asked.answer(reply, index) for word in words)

    return promise


def matches(pattern: str) -> Promise:
    def promise(asked: Asked, reply: Reply) -> None:
        for text in _finished(asked, reply):
            assert re.fullmatch(pattern, text)

    return promise


def no_calls(asked: Asked, reply: Reply) -> None:
    assert all(choice.finish_reason != "tool_calls" and not choice.calls for choice in reply.choices)


def some_calls(asked: Asked, reply: Reply) -> None:
    """Of the tools that there are. Whether it keeps to their schemas is the model's affair."""
    for choice in reply.choices:
        assert (choice.finish_reason != "tool_calls") or choice.calls
        assert {name for name, _ in choice.calls} <= PARAMETERS.keys()


def calls(asked: Asked, reply: Reply) -> None:
    """An answer without stop conditions that ends before its limit is calls alone, each valid by its tool's schema."""
    some_calls(asked, reply)
    if asked.any_of("stop string", "stop strings", "stop tokens", "stops shown"):
        return
    for choice in reply.choices:
        if choice.finish_reason != "length":
            assert (choice.finish_reason, choice.text) == ("tool_calls", "")
            for name, arguments in choice.calls:
                jsonschema.validate(orjson.loads(arguments), PARAMETERS[name])


def one_call(asked: Asked, reply: Reply) -> None:
    calls(asked, reply)
    assert all(len(choice.calls) <= 1 for choice in reply.choices)


def named_call(asked: Asked, reply: Reply) -> None:
    one_call(asked, reply)
    assert {name for choice in reply.choices for name, _ in choice.calls} <= {"g"}


# What comes with it.


def with_tops(count: int | None) -> Promise:
    """Each token has the `count` likeliest tokens; None: no log-probabilities at all."""

    def promise(asked: Asked, reply: Reply) -> None:
        for choice in reply.choices:
            if count is None:
                assert not choice.tokens
                continue
            is_first = bool(asked.body.get("echo"))
            assert all(logprob is not None for logprob in choice.logprobs[is_first:])
            # A legacy answer adds the one drawn, and has one entry for all ids without a token.
            is_legacy = "prompt" in asked.body
            assert all(len(tops) == count or (is_legacy and len(tops) <= count + 1) for tops in choice.tops[is_first:])
            hidden = () if asked.any_of("special tokens shown") else asked.text.tokenizer.special_texts
            joined = b"".join(_bytes_of(token) for token in choice.tokens if token not in hidden)
            text = choice.text.encode()
            if asked.any_of("tools", *FORCING):
                continue  # what is a call is not in the text
            # What ended the text may be shown behind its tokens.
            assert joined.startswith(text) or "�" in choice.text or (asked.any_of("stops shown") and joined in text)

    return promise


def _bytes_of(label: str) -> bytes:
    if re.fullmatch(r"bytes:(\\x[0-9a-f]{2})+", label):
        return bytes.fromhex(label.removeprefix("bytes:").replace("\\x", ""))
    return label.encode()


def tier(word: str) -> Promise:
    def promise(asked: Asked, reply: Reply) -> None:
        assert reply.service_tier == word

    return promise


def in_session(asked: Asked, reply: Reply) -> None:
    assert reply.headers["x-turnpike-session-turns"] == "0"
