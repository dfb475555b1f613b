"""The body of POST /v1/embeddings."""

from dataclasses import dataclass
from enum import StrEnum

from engine.request import Pooling, SamplingParams
from gateway.formats.openai.hints import take_hints
from gateway.formats.openai.prompt_schema import plain_prompts
from gateway.formats.openai.sampling import take_truncation
from gateway.generation.request import GenerationRequest, Prompt, Truncation
from gateway.http.bounds import MAX_EMBEDDING_INPUTS
from gateway.http.errors import invalid
from gateway.http.fields import Fields, unsupported_value

REFUSED: dict[str, tuple[object, ...]] = {
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "messages": (),
    "normalize": (True,),
    "priority": (0,),
    "use_activation": (True,),
}
"""vLLM's extensions that are not supported, each with its neutral values."""


class Encoding(StrEnum):
    """Format of a vector: JSON numbers, or base64 of little-endian float32."""

    FLOAT = "float"
    BASE64 = "base64"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """A validated request. It is independent of the named model."""

    model: str
    inputs: tuple[Prompt, ...]
    encoding: Encoding
    service_tier: str | None
    add_special_tokens: bool
    truncation: Truncation | None

    def pooled(self, pooling: Pooling) -> GenerationRequest:
        """The common form of a request: each input is a prompt, and no token is generated."""
        return GenerationRequest(
            model=self.model,
            prompts=self.inputs,
            prompt_param="input",
            params=SamplingParams(max_tokens=0, pooling=pooling),
            limit_param=None,
            default_max_tokens=0,
            stream=False,
            include_usage=False,
            service_tier=self.service_tier,
            add_special_tokens=self.add_special_tokens,
            truncation=self.truncation,
        )

    def require_vocabulary(self, size: int) -> None:
        """
        Raises:
            APIError: 400, a token id is out of the model's vocabulary.
        """
        if any(isinstance(each, tuple) and max(each) >= size for each in self.inputs):
            raise invalid("input", f"Invalid 'input': a token id is out of vocabulary. The model has {size} tokens.")


def parse_embeddings(fields: Fields) -> EmbeddingRequest:
    """Raises: APIError."""
    model = fields.required_string("model")
    inputs = plain_prompts(fields.take("input"), "input", MAX_EMBEDDING_INPUTS)
    encoding = _encoding(fields.string("encoding_format"))
    if fields.take("dimensions") is not None:
        message = "Unsupported parameter: 'dimensions' is not supported by the models of this server."
        raise invalid("dimensions", message, "unsupported_parameter")
    add_special_tokens = fields.boolean("add_special_tokens", True)
    truncation = take_truncation(fields)
    service_tier = take_hints(fields)
    fields.finish(REFUSED)
    return EmbeddingRequest(
        model=model,
        inputs=inputs,
        encoding=encoding,
        service_tier=service_tier,
        add_special_tokens=add_special_tokens,
        truncation=truncation,
    )


def _encoding(stated: str | None) -> Encoding:
    try:
        return Encoding(stated or Encoding.FLOAT)
    except ValueError:
        raise unsupported_value("encoding_format", stated, Encoding) from None
