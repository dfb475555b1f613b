"""Tensors and parameters of the Open Inference Protocol, to Python's values and back."""

import struct
from collections.abc import Mapping, Sequence
from math import prod

from gateway.grpc.protos import inference_pb2 as pb
from gateway.http.errors import APIError, invalid

Value = str | int | float | bool

TEXT = "BYTES"

MAX_DIMENSIONS = 8
"""Of a tensor: the product of a longer shape takes time that grows with the square of its length."""

_CONTENTS: Mapping[str, tuple[str, str]] = {
    "BOOL": ("bool_contents", "?"),
    "INT8": ("int_contents", "b"),
    "INT16": ("int_contents", "h"),
    "INT32": ("int_contents", "i"),
    "INT64": ("int64_contents", "q"),
    "UINT8": ("uint_contents", "B"),
    "UINT16": ("uint_contents", "H"),
    "UINT32": ("uint_contents", "I"),
    "UINT64": ("uint64_contents", "Q"),
    "FP16": ("", "e"),
    "FP32": ("fp32_contents", "f"),
    "FP64": ("fp64_contents", "d"),
    TEXT: ("bytes_contents", ""),
}
"""Datatype -> member of the contents, and the format of `struct` of a raw element."""

_DIGITS = {"FP16": 4, "FP32": 7}
"""Significant decimal digits of a datatype: 0.7 arrives as 0.7, as it does in JSON."""


def inputs_of(message: pb.ModelInferRequest) -> dict[str, list[Value]]:
    """The elements of each input, in row-major order.

    Raises:
        APIError: 400 naming the input: an unknown datatype, too many dimensions, elements that are not those of the
            shape, text that is not UTF-8, or a name that is given twice.
    """
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise invalid(
            "raw_input_contents", f"raw_input_contents has {len(raw)} items for {len(message.inputs)} inputs."
        )
    found: dict[str, list[Value]] = {}
    for position, tensor in enumerate(message.inputs):
        if tensor.name in found:
            raise invalid(tensor.name, f"The input '{tensor.name}' is given twice.")
        member = _CONTENTS.get(tensor.datatype)
        if member is None:
            raise invalid(tensor.name, f"Invalid datatype for '{tensor.name}': '{tensor.datatype[:64]}'.")
        if len(tensor.shape) > MAX_DIMENSIONS:
            raise invalid(tensor.name, f"Invalid shape for '{tensor.name}': more than {MAX_DIMENSIONS} dimensions.")
        values = _raw(tensor, raw[position]) if raw else _typed(tensor, member[0])
        if any(size < 0 for size in tensor.shape) or prod(tensor.shape) != len(values):
            shape = list(tensor.shape)
            raise invalid(tensor.name, f"Invalid shape for '{tensor.name}': {shape} with {len(values)} elements.")
        found[tensor.name] = [_exact(tensor.name, tensor.datatype, value) for value in values]
    return found


def parameters_of(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Value]:
    """The values of parameters; those without one are left out."""
    found: dict[str, Value] = {}
    for name, parameter in parameters.items():
        if (choice := parameter.WhichOneof("parameter_choice")) is not None:
            found[name] = getattr(parameter, choice)
    return found


def text_tensor(response: pb.ModelInferResponse, name: str, texts: Sequence[str], *, raw: bool) -> None:
    """Add an output of datatype BYTES and shape [texts] to a response, raw if the inputs were."""
    encoded = [text.encode() for text in texts]
    tensor = response.outputs.add(name=name, datatype=TEXT, shape=[len(encoded)])
    if raw:
        response.raw_output_contents.append(b"".join(struct.pack("<I", len(text)) + text for text in encoded))
    else:
        tensor.contents.bytes_contents.extend(encoded)


def set_parameters(parameters: Mapping[str, pb.InferParameter], values: Mapping[str, Value]) -> None:
    """Set the parameters of a message."""
    for name, value in values.items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param"}.get(type(value), "string_param")
        setattr(parameters[name], kind, value)


def _typed(tensor: pb.ModelInferRequest.InferInputTensor, member: str) -> list[bytes | int | float | bool]:
    if not member:
        raise invalid(tensor.name, f"The datatype {tensor.datatype} of '{tensor.name}' needs raw_input_contents.")
    return list(getattr(tensor.contents, member))


def _raw(tensor: pb.ModelInferRequest.InferInputTensor, content: bytes) -> list[bytes | int | float | bool]:
    if tensor.datatype == TEXT:
        return list(_raw_texts(tensor.name, content))
    form = "<" + _CONTENTS[tensor.datatype][1]
    if len(content) % struct.calcsize(form):
        raise _wrong_length(tensor.name)
    return [value for (value,) in struct.iter_unpack(form, content)]


def _raw_texts(name: str, content: bytes) -> list[bytes]:
    """Elements, each after its length in four bytes."""
    texts, start = [], 0
    while start < len(content):
        if start + 4 > len(content):
            raise _wrong_length(name)
        end = start + 4 + int(struct.unpack_from("<I", content, start)[0])
        if end > len(content):
            raise _wrong_length(name)
        texts.append(content[start + 4 : end])
        start = end
    return texts


def _exact(name: str, datatype: str, value: bytes | int | float | bool) -> Value:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise invalid(name, f"Invalid '{name}': text must be UTF-8.") from None
    if datatype in _DIGITS:
        return float(f"{value:.{_DIGITS[datatype]}g}")
    return value


def _wrong_length(name: str) -> APIError:
    return invalid(name, f"Invalid '{name}': its raw content has the wrong length.")
