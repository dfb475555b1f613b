"""Sampling parameters of chat and completions: OpenAI's names and vLLM's extensions."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from engine.grammar import GrammarSpec
from engine.request import MAX_CHOICES, MAX_SEED, MAX_STOP_STRINGS, SamplingParams
from gateway.formats.openai.structured import take_grammar
from gateway.generation.request import Truncation
from gateway.http.bounds import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIASES,
    MAX_STOP_CHARS,
    MAX_STOP_TOKEN_IDS,
)
from gateway.http.errors import invalid
from gateway.http.fields import (
    Fields,
    array_too_long,
    as_array,
    as_integer,
    as_number,
    as_string,
    unsupported_value,
    wrong_length,
)

MAX_TOKENS = 2**31 - 1
MAX_TOKEN_ID = 2**31 - 1

REFUSED: dict[str, tuple[object, ...]] = {
    "cache_salt": (),
    "ec_transfer_params": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "kv_transfer_params": (),
    "length_penalty": (1.0, 1),
    "logits_processors": ([],),
    "logprob_token_ids": (),
    "priority": (0,),
    "repetition_detection": (),
    "request_id": (),
    "return_mm_kwargs": (True,),
    "return_token_offsets": (False,),
    "return_tokens_as_token_ids": (False,),
    "routed_experts_prompt_start": (0,),
    "stream_interval": (1,),
    "thinking_token_budget": (-1,),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (False,),
}
"""Parameters of OpenAI or vLLM that are not supported, each with its neutral values."""


@dataclass(frozen=True, slots=True)
class Streaming:
    """`running_usage`: every chunk has its choice's usage so far."""

    stream: bool
    include_usage: bool
    running_usage: bool


def take_sampling(
    fields: Fields, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None = None
) -> SamplingParams:
    """Parse all sampling parameters.

    Raises:
        APIError: a value of a wrong type or over a bound.
        InvalidParameter: a value out of its range.
    """
    skip_special_tokens = fields.boolean("skip_special_tokens", True)
    if fields.boolean("spaces_between_special_tokens", False) and not skip_special_tokens:
        message = "'spaces_between_special_tokens' is not supported when 'skip_special_tokens' is false."
        raise invalid("spaces_between_special_tokens", message, "unsupported_parameter")
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=fields.integer("min_tokens", 0, MAX_TOKENS) or 0,
        temperature=fields.number("temperature", 1.0),
        top_p=fields.number("top_p", 1.0),
        top_k=max(fields.integer("top_k", -1, MAX_TOKEN_ID) or 0, 0),
        min_p=fields.number("min_p", 0.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0),
        presence_penalty=fields.number("presence_penalty", 0.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0),
        logit_bias=_take_logit_bias(fields),
        seed=fields.integer("seed", -MAX_SEED - 1, MAX_SEED),
        stop=_take_stop(fields),
        stop_token_ids=_take_token_ids(fields, "stop_token_ids", MAX_STOP_TOKEN_IDS) or (),
        ignore_eos=fields.boolean("ignore_eos", False),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        n=fields.integer("n", 1, MAX_CHOICES) or 1,
        grammar=_take_constraint(fields),
        allowed_token_ids=_take_allowed(fields),
        skip_special_tokens=skip_special_tokens,
        include_stop=fields.boolean("include_stop_str_in_output", False),
    )


def take_stream(fields: Fields) -> Streaming:
    """`stream` and `stream_options`."""
    stream = fields.boolean("stream", False)
    options = fields.nested("stream_options")
    if options is None:
        return Streaming(stream, False, False)
    include_usage = options.boolean("include_usage", False)
    running_usage = options.boolean("continuous_usage_stats", False)
    options.boolean("include_obfuscation", False)
    options.finish({})
    if not stream:
        raise invalid("stream_options", "'stream_options' is only allowed when 'stream' is true.")
    if running_usage and not include_usage:
        raise invalid(
            options.path("continuous_usage_stats"),
            "'continuous_usage_stats' is only allowed when 'include_usage' is true.",
        )
    return Streaming(stream, include_usage, running_usage)


def take_truncation(fields: Fields) -> Truncation | None:
    """`truncate_prompt_tokens`, where -1 means the rest of the context window, and `truncation_side`."""
    tokens = fields.integer("truncate_prompt_tokens", -1, MAX_TOKENS)
    side = fields.string("truncation_side")
    if side not in (None, "left", "right"):
        raise unsupported_value("truncation_side", side, ("left", "right"))
    if tokens is None:
        return None
    return Truncation(None if tokens < 0 else tokens, keeps_end=side != "right")


def _take_constraint(fields: Fields) -> GrammarSpec | None:
    """The constraint on the answer: a format, or words that it must not contain."""
    form, without = take_grammar(fields), _take_bad_words(fields)
    if form is not None and without is not None:
        raise invalid(without.param, f"'{form.param}' and '{without.param}' cannot be used together.")
    return form or without


def _take_bad_words(fields: Fields) -> GrammarSpec | None:
    items = fields.array("bad_words", MAX_BAD_WORDS) or []
    words = [as_string(item, f"bad_words[{i}]") for i, item in enumerate(items)]
    _require_stop_length(words, "bad_words")
    return GrammarSpec.without(words, "bad_words") if words else None


def _take_stop(fields: Fields) -> tuple[str, ...]:
    value = fields.take("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    strings = [as_string(item, f"stop[{i}]") for i, item in enumerate(as_array(value, "stop", MAX_STOP_STRINGS))]
    _require_stop_length(strings, "stop")
    return tuple(strings)


def _require_stop_length(strings: list[str], path: str) -> None:
    for i, string in enumerate(strings):
        if not 0 < len(string) <= MAX_STOP_CHARS:
            raise wrong_length(f"{path}[{i}]", MAX_STOP_CHARS)


def _take_allowed(fields: Fields) -> frozenset[int] | None:
    items = _take_token_ids(fields, "allowed_token_ids", MAX_ALLOWED_TOKEN_IDS)
    return None if items is None else frozenset(items)


def _take_token_ids(fields: Fields, name: str, most: int) -> tuple[int, ...] | None:
    items = fields.array(name, most)
    if items is None:
        return None
    for i, item in enumerate(items):
        if type(item) is not int or not 0 <= item <= MAX_TOKEN_ID:
            as_integer(item, f"{name}[{i}]", 0, MAX_TOKEN_ID)
    return tuple(cast(list[int], items))


def _take_logit_bias(fields: Fields) -> MappingProxyType[int, float]:
    biases = fields.nested("logit_bias")
    if biases is None:
        return MappingProxyType({})
    items = biases.rest()
    if len(items) > MAX_LOGIT_BIASES:
        raise array_too_long("logit_bias", MAX_LOGIT_BIASES, len(items))
    parsed = {}
    for key, value in items.items():
        if not (key.isascii() and key.isdigit() and len(key) <= len(str(MAX_TOKEN_ID))):
            raise invalid("logit_bias", "Invalid 'logit_bias': keys must be token ids.")
        parsed[int(key)] = as_number(value, f"logit_bias.{key}")
    return MappingProxyType(parsed)
