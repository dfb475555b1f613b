"""Prompts and sampling parameters of vLLM's engine protocol, as the engine takes them."""

import asyncio
from dataclasses import replace
from types import MappingProxyType

from engine.errors import InvalidParameter
from engine.grammar import GrammarSpec
from engine.request import SamplingParams
from engine.runtime.loaded_model import ServedModel
from gateway.formats.openai.structured import schema_spec
from gateway.generation.prompt_encoding import require_tokenizable
from gateway.grpc.protos import vllm_engine_pb2 as pb
from gateway.http.bounds import MAX_GRAMMAR_BYTES, MAX_INLINE_CHARS

_WITH_DEFAULTS = (
    *("top_p", "top_k", "min_p"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
)
"""Parameters whose absence looks like 0: their value is then the model's default."""


async def prompt_of(request: pb.GenerateRequest, served: ServedModel) -> list[int]:
    """The prompt's token ids, with text encoded and shortened if that is asked for.

    Raises:
        InvalidParameter: there is no prompt, or it cannot be shortened to the tokens asked for.
        TooManyTokens: the text is far over the context window.
    """
    match request.WhichOneof("input"):
        case "tokenized":
            token_ids = list(request.tokenized.input_ids)
        case "text":
            token_ids = await _encoded(request.text, served, request.sampling_params)
        case _:
            raise InvalidParameter("input", "input: the request needs tokenized or text")
    if request.sampling_params.HasField("truncate_prompt_tokens"):
        token_ids = _truncated(token_ids, request.sampling_params.truncate_prompt_tokens, served.max_model_len)
    return token_ids


def sampling_of(stated: pb.SamplingParams, served: ServedModel) -> SamplingParams:
    """The parameters, with the model's defaults for those that are not stated.

    Raises:
        InvalidParameter, APIError: a value is out of its range or not supported; it is named.
    """
    values = {name: _exact(getattr(stated, name)) for name in _WITH_DEFAULTS if getattr(stated, name)}
    if stated.HasField("temperature"):
        values["temperature"] = _exact(stated.temperature)
    params = SamplingParams(
        max_tokens=stated.max_tokens if stated.HasField("max_tokens") else None,
        min_tokens=stated.min_tokens,
        stop=tuple(stated.stop),
        stop_token_ids=tuple(stated.stop_token_ids),
        skip_special_tokens=stated.skip_special_tokens,
        ignore_eos=stated.ignore_eos,
        n=stated.n or 1,
        logprobs=stated.logprobs if stated.HasField("logprobs") else None,
        prompt_logprobs=stated.prompt_logprobs if stated.HasField("prompt_logprobs") else None,
        seed=stated.seed if stated.HasField("seed") else None,
        include_stop=stated.include_stop_str_in_output,
        logit_bias=MappingProxyType({token: _exact(bias) for token, bias in stated.logit_bias.items()}),
        grammar=_grammar(stated),
    )
    params = served.sampling_defaults.applied(params, {"temperature", *_WITH_DEFAULTS} - values.keys())
    return replace(params, **values)  # type: ignore[arg-type]


def _grammar(stated: pb.SamplingParams) -> GrammarSpec | None:
    match name := stated.WhichOneof("constraint"):
        case "json_schema":
            return schema_spec(stated.json_schema, name)
        case "regex":
            spec = GrammarSpec.regex(stated.regex, name)
        case "grammar":
            spec = GrammarSpec.ebnf(stated.grammar, name)
        case "choice":
            spec = GrammarSpec.choice(list(stated.choice.choices), name)
            if not all(stated.choice.choices) or not stated.choice.choices:
                raise InvalidParameter(name, "choice takes non-empty texts, and at least one")
        case "json_object":
            return GrammarSpec.json_object(name) if stated.json_object else None
        case "structural_tag":
            raise InvalidParameter(name, "structural_tag is not supported by this server")
        case _:
            return None
    if not 0 < len(spec.source.encode()) <= MAX_GRAMMAR_BYTES:
        raise InvalidParameter(name, f"{name} must have 1 to {MAX_GRAMMAR_BYTES} bytes")
    return spec


async def _encoded(text: str, served: ServedModel, stated: pb.SamplingParams) -> list[int]:
    most = None if stated.HasField("truncate_prompt_tokens") else served.max_model_len
    if most is None:
        require_tokenizable("text", len(text), served.max_model_len)
    if len(text) <= MAX_INLINE_CHARS:
        return served.text.encode(text, most_tokens=most)
    return await asyncio.to_thread(served.text.encode, text, most_tokens=most)


def _truncated(token_ids: list[int], tokens: int, window: int) -> list[int]:
    """The last `tokens` tokens; -1: as many as leave room for one of the answer."""
    if tokens == 0 or tokens < -1:
        raise InvalidParameter("truncate_prompt_tokens", f"truncate_prompt_tokens must be -1 or above 0, got {tokens}")
    return token_ids[-(window - 1 if tokens < 0 else tokens) :]


def _exact(value: float) -> float:
    """A float of 32 bits as it was written: 0.7, not 0.699999988."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
