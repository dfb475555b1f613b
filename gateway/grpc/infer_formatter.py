"""Formats an answer as messages of the Open Inference Protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.generation.delivery import MakeFormatter, StreamSink
from gateway.generation.engine_client import ServedModel
from gateway.generation.prepare import PreparedPrompt
from gateway.generation.request import GenerationRequest
from gateway.generation.response_format import ResponseMeta
from gateway.generation.usage import UsageTotal
from gateway.grpc.infer_request import TEXT_OUTPUT, VERSION
from gateway.grpc.protos import inference_pb2 as pb
from gateway.grpc.statuses import RETRY_AFTER_MS, CallError, code_of
from gateway.grpc.tensors import Value, set_parameters, text_tensor
from gateway.http.errors import APIError
from gateway.speech.output_parser import ParsedDelta
from gateway.speech.pieces import Text

FINAL = "triton_final_response"
"""Parameter of every message on a stream: whether it is the request's last."""


@dataclass(frozen=True, slots=True)
class Framing:
    """How the messages of one request look. `id`: the client's. `raw`: outputs are raw, as its inputs were.
    `on_stream`: they are messages of ModelStreamInfer."""

    id: str
    raw: bool
    on_stream: bool


class InferFormatter:
    """A `ResponseFormatter` of one choice. The text is that of the answer, without reasoning. The last message has the
    finish reason and the usage as parameters."""

    def __init__(self, meta: ResponseMeta, framing: Framing) -> None:
        self._meta = meta
        self._framing = framing
        self._finish_reason = ""

    def start(self) -> bytes:
        return b""

    def events(self, output: ParsedDelta) -> bytes:
        self._finish_reason = output.finish_reason or self._finish_reason
        text = _text(output)
        return self._message(text, {FINAL: False}) if text else b""

    def end(self, usage: UsageTotal) -> bytes:
        return self._message("", self._last(usage))

    def failure(self, error: APIError) -> bytes:
        return failed_message(self._framing.id, CallError.of(error), error.headers)

    def body(self, choices: Sequence[ParsedDelta], usage: UsageTotal) -> bytes:
        [choice] = choices
        self._finish_reason = choice.finish_reason or ""
        return self._message(_text(choice), self._last(usage))

    def _last(self, usage: UsageTotal) -> dict[str, Value]:
        return {
            FINAL: True,
            "finish_reason": self._finish_reason,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
        }

    def _message(self, text: str, parameters: Mapping[str, Value]) -> bytes:
        response = pb.ModelInferResponse(model_name=self._meta.model, model_version=VERSION, id=self._framing.id)
        set_parameters(response.parameters, parameters)
        text_tensor(response, TEXT_OUTPUT, [text], raw=self._framing.raw)
        if not self._framing.on_stream:
            return response.SerializeToString()
        return pb.ModelStreamInferResponse(infer_response=response).SerializeToString()


class InferStreamSink(StreamSink):
    """One message for the deltas that are ready."""

    async def on_outputs(self, outputs: Sequence[ParsedDelta]) -> bool:
        return await super().on_outputs([ParsedDelta.joined(outputs)])

    def _end(self) -> bytes:
        return self._formatter.end(self._run.usage)


def formatter_for(framing: Framing) -> MakeFormatter:
    """The formatters of a request."""

    def make(
        meta: ResponseMeta, request: GenerationRequest, model: ServedModel, prompts: Sequence[PreparedPrompt]
    ) -> InferFormatter:
        return InferFormatter(meta, framing)

    return make


def failed_message(id: str, error: CallError, headers: Mapping[str, str]) -> bytes:
    """The last message of a request that failed on a stream, which is open for others."""
    parameters: dict[str, Value] = {FINAL: True, "grpc_status": code_of(error.status).name}
    parameters |= {
        name: value for name, value in (("error_code", error.code), ("error_param", error.param)) if value is not None
    }
    if RETRY_AFTER_MS in headers:
        parameters["retry_after_ms"] = int(headers[RETRY_AFTER_MS])
    response = pb.ModelInferResponse(id=id)
    set_parameters(response.parameters, parameters)
    return pb.ModelStreamInferResponse(error_message=error.text, infer_response=response).SerializeToString()


def _text(output: ParsedDelta) -> str:
    return "".join([piece.text for piece in output.pieces if isinstance(piece, Text)])
