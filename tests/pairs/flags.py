"""Parameters of a request, value by value, with the promises of each value.

To add a parameter, add a factor: its first value asks for nothing. `excludes` names values of other factors with which
it is refused (400); that is checked as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.pairs.promises import (
    ALLOWED,
    BANNED,
    FORCED,
    LONG,
    LONGER,
    NAMED,
    PROMPT,
    PROMPT_IDS,
    SCHEMA,
    SHORT,
    STOPPING,
    TOOLS,
    WORDS,
    Promise,
    among_five,
    at_least,
    at_once,
    banned,
    calls,
    fits_schema,
    forced,
    in_nucleus,
    in_session,
    is_object,
    likeliest,
    likely_enough,
    matches,
    named_call,
    never,
    no_calls,
    nothing,
    one_call,
    only_allowed,
    some_calls,
    streamed,
    tier,
    to_the_limit,
    whole,
    with_tops,
    without,
    without_stop_tokens,
)
from tests.support.tiny_tokenizer import IM_END


@dataclass(frozen=True, slots=True)
class Flag:
    """A value of a factor. `fields` may have `{unique}` in a string: each request gets its own."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    promise: Promise = nothing
    excludes: frozenset[str] = frozenset()


def fields_of(body: Mapping[str, Any], unique: str) -> dict[str, Any]:
    return {
        name: value.replace("{unique}", unique) if isinstance(value, str) else value for name, value in body.items()
    }


NO_GRAMMAR_WITH = frozenset({"min_tokens", "ignore_eos", "allowed tokens"})

COMMON: dict[str, list[Flag]] = {
    "model": [Flag("drafts", {"model": "tiny"}), Flag("no drafts", {"model": "twin"})],
    "stream": [
        Flag("whole", {}, whole),
        Flag("streamed", {"stream": True}, streamed),
        Flag("streamed, with usage", {"stream": True, "stream_options": {"include_usage": True}}, streamed),
    ],
    "n": [Flag("one choice"), Flag("two choices", {"n": 2}), Flag("three choices", {"n": 3})],
    "temperature": [
        Flag("temperature 1"),
        Flag("temperature 0", {"temperature": 0}, likeliest),
        Flag("temperature 0.6", {"temperature": 0.6}),
        Flag("temperature 2", {"temperature": 2}),
    ],
    "top_k": [Flag("every k"), Flag("top_k 1", {"top_k": 1}, likeliest), Flag("top_k 5", {"top_k": 5}, among_five)],
    "top_p": [Flag("every p"), Flag("top_p", {"top_p": 0.1}, in_nucleus)],
    "min_p": [Flag("no min_p"), Flag("min_p", {"min_p": 0.1}, likely_enough)],
    "frequency": [Flag("no frequency_penalty"), Flag("frequency_penalty", {"frequency_penalty": 1.5})],
    "presence": [Flag("no presence_penalty"), Flag("presence_penalty", {"presence_penalty": -1.5})],
    "repetition": [Flag("no repetition_penalty"), Flag("repetition_penalty", {"repetition_penalty": 1.3})],
    "seed": [Flag("seed", {"seed": 11}), Flag("negative seed", {"seed": -5}), Flag("no seed")],
    "stop": [
        Flag("no stop"),
        Flag("stop string", {"stop": "e"}, without("e")),
        Flag("stop strings", {"stop": ["a", "qu", "\n"]}, without("a", "qu", "\n")),
    ],
    "stop tokens": [
        Flag("no stop tokens"),
        Flag("stop tokens", {"stop_token_ids": list(STOPPING)}, without_stop_tokens),
    ],
    "min_tokens": [Flag("no min_tokens"), Flag("min_tokens", {"min_tokens": 3}, at_least)],
    "eos": [Flag("eos"), Flag("ignore_eos", {"ignore_eos": True}, to_the_limit)],
    "bias": [
        Flag("no bias"),
        Flag("banned tokens", {"logit_bias": {str(each): -100 for each in BANNED}}, banned),
        Flag("forced token", {"logit_bias": {str(FORCED): 100}}, forced),
        Flag("ending at once", {"logit_bias": {str(IM_END): 100}}, at_once),
    ],
    "allowed": [Flag("any token"), Flag("allowed tokens", {"allowed_token_ids": [IM_END, *ALLOWED]}, only_allowed)],
    "shown": [Flag("stops hidden"), Flag("stops shown", {"include_stop_str_in_output": True})],
    "special": [Flag("special tokens hidden"), Flag("special tokens shown", {"skip_special_tokens": False})],
    "grammar": [
        Flag("any text"),
        Flag("grammar: guided_json", {"guided_json": SCHEMA}, fits_schema, NO_GRAMMAR_WITH),
        Flag("grammar: guided_regex", {"guided_regex": "[a-z]{2,9}"}, matches("[a-z]{2,9}"), NO_GRAMMAR_WITH),
        Flag("grammar: guided_choice", {"guided_choice": WORDS}, matches("|".join(WORDS)), NO_GRAMMAR_WITH),
        Flag("grammar: EBNF", {"guided_grammar": 'root ::= "a"+ "b"'}, matches("a+b"), NO_GRAMMAR_WITH),
        Flag("grammar: structured", {"structured_outputs": {"json": SCHEMA}}, fits_schema, NO_GRAMMAR_WITH),
        Flag("grammar: bad words", {"bad_words": ["o", "in"]}, never("o", "in"), NO_GRAMMAR_WITH),
        Flag("grammar: object", {"response_format": {"type": "json_object"}}, is_object, NO_GRAMMAR_WITH),
        Flag(
            "grammar: response_format",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            fits_schema,
            NO_GRAMMAR_WITH,
        ),
    ],
    "tier": [Flag("no tier"), Flag("tier default", {"service_tier": "default"}, tier("default"))],
}

