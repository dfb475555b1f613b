"""Sampling parameters as chat and completions share them: OpenAI's names, vLLM's extensions."""

from types import MappingProxyType

from engine.request import MAX_CHOICES, MAX_SEED, MAX_STOP_STRINGS, SamplingParams
from gateway.api.bounds import MAX_LOGIT_BIASES, MAX_STOP_CHARS, MAX_STOP_TOKEN_IDS
from gateway.api.errors import invalid
from gateway.api.fields import Fields, as_array, as_integer, as_number, as_string
from gateway.api.structured import take_grammar

MAX_TOKENS = 2**31 - 1
MAX_TOKEN_ID = 2**31 - 1

HINTS = ("user", "safety_identifier", "prompt_cache_key")

REFUSED: dict[str, tuple[object, ...]] = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "cache_salt": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1.0,),
    "logits_processors": ([],),
    "priority": (0,),
    "prompt_logprobs": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
"""Known to OpenAI or vLLM and not honoured here, with the values that ask for nothing."""


def take_sampling(
    fields: Fields, *, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None = None
) -> SamplingParams:
    """Take all that shapes the text.

    Raises:
        APIError: a value of a wrong type or over a bound.
        InvalidParameter: a value out of its range.
    """
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
        stop_token_ids=_take_stop_token_ids(fields),
        ignore_eos=fields.boolean("ignore_eos", False),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        n=fields.integer("n", 1, MAX_CHOICES) or 1,
        grammar=take_grammar(fields),
    )


def take_stream(fields: Fields) -> tuple[bool, bool]:
    """`stream` and `stream_options.include_usage`."""
    stream = fields.boolean("stream", False)
    options = fields.nested("stream_options")
    if options is None:
        return stream, False
    include_usage = options.boolean("include_usage", False)
    options.boolean("include_obfuscation", False)
    options.finish({"continuous_usage_stats": (False,)})
    if not stream:
        raise invalid("stream_options", "stream_options is only allowed when stream is true.")
    return stream, include_usage


def take_hints(fields: Fields) -> str | None:
    """Take what changes nothing in the answer, and `service_tier`, which can only lower the key's tier; returns it.

    Which tiers there are, `TierClasses` knows.
    """
    for name in HINTS:
        fields.string(name)
    metadata = fields.nested("metadata")
    if metadata is not None:
        for name, value in metadata.rest().items():
            as_string(value, metadata.path(name[:64]))
    return fields.string("service_tier")


def _take_stop(fields: Fields) -> tuple[str, ...]:
    value = fields.take("stop")
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    strings = [as_string(item, f"stop[{i}]") for i, item in enumerate(as_array(value, "stop", MAX_STOP_STRINGS))]
    for i, string in enumerate(strings):
        if not 0 < len(string) <= MAX_STOP_CHARS:
            raise invalid(f"stop[{i}]", f"A stop string has 1 to {MAX_STOP_CHARS} characters.")
    return tuple(strings)


def _take_stop_token_ids(fields: Fields) -> tuple[int, ...]:
    items = fields.array("stop_token_ids", MAX_STOP_TOKEN_IDS) or []
    return tuple(as_integer(item, f"stop_token_ids[{i}]", 0, MAX_TOKEN_ID) for i, item in enumerate(items))


def _take_logit_bias(fields: Fields) -> MappingProxyType[int, float]:
    biases = fields.nested("logit_bias")
    if biases is None:
        return MappingProxyType({})
    items = biases.rest()
    if len(items) > MAX_LOGIT_BIASES:
        raise invalid("logit_bias", f"logit_bias takes at most {MAX_LOGIT_BIASES} tokens.")
    parsed = {}
    for key, value in items.items():
        if not (key.isascii() and key.isdigit() and len(key) <= len(str(MAX_TOKEN_ID))):
            raise invalid("logit_bias", "The keys of logit_bias must be token ids.")
        parsed[int(key)] = as_number(value, f"logit_bias.{key}")
    return MappingProxyType(parsed)
