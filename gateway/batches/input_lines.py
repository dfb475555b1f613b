"""The lines of an input file: a JSON object each, with `custom_id`, `method`, `url` and `body`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import orjson

from gateway.batches.records import LineError

MAX_ERRORS = 100
"""Errors of one file that are reported."""
MAX_CUSTOM_ID_CHARS = 512
MAX_EMBEDDING_INPUTS = 50_000
"""Of all lines together."""
EMBEDDINGS = "/v1/embeddings"


@dataclass(frozen=True, slots=True)
class InputLine:
    """A line that was checked. `number`: from 1 on."""

    number: int
    custom_id: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of the check: the lines' number and model, or errors."""

    total: int = 0
    model: str | None = None
    errors: Sequence[LineError] = ()


class _Invalid(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


@dataclass(slots=True)
class _Seen:
    """Of the lines so far."""

    custom_ids: set[str] = field(default_factory=set)
    model: str | None = None
    embedding_inputs: int = 0


def check_input(file: BinaryIO, endpoint: str, max_lines: int, max_line_bytes: int) -> Checked:
    """Check all lines of a file. Blocks."""
    errors: list[LineError] = []
    seen, number = _Seen(), 0
    for number, text in enumerate(_texts(file, max_line_bytes), 1):
        if number > max_lines:
            errors.append(LineError("too_many_tasks", f"The file has more lines than the maximum of {max_lines}."))
            break
        try:
            _check(text, endpoint, max_line_bytes, seen)
        except _Invalid as error:
            errors.append(LineError(error.code, error.message, number, error.param))
            if len(errors) >= MAX_ERRORS:
                break
    if not number:
        errors.append(LineError("empty_file", "The input file is empty."))
    return Checked(number, seen.model, tuple(errors))


def read_input(file: BinaryIO) -> Iterator[InputLine]:
    """The lines of a file that was checked. Blocks."""
    for number, text in enumerate(file, 1):
        line = orjson.loads(text)
        yield InputLine(number, line["custom_id"], line["body"])


def _texts(file: BinaryIO, max_line_bytes: int) -> Iterator[bytes]:
    """Lines without their end. Of one that is too long, the beginning, which is too long, too."""
    while text := file.readline(max_line_bytes + 2):
        rest = text
        while not rest.endswith(b"\n") and (rest := file.readline(max_line_bytes)):
            pass
        yield text.rstrip(b"\r\n")


def _check(text: bytes, endpoint: str, max_line_bytes: int, seen: _Seen) -> None:
    if len(text) > max_line_bytes:
        raise _Invalid("request_too_large", f"This line is longer than the maximum of {max_line_bytes} bytes.")
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise _Invalid("invalid_json_line", "This line is not parseable as valid JSON.") from None
    if not isinstance(line, dict):
        raise _Invalid("invalid_json_line", "This line is not a JSON object.")
    _check_custom_id(line, seen)
    method, url, body = (_required(line, name) for name in ("method", "url", "body"))
    if method != "POST":
        raise _Invalid("invalid_method", f"The method must be 'POST', but is '{str(method)[:64]}'.", "method")
    if url != endpoint:
        message = f"The url '{str(url)[:64]}' does not match the endpoint of the batch, '{endpoint}'."
        raise _Invalid("mismatched_url", message, "url")
    if not isinstance(body, dict):
        raise _Invalid("invalid_type", "Invalid type for 'body': expected an object.", "body")
    if body.get("stream"):
        raise _Invalid("unsupported_parameter", "Requests of a batch cannot be streamed.", "body.stream")
    _check_model(body, seen)
    if endpoint == EMBEDDINGS:
        inputs = body.get("input")
        several = isinstance(inputs, list) and not all(isinstance(each, int) for each in inputs)
        seen.embedding_inputs += len(inputs) if several and isinstance(inputs, list) else 1
        if seen.embedding_inputs > MAX_EMBEDDING_INPUTS:
            message = f"The file has more embedding inputs than the maximum of {MAX_EMBEDDING_INPUTS}."
            raise _Invalid("too_many_inputs", message, "body.input")


def _check_custom_id(line: Mapping[str, Any], seen: _Seen) -> None:
    custom_id = _required(line, "custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS:
        message = f"The custom_id must be a string of 1 to {MAX_CUSTOM_ID_CHARS} characters."
        raise _Invalid("invalid_custom_id", message, "custom_id")
    if custom_id in seen.custom_ids:
        message = f"The custom_id '{custom_id[:64]}' is the same as that of an earlier line."
        raise _Invalid("duplicate_custom_id", message, "custom_id")
    seen.custom_ids.add(custom_id)


def _check_model(body: Mapping[str, Any], seen: _Seen) -> None:
    model = body.get("model")
    if model is None:
        raise _Invalid("missing_required_parameter", "Missing required parameter: 'body.model'.", "body.model")
    if not isinstance(model, str) or not 0 < len(model) <= 128:
        raise _Invalid("invalid_type", "Invalid type for 'body.model': expected a string.", "body.model")
    if seen.model is None:
        seen.model = model
    elif model != seen.model:
        message = f"The model '{model[:64]}' differs from that of the first line: a batch has one model."
        raise _Invalid("mismatched_model", message, "body.model")


def _required(line: Mapping[str, Any], name: str) -> Any:
    value = line.get(name)
    if value is None:
        raise _Invalid("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    return value