NO_TOOLS_WITH = frozenset(flag.name for flag in COMMON["grammar"][1:])
NO_FORCED_WITH = NO_TOOLS_WITH | NO_GRAMMAR_WITH

CHAT: dict[str, list[Flag]] = COMMON | {
    "tools": [
        Flag("no tools"),
        Flag("tools hidden", {"tools": TOOLS, "tool_choice": "none"}, no_calls),
        Flag("tools", {"tools": TOOLS}, some_calls, NO_TOOLS_WITH),
        Flag("tools forced", {"tools": TOOLS, "tool_choice": "required"}, calls, NO_FORCED_WITH),
        Flag(
            "one forced call",
            {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
            one_call,
            NO_FORCED_WITH,
        ),
        Flag("named tool", {"tools": TOOLS, "tool_choice": NAMED}, named_call, NO_FORCED_WITH),
    ],
    "messages": [
        Flag("one message", {"messages": [{"role": "user", "content": PROMPT}]}),
        Flag("parts", {"messages": [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]}),
    ],
    "limit": [
        Flag("max_tokens", {"max_tokens": LONGER}),
        Flag("max_completion_tokens", {"max_completion_tokens": LONG}),
        Flag("few tokens", {"max_tokens": SHORT}),
    ],
    "logprobs": [
        Flag("no logprobs", {}, with_tops(None)),
        Flag("logprobs", {"logprobs": True}, with_tops(0)),
        Flag("top logprobs", {"logprobs": True, "top_logprobs": 20}, with_tops(20)),
    ],
    "session": [
        Flag("no session"),
        Flag("session", {"session_id": "{unique}"}, in_session, frozenset({"two choices", "three choices"})),
    ],
}

COMPLETION: dict[str, list[Flag]] = COMMON | {
    "prompt": [
        Flag("one prompt", {"prompt": PROMPT}),
        Flag("two prompts", {"prompt": [PROMPT, "A queue"]}),
        Flag("ids", {"prompt": PROMPT_IDS}),
        Flag("twice ids", {"prompt": [PROMPT_IDS, PROMPT_IDS[:2]]}),
    ],
    "limit": [Flag("max_tokens", {"max_tokens": LONG}), Flag("few tokens", {"max_tokens": SHORT})],
    "logprobs": [
        Flag("no logprobs", {}, with_tops(None)),
        Flag("logprobs 0", {"logprobs": 0}, with_tops(0)),
        Flag("logprobs 5", {"logprobs": 5}, with_tops(5)),
    ],
    "echo": [Flag("no echo"), Flag("echo", {"echo": True})],
    "best_of": [
        Flag("no best_of"),
        Flag("best_of", {"best_of": 3}, nothing, frozenset({"streamed", "streamed, with usage"})),
    ],
}
