"""The wire contract is the upstream projects', and grpc is imported where it serves alone."""

import subprocess
import sys

import pytest
from google.protobuf.descriptor import Descriptor, FileDescriptor

from gateway.grpc.protos import inference_pb2, vllm_engine_pb2
from tests.support.protos import FOLDER, ROOT, made

VLLM = {
    "SamplingParams": (
        "temperature=1 top_p=2 top_k=3 min_p=4 frequency_penalty=5 presence_penalty=6 repetition_penalty=7 "
        "max_tokens=8 min_tokens=9 stop=10 stop_token_ids=11 skip_special_tokens=12 spaces_between_special_tokens=13 "
        "ignore_eos=14 n=15 logprobs=22 prompt_logprobs=23 seed=24 include_stop_str_in_output=25 logit_bias=26 "
        "truncate_prompt_tokens=27 json_schema=16 regex=17 grammar=18 structural_tag=19 json_object=20 choice=21"
    ),
    "ChoiceConstraint": "choices=1",
    "TokenizedInput": "original_text=1 input_ids=2",
    "GenerateRequest": "request_id=1 tokenized=2 text=3 sampling_params=4 stream=5",
    "GenerateResponse": "chunk=1 complete=2",
    "GenerateStreamChunk": (
        "token_ids=1 prompt_tokens=2 completion_tokens=3 cached_tokens=4 output_logprobs=5 input_logprobs=6 index=7"
    ),
    "GenerateComplete": (
        "output_ids=1 finish_reason=2 prompt_tokens=3 completion_tokens=4 cached_tokens=5 output_logprobs=6 "
        "input_logprobs=7 index=8 matched_token_id=10 matched_stop_str=11"
    ),
    "OutputLogProbs": "token_logprobs=1 token_ids=2 top_logprobs=3",
    "InputLogProbs": "token_logprobs=1 token_ids=2 top_logprobs=3",
    "InputTokenLogProb": "value=1",
    "TopLogProbs": "values=1 token_ids=2",
    "EmbedRequest": "request_id=1 tokenized=2",
    "EmbedResponse": "embedding=1 prompt_tokens=2 embedding_dim=3",
    "HealthCheckRequest": "",
    "HealthCheckResponse": "healthy=1 message=2",
    "AbortRequest": "request_ids=1",
    "AbortResponse": "",
    "GetModelInfoRequest": "",
    "GetModelInfoResponse": (
        "model_path=1 is_generation=2 max_context_length=3 vocab_size=4 supports_vision=5 served_model_name=6 "
        "eos_token_ids=10 default_sampling_params_json=14"
    ),
    "GetServerInfoRequest": "",
    "GetServerInfoResponse": ("active_requests=1 is_paused=2 last_receive_timestamp=3 uptime_seconds=4 server_type=5"),
}
INFERENCE = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live=1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready=1",
    "ModelReadyRequest": "name=1 version=2",
    "ModelReadyResponse": "ready=1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name=1 version=2 extensions=3",
    "ModelMetadataRequest": "name=1 version=2",
    "ModelMetadataResponse": "name=1 versions=2 platform=3 inputs=4 outputs=5",
    "InferParameter": "bool_param=1 int64_param=2 string_param=3 double_param=4 uint64_param=5",
    "InferTensorContents": (
        "bool_contents=1 int_contents=2 int64_contents=3 uint_contents=4 uint64_contents=5 fp32_contents=6 "
        "fp64_contents=7 bytes_contents=8"
    ),
    "ModelInferRequest": ("model_name=1 model_version=2 id=3 parameters=4 inputs=5 outputs=6 raw_input_contents=7"),
    "ModelInferResponse": "model_name=1 model_version=2 id=3 parameters=4 outputs=5 raw_output_contents=6",
    "ModelStreamInferResponse": "error_message=1 infer_response=2",
}
TENSOR = "name=1 datatype=2 shape=3 parameters=4 contents=5"


def fields_of(message: Descriptor) -> set[str]:
    return {f"{field.name}={field.number}" for field in message.fields}


@pytest.mark.parametrize(
    ("file", "package", "messages"),
    [(vllm_engine_pb2.DESCRIPTOR, "vllm.grpc.engine", VLLM), (inference_pb2.DESCRIPTOR, "inference", INFERENCE)],
)
def test_messages_and_field_numbers(file: FileDescriptor, package: str, messages: dict[str, str]) -> None:
    assert file.package == package
    assert {name: fields_of(each) for name, each in file.message_types_by_name.items()} == {
        name: set(fields.split()) for name, fields in messages.items()
    }


def test_tensors() -> None:
    assert fields_of(inference_pb2.ModelInferRequest.InferInputTensor.DESCRIPTOR) == set(TENSOR.split())
    assert fields_of(inference_pb2.ModelInferResponse.InferOutputTensor.DESCRIPTOR) == set(TENSOR.split())


def test_absent_is_not_zero() -> None:
    optional = {field.name for field in vllm_engine_pb2.SamplingParams.DESCRIPTOR.fields if field.has_presence} - {
        "json_schema",
        "regex",
        "grammar",
        "structural_tag",
        "json_object",
        "choice",
    }
    assert optional == {
        *("temperature", "max_tokens", "logprobs", "prompt_logprobs", "seed", "truncate_prompt_tokens"),
    }


def test_the_modules_are_those_of_the_protos() -> None:
    """After a change: `python -m tests.support.protos`."""
    files = made()
    there = {path.relative_to(ROOT) for path in (ROOT / FOLDER).glob("*_pb2.py*")}
    assert files.keys() == there
    for path, content in files.items():
        assert (ROOT / path).read_bytes() == content, path


def test_serving_without_grpc_imports_none_of_it() -> None:
    program = """
import sys
import gateway.process.serving, gateway.process.worker, gateway.management.cli.worker
assert not [name for name in sys.modules if name.split(".")[0] in ("grpc", "grpc_health", "grpc_reflection")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=120)
