"""A ModelInferRequest to the value that an HTTP body becomes, by the parsers of OpenAI's bodies.

The input `text_input` is the prompt. An option is an input tensor or a parameter of the request, named like the field
of /v1/completions; `sampling_parameters`, as in Triton's vLLM backend, is a JSON object of them. With `chat` true the
text is a user's message, after a system message where `system` is given, and fields are those of /v1/chat/completions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.formats.openai.chat import CHAT
from gateway.formats.openai.chat_schema import parse_chat
from gateway.formats.openai.completion_schema import parse_completion
from gateway.formats.openai.completions import COMPLETIONS
from gateway.generation.endpoint import Operation
from gateway.generation.request import GenerationRequest
from gateway.grpc.protos import inference_pb2 as pb
from gateway.grpc.tensors import Value, inputs_of, parameters_of
from gateway.http.errors import APIError, invalid
from gateway.http.fields import Fields, missing, unsupported
from gateway.http.json_body import parse_json

TEXT_INPUT = "text_input"
TEXT_OUTPUT = "text_output"
VERSION = "1"
"""The version of every model; a name leads to its versions by itself."""

_LISTS = frozenset({"stop", "stop_token_ids", "allowed_token_ids", "bad_words"})
"""Options that may have several elements."""
_JSON = "sampling_parameters"
_NO_OPTIONS = frozenset({"binary_data_output", "triton_enable_empty_final_response", "triton_final_response"})
"""Parameters of Triton's clients that change nothing here: the mark of the last message is always there."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A parsed request. `operation`: the endpoint that takes the same fields."""

    request: GenerationRequest
    operation: Operation


def parse_infer(message: pb.ModelInferRequest, max_json_depth: int, *, may_stream: bool) -> InferRequest:
    """
    Raises:
        APIError, InvalidParameter: as the HTTP endpoint's parser; the input or option is named.
    """
    require_version(message.model_name, message.model_version)
    _require_output(message)
    options = _options(message, max_json_depth)
    text = options.pop(TEXT_INPUT, None)
    if text is None:
        raise missing(TEXT_INPUT)
    is_chat = _boolean(options, "chat")
    body = options | {"model": message.model_name}
    if is_chat:
        system = options.pop("system", None)
        messages = [] if system is None else [{"role": "system", "content": system}]
        body = options | {"model": message.model_name, "messages": [*messages, {"role": "user", "content": text}]}
        request = parse_chat(Fields(body))
    else:
        request = replace(parse_completion(Fields(body | {"prompt": text})), prompt_param=TEXT_INPUT)
    if request.stream and not may_stream:
        raise invalid("stream", "'stream' is only allowed with ModelStreamInfer.")
    _require_expressible(request)
    return InferRequest(request, CHAT if is_chat else COMPLETIONS)


def require_version(name: str, version: str) -> None:
    """
    Raises:
        APIError: 404, a version that no model has.
    """
    if version not in ("", VERSION):
        message = f"The model `{name[:128]}` has the version {VERSION} alone, not {version[:64]}."
        raise APIError(404, message, param="model_version", code="model_not_found")


def _require_output(message: pb.ModelInferRequest) -> None:
    if unknown := next((each.name for each in message.outputs if each.name != TEXT_OUTPUT), None):
        raise invalid("outputs", f"Unknown output: '{unknown[:64]}'. The output is '{TEXT_OUTPUT}'.")


def _options(message: pb.ModelInferRequest, max_json_depth: int) -> dict[str, Any]:
    """The fields by name, the text among them."""
    options: dict[str, Any] = {name: _value(name, values) for name, values in inputs_of(message).items()}
    parameters = {name: each for name, each in parameters_of(message.parameters).items() if name not in _NO_OPTIONS}
    _require_once(options, parameters)
    options |= parameters
    stated = options.pop(_JSON, None)
    if stated is not None:
        if not isinstance(stated, str):
            raise invalid(_JSON, f"Invalid type for '{_JSON}': expected a JSON object as text.")
        parsed = parse_json(stated.encode(), max_json_depth)
        if not isinstance(parsed, dict):
            raise invalid(_JSON, f"Invalid type for '{_JSON}': expected a JSON object as text.")
        _require_once(options, parsed)
        options |= parsed
    for reserved in ("model", "prompt", "messages"):
        if reserved in options:
            raise invalid(reserved, f"'{reserved}' is not an option: use model_name and the input '{TEXT_INPUT}'.")
    return options


def _value(name: str, values: list[Value]) -> Value | list[Value]:
    if name in _LISTS:
        return values
    if len(values) != 1:
        raise invalid(name, f"Invalid shape for '{name}': expected one element, but got {len(values)}.")
    return values[0]


def _require_once(options: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    if twice := next((name for name in others if name in options), None):
        raise invalid(twice[:64], f"'{twice[:64]}' is given twice.")


def _boolean(options: dict[str, Any], name: str) -> bool:
    value = options.pop(name, False)
    if not isinstance(value, bool):
        raise invalid(name, f"Invalid type for '{name}': expected a boolean.", "invalid_type")
    return value


def _require_expressible(request: GenerationRequest) -> None:
    """Refuse options whose effect the one output could not show."""
    details = request.details
    given = {
        "n": request.params.n != 1,
        "best_of": request.best is not None,
        "echo": request.echo,
        "logprobs": details.logprobs is not None,
        "prompt_logprobs": details.prompt_logprobs is not None,
        "return_token_ids": details.token_ids,
        "stream_options": request.include_usage,
        "tools": request.tools is not None,
    }
    if refused := next((name for name, is_given in given.items() if is_given), None):
        raise unsupported(refused)
